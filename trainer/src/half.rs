//! Half a model: the booster of one target, with the correction of its 90th percentile.
//!
//! A model is two halves, TTFT and TPOT, that know nothing of each other: each is fitted, judged and kept for
//! itself, so that a better TTFT is published even when the new TPOT is not. The booster is kept as it was
//! fitted, to be continued; what is served has the correction in its base score, where it costs nothing at
//! prediction and where XGBoost, the kernel and tract see the same float.

use foretoken_core::features::{COLUMNS, Row};
use foretoken_core::model::Model;
use foretoken_core::model::contract::{Target, Unit};
use serde::{Deserialize, Serialize};

use crate::convert::finite_thresholds;
use crate::export::{self, Facts};
use crate::fit::FitError;
use crate::parity::{self, ParityReport};
use crate::xgb::{Booster, XgbError, Xgboost};

/// Most hold-out rows that the parity proof takes besides its edge rows: it walks them five times.
const PARITY_ROWS: usize = 4096;

/// How a half was fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// From nothing.
    Full,
    /// On top of the one that was live.
    Continued,
}

/// What a card says of a half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HalfCard {
    /// Id of the model that it was first published with.
    pub model_id: String,
    /// How it was fitted.
    pub how: How,
    /// Rounds of boosting.
    pub rounds: u16,
    /// Added to the predicted ratio of the 90th percentile, so that it covers 90 %.
    pub p90_shift: f32,
    /// Share of the loss that splits by each column took away, greatest first; columns without any left out.
    pub importances: Vec<(String, f32)>,
}

/// A booster of one target.
#[derive(Debug)]
pub struct Half {
    /// As fitted, without the correction.
    pub booster: Booster,
    /// What there is to say of it.
    pub card: HalfCard,
}

impl Half {
    /// The booster with the correction.
    ///
    /// # Errors
    /// [`XgbError`] when XGBoost cannot read its own file.
    pub fn served(&self, xgboost: &Xgboost) -> Result<Booster, XgbError> {
        shifted(xgboost, &self.booster, self.card.p90_shift)
    }
}

/// A copy whose second output is `shift` higher: the second base score is.
///
/// # Errors
/// [`XgbError`] when the booster has not two outputs, or XGBoost cannot read its own file.
pub fn shifted(xgboost: &Xgboost, booster: &Booster, shift: f32) -> Result<Booster, XgbError> {
    let json = booster.to_json()?;
    // The text is changed, not a parsed tree: every other number stays as XGBoost wrote it.
    let text = String::from_utf8_lossy(&json);
    let changed = shift_text(&text, shift)
        .ok_or_else(|| XgbError::Argument("the booster's JSON has no two base scores".to_owned()))?;
    xgboost.load_booster(changed.as_bytes())
}

/// Adds to the second number of `"base_score":"[a,b]"`.
fn shift_text(json: &str, shift: f32) -> Option<String> {
    let key = "\"base_score\":\"[";
    let start = json.find(key)? + key.len();
    let end = start + json.get(start..)?.find(']')?;
    let (first, second) = json.get(start..end)?.split_once(',')?;
    let second: f32 = second.parse().ok()?;
    Some(format!("{}{first},{:E}{}", json.get(..start)?, second + shift, json.get(end..)?))
}

/// The share of the loss that splits by each column took away, from the booster's own file.
///
/// # Errors
/// [`XgbError`] with what XGBoost said.
pub fn importances(booster: &Booster) -> Result<Vec<(String, f32)>, XgbError> {
    #[derive(Deserialize)]
    struct Tree {
        loss_changes: Vec<f64>,
        split_indices: Vec<usize>,
        left_children: Vec<i64>,
    }
    let json: serde_json::Value = serde_json::from_slice(&finite_thresholds(&booster.to_json()?))
        .map_err(|error| XgbError::Argument(format!("XGBoost's JSON: {error}")))?;
    let trees = json.pointer("/learner/gradient_booster/model/trees").cloned().unwrap_or_default();
    let trees: Vec<Tree> = serde_json::from_value(trees)
        .map_err(|error| XgbError::Argument(format!("XGBoost's JSON has other trees: {error}")))?;
    let mut gains = vec![0.0; COLUMNS.len()];
    for tree in &trees {
        let nodes = tree.loss_changes.iter().zip(&tree.split_indices).zip(&tree.left_children);
        for ((gain, column), _) in nodes.filter(|(_, left)| **left >= 0) {
            if let Some(sum) = gains.get_mut(*column) {
                *sum += gain.max(0.0);
            }
        }
    }
    let total: f64 = gains.iter().sum();
    let mut shares: Vec<(String, f32)> = COLUMNS
        .iter()
        .zip(gains)
        .filter(|(_, gain)| *gain > 0.0)
        .map(|(column, gain)| (column.name.to_owned(), (gain / total) as f32))
        .collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(shares)
}

