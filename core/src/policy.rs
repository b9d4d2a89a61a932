//! From predictions to an order of pods: the cost of DESIGN section 6, in milliseconds throughout.
//!
//! Own latency alone is the wrong objective. A router that minimises each request's own completion, even a
//! clairvoyant one, keeps moving reusable prefixes around, and every miss stalls everyone decoding there.
//! So a placement also pays for the delay it causes. No unitless scores, no normalising over candidates.
//!
//! Not here: SLO targets, shedding.

use crate::config::PolicyConfig;
use crate::load::PodLoad;
use crate::model::Prediction;
use crate::prior::Prior;
use crate::speed::{PodSpeed, Work};

/// Prefill share above which the queueing charge would run away.
const MAX_SHARE: f32 = 0.9;

/// What placing a request on a pod costs. All in ms, unweighted.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Cost {
    /// Own completion: TTFT + expected output × TPOT.
    #[serde(rename = "own")]
    pub own_ms: f32,
    /// Of that, the TTFT.
    #[serde(rename = "ttft")]
    pub ttft_ms: f32,
    /// Delay to the requests that the pod already holds.
    #[serde(rename = "others")]
    pub others_ms: f32,
    /// Delay to the requests that it will soon get.
    #[serde(rename = "future")]
    pub future_ms: f32,
    /// Delay to those for want of memory: what it fills, they wait for.
    #[serde(rename = "crowding")]
    pub crowding_ms: f32,
    /// Time to compute again what it pushes out of the cache, as far as that is asked for again.
    #[serde(rename = "evicted")]
    pub evicted_ms: f32,
}

impl Cost {
    /// Own completion, with the TTFT's weight.
    #[must_use]
    pub fn own_weighed_ms(&self, policy: &PolicyConfig) -> f32 {
        self.own_ms + (policy.ttft - 1.0) * self.ttft_ms
    }

    /// The weighted sum.
    #[must_use]
    pub fn total_ms(&self, policy: &PolicyConfig) -> f32 {
        self.own_weighed_ms(policy)
            + policy.delay_to_others * self.others_ms
            + policy.delay_to_future * self.future_ms
            + policy.crowding * self.crowding_ms
            + policy.evicted * self.evicted_ms
    }
}

/// A request on a pod, as far as the cost depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Placing<'a> {
    /// Time to the first token there.
    pub ttft_ms: f32,
    /// Time per output token there, as far as pods can be told apart by it ([`tpot_level`]).
    pub tpot_ms: f32,
    /// What the prior made of it.
    pub prior: &'a Prior,
    /// What is at the pod.
    pub load: &'a PodLoad,
    /// How fast the pod is.
    pub speed: &'a PodSpeed,
    /// Output tokens expected.
    pub output_tokens: f32,
    /// Tokens that the request holds while it decodes, in the mean.
    pub context_tokens: f32,
    /// Tokens that it pushes out of the pod's cache.
    pub evicted_tokens: f32,
    /// Share of these that somebody will ask for.
    pub reuse_share: f32,
}

/// What the prior's TPOT is multiplied by on every pod: the geometric mean of what is predicted over it.
///
/// Multiplied by hundreds of output tokens, the least noise of a regressor that is another one for each pod decides,
/// and the luckiest error wins: conversations move that had better stay. The laws behind the prior are shared by all
/// pods, so the differences are theirs and the level is the model's. (Measured with `scripts/bench policy`.)
#[must_use]
pub fn tpot_level<'a>(pods: impl Iterator<Item = (&'a Prior, &'a Prediction)>) -> f32 {
    let (mut ln, mut count) = (0.0, 0.0);
    for (prior, prediction) in pods {
        let one = (prediction.tpot_ms_p50 / prior.tpot_ms).ln();
        if one.is_finite() {
            ln += one;
            count += 1.0;
        }
    }
    if count > 0.0 { (ln / count).exp() } else { 1.0 }
}

