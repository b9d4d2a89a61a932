//! Clean samples to a proven model: XGBoost fits of both targets, an ONNX file, hold-out scores, the parity proof.
//!
//! The examples are cut by time, never at random: what counts is how a model does on requests later than
//! those it learned from. The newest are held out for scores and for the gate, a fifth of those before stop
//! the fit early, the rest teaches. With the rounds found, the model to be judged is fitted on all but the
//! hold-out, and the one to be published on everything, because the newest samples are the ones worth most.
//! So the live model, fitted in the same way on all that there was then, is judged against one that knows as
//! much as it did.

use std::ops::Range;

use foretoken_core::features::{COUNT, Row};
use foretoken_core::model::contract::{Target, Unit};
use foretoken_core::model::{Model, ModelError};
use rand::Rng;
use serde::Serialize;
use thiserror::Error;

use crate::dataset::{Example, Outcome, recency_weight};
use crate::export::{self, ExportError, Facts, target_name};
use crate::parity::{self, ParityError, ParityReport};
use crate::score::{Score, score, score_prior};
use crate::xgb::{Booster, Matrix, XgbError, Xgboost};

/// Fewest examples in the hold-out, if there are five times as many in all.
pub const MIN_HOLDOUT: usize = 40;

/// Fewest examples of each target from which anything is fitted.
pub const MIN_EXAMPLES: usize = 50;

/// Most hold-out rows that the parity proof takes besides its edge rows: it walks them five times.
const PARITY_ROWS: usize = 4096;

/// How to fit.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Most rounds; each adds one tree per quantile.
    pub max_rounds: u16,
    /// The fit stops when the metric has not improved for as many rounds.
    pub patience: u16,
    /// Deepest tree. The kernel's flat layout goes to 10.
    pub max_depth: u8,
    /// Learning rate.
    pub eta: f32,
    /// Threads of XGBoost.
    pub threads: u16,
}

impl Default for FitOptions {
    fn default() -> Self {
        // Against depth 6 and eta 0.12: half the time, a third of the bytes, no worse on held-out samples.
        Self { max_rounds: 100, patience: 12, max_depth: 5, eta: 0.2, threads: 1 }
    }
}

/// Why nothing was fitted.
#[derive(Debug, Error)]
pub enum FitError {
    /// Too few samples of a target.
    #[error("{found} samples with a usable {target}, at least {MIN_EXAMPLES} are needed")]
    TooFew {
        /// Which target.
        target: &'static str,
        /// How many there are.
        found: usize,
    },
    /// XGBoost.
    #[error(transparent)]
    Xgb(#[from] XgbError),
    /// Writing the ONNX file.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The model was fitted but is not the same everywhere.
    #[error("parity: {0}")]
    Parity(ParityError),
    /// The model was fitted but the readers refuse it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// A fitted, proven model and how good it is.
#[derive(Debug)]
pub struct Fitted {
    /// The ONNX file.
    pub onnx: Vec<u8>,
    /// Id in its metadata.
    pub model_id: String,
    /// Examples it learned from.
    pub samples: usize,
    /// Newest of them, ms since the Unix epoch.
    pub trained_through_ms: u64,
    /// Its scores.
    pub scores: Scores,
    /// Rounds per target.
    pub rounds: Rounds,
    /// What the proof compared.
    pub parity: ParityReport,
    /// The fit that has not seen the hold-out: what the gate judges.
    pub judged: Model,
    /// Where the hold-out is in the examples.
    pub holdout: Range<usize>,
}

/// Scores on the hold-out.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Scores {
    /// Of the fit.
    pub model: Score,
    /// Of the analytic prior.
    pub prior: Score,
}

/// Rounds that were kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rounds {
    /// TTFT booster.
    pub ttft: u16,
    /// TPOT booster.
    pub tpot: u16,
}

/// Told after every round; `false` stops the fit.
pub type Progress<'a> = dyn FnMut() -> bool + 'a;

/// Rounds that a whole fit runs at most, for a progress bar.
#[must_use]
pub fn max_total_rounds(options: &FitOptions) -> u64 {
    6 * u64::from(options.max_rounds)
}

/// How many of the newest examples are held out: those that the live model has not seen either, at least
/// [`MIN_HOLDOUT`], at most a fifth.
#[must_use]
pub fn holdout_size(examples: &[Example], live_through_ms: Option<u64>) -> usize {
    let fifth = examples.len() / 5;
    let unseen = live_through_ms
        .map_or(fifth, |through_ms| examples.iter().filter(|example| example.at_ms > through_ms).count());
    unseen.clamp(MIN_HOLDOUT.min(fifth), fifth)
}

