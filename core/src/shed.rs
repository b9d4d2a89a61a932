//! Shedding: which request is turned away, and when it may come back.
//!
//! Only a request with a priority below 0, and only when no candidate pod is predicted to serve it in time, at the
//! configured quantile. A pod with nothing to do is always good enough: waiting would not make it better, and it is
//! how a router with bad predictions gets new ones.
//!
//! `Retry-After` is a prediction as well: when the backlog of the pod that recovers first will have drained so far
//! that the same request would be in time.

use crate::config::ShedConfig;
use crate::fallback::Refusal;
use crate::load::PodLoad;
use crate::model::Prediction;
use crate::num::{f32_of_u64, u32_of_f32};
use crate::slo::{Miss, Terms};
use crate::speed::PodSpeed;

/// Part of the wait by which those turned away at one moment are told to come back at different ones.
const SPREAD: f32 = 0.25;

/// What a pod is like for the request.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// What is predicted there.
    pub prediction: &'a Prediction,
    /// What is there.
    pub load: &'a PodLoad,
    /// How fast it is.
    pub speed: &'a PodSpeed,
    /// Share of its time that prefill takes, below 1.
    pub prefill_share: f32,
    /// Whether it has requests that this Envoy did not send.
    pub has_others: bool,
}

impl Place<'_> {
    fn is_idle(&self) -> bool {
        self.load.inflight_requests <= 0.0 && !self.has_others
    }

    /// Time in ms until what it lacks is made up.
    ///
    /// A late first token waits for prefill ahead, which drains at the speed that new arrivals leave. Slow tokens
    /// wait for others to finish: as many as make up the miss by what each request adds to a step, of requests whose
    /// ends lie evenly over twice their mean time left.
    fn recovery_ms(&self, miss: Miss) -> f32 {
        let drained_ms = miss.ttft_ms / (1.0 - self.prefill_share.clamp(0.0, 0.9));
        let requests = self.load.inflight_requests.max(1.0);
        let each_tokens = self.load.context_tokens / requests;
        let each_ms = self.speed.decode.step_ms(1.0, each_tokens) - self.speed.decode.base_ms;
        let must_end = miss.tpot_ms / each_ms.max(f32::MIN_POSITIVE);
        let mean_left_ms = self.load.decode_left_tokens / requests * self.prediction.tpot_ms_p50;
        let ended_ms = (must_end / requests).min(1.0) * 2.0 * mean_left_ms;
        let recovery_ms = drained_ms.max(ended_ms);
        if recovery_ms.is_finite() { recovery_ms } else { 0.0 }
    }
}

/// A request that is turned away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shed {
    /// By which of its targets.
    pub refusal: Refusal,
    /// The target in ms.
    pub target_ms: f32,
    /// When it may come back, whole seconds, at least 1.
    pub retry_after_s: u32,
}