/// Both halves, TTFT first.
#[derive(Debug)]
pub struct Halves {
    /// TTFT.
    pub ttft: Half,
    /// TPOT.
    pub tpot: Half,
}

/// A model file made of two halves, proven.
#[derive(Debug)]
pub struct Assembled {
    /// The ONNX file.
    pub onnx: Vec<u8>,
    /// What the proof compared.
    pub parity: ParityReport,
}

/// Writes two halves as one model and proves on the newest of `rows` and on edge rows that it is them.
///
/// # Errors
/// [`FitError`] says what differs.
pub fn assemble(
    xgboost: &Xgboost,
    facts: &Facts,
    ttft: &Half,
    tpot: &Half,
    rows: &[Row],
) -> Result<Assembled, FitError> {
    let (ttft, tpot) = (ttft.served(xgboost)?, tpot.served(xgboost)?);
    let boosters = [(Target::Ttft, Unit::Ratio, &ttft), (Target::Tpot, Unit::Ratio, &tpot)];
    let (onnx, parts) = export::export(facts, &boosters)?;
    let newest = rows.get(rows.len().saturating_sub(PARITY_ROWS)..).unwrap_or(rows);
    let parity = parity::prove(&onnx, &parts, newest).map_err(FitError::Parity)?;
    Ok(Assembled { onnx, parity })
}

/// A model of two boosters, to be asked for predictions only.
///
/// # Errors
/// [`FitError`] when it cannot be written or read.
pub fn model_of(ttft: &Booster, tpot: &Booster) -> Result<Model, FitError> {
    let boosters = [(Target::Ttft, Unit::Ratio, ttft), (Target::Tpot, Unit::Ratio, tpot)];
    let facts = Facts { model_id: "judged".to_owned(), ..Facts::default() };
    Ok(Model::from_onnx_lean(&export::export(&facts, &boosters)?.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xgb;

    #[test]
    fn only_the_second_base_score_changes() {
        let json = r#"{"learner":{"learner_model_param":{"base_score":"[1.5E0,3.25E0]","x":"1"}}}"#;
        let expected = r#"{"learner":{"learner_model_param":{"base_score":"[1.5E0,3E0]","x":"1"}}}"#;
        assert_eq!(shift_text(json, -0.25).unwrap(), expected);
        assert_eq!(shift_text(r#"{"base_score":"[1.5E0]"}"#, 1.0), None);
    }

    #[test]
    fn a_shifted_booster_predicts_exactly_that_much_more_at_the_90th_percentile() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let rows: Vec<f32> = (0u16..400).flat_map(|i| [f32::from(i % 20), f32::from(i % 7)]).collect();
        let labels: Vec<f32> = (0u16..400).map(|i| f32::from(i % 20) + f32::from(i % 13)).collect();
        let matrix = xgboost.matrix(&rows, 2).unwrap();
        matrix.set_labels(&labels).unwrap();
        let parameters =
            [("objective", "reg:quantileerror"), ("quantile_alpha", "[0.5,0.9]"), ("nthread", "1")];
        let booster = xgboost.booster(&matrix, parameters).unwrap();
        for round in 0..5 {
            booster.update(round, &matrix).unwrap();
        }
        let raised = shifted(&xgboost, &booster, 8.0).unwrap();
        let (before, after) = (booster.predict(&rows, 2).unwrap(), raised.predict(&rows, 2).unwrap());
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before[0], after[0]);
            assert!((after[1] - before[1] - 8.0).abs() < 1e-5, "{before:?} {after:?}");
        }
        let shares = importances(&booster).unwrap();
        assert!((shares.iter().map(|(_, share)| share).sum::<f32>() - 1.0).abs() < 1e-4);
        assert_eq!(shares[0].0, COLUMNS[0].name);
    }
}
