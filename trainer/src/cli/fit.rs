//! `fit`: a model from files of samples, without a service.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use foretoken_trainer::dataset::{Example, example};
use foretoken_trainer::export::now_ms;
use foretoken_trainer::fit::{Scores, fit, max_total_rounds};
use foretoken_trainer::gate::judge;
use foretoken_trainer::registry::{check_folder, write_durably};
use foretoken_trainer::score::TargetScore;
use foretoken_trainer::table::files;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{FitArgs, Library};

/// Fit a model from files of samples and write it as ONNX.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer fit --samples samples.ndjson --out model.onnx\n  foretoken-trainer fit --samples data/samples/*.log --out model.onnx --json\n\nThe newest fifth of the samples is held out for the scores. The model is written only when XGBoost, the kernel\nand tract give the same bits for it."
)]
pub(super) struct Fit {
    /// Files or URLs of samples: .parquet, .csv, .log (segments of a trainer's store), else NDJSON.
    #[arg(long, value_name = "PLACE", required = true, num_args = 1..)]
    samples: Vec<String>,
    /// Where the model goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Id of the model; made from the time unless given. With it the model says that it was made when its newest sample
    /// was taken, so that the same samples give the same file.
    #[arg(long, value_name = "ID")]
    model_id: Option<String>,
    #[command(flatten)]
    fit: FitArgs,
    #[command(flatten)]
    library: Library,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Fit {
    pub(super) fn run(self) -> Result<()> {
        check_folder(&self.out)?;
        let xgboost = self.library.load()?;
        let (examples, lines, rejected) = self.read()?;
        let options = self.fit.options();
        // Hidden unless stderr is a terminal.
        let bar = ProgressBar::new(max_total_rounds(&options)).with_style(
            ProgressStyle::with_template("fitting {wide_bar} {pos} rounds")
                .unwrap_or(ProgressStyle::default_bar()),
        );
        let fitted = fit(&xgboost, &examples, None, None, &options, &mut || {
            bar.inc(1);
            true
        });
        bar.finish_and_clear();
        let mut fitted = fitted?;
        if let Some(model_id) = self.model_id {
            fitted.model_id = model_id;
            fitted.created_ms = fitted.window_ms.1;
        }
        let held_out = examples.get(fitted.holdout.clone()).unwrap_or(&[]);
        let assembled = fitted.assemble(&xgboost, &examples)?;
        let verdict = judge(&fitted.judged, None, held_out);
        write_durably(&self.out, &assembled.onnx)?;
        if self.json {
            let result = json!({
                "out": self.out,
                "model_id": fitted.model_id,
                "lines": lines,
                "rejected": rejected,
                "samples": fitted.samples,
                "rounds": fitted.rounds(),
                "scores": fitted.scores,
                "refused": verdict.refused,
                "parity": assembled.parity,
                "onnx_bytes": assembled.onnx.len(),
            });
            println!("{result}");
        } else {
            println!("{} lines, {rejected} rejected, {} samples to learn from", lines, fitted.samples);
            print_scores(&fitted.scores);
            println!(
                "XGBoost, kernel and tract agree on all bits of {} values over {} rows",
                assembled.parity.values, assembled.parity.rows
            );
            println!(
                "wrote {} ({} bytes), model {}",
                self.out.display(),
                assembled.onnx.len(),
                fitted.model_id
            );
            for line in &verdict.refused {
                println!("note: serve would not publish it: {line}");
            }
        }
        Ok(())
    }

    fn read(&self) -> Result<(Vec<Example>, usize, usize)> {
        let (mut examples, mut lines, mut rejected) = (Vec::new(), 0, 0);
        let mut first = None;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for place in &self.samples {
            let read = runtime.block_on(files::read(place, now_ms())).context("cannot read samples")?;
            lines += read.lines;
            rejected += read.rejected;
            first = first.or(read.first.map(|detail| format!("{place}: {detail}")));
            examples.extend(read.samples.iter().filter_map(|(sample, _)| example(sample)));
        }
        if let (Some(first), true) = (first, examples.is_empty()) {
            bail!("none of {lines} lines is a sample; the first: {first}");
        }
        examples.sort_by_key(|example| example.at_ms);
        Ok((examples, lines, rejected))
    }
}

fn print_scores(scores: &Scores) {
    println!("{:6} {:>8} {:>16} {:>16} {:>14}", "", "held out", "error, model", "error, prior", "p90 covers");
    let rows =
        [("TTFT", scores.model.ttft, scores.prior.ttft), ("TPOT", scores.model.tpot, scores.prior.tpot)];
    for (name, model, prior) in rows {
        let percent = |score: Option<TargetScore>, of: fn(&TargetScore) -> f64| {
            score.map_or("-".to_owned(), |score| format!("{:.1} %", 100.0 * of(&score)))
        };
        println!(
            "{name:6} {:>8} {:>16} {:>16} {:>14}",
            model.map_or(0, |score| score.n),
            percent(model, |score| score.ape_median),
            percent(prior, |score| score.ape_median),
            percent(model, |score| score.coverage_p90),
        );
    }
    println!("(error: median absolute percentage error of the median prediction)");
}
