//! Models: what a file must promise, and how it is evaluated.
//!
//! (placeholder head; owner: model and trainer)

use crate::features::Row;

/// What a model file says of itself (its ONNX `metadata_props`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelCard {
    /// Unique id of the model.
    pub model_id: String,
    /// Everything else that was written, by key.
    pub properties: Vec<(String, String)>,
}

/// One row's outputs. A target the model does not have is NaN. Ratio outputs are multiplied by the prior.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Median TTFT.
    pub ttft_ms_p50: f32,
    /// 90th percentile of TTFT.
    pub ttft_ms_p90: f32,
    /// Median TPOT.
    pub tpot_ms_p50: f32,
    /// 90th percentile of TPOT.
    pub tpot_ms_p90: f32,
}

/// Why a model was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The bytes are not what the contract asks for.
    #[error("model refused: {0}")]
    Contract(String),
}

/// A model ready to predict.
#[derive(Debug)]
pub struct Model {
    card: ModelCard,
}

impl Model {
    /// Reads an ONNX file by the flavour's reader and checks it against the contract.
    ///
    /// # Errors
    /// [`ModelError`] names what is missing or wrong.
    pub fn from_onnx(_bytes: &[u8]) -> Result<Self, ModelError> {
        Err(ModelError::Contract(String::new()))
    }

    /// Reads the form that travels in the configuration: base64 of raw-deflated ONNX.
    ///
    /// # Errors
    /// [`ModelError`], as for [`Self::from_onnx`]; also when inflating would pass the size bound.
    pub fn from_packed(_packed: &str) -> Result<Self, ModelError> {
        Err(ModelError::Contract(String::new()))
    }

    /// What the file says of itself.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// Predicts all rows in one batch, into `out` (cleared first). Quantiles of one target are sorted per row.
    pub fn predict(&self, rows: &[Row], out: &mut Vec<Prediction>) {
        out.clear();
        out.resize(
            rows.len(),
            Prediction { ttft_ms_p50: f32::NAN, ttft_ms_p90: f32::NAN, tpot_ms_p50: f32::NAN, tpot_ms_p90: f32::NAN },
        );
    }
}
