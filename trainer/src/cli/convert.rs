//! `convert`: boosters fitted elsewhere (Python, Spark, Dask) to a model of the contract.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use foretoken_core::model::contract::{Target, Unit};
use foretoken_trainer::export::{Facts, export, now_ms};
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

/// Convert XGBoost boosters to a model, and prove that both predict the same bits.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer convert --ttft ttft.json --tpot tpot.json --out model.onnx\n  foretoken-trainer convert --ttft ttft.ubj --tpot tpot.ubj --unit ms --model-id mine-7 --out model.onnx\n\nA booster has all columns of the feature schema, in order, and one output (the median) or those of\nreg:quantileerror with quantile_alpha=[0.5, 0.9]. JSON and UBJSON of any XGBoost that 3.4.1 can load are read."
)]
pub(super) struct Convert {
    /// Booster of TTFT.
    #[arg(long, value_name = "FILE")]
    ttft: PathBuf,
    /// Booster of TPOT.
    #[arg(long, value_name = "FILE")]
    tpot: PathBuf,
    /// What the boosters predict.
    #[arg(long, value_enum, default_value_t = UnitArg::Ratio)]
    unit: UnitArg,
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
    pub(super) fn run(self) -> Result<()> {
        check_folder(&self.out)?;
        let xgboost = self.library.load()?;
        let (ttft, tpot) = (load(&xgboost, &self.ttft)?, load(&xgboost, &self.tpot)?);
        let unit = match self.unit {
            UnitArg::Ratio => Unit::Ratio,
            UnitArg::Ms => Unit::Ms,
        };
        let created_ms = now_ms();
        let model_id = self.model_id.unwrap_or_else(|| format!("{created_ms:x}"));
        let facts = Facts { model_id, created_ms, ..Facts::default() };
        let (onnx, parts) = export(&facts, &[(Target::Ttft, unit, &ttft), (Target::Tpot, unit, &tpot)])?;
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
