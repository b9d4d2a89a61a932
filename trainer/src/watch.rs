//! Watching the model that serves: has the traffic changed under it, and was the version before it better?
//!
//! Both are asked of the newest samples, of which the model has learned nothing. *Drift*: a column is
//! distributed otherwise than in the samples that the model learned from (population stability index over
//! deciles), or what is left of the times after the prediction has another median or is larger. Drift asks for a
//! full fit; only when errors have changed, and not the load alone, is it urgent and the past mostly forgotten.
//! *Regret*: the model before it would have predicted the same requests better, by more than tolerance and chance;
//! then the trainer goes back to it. An error that rises for both is drift and no reason to go back.
//!
//! What it is not: a judge of candidates; that is [`crate::gate`].

use foretoken_core::features::{COLUMNS, Row};
use foretoken_core::model::Model;
use serde::Serialize;

use crate::dataset::{Example, Outcome};
use crate::gate::worse_than;
use crate::score::median;

/// Fewest new samples that show anything.
pub const MIN_NEW: usize = 100;

/// Most new and most old samples that are looked at.
const MAX_SAMPLES: usize = 2000;

/// Bins of a column.
const BINS: usize = 10;

/// Population stability index from which a column counts as drifted; 0.25 is the usual word for a large change.
const PSI: f64 = 0.25;

/// Drifted columns that are drift of the whole: a single one may be a counter of the time of day.
const COLUMNS_DRIFTED: usize = 4;

/// Change of the median of ln(actual / predicted) that is drift: 20 %.
const RESIDUAL: f64 = 0.18;

/// Growth of the median of its absolute value that is drift: when half of the pods are slower, the median of all
/// stays where it was…
const GROWTH: f64 = 1.5;

/// …if that is also more than this.
const GROWN: f64 = 0.04;

/// Newest samples whose errors are compared: few, so that a change is seen soon.
const NEWEST: usize = 300;

/// How much worse than the version before a model may be on the newest samples, as a share of its loss.
const REGRET_TOLERANCE: f64 = 0.1;

/// What has changed since the model was fitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Drift {
    /// New samples that were looked at.
    pub n: usize,
    /// Whether it is enough to fit anew.
    pub drifted: bool,
    /// Whether errors have changed, so that what was before should hardly count.
    pub urgent: bool,
    /// Columns with a large change and their population stability index, greatest first.
    pub columns: Vec<(&'static str, f64)>,
    /// Change of the median of ln(actual / predicted), TTFT.
    pub ttft_residual: Option<f64>,
    /// The same of TPOT.
    pub tpot_residual: Option<f64>,
    /// Growth of the median of its absolute value, TTFT; 1 is none.
    pub ttft_growth: Option<f64>,
    /// The same of TPOT.
    pub tpot_growth: Option<f64>,
}

/// Compares the samples after `through_ms`, which the model has not learned from, with those before. `expected` are the
/// median absolute percentage errors of TTFT and TPOT that it had on samples that it had not learned from when it was
/// judged: on those that it learned from it is always better.
#[must_use]
pub fn drift(model: &Model, examples: &[Example], through_ms: u64, expected: [Option<f64>; 2]) -> Drift {
    let split = examples.partition_point(|example| example.at_ms <= through_ms);
    let (old, new) = examples.split_at(split);
    let newest = |examples: &[Example]| -> Vec<Example> {
        examples.get(examples.len().saturating_sub(MAX_SAMPLES)..).unwrap_or(examples).to_vec()
    };
    let (old, new) = (newest(old), newest(new));
    if old.len() < MIN_NEW || new.len() < MIN_NEW {
        return Drift { n: new.len(), ..Drift::default() };
    }
    let mut columns: Vec<(&'static str, f64)> = COLUMNS
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let values = |examples: &[Example]| -> Vec<f32> {
                examples.iter().filter_map(|example| example.row.0.get(index).copied()).collect()
            };
            (column.name, stability_index(&values(&old), &values(&new)))
        })
        .filter(|(_, index)| *index > PSI)
        .collect();
    columns.sort_by(|a, b| b.1.total_cmp(&a.1));
    let newest = new.get(new.len().saturating_sub(NEWEST)..).unwrap_or(&new);
    let change = |residuals: fn(&[Example], &Model) -> Vec<f64>, expected: Option<f64>| {
        Change::of(residuals(&old, model), residuals(newest, model), expected.unwrap_or(0.0))
    };
    let [expected_ttft, expected_tpot] = expected;
    let (ttft, tpot) = (change(ttft_residuals, expected_ttft), change(tpot_residuals, expected_tpot));
    let urgent = [ttft, tpot].into_iter().flatten().any(Change::is_drift);
    let drifted = columns.len() >= COLUMNS_DRIFTED || urgent;
    Drift {
        n: new.len(),
        drifted,
        urgent,
        columns,
        ttft_residual: ttft.map(|change| change.median),
        tpot_residual: tpot.map(|change| change.median),
        ttft_growth: ttft.map(|change| change.growth),
        tpot_growth: tpot.map(|change| change.growth),
    }
}

