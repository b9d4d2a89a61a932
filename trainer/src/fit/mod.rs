//! A fit: quantile boosters of both targets on the examples of a window, and what is needed to judge them.
//!
//! The examples are in order of time and the newest are held out; of the others the newest fifth decides how many
//! rounds are enough and how far the 90th percentile is off ([`conformal`]), and the rest teaches. With the
//! rounds found, the boosters to be judged are fitted on all but the hold-out, and those to be published on
//! everything, because the newest samples are the ones worth most. So the live model, fitted in the same way on
//! all that there was then, is judged against one that knows as much as it did.
//!
//! A fit starts from nothing or goes on from the live boosters: a few rounds on top of them cost a fraction and
//! follow slow change; from nothing it follows every change, and bounds the number of trees.

pub mod conformal;
pub mod constraints;

use std::ops::Range;

use foretoken_core::features::{COUNT, Row};
use foretoken_core::model::contract::Target;
use foretoken_core::model::{Model, ModelError};
use rand::Rng;
use serde::Serialize;
use thiserror::Error;

use crate::dataset::{Example, Outcome, RATIO_RANGE, recency_weight};
use crate::export::{self, ExportError, Facts, target_name};
use crate::half::{self, Assembled, Half, HalfCard, Halves, How};
use crate::parity::ParityError;
use crate::score::{Score, score, score_prior};
use crate::xgb::{Booster, Matrix, XgbError, Xgboost};

/// Fewest examples in the hold-out, if there are five times as many in all.
pub const MIN_HOLDOUT: usize = 40;

/// Fewest examples of each target from which anything is fitted.
pub const MIN_EXAMPLES: usize = 50;

/// A continued fit adds at most this share of the rounds of a full one.
const CONTINUED_SHARE: u16 = 5;

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
    /// Whether columns that can only lengthen a request are held to it ([`constraints`]).
    pub monotone: bool,
    /// Weight of the oldest example, above 0 up to 1; the newest has 1.
    pub oldest_weight: f32,
}

impl Default for FitOptions {
    fn default() -> Self {
        // Against depth 6 and eta 0.12: half the time, a third of the bytes, no worse on held-out samples.
        Self {
            max_rounds: 100,
            patience: 12,
            max_depth: 5,
            eta: 0.2,
            threads: 1,
            monotone: true,
            oldest_weight: 0.25,
        }
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

/// One target, fitted.
#[derive(Debug)]
pub struct TargetFit {
    /// What would be published: it has learned from everything.
    pub half: Half,
    /// What is judged: it has not seen the hold-out.
    pub judged: Booster,
}

/// Both targets, fitted, and how good they are.
#[derive(Debug)]
pub struct Fitted {
    /// TTFT.
    pub ttft: TargetFit,
    /// TPOT.
    pub tpot: TargetFit,
    /// Id of a model of both halves.
    pub model_id: String,
    /// When the fit ended, ms since the Unix epoch.
    pub created_ms: u64,
    /// Examples it learned from.
    pub samples: usize,
    /// Oldest and newest of them, ms since the Unix epoch.
    pub window_ms: (u64, u64),
    /// Scores of `judged`.
    pub scores: Scores,
    /// The fits that have not seen the hold-out, as a model: what the gate judges.
    pub judged: Model,
    /// Where the hold-out is in the examples.
    pub holdout: Range<usize>,
}

impl Fitted {
    /// Rounds per target.
    #[must_use]
    pub fn rounds(&self) -> Rounds {
        Rounds { ttft: self.ttft.half.card.rounds, tpot: self.tpot.half.card.rounds }
    }

    /// Facts for the metadata of a model with these scores.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts {
            model_id: self.model_id.clone(),
            created_ms: self.created_ms,
            samples: self.samples,
            window_ms: self.window_ms.1.saturating_sub(self.window_ms.0),
            scores: serde_json::to_value(self.scores).unwrap_or_default(),
        }
    }

