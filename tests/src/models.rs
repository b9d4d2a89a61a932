//! Models made by hand, whose predictions a test knows beforehand.
//!
//! They are real model files in the contract's form, written by core's own writer. What no training could
//! give: a model that prefers the pod that every sensible rule would avoid, and so proves that it routes.

use anyhow::Result;
use foretoken_core::features::{COUNT, Feature, SCHEMA_ID};
use foretoken_core::model::contract::{self, Output};
use foretoken_core::model::ensemble::{Ensemble, Node};
use foretoken_core::model::{onnx, packed};
use serde_json::{Value, json};

/// A model that predicts by one column alone.
#[derive(Debug, Clone)]
pub struct Switch {
    /// Its id.
    pub model_id: String,
    /// The column.
    pub feature: Feature,
    /// The value that divides the pods.
    pub threshold: f32,
    /// TTFT predicted for pods below the threshold, ms.
    pub below_ttft_ms: f32,
    /// TTFT predicted for the others, ms.
    pub above_ttft_ms: f32,
    /// TPOT predicted for all, ms.
    pub tpot_ms: f32,
}

impl Switch {
    /// The model as an ONNX file.
    ///
    /// # Errors
    /// When a value is not finite.
    pub fn onnx(&self) -> Result<Vec<u8>> {
        self.onnx_for_schema(SCHEMA_ID)
    }

    /// The same, saying that it is for another feature schema.
    ///
    /// # Errors
    /// When a value is not finite.
    pub fn onnx_for_schema(&self, schema: &str) -> Result<Vec<u8>> {
        let mut ttft = Ensemble::new(COUNT);
        ttft.push(&[
            Node::Branch {
                feature: u32::try_from(self.feature as usize)?,
                threshold: self.threshold,
                yes: 1,
                no: 2,
                missing_yes: true,
            },
            Node::Leaf { value: self.below_ttft_ms },
            Node::Leaf { value: self.above_ttft_ms },
        ])?;
        let mut tpot = Ensemble::new(COUNT);
        tpot.push_constant(self.tpot_ms)?;
        let metadata = [
            (contract::KEY_SCHEMA, schema.to_owned()),
            (contract::KEY_FEATURES, contract::feature_names()),
            (contract::KEY_MODEL_ID, self.model_id.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        let outputs: Vec<(Output, &Ensemble)> = Output::ALL
            .into_iter()
            .filter(|output| output.unit == contract::Unit::Ms)
            .map(|output| (output, if output.target == contract::Target::Ttft { &ttft } else { &tpot }))
            .collect();
        Ok(onnx::write::write(&metadata, &outputs))
    }
}

/// The filter's settings with this model in them, as the trainer would publish them.
#[must_use]
pub fn with_model(filter: &Value, generation: u64, onnx: &[u8]) -> Value {
    let mut filter = filter.clone();
    filter["model"] = json!({"generation": generation, "onnx_deflate_base64": packed::pack(onnx)});
    filter
}