/// Whether a request is turned away from all of these pods. `random` spreads the returns.
#[must_use]
pub fn judge<'a>(
    terms: &Terms,
    places: impl Iterator<Item = Place<'a>>,
    config: &ShedConfig,
    random: u64,
) -> Option<Shed> {
    if !terms.is_sheddable() {
        return None;
    }
    let mut first: Option<(f32, Miss)> = None;
    for place in places {
        let miss = Miss::of(place.prediction, terms.shed_by, terms.quantile);
        if miss.is_none() || place.is_idle() {
            return None;
        }
        let recovery_ms = place.recovery_ms(miss);
        if first.is_none_or(|(before_ms, _)| recovery_ms < before_ms) {
            first = Some((recovery_ms, miss));
        }
    }
    let (recovery_ms, miss) = first?;
    let (refusal, target_ms) = if miss.ttft_ms > 0.0 {
        (Refusal::ShedTtft, terms.shed_by.ttft_ms)
    } else {
        (Refusal::ShedTpot, terms.shed_by.tpot_ms)
    };
    // 16 bits are enough to spread over seconds.
    let share = f32_of_u64(random & 0xFFFF) / 65_536.0;
    let seconds = (recovery_ms / 1000.0 * (1.0 + SPREAD * share)).ceil();
    Some(Shed {
        refusal,
        target_ms: target_ms.unwrap_or(0.0),
        retry_after_s: u32_of_f32(seconds).clamp(1, config.max_retry_after_s.max(1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prior::tests::SPEED;
    use crate::slo::Targets;
    use proptest::prelude::*;

    fn terms(priority: i32, ttft_ms: f32, tpot_ms: f32) -> Terms {
        Terms { priority, shed_by: Targets::new(ttft_ms, tpot_ms), ..Terms::default() }
    }

    fn predicted(ttft_ms: f32, tpot_ms: f32) -> Prediction {
        Prediction { ttft_ms_p50: ttft_ms, ttft_ms_p90: ttft_ms, tpot_ms_p50: tpot_ms, tpot_ms_p90: tpot_ms }
    }

    fn busy() -> PodLoad {
        PodLoad { inflight_requests: 20.0, decode_left_tokens: 2000.0, ..PodLoad::default() }
    }

    fn judge_all(terms: &Terms, pods: &[(Prediction, PodLoad, f32)], random: u64) -> Option<Shed> {
        let places = pods.iter().map(|(prediction, load, prefill_share)| Place {
            prediction,
            load,
            speed: &SPEED,
            prefill_share: *prefill_share,
            has_others: false,
        });
        judge(terms, places, &ShedConfig::default(), random)
    }

    #[test]
    fn only_what_may_be_shed_and_only_when_no_pod_is_in_time() {
        let late = (predicted(9000.0, 30.0), busy(), 0.0);
        let timely = (predicted(900.0, 30.0), busy(), 0.0);
        assert!(judge_all(&terms(-1, 1000.0, 0.0), &[late, late], 0).is_some());
        assert!(judge_all(&terms(0, 1000.0, 0.0), &[late, late], 0).is_none());
        assert!(judge_all(&terms(7, 1000.0, 0.0), &[late], 0).is_none());
        assert!(judge_all(&terms(-1, 1000.0, 0.0), &[late, timely], 0).is_none());
        assert!(judge_all(&terms(-1, 0.0, 0.0), &[late], 0).is_none(), "nothing to be late for");
        assert!(judge_all(&terms(-1, 1000.0, 0.0), &[], 0).is_none());
    }

    #[test]
    fn a_pod_with_nothing_to_do_takes_anything() {
        let hopeless = predicted(9000.0, 30.0);
        assert!(judge_all(&terms(-1, 1.0, 0.0), &[(hopeless, PodLoad::default(), 0.0)], 0).is_none());
        // Unless others keep it busy.
        let load = PodLoad::default();
        let place =
            Place { prediction: &hopeless, load: &load, speed: &SPEED, prefill_share: 0.0, has_others: true };
        assert!(judge(&terms(-1, 1.0, 0.0), [place].into_iter(), &ShedConfig::default(), 0).is_some());
    }

    #[test]
    fn it_may_come_back_when_the_pod_that_recovers_first_has_drained() {
        let shed = |pods: &[(Prediction, PodLoad, f32)]| {
            judge_all(&terms(-1, 1000.0, 0.0), pods, 0).unwrap().retry_after_s
        };
        let late = |ttft_ms: f32, share: f32| (predicted(ttft_ms, 30.0), busy(), share);
        assert_eq!(shed(&[late(9000.0, 0.0)]), 8);
        assert_eq!(shed(&[late(9000.0, 0.5)]), 16, "half of its time goes to new arrivals");
        assert_eq!(shed(&[late(9000.0, 0.5), late(4000.0, 0.0)]), 3);
        assert_eq!(shed(&[late(1001.0, 0.0)]), 1, "never at once");
        assert_eq!(shed(&[late(1e9, 0.0)]), 60, "bounded by configuration");
        assert_eq!(shed(&[late(1e9, 0.0)]), 60);
    }

    #[test]
    fn slow_tokens_wait_for_others_to_finish() {
        // 5 ms too slow at 0.5 ms a request: ten of twenty must go, half of 2 × 100 tokens × 30 ms.
        let shed = judge_all(&terms(-1, 0.0, 25.0), &[(predicted(100.0, 30.0), busy(), 0.0)], 0).unwrap();
        assert_eq!((shed.refusal, shed.target_ms, shed.retry_after_s), (Refusal::ShedTpot, 25.0, 3));
    }

    #[test]
    fn those_turned_away_together_do_not_come_back_together() {
        let late = [(predicted(41_000.0, 30.0), busy(), 0.0)];
        let seconds: std::collections::BTreeSet<u32> = (0..64_u64)
            .map(|i| judge_all(&terms(-1, 1000.0, 0.0), &late, i * 1024).unwrap().retry_after_s)
            .collect();
        assert_eq!((seconds.first(), seconds.last()), (Some(&40), Some(&50)));
        assert!(seconds.len() >= 10);
    }

    proptest! {
        #[test]
        fn whatever_is_predicted_the_wait_is_within_its_bounds(
            ttft in any::<f32>(), tpot in any::<f32>(), left in any::<f32>(), share in any::<f32>(), random: u64,
        ) {
            let load = PodLoad { decode_left_tokens: left, ..busy() };
            if let Some(shed) = judge_all(&terms(-1, 500.0, 20.0), &[(predicted(ttft, tpot), load, share)], random) {
                prop_assert!((1..=60).contains(&shed.retry_after_s));
                prop_assert!(ttft > 500.0 || tpot > 20.0);
            }
        }
    }
}
