//! Keeps the 90th percentile at nine of ten: online tracking of a quantile (adaptive conformal inference, Gibbs and
//! Candès 2021), by how many requests wait at the pod.
//!
//! A model's percentile is right on the traffic that it was fitted on. When queues grow, requests come to rows that are
//! rare there, and all their percentiles are too low at once; when load falls, too high. So the percentile is raised a
//! step by every answer that exceeds it and lowered a ninth of that by every answer that does not: in the long run one
//! in ten exceeds it, whatever the model. Each class of queue has its own correction, because a correction that is right
//! on the whole can be wrong in every class. The median is not touched.
//!
//! What it is not: shared between workers. Each sees answers enough of its own, and none can lead the others astray.

use crate::fallback::Rung;
use crate::model::Prediction;

/// Share of answers that may exceed the percentile.
const MISSED: f32 = 0.1;

/// What an answer that exceeds the percentile adds to its natural logarithm, less [`MISSED`] of it: large enough to
/// follow a queue that doubles within a few dozen answers, small enough that luck moves it by less than a tenth.
const STEP: f32 = 0.08;

/// Corrections stay within a factor of 4: what is further off is not a question of spread.
const MOST_LN: f32 = 1.4;

/// Requests without a first token at the pod, from which on the next class begins.
const QUEUES: [f32; 3] = [1.0, 4.0, 16.0];

const CLASSES: usize = QUEUES.len() + 1;

/// Natural logarithms of the corrections of one rung.
#[derive(Debug, Clone, Copy, Default)]
struct Corrections {
    ttft: [f32; CLASSES],
    tpot: [f32; CLASSES],
}

fn class(queued_requests: f32) -> usize {
    QUEUES.iter().filter(|from| queued_requests >= **from).count()
}

fn follow(corrections: &mut [f32; CLASSES], class: usize, exceeded: bool) {
    if let Some(ln) = corrections.get_mut(class) {
        let change = if exceeded { STEP * (1.0 - MISSED) } else { -STEP * MISSED };
        *ln = (*ln + change).clamp(-MOST_LN, MOST_LN);
    }
}

/// A percentile that the model does not have stays unknown.
fn corrected(percentile: f32, median: f32, corrections: &[f32; CLASSES], class: usize) -> f32 {
    let factor = corrections.get(class).map_or(1.0, |ln| ln.exp());
    if percentile.is_nan() { percentile } else { (percentile * factor).max(median) }
}

/// The corrections of the rungs that have a percentile.
#[derive(Debug, Clone, Copy, Default)]
pub struct Coverage {
    model: Corrections,
    prior: Corrections,
}

impl Coverage {
    fn of(&self, rung: Rung) -> Option<&Corrections> {
        match rung {
            Rung::Model => Some(&self.model),
            Rung::Prior => Some(&self.prior),
            Rung::LeastTokens | Rung::Envoy => None,
        }
    }

    /// Corrects the percentiles of a prediction for a pod where this many requests wait for their first token. They are
    /// never below the medians.
    pub fn correct(&self, rung: Rung, queued_requests: f32, prediction: &mut Prediction) {
        let Some(corrections) = self.of(rung) else { return };
        let class = class(queued_requests);
        let Prediction { ttft_ms_p50, ttft_ms_p90, tpot_ms_p50, tpot_ms_p90 } = prediction;
        *ttft_ms_p90 = corrected(*ttft_ms_p90, *ttft_ms_p50, &corrections.ttft, class);
        *tpot_ms_p90 = corrected(*tpot_ms_p90, *tpot_ms_p50, &corrections.tpot, class);
    }

