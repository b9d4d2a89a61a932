//! `inspect`: what a model file says of itself and what it costs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use foretoken_core::model::contract::Output;
use foretoken_core::model::{Model, onnx, packed};
use serde_json::{Value, json};

/// Print what a model file holds, and whether each flavour of the filter would take it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer inspect model.onnx\n  foretoken-trainer inspect model.onnx --json"
)]
pub(super) struct Inspect {
    /// The ONNX file.
    model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(super) fn run(self) -> Result<()> {
        let bytes = fs::read(&self.model).with_context(|| format!("cannot read {}", self.model.display()))?;
        // The tract flavour takes whatever the lean one takes, and more.
        let model = Model::from_onnx_tract(&bytes).with_context(|| self.model.display().to_string())?;
        let lean = onnx::read(&bytes);
        let properties: serde_json::Map<String, Value> = model
            .card()
            .properties
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
            .collect();
        let outputs: Vec<Value> = match &lean {
            Ok((_, ensembles)) => ensembles
                .iter()
                .map(|(output, trees)| {
                    json!({
                        "name": output.name(),
                        "trees": trees.tree_count(),
                        "nodes": trees.node_count(),
                        "max_depth": trees.max_depth(),
                    })
                })
                .collect(),
            Err(_) => model.outputs().iter().map(|output: &Output| json!({"name": output.name()})).collect(),
        };
        let refused = lean.err().map(|error| error.to_string());
        if self.json {
            let result = json!({
                "model_id": model.card().model_id,
                "properties": properties,
                "outputs": outputs,
                "onnx_bytes": bytes.len(),
                "packed_bytes": packed::pack(&bytes).len(),
                "default_filter": refused.is_none(),
                "default_filter_refuses": refused,
            });
            println!("{result}");
            return Ok(());
        }
        println!("model {}", model.card().model_id);
        println!("{} bytes, {} as it travels", bytes.len(), packed::pack(&bytes).len());
        match refused {
            None => println!("runs in both flavours of the filter"),
            Some(why) => println!("runs in the tract flavour only; the default filter says: {why}"),
        }
        println!("\n{:16} {:>6} {:>8} {:>6}", "output", "trees", "nodes", "depth");
        for output in &outputs {
            let cell = |key: &str| output[key].as_u64().map_or("-".to_owned(), |value| value.to_string());
            let name = output["name"].as_str().unwrap_or_default();
            println!("{name:16} {:>6} {:>8} {:>6}", cell("trees"), cell("nodes"), cell("max_depth"));
        }
        println!();
        for (key, value) in &model.card().properties {
            println!("{key} = {value}");
        }
        Ok(())
    }
}