    /// The model of both halves, proven on the newest examples.
    ///
    /// # Errors
    /// [`FitError`] says what differs.
    pub fn assemble(&self, xgboost: &Xgboost, examples: &[Example]) -> Result<Assembled, FitError> {
        let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
        half::assemble(xgboost, &self.facts(), &self.ttft.half, &self.tpot.half, &rows)
    }
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

/// Examples from which on a fit is continued: below, one from nothing takes a second, and the samples that tell
/// how far the 90th percentile is off must not be those that the live boosters know by heart.
pub const MIN_CONTINUED: usize = 2000;

/// Whether boosters can be continued, or have become so many trees that it is time to start anew.
#[must_use]
pub fn can_continue(live: &Halves, examples: usize, options: &FitOptions) -> bool {
    if examples < MIN_CONTINUED {
        return false;
    }
    let room =
        |half: &Half| half.card.rounds + options.max_rounds / CONTINUED_SHARE <= 2 * options.max_rounds;
    room(&live.ttft) && room(&live.tpot)
}

/// Fits both targets on examples in order of time, on top of the boosters of `continued` or from nothing;
/// `live_through_ms` is the newest sample that the live model has learned from, if there is one.
///
/// # Errors
/// [`FitError`] says what is missing or differs.
pub fn fit(
    xgboost: &Xgboost,
    examples: &[Example],
    continued: Option<&Halves>,
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
    let created_ms = export::now_ms();
    let model_id = format!("{created_ms:x}-{:04x}", rand::rng().random::<u16>());
    let holdout = examples.len() - holdout_size(examples, live_through_ms)..examples.len();
    let mut one = |target, of, start| {
        let fit = OneTarget { xgboost, target, of, start, options, model_id: &model_id };
        fit.run(examples, holdout.start, progress)
    };
    let [(_, of_ttft), (_, of_tpot)] = TARGETS;
    let ttft = one(Target::Ttft, of_ttft, continued.map(|halves| &halves.ttft))?;
    let tpot = one(Target::Tpot, of_tpot, continued.map(|halves| &halves.tpot))?;
    let judged = half::model_of(&ttft.judged, &tpot.judged)?;
    let held_out = examples.get(holdout.clone()).unwrap_or(&[]);
    let scores = Scores { model: score_model(&judged, held_out), prior: score_prior(held_out) };
    let at = |example: Option<&Example>| example.map_or(0, |example| example.at_ms);
    Ok(Fitted {
        ttft,
        tpot,
        model_id,
        created_ms,
        samples: examples.len(),
        window_ms: (at(examples.first()), at(examples.last())),
        scores,
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

/// Examples of one target inside XGBoost, with the rows and labels that they were made of.
struct Set {
    matrix: Matrix,
    rows: Vec<f32>,
    labels: Vec<f32>,
}

/// The fit of one target.
struct OneTarget<'a> {
    xgboost: &'a Xgboost,
    target: Target,
    of: Of,
    start: Option<&'a Half>,
    options: &'a FitOptions,
    model_id: &'a str,
}

impl OneTarget<'_> {
    fn run(
        &self,
        examples: &[Example],
        holdout_start: usize,
        progress: &mut Progress<'_>,
    ) -> Result<TargetFit, FitError> {
        let (known, held_out) = examples.split_at(holdout_start);
        let (teaching, stopping) = known.split_at(known.len() - known.len() / 5);
        let (teaching, stopping) = (self.set(teaching)?, self.set(stopping)?);
        let (added, tried) = self.best_rounds(&teaching, &stopping, progress)?;
        let mut excesses = excesses(&tried, &stopping)?;
        drop((teaching, stopping, tried));

        let judged = self.rounds(&self.set(known)?, added, progress)?;
        let judged_shift = conformal::shift(excesses.clone());
        if !held_out.iter().all(|example| (self.of)(example).is_none()) {
            excesses.extend(self::excesses(&judged, &self.set(held_out)?)?);
        }
        let judged = half::shifted(self.xgboost, &judged, judged_shift)?;
        let booster = self.rounds(&self.set(examples)?, added, progress)?;
        let card = HalfCard {
            model_id: self.model_id.to_owned(),
            how: if self.start.is_some() { How::Continued } else { How::Full },
            rounds: self.started() + added,
            p90_shift: conformal::shift(excesses),
            importances: half::importances(&booster)?,
        };
        Ok(TargetFit { half: Half { booster, card }, judged })
    }

    /// The examples that have the target, weighted by recency and trust.
    fn set(&self, examples: &[Example]) -> Result<Set, XgbError> {
        let (mut rows, mut labels, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for (index, example) in examples.iter().enumerate() {
            if let Some(outcome) = (self.of)(example) {
                rows.extend_from_slice(&example.row.0);
                labels.push(outcome.ratio());
                let recency = recency_weight(index, examples.len(), self.options.oldest_weight);
                weights.push(outcome.weight * recency);
            }
        }
        let matrix = self.xgboost.matrix(&rows, COUNT)?;
        matrix.set_labels(&labels)?;
        matrix.set_weights(&weights)?;
        Ok(Set { matrix, rows, labels })
    }

    /// Rounds of the booster that is continued.
    fn started(&self) -> u16 {
        self.start.map_or(0, |half| half.card.rounds)
    }

    /// Most rounds to add.
    fn limit(&self) -> u16 {
        let full = self.options.max_rounds;
        if self.start.is_some() { (full / CONTINUED_SHARE).max(1) } else { full }
    }

    fn booster(&self, matrix: &Matrix) -> Result<Booster, XgbError> {
        let options = self.options;
        let (threads, depth, eta) =
            (options.threads.to_string(), options.max_depth.to_string(), options.eta.to_string());
        let monotone = if options.monotone { constraints::monotone(self.target) } else { "()".to_owned() };
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
            ("monotone_constraints", monotone.as_str()),
            // The same samples give the same model.
            ("seed", "1"),
        ];
        match self.start {
            None => self.xgboost.booster(matrix, parameters),
            Some(half) => {
                // Parameters are not in the model file.
                let booster = self.xgboost.load_booster(&half.booster.to_ubj()?)?;
                for (name, value) in parameters {
                    booster.set(name, value)?;
                }
                Ok(booster)
            }
        }
    }

    /// Fits until the stopping rows no longer improve; how many rounds to add, and the booster with them.
    fn best_rounds(
        &self,
        teaching: &Set,
        stopping: &Set,
        progress: &mut Progress<'_>,
    ) -> Result<(u16, Booster), FitError> {
        let booster = self.booster(&teaching.matrix)?;
        let (mut best, mut best_rounds) = (f64::INFINITY, 0);
        for round in 0..self.limit() {
            booster.update(self.started() + round, &teaching.matrix)?;
            if !progress() {
                return Err(FitError::Stopped);
            }
            let metric = booster.eval(round, &stopping.matrix)?;
            if metric < best {
                (best, best_rounds) = (metric, round + 1);
            } else if round + 1 >= best_rounds + self.options.patience {
                break;
            }
        }
        let added = best_rounds.max(1);
        Ok((added, booster.first(self.started() + added)?))
    }

    fn rounds(&self, set: &Set, added: u16, progress: &mut Progress<'_>) -> Result<Booster, FitError> {
        let booster = self.booster(&set.matrix)?;
        for round in 0..added {
            booster.update(self.started() + round, &set.matrix)?;
            if !progress() {
                return Err(FitError::Stopped);
            }
        }
        Ok(booster)
    }
}

/// How much more each actual ratio is than the predicted 90th percentile.
fn excesses(booster: &Booster, set: &Set) -> Result<Vec<f32>, XgbError> {
    let predicted = booster.predict(&set.rows, COUNT)?;
    let excess = |(label, predicted): (&f32, &Vec<f32>)| {
        debug_assert!((RATIO_RANGE.0..=RATIO_RANGE.1).contains(label));
        label - predicted.last().copied().unwrap_or(f32::NAN)
    };
    Ok(set.labels.iter().zip(&predicted).map(excess).collect())
}

#[cfg(test)]
mod tests;