/// Fits both targets on examples in order of time; `live_through_ms` is the newest sample that the live model
/// has learned from, if there is one.
///
/// # Errors
/// [`FitError`] says what is missing or differs.
pub fn fit(
    xgboost: &Xgboost,
    examples: &[Example],
    live_through_ms: Option<u64>,
    options: &FitOptions,
    progress: &mut Progress<'_>,
) -> Result<Fitted, FitError> {
    for (target, of) in TARGETS {
        let found = examples.iter().filter(|example| of(example).is_some()).count();
        if found < MIN_EXAMPLES {
            return Err(FitError::TooFew { target: target_name(target), found });
        }
    }
    let holdout = examples.len() - holdout_size(examples, live_through_ms)..examples.len();
    let (known, held_out) = examples.split_at(holdout.start);
    let (teaching, stopping) = known.split_at(known.len() - known.len() / 5);

    let rounds_of = |of: Of, progress: &mut Progress<'_>| {
        let (teaching, stopping) = (Matrix::of(xgboost, teaching, of)?, Matrix::of(xgboost, stopping, of)?);
        best_rounds(xgboost, &teaching, &stopping, options, progress)
    };
    let [(_, ttft), (_, tpot)] = TARGETS;
    let rounds = Rounds { ttft: rounds_of(ttft, progress)?, tpot: rounds_of(tpot, progress)? };
    let mut fit_both = |examples: &[Example]| -> Result<(Booster, Booster), FitError> {
        Ok((
            fit_rounds(xgboost, &Matrix::of(xgboost, examples, ttft)?, rounds.ttft, options, progress)?,
            fit_rounds(xgboost, &Matrix::of(xgboost, examples, tpot)?, rounds.tpot, options, progress)?,
        ))
    };
    let (judged_ttft, judged_tpot) = fit_both(known)?;
    let (final_ttft, final_tpot) = fit_both(examples)?;

    let window =
        (examples.first().map_or(0, |first| first.at_ms), examples.last().map_or(0, |last| last.at_ms));
    let created_ms = export::now_ms();
    let mut facts = Facts {
        model_id: format!("{created_ms:x}-{:04x}", rand::rng().random::<u16>()),
        created_ms,
        samples: examples.len(),
        window_ms: window.1.saturating_sub(window.0),
        scores: serde_json::Value::Null,
    };
    let parts = [(Target::Ttft, Unit::Ratio, &judged_ttft), (Target::Tpot, Unit::Ratio, &judged_tpot)];
    let judged = Model::from_onnx_lean(&export::export(&facts, &parts)?.0)?;
    let scores = Scores { model: score_model(&judged, held_out), prior: score_prior(held_out) };
    facts.scores = serde_json::to_value(scores).unwrap_or_default();
    let boosters = [(Target::Ttft, Unit::Ratio, &final_ttft), (Target::Tpot, Unit::Ratio, &final_tpot)];
    let (onnx, parts) = export::export(&facts, &boosters)?;
    let newest = examples.iter().rev().take(PARITY_ROWS).map(|example| example.row).collect::<Vec<Row>>();
    let parity = parity::prove(&onnx, &parts, &newest).map_err(FitError::Parity)?;
    Ok(Fitted {
        onnx,
        model_id: facts.model_id,
        samples: examples.len(),
        trained_through_ms: window.1,
        scores,
        rounds,
        parity,
        judged,
        holdout,
    })
}

/// Scores a model on examples.
#[must_use]
pub fn score_model(model: &Model, examples: &[Example]) -> Score {
    let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
    let mut predictions = Vec::new();
    model.predict(&rows, &mut predictions);
    score(examples, &predictions)
}

type Of = fn(&Example) -> Option<Outcome>;

const TARGETS: [(Target, Of); 2] =
    [(Target::Ttft, |example| example.ttft), (Target::Tpot, |example| example.tpot)];

