//! `eval`: how good a model is on samples, as a table and as plots.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use foretoken_core::features::Row;
use foretoken_core::model::contract::Target;
use foretoken_core::model::{Model, Prediction};
use foretoken_trainer::dataset::{Example, Outcome, example};
use foretoken_trainer::export::now_ms;
use foretoken_trainer::plot;
use foretoken_trainer::registry::write_durably;
use foretoken_trainer::score::{Score, TargetScore, score, score_prior};
use foretoken_trainer::store::training::{LOAD_NAMES, Stratum};
use foretoken_trainer::table::files;
use serde_json::json;

/// Measure a model on samples, overall and by load, beside the formula that it corrects.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer eval model.onnx --samples later.ndjson\n  foretoken-trainer eval model.onnx --samples later.parquet --plots plots/ --json\n\nGive samples that the model has not learned from, or it will look better than it is. --plots writes, for TTFT and\nTPOT, predicted against actual, error by load and coverage of the 90th percentile as SVG."
)]
pub(super) struct Eval {
    /// The ONNX file.
    model: PathBuf,
    /// Files or URLs of samples: .parquet, .csv, .log (segments of a trainer's store), else NDJSON.
    #[arg(long, value_name = "PLACE", required = true, num_args = 1..)]
    samples: Vec<String>,
    /// Folder for the plots; it is made if need be.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Errors of one class of load.
struct Class {
    name: &'static str,
    model: Score,
    prior: Score,
}

impl Eval {
    pub(super) fn run(self) -> Result<()> {
        let bytes = fs::read(&self.model).with_context(|| format!("cannot read {}", self.model.display()))?;
        let model = Model::from_onnx_tract(&bytes).with_context(|| self.model.display().to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut examples: Vec<Example> = Vec::new();
        for place in &self.samples {
            let read = runtime.block_on(files::read(place, now_ms())).context("cannot read samples")?;
            examples.extend(read.samples.iter().filter_map(|(sample, _)| example(sample)));
        }
        if examples.is_empty() {
            bail!("no clean sample of this build's feature schema in what was read");
        }
        let predictions = predict(&model, &examples);
        let classes: Vec<Class> = (0..)
            .zip(LOAD_NAMES)
            .filter_map(|(load, name)| {
                let of = |example: &Example| Stratum::of(&example.row).load == load;
                let members: Vec<Example> = examples.iter().filter(|e| of(e)).cloned().collect();
                let model = score(&members, &predict(&model, &members));
                (!members.is_empty()).then(|| Class { name, model, prior: score_prior(&members) })
            })
            .collect();
        let all = Class { name: "all", model: score(&examples, &predictions), prior: score_prior(&examples) };
        if let Some(dir) = &self.plots {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            write_plots(dir, &examples, &predictions, &classes)?;
        }
        if self.json {
            let by_load: serde_json::Map<String, serde_json::Value> = classes
                .iter()
                .map(|class| (class.name.to_owned(), json!({"model": class.model, "prior": class.prior})))
                .collect();
            println!(
                "{}",
                json!({"model_id": model.card().model_id, "samples": examples.len(), "model": all.model, "prior": all.prior, "by_load": by_load})
            );
            return Ok(());
        }
        println!("model {} on {} samples", model.card().model_id, examples.len());
        println!(
            "{:6} {:8} {:>8} {:>14} {:>14} {:>14} {:>12}",
            "", "load", "samples", "error, model", "error, prior", "pinball p90", "p90 covers"
        );
        for (target, name) in [(Target::Ttft, "TTFT"), (Target::Tpot, "TPOT")] {
            for class in std::iter::once(&all).chain(&classes) {
                let Some(model) = of(&class.model, target) else { continue };
                let prior = of(&class.prior, target).map_or(f64::NAN, |prior| prior.ape_median);
                println!(
                    "{name:6} {:8} {:>8} {:>12.1} % {:>12.1} % {:>14.4} {:>10.1} %",
                    class.name,
                    model.n,
                    100.0 * model.ape_median,
                    100.0 * prior,
                    model.pinball_p90,
                    100.0 * model.coverage_p90
                );
            }
        }
        println!("(error: median absolute percentage error; pinball: of the ratio to the prior)");
        Ok(())
    }
}

fn predict(model: &Model, examples: &[Example]) -> Vec<Prediction> {
    let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
    let mut out = Vec::new();
    model.predict(&rows, &mut out);
    out
}

fn of(score: &Score, target: Target) -> Option<TargetScore> {
    match target {
        Target::Ttft => score.ttft,
        Target::Tpot => score.tpot,
    }
}

fn write_plots(
    dir: &Path,
    examples: &[Example],
    predictions: &[Prediction],
    classes: &[Class],
) -> Result<()> {
    type Pick = (fn(&Example) -> Option<Outcome>, fn(&Prediction) -> f32);
    let targets: [(Target, &str, Pick); 2] = [
        (Target::Ttft, "ttft", (|example| example.ttft, |prediction| prediction.ttft_ms_p50)),
        (Target::Tpot, "tpot", (|example| example.tpot, |prediction| prediction.tpot_ms_p50)),
    ];
    for (target, name, (outcome, predicted)) in targets {
        let title = name.to_uppercase();
        let pairs: Vec<(f32, f32)> = examples
            .iter()
            .zip(predictions)
            .filter_map(|(example, prediction)| Some((predicted(prediction), outcome(example)?.actual_ms)))
            .collect();
        let by_load = |value: fn(TargetScore) -> f64| -> Vec<(String, f64)> {
            classes
                .iter()
                .filter_map(|class| Some((class.name.to_owned(), value(of(&class.model, target)?))))
                .collect()
        };
        let plots = [
            ("predicted", plot::scatter(&format!("{title}: predicted against actual"), &pairs)),
            (
                "error",
                plot::bars(
                    &format!("{title}: median error by load"),
                    "median absolute percentage error",
                    &by_load(|score| score.ape_median),
                    None,
                ),
            ),
            (
                "coverage",
                plot::bars(
                    &format!("{title}: coverage of the 90th percentile by load"),
                    "share at or below it",
                    &by_load(|score| score.coverage_p90),
                    Some(0.9),
                ),
            ),
        ];
        for (kind, svg) in plots {
            write_durably(&dir.join(format!("{name}-{kind}.svg")), svg.as_bytes())?;
        }
    }
    Ok(())
}
