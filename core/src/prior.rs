//! The analytic prior: TTFT and TPOT of a request on a pod, from a handful of rates.
//!
//! It predicts sensibly before any model exists, and it is the base of what models learn: a model's output is
//! a ratio to it. So it must be positive and finite, and cheap. What it says of the difference between two
//! pods should be right, what it says of both may be off: that is the model's business.
//!
//! TTFT = steps of waiting + work ahead + own uncached prefill, the pod prefilling in the order of arrival.
//! TPOT = decode step / (1 - prefill share): with chunked prefill each step carries decodes and as
//! much prefill as arrived during it, so a step s satisfies s = s0 + (prefill load) × s.

use crate::load::PodLoad;
use crate::speed::{PodSpeed, Work};

/// Prefill share of a pod's time above which the formula would run away; the model learns the rest.
const MAX_PREFILL_SHARE: f32 = 0.8;

/// What the prior says, and the parts that the cost needs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prior {
    /// Time to first token in ms.
    pub ttft_ms: f32,
    /// Time per output token in ms.
    pub tpot_ms: f32,
    /// Time for the prefill work ahead of the request, in ms.
    pub queue_ms: f32,
    /// That work, less what is done of it.
    pub ahead: Work,
    /// Time until requests there have ended that hold the memory which this one needs, in ms.
    pub memory_ms: f32,
    /// Time for which each request like it that comes there after it waits longer for memory because of it, in ms.
    pub crowding_ms: f32,
    /// The request's own prefill work, in ms; decoding beside it goes on.
    pub prefill_ms: f32,
    /// A decode step of what the pod holds, in ms.
    pub step_ms: f32,
    /// Share of the pod's time that prefill takes, 0 to [`MAX_PREFILL_SHARE`].
    pub prefill_share: f32,
}

/// What is asked of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    /// Prefill that the prompt takes there.
    pub work: Work,
    /// Tokens that the request holds while it decodes, in the mean.
    pub context_tokens: f32,
    /// Requests of other routers at the pod.
    pub foreign_requests: f32,
    /// Their tokens.
    pub foreign_context_tokens: f32,
    /// Prefill of those that wait.
    pub foreign_work: Work,
    /// What it takes of the KV cache.
    pub memory: Memory,
}

/// A request beside what is in a KV cache, in shares of the cache's size. All 0 where the size is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// In use, or asked for by requests that come before this one.
    pub in_use: f32,
    /// Asked for by this one.
    pub need: f32,
}

impl Memory {
    /// What must be freed before this request fits in.
    fn short(&self) -> f32 {
        (self.in_use + self.need - 1.0).clamp(0.0, 1.0)
    }

    /// By how much more the next request like this one will be short when this one is there, in the mean.
    ///
    /// What is in use by then is as uncertain as the number of requests that it consists of: if they come and go at
    /// random, its square root.
    fn crowding(&self) -> f32 {
        let spread = (self.in_use * self.need).sqrt() * LOGISTIC;
        let short = |beyond: f32| {
            if spread > 0.0 { spread * softplus(beyond / spread) } else { beyond.max(0.0) }
        };
        let beyond = self.in_use + self.need - 1.0;
        (short(beyond + self.need) - short(beyond)).max(0.0)
    }
}

/// Scale of the logistic law over the standard deviation of the normal one that it stands for.
const LOGISTIC: f32 = 0.55;