impl Matrix {
    /// The examples that have the target, weighted by recency and trust.
    fn of(xgboost: &Xgboost, examples: &[Example], of: Of) -> Result<Self, XgbError> {
        let (mut rows, mut labels, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for (index, example) in examples.iter().enumerate() {
            if let Some(outcome) = of(example) {
                rows.extend_from_slice(&example.row.0);
                labels.push(outcome.ratio());
                weights.push(outcome.weight * recency_weight(index, examples.len()));
            }
        }
        let matrix = xgboost.matrix(&rows, COUNT)?;
        matrix.set_labels(&labels)?;
        matrix.set_weights(&weights)?;
        Ok(matrix)
    }
}

fn booster(xgboost: &Xgboost, matrix: &Matrix, options: &FitOptions) -> Result<Booster, XgbError> {
    let (threads, depth, eta) =
        (options.threads.to_string(), options.max_depth.to_string(), options.eta.to_string());
    let parameters = [
        ("objective", "reg:quantileerror"),
        ("quantile_alpha", "[0.5,0.9]"),
        ("tree_method", "hist"),
        // Rows of one kind of load are many; 64 bins lose nothing that noise leaves.
        ("max_bin", "64"),
        ("nthread", threads.as_str()),
        ("max_depth", depth.as_str()),
        ("eta", eta.as_str()),
        ("subsample", "0.8"),
        ("colsample_bytree", "0.8"),
        ("min_child_weight", "4"),
        // The same samples give the same model.
        ("seed", "1"),
    ];
    xgboost.booster(matrix, parameters)
}

/// Fits until the stopping rows no longer improve, and says after how many rounds they were best.
fn best_rounds(
    xgboost: &Xgboost,
    teaching: &Matrix,
    stopping: &Matrix,
    options: &FitOptions,
    progress: &mut Progress<'_>,
) -> Result<u16, FitError> {
    let booster = booster(xgboost, teaching, options)?;
    let (mut best, mut best_rounds) = (f64::INFINITY, 0);
    for round in 0..options.max_rounds {
        booster.update(round, teaching)?;
        if !progress() {
            return Err(FitError::Stopped);
        }
        let metric = booster.eval(round, stopping)?;
        if metric < best {
            (best, best_rounds) = (metric, round + 1);
        } else if round + 1 >= best_rounds + options.patience {
            break;
        }
    }
    Ok(best_rounds.max(1))
}

fn fit_rounds(
    xgboost: &Xgboost,
    matrix: &Matrix,
    rounds: u16,
    options: &FitOptions,
    progress: &mut Progress<'_>,
) -> Result<Booster, FitError> {
    let booster = booster(xgboost, matrix, options)?;
    for round in 0..rounds {
        booster.update(round, matrix)?;
        if !progress() {
            return Err(FitError::Stopped);
        }
    }
    Ok(booster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::example;
    use crate::{synthetic, xgb};
    use foretoken_core::model::contract;

    fn examples(seed: u64, count: usize) -> Vec<Example> {
        synthetic::samples(seed, count).iter().filter_map(example).collect()
    }

    #[test]
    fn a_fit_halves_the_priors_error_is_proven_and_says_so_in_its_metadata() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let examples = examples(3, 3000);
        let mut rounds = 0u64;
        let options = FitOptions::default();
        let fitted = fit(&xgboost, &examples, None, &options, &mut || {
            rounds += 1;
            true
        })
        .unwrap();
        assert!(rounds <= max_total_rounds(&options));
        let (model, prior) = (fitted.scores.model.ttft.unwrap(), fitted.scores.prior.ttft.unwrap());
        assert!(model.ape_median < 0.5 * prior.ape_median, "{:?}", fitted.scores);
        assert!((0.8..=0.97).contains(&model.coverage_p90), "{:?}", fitted.scores);
        let (model, prior) = (fitted.scores.model.tpot.unwrap(), fitted.scores.prior.tpot.unwrap());
        assert!(model.ape_median < 0.5 * prior.ape_median, "{:?}", fitted.scores);
        assert!(fitted.parity.rows > 3000);
        let published = Model::from_onnx(&fitted.onnx).unwrap();
        assert_eq!(published.card().model_id, fitted.model_id);
        assert_eq!(published.card().get(contract::KEY_XGBOOST_VERSION), Some(xgb::VERSION));
        assert_eq!(published.card().get(contract::KEY_SAMPLES), Some(examples.len().to_string().as_str()));
        assert!(published.card().get(contract::KEY_SCORES).unwrap().contains("ape_median"));
    }

    #[test]
    fn the_same_samples_give_the_same_trees() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let examples = examples(5, 400);
        let trees = || {
            let fitted = fit(&xgboost, &examples, None, &FitOptions::default(), &mut || true).unwrap();
            foretoken_core::model::onnx::read(&fitted.onnx).unwrap().1
        };
        assert_eq!(trees(), trees());
    }

    #[test]
    fn the_hold_out_is_what_the_live_model_has_not_seen_within_bounds() {
        let examples = examples(5, 1000);
        let through = |index: usize| Some(examples[index].at_ms);
        assert_eq!(holdout_size(&examples, None), 200);
        assert_eq!(holdout_size(&examples, through(899)), 100);
        assert_eq!(holdout_size(&examples, through(990)), MIN_HOLDOUT);
        assert_eq!(holdout_size(&examples, through(5)), 200);
        assert_eq!(holdout_size(&examples[..60], None), 12);
    }

    #[test]
    fn too_few_samples_of_a_target_are_named() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let mut examples = examples(5, 200);
        for example in examples.iter_mut().skip(20) {
            example.tpot = None;
        }
        let error = fit(&xgboost, &examples, None, &FitOptions::default(), &mut || true).unwrap_err();
        assert!(matches!(error, FitError::TooFew { target: "tpot", .. }), "{error}");
    }

    #[test]
    fn a_fit_stops_when_asked() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let error =
            fit(&xgboost, &examples(5, 200), None, &FitOptions::default(), &mut || false).unwrap_err();
        assert!(matches!(error, FitError::Stopped), "{error}");
    }

    #[test]
    #[ignore = "prints figures; run in release with --nocapture"]
    fn how_long_a_fit_takes_and_how_large_a_model_is() {
        let Some(xgboost) = xgb::for_tests() else { return };
        for count in [300, 2000, 20_000] {
            let examples = examples(7, count);
            let start = std::time::Instant::now();
            let fitted = fit(&xgboost, &examples, None, &FitOptions::default(), &mut || true).unwrap();
            let packed = foretoken_core::model::packed::pack(&fitted.onnx);
            println!(
                "{count} samples: {:.2} s, rounds {:?}, ONNX {} bytes, packed {} bytes, {}",
                start.elapsed().as_secs_f64(),
                fitted.rounds,
                fitted.onnx.len(),
                packed.len(),
                serde_json::to_string(&fitted.scores).unwrap()
            );
        }
    }
}
