//! Boosters to one ONNX file of the model contract, with what there is to say of it.

use std::time::{SystemTime, UNIX_EPOCH};

use foretoken_core::features::SCHEMA_ID;
use foretoken_core::model::contract::{self, Output, Quantile, Target, Unit};
use foretoken_core::model::ensemble::Ensemble;
use foretoken_core::model::onnx::write;
use thiserror::Error;

use crate::convert::{ConvertError, Converted, convert};
use crate::xgb::{self, Booster, XgbError};

/// Why boosters cannot become a model.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The trees.
    #[error("{target}: {cause}")]
    Convert {
        /// Which booster.
        target: &'static str,
        /// Why.
        cause: ConvertError,
    },
    /// XGBoost could not save it.
    #[error(transparent)]
    Xgb(#[from] XgbError),
    /// The number of outputs and of quantiles differ.
    #[error(
        "{target}: the booster has {outputs} outputs, but the quantiles are {quantiles:?}; outputs must be the median, the 90th percentile, or both in this order"
    )]
    Outputs {
        /// Which booster.
        target: &'static str,
        /// Outputs of the booster.
        outputs: usize,
        /// Quantiles it was fitted to.
        quantiles: Vec<f32>,
    },
}

/// What the metadata says of a model.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Unique id.
    pub model_id: String,
    /// When it was made, ms since the Unix epoch.
    pub created_ms: u64,
    /// Samples it was fitted to.
    pub samples: usize,
    /// From the oldest to the newest of them.
    pub window_ms: u64,
    /// Hold-out scores; null when there are none.
    pub scores: serde_json::Value,
}

impl Facts {
    /// The properties in the form of the file.
    #[must_use]
    pub fn metadata(&self) -> Vec<(String, String)> {
        [
            (contract::KEY_SCHEMA, SCHEMA_ID.to_owned()),
            (contract::KEY_FEATURES, contract::feature_names()),
            (contract::KEY_MODEL_ID, self.model_id.clone()),
            (contract::KEY_CREATED_MS, self.created_ms.to_string()),
            (contract::KEY_SAMPLES, self.samples.to_string()),
            (contract::KEY_WINDOW_MS, self.window_ms.to_string()),
            (contract::KEY_SCORES, self.scores.to_string()),
            (contract::KEY_XGBOOST_VERSION, xgb::VERSION.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec()
    }
}

/// Milliseconds since the Unix epoch.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// One booster and the outputs that it makes, in its order.
#[derive(Debug)]
pub struct Part<'a> {
    /// The booster.
    pub booster: &'a Booster,
    /// Its outputs.
    pub outputs: Vec<Output>,
}

/// Word for a target in messages.
#[must_use]
pub fn target_name(target: Target) -> &'static str {
    match target {
        Target::Ttft => "ttft",
        Target::Tpot => "tpot",
    }
}

/// The outputs of a converted booster: by its quantiles, or a lone output as the median.
fn outputs(converted: &Converted, target: Target, unit: Unit) -> Result<Vec<Output>, ExportError> {
    let quantiles: Option<Vec<Quantile>> = match (converted.outputs.len(), converted.alphas.as_slice()) {
        (1, []) => Some(vec![Quantile::P50]),
        (count, alphas) if count == alphas.len() => alphas
            .iter()
            .map(|alpha| match alpha {
                0.5 => Some(Quantile::P50),
                0.9 => Some(Quantile::P90),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    let quantiles =
        quantiles.filter(|quantiles| quantiles.len() < 2 || quantiles == &[Quantile::P50, Quantile::P90]);
    let quantiles = quantiles.ok_or_else(|| ExportError::Outputs {
        target: target_name(target),
        outputs: converted.outputs.len(),
        quantiles: converted.alphas.clone(),
    })?;
    Ok(quantiles.into_iter().map(|quantile| Output { target, unit, quantile }).collect())
}

/// Writes the boosters as one model and says which outputs came from which.
///
/// # Errors
/// [`ExportError`] names the booster and what it has.
pub fn export<'a>(
    facts: &Facts,
    boosters: &[(Target, Unit, &'a Booster)],
) -> Result<(Vec<u8>, Vec<Part<'a>>), ExportError> {
    let mut ensembles: Vec<(Output, Ensemble)> = Vec::new();
    let mut parts = Vec::new();
    for &(target, unit, booster) in boosters {
        let converted = convert(&booster.to_json()?)
            .map_err(|cause| ExportError::Convert { target: target_name(target), cause })?;
        let outputs = outputs(&converted, target, unit)?;
        ensembles.extend(outputs.iter().copied().zip(converted.outputs));
        parts.push(Part { booster, outputs });
    }
    let trees: Vec<(Output, &Ensemble)> = ensembles.iter().map(|(output, trees)| (*output, trees)).collect();
    Ok((write::write(&facts.metadata(), &trees), parts))
}