/// ln(1 + e^x): the mean of max(0, x + noise) where the noise is logistic.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The prior of a request on a pod with this load and speed.
#[must_use]
pub fn prior(load: &PodLoad, speed: &PodSpeed, demand: &Demand) -> Prior {
    let Demand { work, context_tokens, foreign_requests, foreign_context_tokens, foreign_work, memory } =
        *demand;
    let requests = load.inflight_requests + foreign_requests;
    let held_tokens = load.context_tokens + foreign_context_tokens;
    let step_ms = speed.decode.step_ms(requests, held_tokens);
    let time_ms =
        |work: Work| speed.prefill.work_ms(work) + speed.prefill.steps_per_token * work.tokens * step_ms;
    let booked_ms = time_ms(load.prefill);
    let left_ms = (booked_ms - load.head_elapsed_ms).max(0.0);
    let left = if booked_ms > 0.0 { load.prefill.share(left_ms / booked_ms) } else { Work::default() };
    let queue_ms = left_ms + time_ms(foreign_work);
    let prefill_share = (speed.prefill.work_ms(load.prefill_per_s) / 1000.0).clamp(0.0, MAX_PREFILL_SHARE);
    let own_step_ms = speed.decode.step_ms(requests + 1.0, held_tokens + context_tokens);
    // Each request gives back all it holds when it ends; they end evenly over the time that they have left.
    let left_tokens = load.decode_left_tokens / load.inflight_requests.max(1.0);
    let turnover_ms = left_tokens * step_ms / (1.0 - prefill_share);
    let memory_ms = memory.short() * turnover_ms;
    Prior {
        ttft_ms: speed.prefill.wait_steps * step_ms + queue_ms + memory_ms + time_ms(work),
        tpot_ms: own_step_ms / (1.0 - prefill_share),
        queue_ms,
        memory_ms,
        crowding_ms: memory.crowding() * turnover_ms,
        ahead: left.plus(foreign_work),
        prefill_ms: speed.prefill.work_ms(work),
        step_ms,
        prefill_share,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::speed::{DEFAULT_SPEED, Decode, Prefill};

    /// Round figures: a step of 10 ms and 0.5 ms for each request, 0.1 ms for each prompt token.
    pub(crate) const SPEED: PodSpeed = PodSpeed {
        prefill: Prefill { wait_steps: 2.0, per_token_ms: 0.1, per_token2_ms: 0.0, steps_per_token: 0.0 },
        decode: Decode { base_ms: 10.0, per_request_ms: 0.5, per_context_token_ms: 0.0 },
    };

    fn of(tokens: f32) -> Demand {
        Demand { work: Work::of(tokens, tokens), context_tokens: tokens, ..Demand::default() }
    }

    #[test]
    fn an_idle_pod_takes_its_steps_and_the_prefill() {
        let idle = prior(&PodLoad::default(), &SPEED, &of(1000.0));
        assert_eq!((idle.ttft_ms, idle.tpot_ms), (120.0, 10.5));
    }

    #[test]
    fn work_ahead_counts_less_what_is_done_of_it() {
        let load = PodLoad {
            prefill: Work::of(3000.0, 3000.0),
            head_elapsed_ms: 50.0,
            inflight_requests: 4.0,
            ..PodLoad::default()
        };
        let busy = prior(&load, &SPEED, &of(1000.0));
        assert_eq!(busy.ttft_ms, 24.0 + 250.0 + 100.0);
        assert_eq!(busy.tpot_ms, 12.5);
        assert!((busy.ahead.tokens - 2500.0).abs() < 1e-3);
        let stuck = PodLoad { head_elapsed_ms: 1e6, ..load };
        assert_eq!(prior(&stuck, &SPEED, &of(1000.0)).queue_ms, 0.0);
    }

    #[test]
    fn long_contexts_slow_decoding_and_prefill_down() {
        let (prompt, uncached) = (50_000.0, 1_000.0);
        let demand = Demand { work: Work::of(uncached, prompt), context_tokens: prompt, ..Demand::default() };
        let [fresh, held] = [0.0, 400_000.0].map(|context_tokens| {
            prior(&PodLoad { context_tokens, ..PodLoad::default() }, &DEFAULT_SPEED, &demand)
        });
        assert!((held.tpot_ms - fresh.tpot_ms - 16.0).abs() < 0.1, "{held:?}");
        // Each of the thousand tokens looks back on some 49,500.
        assert!((fresh.prefill_ms - (200.0 + 1.3e-6 * 49_500.0 * 1000.0)).abs() < 0.1, "{fresh:?}");
    }

    #[test]
    fn what_others_hold_there_counts_too() {
        let demand = Demand { foreign_requests: 6.0, foreign_work: Work::of(2000.0, 2000.0), ..of(0.0) };
        let shared = prior(&PodLoad::default(), &SPEED, &demand);
        assert_eq!((shared.tpot_ms, shared.queue_ms), (13.5, 200.0));
    }

    #[test]
    fn prefill_that_keeps_coming_stretches_decode_steps_but_never_to_infinity() {
        let per_s =
            |tokens: f32| PodLoad { prefill_per_s: Work { tokens, token2: 0.0 }, ..PodLoad::default() };
        assert_eq!(prior(&per_s(5000.0), &SPEED, &of(0.0)).tpot_ms, 21.0);
        assert!(prior(&per_s(1e9), &DEFAULT_SPEED, &of(0.0)).tpot_ms < 100.0);
    }
}
