//! Clairvoyant routers: they know every engine's true state and every true output length.
//!
//! For each pod they play the future out ([`crate::engine::forecast`]), with the request and without it.
//! *Greedy* takes the pod where the request itself ends first; *social* adds the delay of everyone who is already
//! there; *full* is the cost of DESIGN section 6 with true figures in it. None knows what will arrive, so
//! none is a bound: they are a yardstick.

use super::books::{Books, Rule};
use crate::engine::forecast::{Extra, Forecast};
use crate::engine::profile::StepWork;
use crate::virtual_time::content::BLOCK_TOKENS;
use crate::virtual_time::policy::Ask;

/// Time constant of the pods' arrival rates.
const MEMORY_S: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objective {
    Own,
    Social,
    Full,
}

/// An oracle.
#[derive(Debug)]
pub struct Oracle {
    name: &'static str,
    objective: Objective,
    forecast: Forecast,
    /// Arrivals a second at each pod, and when that was.
    rates: Vec<(f64, u64)>,
}

impl Oracle {
    fn new(name: &'static str, objective: Objective) -> Self {
        Self { name, objective, forecast: Forecast::default(), rates: Vec::new() }
    }

    /// Own completion.
    #[must_use]
    pub fn greedy() -> Self {
        Self::new("oracle-greedy", Objective::Own)
    }

    /// Own completion and the delay of others.
    #[must_use]
    pub fn social() -> Self {
        Self::new("oracle-social", Objective::Social)
    }

    /// Own completion, half the delay of others, the queueing charge, what is evicted.
    #[must_use]
    pub fn full() -> Self {
        Self::new("oracle-full", Objective::Full)
    }

    fn rate_per_ms(&self, pod: usize, now_us: u64) -> f64 {
        let (rate, at_us) = self.rates.get(pod).copied().unwrap_or_default();
        rate * (-(now_us.saturating_sub(at_us) as f64) / 1e6 / MEMORY_S).exp() / 1000.0
    }

    fn cost_ms(&mut self, ask: &Ask<'_>, pod: usize) -> f64 {
        let engine = ask.pods.engine(pod);
        let to_step_end_ms = ask
            .pods
            .step_ends_us(pod)
            .map_or(0.0, |ends_us| ends_us.saturating_sub(ask.now_us) as f64 / 1000.0);
        let cached = ask.pods.cached_tokens(pod, ask.request);
        let extra = Extra {
            prompt_tokens: ask.request.prompt_tokens,
            cached_tokens: cached,
            output_tokens: ask.request.output_tokens,
        };
        let with = self.forecast.run(engine, to_step_end_ms, Some(&extra));
        let own_ms = with.own_end_ms;
        if self.objective == Objective::Own {
            return own_ms;
        }
        let without = self.forecast.run(engine, to_step_end_ms, None);
        let others_ms = with.others_end_sum_ms - without.others_end_sum_ms;
        if self.objective == Objective::Social {
            return own_ms + others_ms;
        }
        let profile = engine.profile();
        let mut work = StepWork::default();
        work.add_prefill(cached, ask.request.prompt_tokens - cached);
        let prefill_ms = profile.step_ms(&work) - profile.floor_ms;
        let arrivals = self.rate_per_ms(pod, ask.now_us);
        let share = (arrivals * prefill_ms).min(0.9);
        let future_ms = arrivals * prefill_ms * (with.own_first_ms + prefill_ms) / (1.0 - share);
        let new_blocks =
            (ask.request.prompt_tokens + ask.request.output_tokens - cached).div_ceil(BLOCK_TOKENS);
        let evicted = new_blocks.saturating_sub(engine.empty_blocks());
        let stats = engine.stats();
        let reuse = stats.prefix_hit_tokens as f64 / stats.prefix_query_tokens.max(1) as f64;
        let evicted_ms = f64::from(evicted * BLOCK_TOKENS) * profile.prefill_ms_per_token * reuse;
        own_ms + 0.5 * others_ms + future_ms + evicted_ms
    }
}

impl Rule for Oracle {
    fn name(&self) -> &'static str {
        self.name
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        let costs: Vec<(usize, f64)> = {
            let up: Vec<usize> = books.up().collect();
            up.into_iter().map(|pod| (pod, self.cost_ms(ask, pod))).collect()
        };
        books.highest(|_, pod| {
            costs.iter().find(|(at, _)| *at == pod).map_or(f64::NEG_INFINITY, |(_, ms)| -ms)
        })
    }

    fn sent(&mut self, ask: &Ask<'_>, pod: usize, _books: &Books) {
        if self.rates.len() <= pod {
            self.rates.resize(pod + 1, (0.0, 0));
        }
        let now = self.rate_per_ms(pod, ask.now_us) * 1000.0;
        self.rates[pod] = (now + 1.0 / MEMORY_S, ask.now_us);
    }
}
