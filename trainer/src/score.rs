//! How good predictions are on examples: median absolute percentage error and pinball loss.
//!
//! Pinball is the loss that a quantile fit minimises; it is taken of the ratio to the prior, so that a
//! request of 50 ms counts as much as one of 5 s. The median APE is the number that people compare.

use foretoken_core::model::Prediction;
use foretoken_core::model::contract::{Output, Quantile, Target, Unit};
use serde::Serialize;

use crate::dataset::{Example, Outcome};

/// Scores of one target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TargetScore {
    /// Examples that have the target.
    pub n: usize,
    /// Median of |predicted median - actual| / actual.
    pub ape_median: f64,
    /// Mean pinball loss of the median, in units of the prior.
    pub pinball_p50: f64,
    /// Mean pinball loss of the 90th percentile, in units of the prior.
    pub pinball_p90: f64,
    /// Share of actual values at or below the predicted 90th percentile; 0.9 is right.
    pub coverage_p90: f64,
}

/// Scores of both targets; a target that no example has is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Score {
    /// TTFT.
    pub ttft: Option<TargetScore>,
    /// TPOT.
    pub tpot: Option<TargetScore>,
}

/// Loss of predicting `predicted` for quantile `alpha` when it was `actual`.
fn pinball(actual: f64, predicted: f64, alpha: f64) -> f64 {
    let below = actual - predicted;
    if below >= 0.0 { alpha * below } else { (alpha - 1.0) * below }
}

/// Median of the values, which are reordered; `None` when there is none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    let (_, median, _) =
        values.get(middle).is_some().then(|| values.select_nth_unstable_by(middle, f64::total_cmp))?;
    Some(*median)
}

/// Scores predictions in milliseconds, one per example.
#[must_use]
pub fn score(examples: &[Example], predictions: &[Prediction]) -> Score {
    let target = |target| score_target(examples, predictions, target);
    Score { ttft: target(Target::Ttft), tpot: target(Target::Tpot) }
}

/// The analytic prior as predictions; it has one number for both quantiles.
#[must_use]
pub fn prior_predictions(examples: &[Example]) -> Vec<Prediction> {
    let prior = |outcome: Option<Outcome>| outcome.map_or(f32::NAN, |outcome| outcome.prior_ms);
    let of = |example: &Example| Prediction {
        ttft_ms_p50: prior(example.ttft),
        ttft_ms_p90: prior(example.ttft),
        tpot_ms_p50: prior(example.tpot),
        tpot_ms_p90: prior(example.tpot),
    };
    examples.iter().map(of).collect()
}

/// Scores the analytic prior.
#[must_use]
pub fn score_prior(examples: &[Example]) -> Score {
    score(examples, &prior_predictions(examples))
}

/// Pinball loss of one quantile per example, in units of the prior; absent where the target is.
pub fn losses(
    examples: &[Example],
    predictions: &[Prediction],
    target: Target,
    quantile: Quantile,
) -> impl Iterator<Item = Option<f64>> {
    let alpha = match quantile {
        Quantile::P50 => 0.5,
        Quantile::P90 => 0.9,
    };
    examples.iter().zip(predictions).map(move |(example, prediction)| {
        let outcome = outcome(example, target)?;
        let predicted = prediction.get(Output { target, unit: Unit::Ms, quantile });
        let prior = f64::from(outcome.prior_ms);
        Some(pinball(outcome.actual_ms.into(), predicted.into(), alpha) / prior)
    })
}

fn outcome(example: &Example, target: Target) -> Option<Outcome> {
    match target {
        Target::Ttft => example.ttft,
        Target::Tpot => example.tpot,
    }
}

fn score_target(examples: &[Example], predictions: &[Prediction], target: Target) -> Option<TargetScore> {
    let at = |prediction: &Prediction, quantile| {
        f64::from(prediction.get(Output { target, unit: Unit::Ms, quantile }))
    };
    let mut apes = Vec::with_capacity(examples.len());
    let mut covered = 0.0;
    for (example, prediction) in examples.iter().zip(predictions) {
        let Some(outcome) = outcome(example, target) else { continue };
        let actual = f64::from(outcome.actual_ms);
        apes.push((at(prediction, Quantile::P50) - actual).abs() / actual);
        covered += f64::from(u8::from(actual <= at(prediction, Quantile::P90)));
    }
    let n = apes.len();
    let mean = |sum: f64| sum / n as f64;
    let pinball = |quantile| mean(losses(examples, predictions, target, quantile).flatten().sum());
    Some(TargetScore {
        n,
        ape_median: median(&mut apes)?,
        pinball_p50: pinball(Quantile::P50),
        pinball_p90: pinball(Quantile::P90),
        coverage_p90: mean(covered),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_core::features::Row;

    fn example(actual_ms: f32, prior_ms: f32) -> Example {
        Example {
            at_ms: 0,
            row: Row::default(),
            ttft: Some(Outcome { actual_ms, prior_ms, weight: 1.0 }),
            tpot: None,
        }
    }

    #[test]
    fn scores_are_those_computed_by_hand() {
        let examples = [example(100.0, 100.0), example(200.0, 100.0), example(50.0, 100.0)];
        let at = |p50, p90| Prediction { ttft_ms_p50: p50, ttft_ms_p90: p90, ..Prediction::UNKNOWN };
        let score = score(&examples, &[at(110.0, 120.0), at(150.0, 180.0), at(50.0, 50.0)]);
        assert_eq!(score.tpot, None);
        let ttft = score.ttft.unwrap();
        assert_eq!(ttft.n, 3);
        assert!((ttft.ape_median - 0.1).abs() < 1e-9);
        // Above by 0.1 at 0.5, below by 0.5 at 0.5, exact.
        assert!((ttft.pinball_p50 - (0.05 + 0.25) / 3.0).abs() < 1e-9);
        // Above by 0.2 at 0.1, below by 0.2 at 0.9, exact.
        assert!((ttft.pinball_p90 - (0.02 + 0.18) / 3.0).abs() < 1e-9);
        assert!((ttft.coverage_p90 - 2.0 / 3.0).abs() < 1e-9);
        assert!((score_prior(&examples).ttft.unwrap().ape_median - 0.5).abs() < 1e-9);
    }

    #[test]
    fn no_values_have_no_median() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
    }
}
