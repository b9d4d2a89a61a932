//! From predictions to an order of pods: the cost of DESIGN section 6, in milliseconds throughout.
//!
//! Own latency alone is the wrong objective. A router that minimises each request's own completion, even a
//! clairvoyant one, keeps moving reusable prefixes around, and every miss stalls everyone decoding there.
//! So a placement also pays for the delay it causes. No unitless scores, no normalising over candidates.
//!
//! Not here: SLO targets, shedding, the price of evicted blocks.

use crate::config::PolicyConfig;
use crate::load::PodLoad;
use crate::model::Prediction;
use crate::prior::Prior;
use crate::speed::PodSpeed;

/// Prefill share above which the queueing charge would run away.
const MAX_SHARE: f32 = 0.9;

/// What placing a request on a pod costs. All in ms, unweighted.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Cost {
    /// Own completion: TTFT + expected output × TPOT.
    #[serde(rename = "own")]
    pub own_ms: f32,
    /// Delay to the requests that the pod already holds.
    #[serde(rename = "others")]
    pub others_ms: f32,
    /// Delay to the requests that it will soon get.
    #[serde(rename = "future")]
    pub future_ms: f32,
}

impl Cost {
    /// The weighted sum.
    #[must_use]
    pub fn total_ms(&self, policy: &PolicyConfig) -> f32 {
        self.own_ms + policy.delay_to_others * self.others_ms + policy.delay_to_future * self.future_ms
    }
}

/// Cost of one placement.
///
/// *Others*: each request decoding there stands still while this one is prefilled, and every step of the
/// common decode is longer by the pod's slope. Requests waiting there were first and do not wait longer.
/// *Future* (M/G/1): arrivals per ms × own prefill × (work ahead + own prefill) / (1 - prefill share).
#[must_use]
pub fn cost(
    prediction: &Prediction,
    prior: &Prior,
    load: &PodLoad,
    speed: &PodSpeed,
    expected_output_tokens: f32,
) -> Cost {
    let own_ms = prediction.ttft_ms_p50 + expected_output_tokens * prediction.tpot_ms_p50;
    let mean_left_tokens = load.decode_left_tokens / load.inflight_requests.max(1.0);
    let common_tokens = expected_output_tokens.min(mean_left_tokens);
    let others_ms =
        prior.prefill_ms * load.decoding_requests + speed.tpot.slope * common_tokens * load.inflight_requests;
    let share = prior.prefill_share.min(MAX_SHARE);
    let future_ms =
        load.arrivals_per_s / 1000.0 * prior.prefill_ms * (prior.queue_ms + prior.prefill_ms) / (1.0 - share);
    Cost { own_ms, others_ms, future_ms }
}

/// Candidates by cost, least first. Those within `tie_share` of the least cannot be told apart: one of them,
/// chosen by `random`, comes first, so that equal pods share the work.
#[must_use]
pub fn order(total_ms: &[f32], tie_share: f32, random: u64) -> Vec<usize> {
    let mut ranked: Vec<(usize, f32)> = total_ms.iter().copied().enumerate().collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some((_, least_ms)) = ranked.first().copied() else { return Vec::new() };
    let bound_ms = least_ms + least_ms.abs() * tie_share;
    let tied = ranked.iter().take_while(|(_, ms)| *ms <= bound_ms).count().max(1);
    let winner = usize::try_from(random % u64::try_from(tied).unwrap_or(1)).unwrap_or(0);
    if let Some(head) = ranked.get_mut(..=winner) {
        head.rotate_right(1);
    }
    ranked.into_iter().map(|(at, _)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prior::prior;
    use crate::speed::Line;

    const SPEED: PodSpeed =
        PodSpeed { ttft: Line { base: 20.0, slope: 0.1 }, tpot: Line { base: 10.0, slope: 0.5 } };

    fn predicted(ttft_ms: f32, tpot_ms: f32) -> Prediction {
        Prediction { ttft_ms_p50: ttft_ms, ttft_ms_p90: ttft_ms, tpot_ms_p50: tpot_ms, tpot_ms_p90: tpot_ms }
    }

    #[test]
    fn a_long_prefill_costs_everyone_who_decodes_there() {
        let load = PodLoad {
            decoding_requests: 10.0,
            inflight_requests: 10.0,
            decode_left_tokens: 500.0,
            ..PodLoad::default()
        };
        let prior = prior(&load, &SPEED, 2000.0, 0.0);
        let cost = cost(&predicted(220.0, 15.0), &prior, &load, &SPEED, 100.0);
        assert_eq!(cost.own_ms, 220.0 + 1500.0);
        // 200 ms of prefill for each of ten, and 0.5 ms a step for ten over the 50 tokens they have left.
        assert_eq!(cost.others_ms, 2000.0 + 250.0);
        assert_eq!(cost.future_ms, 0.0);
    }

    #[test]
    fn the_queueing_charge_grows_with_arrivals_and_with_the_queue() {
        let load = PodLoad { arrivals_per_s: 2.0, prefill_tokens: 3000.0, ..PodLoad::default() };
        let prior = prior(&load, &SPEED, 1000.0, 0.0);
        let cost = cost(&predicted(1.0, 1.0), &prior, &load, &SPEED, 1.0);
        assert!((cost.future_ms - 0.002 * 100.0 * 400.0).abs() < 1e-3);
    }

    #[test]
    fn pods_that_cannot_be_told_apart_share_the_work() {
        let total = [100.0, 100.5, 150.0, 99.9];
        let firsts: std::collections::HashSet<usize> =
            (0..50).map(|random| order(&total, 0.01, random)[0]).collect();
        assert_eq!(firsts, [0, 1, 3].into_iter().collect());
        let all = order(&total, 0.0, 5);
        assert_eq!(all, [3, 0, 1, 2]);
        let mut sorted = order(&total, 0.01, 2);
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
        assert!(order(&[], 0.01, 2).is_empty());
    }
}
