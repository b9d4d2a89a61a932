//! `convert`: boosters fitted elsewhere (Python, Spark, Dask) to a model of the contract.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use foretoken_core::model::contract::{Output, Target, Unit};
use foretoken_trainer::convert::{Rounds, best_round};
use foretoken_trainer::export::{Facts, Names, Source, export_sources, now_ms};
use foretoken_trainer::parity;
use foretoken_trainer::registry::{check_folder, write_durably};
use foretoken_trainer::xgb::{Booster, VERSION, Xgboost};
use serde_json::json;

use super::Library;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnitArg {
    /// Ratio to the row's prior, which is a column of the row.
    Ratio,
    /// Milliseconds.
    Ms,
}

/// Which rounds of a booster that was fitted with early stopping.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoundsArg {
    /// Those up to the best one.
    Best,
    /// All that the file has.
    All,
}

/// A booster with a name for each of its outputs: `FILE=OUTPUT,OUTPUT`.
#[derive(Debug, Clone)]
struct Named {
    path: PathBuf,
    outputs: Vec<Option<Output>>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, names) = text
            .rsplit_once('=')
            .ok_or("expected FILE=OUTPUT[,OUTPUT...], for example both.json=ttft_ms_p50,tpot_ms_p50")?;
        let output = |name: &str| match name {
            "-" => Ok(None),
            name => Output::from_name(name).map(Some).ok_or_else(|| {
                let all: Vec<_> = Output::ALL.iter().map(|output| output.name()).collect();
                format!("{name:?} is no output; there are {} and - for one to leave out", all.join(", "))
            }),
        };
        let outputs = names.split(',').map(output).collect::<Result<_, _>>()?;
        Ok(Self { path: path.into(), outputs })
    }
}

/// Convert XGBoost boosters to a model, and prove that both predict the same bits.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer convert --ttft ttft.json --tpot tpot.json --out model.onnx\n  foretoken-trainer convert --ttft ttft.ubj --tpot tpot.ubj --unit ms --model-id mine-7 --out model.onnx\n  foretoken-trainer convert --booster both.json=ttft_ms_p50,tpot_ms_p50 --out model.onnx\n\nA booster's features are columns of the feature schema, by their names, or all of them in order without names.\nWith --ttft and --tpot it has one output (the median) or those of reg:quantileerror with quantile_alpha=[0.5, 0.9];\n--booster names outputs one by one. Read are JSON and UBJSON of any XGBoost that 3.4.1 can load: tree boosters, DART,\nvector leaves, splits by category; objectives of squared, absolute, quantile, pseudo-Huber and expectile error, gamma,\ntweedie, poisson, accelerated failure time. What has no exact form is refused by name."
)]
pub(super) struct Convert {
    /// Booster of TTFT.
    #[arg(long, value_name = "FILE", required_unless_present = "boosters")]
    ttft: Option<PathBuf>,
    /// Booster of TPOT.
    #[arg(long, value_name = "FILE", required_unless_present = "boosters")]
    tpot: Option<PathBuf>,
    /// What the boosters of --ttft and --tpot predict.
    #[arg(long, value_enum, default_value_t = UnitArg::Ratio)]
    unit: UnitArg,
    /// A booster with a name for each of its outputs, - for one to leave out; may be given again.
    #[arg(long = "booster", value_name = "FILE=OUTPUT,...")]
    boosters: Vec<Named>,
    /// Rounds of a booster with later ones than its best; such a booster is refused unless given.
    #[arg(long, value_enum)]
    rounds: Option<RoundsArg>,
    /// Id of the model; made from the time unless given.
    #[arg(long)]
    model_id: Option<String>,
    /// Where the model goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    library: Library,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

fn load(xgboost: &Xgboost, path: &Path) -> Result<Booster> {
    let bytes = fs::read(path).with_context(|| format!("cannot read the booster {}", path.display()))?;
    xgboost.load_booster(&bytes).with_context(|| {
        format!(
            "{} is not a model that XGBoost {VERSION} can load; give a file that save_model(\"model.json\") or save_model(\"model.ubj\") of XGBoost wrote",
            path.display()
        )
    })
}

impl Convert {
    /// The booster, cut after its best round where that is asked for.
    fn booster(&self, xgboost: &Xgboost, path: &Path) -> Result<Booster> {
        let booster = load(xgboost, path)?;
        if matches!(self.rounds, Some(RoundsArg::Best))
            && let Some(best) = best_round(&booster.to_json()?)?
        {
            let rounds = u16::try_from(best + 1).with_context(|| {
                format!("{}: {best} rounds are more than a model may have", path.display())
            })?;
            return Ok(booster.first(rounds)?);
        }
        Ok(booster)
    }

    pub(super) fn run(self) -> Result<()> {
        check_folder(&self.out)?;
        let xgboost = self.library.load()?;
        let unit = match self.unit {
            UnitArg::Ratio => Unit::Ratio,
            UnitArg::Ms => Unit::Ms,
        };
        let mut loaded = Vec::new();
        for (target, path) in [(Target::Ttft, &self.ttft), (Target::Tpot, &self.tpot)] {
            if let Some(path) = path {
                loaded.push((self.booster(&xgboost, path)?, Names::Quantiles(target, unit)));
            }
        }
        for Named { path, outputs } in &self.boosters {
            loaded.push((self.booster(&xgboost, path)?, Names::Each(outputs.clone())));
        }
        let rounds = self.rounds.map_or(Rounds::Undoubted, |_| Rounds::All);
        let sources: Vec<Source<'_>> =
            loaded.iter().map(|(booster, names)| Source { booster, names: names.clone(), rounds }).collect();
        let created_ms = now_ms();
        let model_id = self.model_id.clone().unwrap_or_else(|| format!("{created_ms:x}"));
        let facts = Facts { model_id, created_ms, ..Facts::default() };
        let (onnx, parts) = export_sources(&facts, &sources)?;
        let report = parity::prove(&onnx, &parts, &[])?;
        write_durably(&self.out, &onnx)?;
        if self.json {
            let result = json!({
                "out": self.out, "model_id": facts.model_id, "parity": report, "onnx_bytes": onnx.len(),
            });
            println!("{result}");
        } else {
            println!(
                "XGBoost, kernel and tract agree on all bits of {} values over {} rows",
                report.values, report.rows
            );
            println!("wrote {} ({} bytes), model {}", self.out.display(), onnx.len(), facts.model_id);
        }
        Ok(())
    }
}