/// What the request's mean TPOT on a pod is of its first, as far as it depends on who is there now.
///
/// Each of them makes its steps longer only until that one ends. Who comes in their place goes where there is least to
/// do by then, so a difference between pods that is made of requests wears off with these, and one that is made of
/// hardware stays.
fn lasting(placing: &Placing<'_>) -> f32 {
    let Placing { prior, load, speed, output_tokens, .. } = *placing;
    let requests = load.inflight_requests.max(1.0);
    let each_ms = speed.decode.added_ms(load.context_tokens / requests);
    let gone = load.inflight_requests - load.common_tokens / output_tokens;
    let share = each_ms * gone / (prior.tpot_ms * (1.0 - prior.prefill_share));
    // A request that is expected to produce nothing has no mean to speak of.
    if share.is_finite() { 1.0 - share.clamp(0.0, 1.0) } else { 1.0 }
}

/// Cost of one placement.
///
/// *Own*: TTFT + expected output × TPOT, as long as what makes it lasts (`lasting`).
/// *Others*: each request that decodes there stands still while this one is prefilled, and every step of the
/// common decode is longer by what this one adds to it. Requests waiting there were first and do not wait longer.
/// *Future* (M/G/1): arrivals per ms × own prefill × (work ahead + own prefill) / (1 - prefill share).
/// *Crowding*: arrivals until it is done × what each waits longer for memory ([`Prior::crowding_ms`]).
/// *Evicted*: what is pushed out and asked for again is prefilled again, with everyone there standing still.
#[must_use]
pub fn cost(placing: &Placing<'_>) -> Cost {
    let Placing { ttft_ms, tpot_ms, prior, load, speed, output_tokens, context_tokens, .. } = *placing;
    let own_ms = ttft_ms + output_tokens * tpot_ms * lasting(placing);
    let added_ms = speed.decode.added_ms(context_tokens);
    let others_ms = prior.prefill_ms * load.decoding_requests + added_ms * load.common_tokens;
    let share = prior.prefill_share.min(MAX_SHARE);
    let arrivals_per_ms = load.arrivals_per_s / 1000.0;
    let future_ms = arrivals_per_ms * prior.prefill_ms * (prior.queue_ms + prior.prefill_ms) / (1.0 - share);
    let crowding_ms = arrivals_per_ms * own_ms * prior.crowding_ms;
    // A part of a prompt like this one, each token in its middle.
    let again = Work::of(1.0, context_tokens / 2.0).share(placing.evicted_tokens * placing.reuse_share);
    let evicted_ms = speed.prefill.work_ms(again) * (1.0 + load.decoding_requests);
    Cost { own_ms, ttft_ms, others_ms, future_ms, crowding_ms, evicted_ms }
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
    use crate::prior::tests::SPEED;
    use crate::prior::{Demand, Memory, prior};

    fn costs(load: &PodLoad, tokens: f32, output_tokens: f32, evicted_tokens: f32) -> Cost {
        let demand = Demand { work: Work::of(tokens, tokens), ..Demand::default() };
        cost(&Placing {
            ttft_ms: 220.0,
            tpot_ms: 15.0,
            prior: &prior(load, &SPEED, &demand),
            load,
            speed: &SPEED,
            output_tokens,
            context_tokens: tokens,
            evicted_tokens,
            reuse_share: 0.5,
        })
    }

    #[test]
    fn a_long_prefill_costs_everyone_who_decodes_there() {
        let load = PodLoad {
            decoding_requests: 10.0,
            inflight_requests: 10.0,
            common_tokens: 500.0,
            ..PodLoad::default()
        };
        let cost = costs(&load, 2000.0, 100.0, 0.0);
        // Each of the ten is there for 50 of its 100 steps and takes 0.5 of the first one's 15.5 ms.
        assert!((cost.own_ms - (220.0 + 1500.0 * (1.0 - 2.5 / 15.5))).abs() < 0.1, "{cost:?}");
        // 200 ms of prefill for each of ten, and 0.5 ms a step for ten over the 50 tokens they have left.
        assert_eq!(cost.others_ms, 2000.0 + 250.0);
        assert_eq!((cost.future_ms, cost.evicted_ms), (0.0, 0.0));
    }

    #[test]
    fn the_queueing_charge_grows_with_arrivals_and_with_the_queue() {
        let prefill = Work::of(3000.0, 3000.0);
        let cost = costs(&PodLoad { arrivals_per_s: 2.0, prefill, ..PodLoad::default() }, 1000.0, 1.0, 0.0);
        assert!((cost.future_ms - 0.002 * 100.0 * 400.0).abs() < 1e-3);
    }

    #[test]
    fn a_first_token_weighs_more_than_those_that_follow() {
        let cost = Cost { own_ms: 1000.0, ttft_ms: 300.0, others_ms: 50.0, ..Cost::default() };
        let policy = PolicyConfig { ttft: 3.0, delay_to_others: 2.0, ..PolicyConfig::default() };
        assert_eq!(cost.own_weighed_ms(&policy), 1600.0);
        assert_eq!(cost.total_ms(&policy), 1700.0);
    }

    #[test]
    fn filling_the_memory_costs_those_who_come_until_it_is_free_again() {
        let load = PodLoad {
            arrivals_per_s: 2.0,
            inflight_requests: 10.0,
            decode_left_tokens: 1000.0,
            common_tokens: 1000.0,
            ..PodLoad::default()
        };
        let at = |in_use: f32| {
            let demand = Demand { memory: Memory { in_use, need: 0.1 }, ..Demand::default() };
            let prior = prior(&load, &SPEED, &demand);
            cost(&Placing {
                ttft_ms: 500.0,
                tpot_ms: 15.0,
                prior: &prior,
                load: &load,
                speed: &SPEED,
                output_tokens: 100.0,
                context_tokens: 0.0,
                evicted_tokens: 0.0,
                reuse_share: 0.0,
            })
            .crowding_ms
        };
        // Beyond the edge each of the 2 × 2 s that come waits for a tenth of 100 steps of 15 ms.
        assert!((at(3.0) - 4.0 * 150.0).abs() < 5.0, "{}", at(3.0));
        assert!(at(0.9) > 0.4 * at(3.0) && at(0.9) < at(3.0), "{}", at(0.9));
        assert!(at(0.0) < 1e-3, "{}", at(0.0));
    }

    #[test]
    fn what_is_evicted_is_computed_again_as_often_as_it_is_asked_for() {
        let load = PodLoad { decoding_requests: 3.0, ..PodLoad::default() };
        let cost = costs(&load, 1000.0, 1.0, 4000.0);
        // Half of 4000 tokens at 0.1 ms, for the one who asks and three who wait.
        assert!((cost.evicted_ms - 200.0 * 4.0).abs() < 1e-3, "{cost:?}");
    }

    #[test]
    fn the_level_of_tpot_is_the_models_and_the_differences_are_the_laws() {
        let prior = |tpot_ms: f32| Prior { tpot_ms, ..Prior::default() };
        let said = |tpot_ms_p50: f32| Prediction {
            ttft_ms_p50: 1.0,
            ttft_ms_p90: 1.0,
            tpot_ms_p50,
            tpot_ms_p90: 1.0,
        };
        let (priors, predictions) = ([prior(10.0), prior(20.0)], [said(40.0), said(20.0)]);
        let level = tpot_level(priors.iter().zip(&predictions));
        assert!((level - 2.0).abs() < 1e-5, "{level}");
        let unusable = [said(f32::NAN), said(60.0)];
        assert!((tpot_level(priors.iter().zip(&unusable)) - 3.0).abs() < 1e-5);
        assert_eq!(tpot_level(core::iter::empty()), 1.0);
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
