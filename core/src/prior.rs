//! The analytic prior: TTFT and TPOT of a request on a pod, from a handful of rates.
//!
//! It predicts sensibly before any model exists, and it is the base of what models learn: a model's output is
//! a ratio to it. So it must be positive and finite, and cheap; being right is the model's business.
//!
//! TTFT = floor + work ahead + own uncached prefill, the pod prefilling in the order of arrival.
//! TPOT = decode step by batch / (1 - prefill share): with chunked prefill each step carries decodes and as
//! much prefill as arrived during it, so a step s satisfies s = s0 + (prefill load) × s.

use crate::load::PodLoad;
use crate::speed::PodSpeed;

/// Prefill share of a pod's time above which the formula would run away; the model learns the rest.
const MAX_PREFILL_SHARE: f32 = 0.8;

/// What the prior says, and the parts that the cost needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prior {
    /// Time to first token in ms.
    pub ttft_ms: f32,
    /// Time per output token in ms.
    pub tpot_ms: f32,
    /// Prefill work ahead of the request, in ms.
    pub queue_ms: f32,
    /// The request's own prefill, in ms.
    pub prefill_ms: f32,
    /// Share of the pod's time that prefill takes, 0 to [`MAX_PREFILL_SHARE`].
    pub prefill_share: f32,
}

/// The prior of a request with `uncached_tokens` to prefill on a pod with this load and speed.
///
/// `foreign_waiting_tokens`: prefill tokens of other routers' requests that wait at the pod.
#[must_use]
pub fn prior(load: &PodLoad, speed: &PodSpeed, uncached_tokens: f32, foreign_waiting_tokens: f32) -> Prior {
    let per_token_ms = speed.ttft.slope;
    let ahead_ms = (load.prefill_tokens * per_token_ms - load.head_elapsed_ms).max(0.0);
    let queue_ms = ahead_ms + foreign_waiting_tokens.max(0.0) * per_token_ms;
    let prefill_ms = uncached_tokens * per_token_ms;
    let prefill_share = (load.prefill_tokens_per_s * per_token_ms / 1000.0).clamp(0.0, MAX_PREFILL_SHARE);
    let step_ms = speed.tpot.base + speed.tpot.slope * load.inflight_requests;
    Prior {
        ttft_ms: speed.ttft.base + queue_ms + prefill_ms,
        tpot_ms: step_ms / (1.0 - prefill_share),
        queue_ms,
        prefill_ms,
        prefill_share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::{DEFAULT_SPEED, Line};

    const SPEED: PodSpeed =
        PodSpeed { ttft: Line { base: 20.0, slope: 0.1 }, tpot: Line { base: 10.0, slope: 0.5 } };

    #[test]
    fn an_idle_pod_takes_its_floor_and_the_prefill() {
        let idle = prior(&PodLoad::default(), &SPEED, 1000.0, 0.0);
        assert_eq!((idle.ttft_ms, idle.tpot_ms), (120.0, 10.0));
    }

    #[test]
    fn work_ahead_counts_less_what_is_done_of_it() {
        let load = PodLoad {
            prefill_tokens: 3000.0,
            head_elapsed_ms: 50.0,
            inflight_requests: 4.0,
            ..PodLoad::default()
        };
        let busy = prior(&load, &SPEED, 1000.0, 0.0);
        assert_eq!(busy.ttft_ms, 20.0 + 250.0 + 100.0);
        assert_eq!(busy.tpot_ms, 12.0);
        let stuck = PodLoad { head_elapsed_ms: 1e6, ..load };
        assert_eq!(prior(&stuck, &SPEED, 1000.0, 0.0).queue_ms, 0.0);
    }

    #[test]
    fn prefill_that_keeps_coming_stretches_decode_steps_but_never_to_infinity() {
        let load = PodLoad { prefill_tokens_per_s: 5000.0, ..PodLoad::default() };
        assert_eq!(prior(&load, &SPEED, 0.0, 0.0).tpot_ms, 20.0);
        let flood = PodLoad { prefill_tokens_per_s: 1e9, ..PodLoad::default() };
        assert!(prior(&flood, &DEFAULT_SPEED, 0.0, 0.0).tpot_ms < 100.0);
    }
}