/// How residuals have changed.
#[derive(Debug, Clone, Copy)]
struct Change {
    /// Of the median.
    median: f64,
    /// Of the median absolute value, as a factor.
    growth: f64,
    /// Of the median absolute value, as a difference.
    grown: f64,
}

impl Change {
    /// `None` when there are too few.
    fn of(mut old: Vec<f64>, mut new: Vec<f64>, expected: f64) -> Option<Self> {
        if new.len() < MIN_NEW {
            return None;
        }
        let moved = median(&mut new)? - median(&mut old)?;
        let size =
            |residuals: &[f64]| median(&mut residuals.iter().map(|one| one.abs()).collect::<Vec<f64>>());
        let (before, after) = (size(&old)?.max(expected), size(&new)?);
        Some(Self { median: moved, growth: after / before.max(1e-6), grown: after - before })
    }

    fn is_drift(self) -> bool {
        self.median.abs() > RESIDUAL || (self.growth > GROWTH && self.grown > GROWN)
    }
}

fn predictions(examples: &[Example], model: &Model) -> Vec<foretoken_core::model::Prediction> {
    let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
    let mut out = Vec::new();
    model.predict(&rows, &mut out);
    out
}

fn ttft_residuals(examples: &[Example], model: &Model) -> Vec<f64> {
    let predicted = predictions(examples, model);
    let pairs = examples.iter().zip(predicted);
    pairs.filter_map(|(example, predicted)| residual(example.ttft, predicted.ttft_ms_p50)).collect()
}

fn tpot_residuals(examples: &[Example], model: &Model) -> Vec<f64> {
    let predicted = predictions(examples, model);
    let pairs = examples.iter().zip(predicted);
    pairs.filter_map(|(example, predicted)| residual(example.tpot, predicted.tpot_ms_p50)).collect()
}

fn residual(outcome: Option<Outcome>, predicted_ms: f32) -> Option<f64> {
    let log = (f64::from(outcome?.actual_ms) / f64::from(predicted_ms)).ln();
    log.is_finite().then_some(log)
}

/// Population stability index of two sets of values over deciles of the first; unknown values are a bin of their
/// own.
fn stability_index(old: &[f32], new: &[f32]) -> f64 {
    let mut known: Vec<f32> = old.iter().copied().filter(|value| !value.is_nan()).collect();
    known.sort_by(f32::total_cmp);
    // Equal bounds (a column that is mostly one value) make empty bins, which add nothing.
    let bounds: Vec<f32> =
        (1..BINS).filter_map(|decile| known.get(decile * known.len() / BINS).copied()).collect();
    let shares = |values: &[f32]| {
        let mut counts = [0usize; BINS + 1];
        for value in values {
            let bin = if value.is_nan() { BINS } else { bounds.partition_point(|bound| bound <= value) };
            if let Some(count) = counts.get_mut(bin) {
                *count += 1;
            }
        }
        // Half a sample in an empty bin keeps the logarithm finite.
        counts.map(|count| (count as f64).max(0.5) / values.len() as f64)
    };
    shares(old).iter().zip(shares(new)).map(|(old, new)| (new - old) * (new / old).ln()).sum()
}

