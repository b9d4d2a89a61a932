//! Boosters to one ONNX file of the model contract, with what there is to say of it.

use std::time::{SystemTime, UNIX_EPOCH};

use foretoken_core::features::SCHEMA_ID;
use foretoken_core::model::contract::{self, Output, Quantile, Target, Unit};
use foretoken_core::model::ensemble::Ensemble;
use foretoken_core::model::onnx::write;
use thiserror::Error;

use crate::convert::{ConvertError, Converted, Rounds, convert};
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
    /// Names that do not fit the booster or the contract.
    #[error("{0}")]
    Names(String),
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

/// How a booster's outputs are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// By the quantiles that it was fitted to; a lone output without one is the median.
    Quantiles(Target, Unit),
    /// One by one; `None` leaves an output out.
    Each(Vec<Option<Output>>),
}

/// A booster to become a model, or a part of one.
#[derive(Debug)]
pub struct Source<'a> {
    /// The booster.
    pub booster: &'a Booster,
    /// What its outputs are.
    pub names: Names,
    /// Which rounds count.
    pub rounds: Rounds,
}

/// One booster and the outputs that it makes, in its order.
#[derive(Debug)]
pub struct Part<'a> {
    /// The booster.
    pub booster: &'a Booster,
    /// Its outputs.
    pub outputs: Vec<Output>,
    /// Which of the booster's predictions each output is.
    pub places: Vec<usize>,
    /// Column of the row for each feature of the booster.
    pub columns: Vec<usize>,
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

/// The outputs that were named, where in the booster's prediction each is.
fn named(converted: &Converted, names: &[Option<Output>]) -> Result<Vec<(usize, Output)>, ExportError> {
    if names.len() != converted.outputs.len() {
        return Err(ExportError::Names(format!(
            "the booster has {} outputs, {} are named; name each, or give `-` for one to leave out",
            converted.outputs.len(),
            names.len()
        )));
    }
    let kept: Vec<(usize, Output)> =
        names.iter().enumerate().filter_map(|(place, name)| name.map(|name| (place, name))).collect();
    // XGBoost sorts the quantiles of a row among themselves; so does the kernel, those of one target.
    let ascending = |pair: &[(usize, Output)]| {
        matches!(pair, [(_, low), (_, high)]
            if low.target == high.target && (low.quantile, high.quantile) == (Quantile::P50, Quantile::P90))
    };
    if converted.alphas.len() > 1 && (kept.len() != names.len() || !kept.windows(2).all(ascending)) {
        return Err(ExportError::Names(format!(
            "a booster of the quantiles {:?} predicts them sorted, so they must be the p50 and the p90 of one target, in this order; fit it with quantile_alpha=[0.5, 0.9]",
            converted.alphas
        )));
    }
    Ok(kept)
}

/// Writes the boosters as one model and says which outputs came from which.
///
/// # Errors
/// [`ExportError`] names the booster and what it has.
pub fn export<'a>(
    facts: &Facts,
    boosters: &[(Target, Unit, &'a Booster)],
) -> Result<(Vec<u8>, Vec<Part<'a>>), ExportError> {
    let source = |&(target, unit, booster)| Source {
        booster,
        names: Names::Quantiles(target, unit),
        rounds: Rounds::Undoubted,
    };
    export_sources(facts, &boosters.iter().map(source).collect::<Vec<_>>())
}

/// The same for boosters whose outputs have names of their own.
///
/// # Errors
/// [`ExportError`] names the booster and what it has, or the output that is missing.
pub fn export_sources<'a>(
    facts: &Facts,
    sources: &[Source<'a>],
) -> Result<(Vec<u8>, Vec<Part<'a>>), ExportError> {
    let mut ensembles: Vec<(Output, Ensemble)> = Vec::new();
    let mut parts = Vec::new();
    for Source { booster, names, rounds } in sources {
        let target = match names {
            Names::Quantiles(target, _) => target_name(*target),
            Names::Each(_) => "booster",
        };
        let converted =
            convert(&booster.to_json()?, *rounds).map_err(|cause| ExportError::Convert { target, cause })?;
        let kept = match names {
            Names::Quantiles(target, unit) => {
                outputs(&converted, *target, *unit)?.into_iter().enumerate().collect()
            }
            Names::Each(names) => named(&converted, names)?,
        };
        for (place, output) in &kept {
            ensembles.extend(converted.outputs.get(*place).map(|trees| (*output, trees.clone())));
        }
        let (places, outputs) = kept.into_iter().unzip();
        parts.push(Part { booster, outputs, places, columns: converted.columns });
    }
    contract::outputs(ensembles.iter().map(|(output, _)| output.name()))
        .map_err(|error| ExportError::Names(error.to_string()))?;
    let trees: Vec<(Output, &Ensemble)> = ensembles.iter().map(|(output, trees)| (*output, trees)).collect();
    Ok((write::write(&facts.metadata(), &trees), parts))
}