    /// An answer: what was predicted, corrected as it was then, and what was measured where it was.
    pub fn observe(
        &mut self,
        rung: Rung,
        queued_requests: f32,
        predicted: &Prediction,
        ttft_ms: Option<f32>,
        tpot_ms: Option<f32>,
    ) {
        let corrections = match rung {
            Rung::Model => &mut self.model,
            Rung::Prior => &mut self.prior,
            Rung::LeastTokens | Rung::Envoy => return,
        };
        let class = class(queued_requests);
        // A percentile that is not a number says nothing, and nothing is learned of it.
        let exceeded = |actual: Option<f32>, percentile: f32| {
            actual
                .filter(|actual| actual.is_finite() && percentile.is_finite())
                .map(|actual| actual > percentile)
        };
        if let Some(exceeded) = exceeded(ttft_ms, predicted.ttft_ms_p90) {
            follow(&mut corrections.ttft, class, exceeded);
        }
        if let Some(exceeded) = exceeded(tpot_ms, predicted.tpot_ms_p90) {
            follow(&mut corrections.tpot, class, exceeded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTED: Prediction =
        Prediction { ttft_ms_p50: 100.0, ttft_ms_p90: 110.0, tpot_ms_p50: 10.0, tpot_ms_p90: 30.0 };

    /// Numbers in 0..1 without pattern, the same every time.
    fn numbers() -> impl Iterator<Item = f32> {
        let mut state = 1_u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32
        })
    }

    #[test]
    fn nine_of_ten_are_covered_in_every_class_though_the_model_is_wrong_another_way_in_each() {
        let mut coverage = Coverage::default();
        let mut covered = [(0, 0); 3];
        for (index, number) in numbers().take(9000).enumerate() {
            let class = index % 3;
            let queued = [0.0, 5.0, 40.0][class];
            // Evenly over 100 ms to 100 ms and half, twice or three times as much more.
            let ttft_ms = 100.0 + number * [50.0, 200.0, 300.0][class];
            let mut predicted = PREDICTED;
            coverage.correct(Rung::Model, queued, &mut predicted);
            coverage.observe(Rung::Model, queued, &predicted, Some(ttft_ms), None);
            if index > 600 {
                covered[class].0 += u32::from(ttft_ms <= predicted.ttft_ms_p90);
                covered[class].1 += 1;
            }
        }
        for (within, all) in covered {
            let share = f64::from(within) / f64::from(all);
            assert!((0.88..=0.92).contains(&share), "{covered:?}");
        }
    }

    #[test]
    fn percentiles_never_fall_below_medians_and_rungs_know_nothing_of_each_other() {
        let mut coverage = Coverage::default();
        for _ in 0..1000 {
            coverage.observe(Rung::Prior, 0.0, &PREDICTED, Some(1.0), Some(1.0));
        }
        let mut predicted = PREDICTED;
        coverage.correct(Rung::Prior, 0.0, &mut predicted);
        assert_eq!(predicted.ttft_ms_p90, predicted.ttft_ms_p50);
        assert!(predicted.tpot_ms_p90 < 30.0);
        let mut predicted = PREDICTED;
        coverage.correct(Rung::Model, 0.0, &mut predicted);
        assert_eq!(predicted, PREDICTED);
    }

    #[test]
    fn nonsense_teaches_nothing_and_corrections_are_bounded() {
        let mut coverage = Coverage::default();
        coverage.observe(Rung::Model, 0.0, &PREDICTED, Some(f32::NAN), None);
        coverage.observe(Rung::Model, 0.0, &Prediction::UNKNOWN, Some(1e9), Some(1e9));
        coverage.observe(Rung::Envoy, 0.0, &PREDICTED, Some(1e9), Some(1e9));
        let mut predicted = PREDICTED;
        coverage.correct(Rung::Model, 0.0, &mut predicted);
        assert_eq!(predicted, PREDICTED);
        for _ in 0..10_000 {
            coverage.observe(Rung::Model, f32::NAN, &PREDICTED, Some(1e9), None);
        }
        coverage.correct(Rung::Model, 0.0, &mut predicted);
        assert!((predicted.ttft_ms_p90 / 110.0 - MOST_LN.exp()).abs() < 1e-3, "{predicted:?}");
    }
}