/// Why the version before is better than the one that serves, on samples that came since it serves; empty when
/// it is not, or when there are too few.
#[must_use]
pub fn regret(current: &Model, before: &Model, examples: &[Example], since_ms: u64) -> Vec<String> {
    let first = examples.partition_point(|example| example.at_ms < since_ms);
    let new = examples.get(first.max(examples.len().saturating_sub(MAX_SAMPLES))..).unwrap_or(&[]);
    if new.len() < MIN_NEW {
        return Vec::new();
    }
    worse_than(current, before, "the version before", new, REGRET_TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::example;
    use crate::gate::tests::constant;
    use crate::synthetic;
    use foretoken_core::features::Feature;

    fn examples(count: usize) -> Vec<Example> {
        synthetic::samples(3, count).iter().filter_map(example).collect()
    }

    #[test]
    fn traffic_that_stays_the_same_has_no_drift() {
        let examples = examples(2000);
        let drift = drift(&constant(1.6, 1.3), &examples, examples[1200].at_ms, [None; 2]);
        assert!(!drift.drifted && drift.columns.is_empty(), "{drift:?}");
        assert_eq!(drift.n, 799);
    }

    #[test]
    fn slower_pods_show_in_the_residual_and_another_load_in_the_columns() {
        let model = constant(1.6, 1.3);
        let mut slower = examples(2000);
        for example in &mut slower[1000..] {
            example.tpot.iter_mut().for_each(|outcome| outcome.actual_ms *= 1.5);
        }
        let through_ms = slower[999].at_ms;
        let found = drift(&model, &slower, through_ms, [None; 2]);
        assert!(found.drifted && found.urgent && found.columns.is_empty(), "{found:?}");
        assert!((found.tpot_residual.unwrap() - 1.5f64.ln()).abs() < 0.05, "{found:?}");
        let mut busier = examples(2000);
        for example in &mut busier[1000..] {
            for feature in [
                Feature::InflightRequests,
                Feature::PrefillTokens,
                Feature::DecodingRequests,
                Feature::ArrivalsPerS,
            ] {
                example.row.set(feature, 3.0 * example.row.get(feature) + 10.0);
            }
            example.row.set(Feature::KvUsage, f32::NAN);
        }
        let found = drift(&model, &busier, through_ms, [None; 2]);
        assert!(found.drifted && !found.urgent && found.columns.len() == 5, "{found:?}");
    }

    #[test]
    fn half_of_the_pods_slower_is_drift_though_the_median_stays() {
        let model = constant(1.6, 1.3);
        let mut half = examples(2000);
        for example in half[1000..].iter_mut().step_by(5) {
            example.ttft.iter_mut().for_each(|outcome| outcome.actual_ms *= 2.0);
        }
        let through_ms = half[999].at_ms;
        // One in five is a bad day of some…
        assert!(!drift(&model, &half, through_ms, [None; 2]).urgent);
        for (index, example) in half[1000..].iter_mut().enumerate() {
            let factor = if index % 2 == 0 { 1.8 } else { 1.0 / 1.8 };
            example.ttft.iter_mut().for_each(|outcome| outcome.actual_ms *= factor);
        }
        // …and half off either way is another fleet.
        let found = drift(&model, &half, through_ms, [None; 2]);
        assert!(found.urgent && found.ttft_growth.unwrap() > GROWTH, "{found:?}");
        // Not if it was as far off when it was judged.
        assert!(!drift(&model, &half, through_ms, [Some(0.6), None]).urgent);
    }

    #[test]
    fn a_worse_model_is_regretted_only_after_enough_samples() {
        let examples = examples(1000);
        let (good, bad) = (constant(1.6, 1.3), constant(2.6, 1.3));
        assert!(regret(&good, &bad, &examples, 0).is_empty());
        let lines = regret(&bad, &good, &examples, 0);
        assert!(lines.len() == 1 && lines[0].starts_with("ttft"), "{lines:?}");
        assert!(regret(&bad, &good, &examples, examples[950].at_ms).is_empty());
    }
}
