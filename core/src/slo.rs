//! Latency targets: which pods meet them, and in what order the others miss.
//!
//! Among pods that meet both targets at the configured quantile, `pack` takes the one where the request costs the
//! others least and `spread` the one where it is done soonest. Where none does, the least total miss: the first
//! token's lateness and each further token's, in ms over the whole answer, and what the request costs others. Its own
//! lateness alone would be the greedy objective again, and at high load make everybody late.
//!
//! What it is not: a promise. A target changes where a request goes, and whether a sheddable one goes at all
//! ([`crate::shed`]); nothing is held back for it. Without targets nothing here has any effect.

use crate::config::{PolicyConfig, PriorityConfig, RouteSettings, SloPolicy, SloQuantile};
use crate::model::Prediction;
use crate::policy::{Cost, order};
use crate::sample::{Ending, Sample};

/// Latency targets of a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Targets {
    /// Time to first token, ms.
    pub ttft_ms: Option<f32>,
    /// Time per output token after the first, ms.
    pub tpot_ms: Option<f32>,
}

impl Targets {
    /// These, where 0 (as any other value that is no time) is none.
    #[must_use]
    pub fn new(ttft_ms: f32, tpot_ms: f32) -> Self {
        let target = |ms: f32| Some(ms).filter(|ms| ms.is_finite() && *ms > 0.0);
        Self { ttft_ms: target(ttft_ms), tpot_ms: target(tpot_ms) }
    }

    /// Whether there is any.
    #[must_use]
    pub fn any(&self) -> bool {
        self.ttft_ms.is_some() || self.tpot_ms.is_some()
    }
}

/// How far a prediction is over the targets, in ms; 0 for each that is met.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Miss {
    /// Of the first token.
    pub ttft_ms: f32,
    /// Of each further one.
    pub tpot_ms: f32,
}

impl Miss {
    /// By how much this prediction misses these targets.
    #[must_use]
    pub fn of(prediction: &Prediction, targets: Targets, quantile: SloQuantile) -> Self {
        let over = |p50: f32, p90: f32, target: Option<f32>| {
            // A model may know the median only.
            let predicted = if quantile == SloQuantile::P90 && p90.is_finite() { p90 } else { p50 };
            target.map_or(0.0, |target| (predicted - target).max(0.0))
        };
        Self {
            ttft_ms: over(prediction.ttft_ms_p50, prediction.ttft_ms_p90, targets.ttft_ms),
            tpot_ms: over(prediction.tpot_ms_p50, prediction.tpot_ms_p90, targets.tpot_ms),
        }
    }

    /// Whether both targets are met.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.ttft_ms <= 0.0 && self.tpot_ms <= 0.0
    }

    /// Lateness of the whole answer.
    #[must_use]
    pub fn total_ms(&self, expected_output_tokens: f32) -> f32 {
        self.ttft_ms + expected_output_tokens * self.tpot_ms
    }
}

/// What one request is promised and what it may cost others: from its route and its headers
/// ([`crate::asked::Asked::terms`]). The default asks for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// Its targets.
    pub targets: Targets,
    /// Which prediction must meet them.
    pub quantile: SloQuantile,
    /// What is done among pods that do.
    pub policy: SloPolicy,
    /// Its priority; below 0 it may be shed.
    pub priority: i32,
    /// What it must be able to get in order not to be shed: its own targets, else the route's bound.
    pub shed_by: Targets,
}

impl Terms {
    /// What holds on a route for a request that asks for nothing.
    #[must_use]
    pub fn of_route(route: &RouteSettings) -> Self {
        Self::new(route, route.targets, route.priority)
    }

    pub(crate) fn new(route: &RouteSettings, targets: Targets, priority: i32) -> Self {
        Self {
            targets,
            quantile: route.quantile,
            policy: route.policy,
            priority,
            shed_by: Targets { ttft_ms: targets.ttft_ms.or(Some(route.shed_ttft_ms)), ..targets },
        }
    }

    /// Whether the request may be shed.
    #[must_use]
    pub fn is_sheddable(&self) -> bool {
        self.priority < 0
    }

    /// The weights of the cost's terms for a request of this priority.
    #[must_use]
    pub fn weigh(&self, policy: &PolicyConfig, priority: &PriorityConfig) -> PolicyConfig {
        let weight = match self.priority {
            0 => return policy.clone(),
            ..0 => priority.weight,
            1.. => priority.weight.recip(),
        };
        PolicyConfig {
            delay_to_others: policy.delay_to_others * weight,
            delay_to_future: policy.delay_to_future * weight,
            ..policy.clone()
        }
    }

    /// Candidates in the order of their fitness for the targets, best first; `None` when there are no targets, so
    /// that the cost alone decides.
    ///
    /// All slices are by candidate. Those that meet the targets come first, the rest by their misses. As in
    /// [`order`], the first is drawn among those that cannot be told apart.
    #[must_use]
    pub fn rank(
        &self,
        predictions: &[Prediction],
        costs: &[Cost],
        total_ms: &[f32],
        expected_output_tokens: f32,
        tie_share: f32,
        random: u64,
    ) -> Option<Vec<usize>> {
        if !self.targets.any() {
            return None;
        }
        let (mut meeting, mut keys_ms) = (Vec::new(), Vec::new());
        let (mut missing, mut misses_ms) = (Vec::new(), Vec::new());
        for (at, ((prediction, cost), total_ms)) in predictions.iter().zip(costs).zip(total_ms).enumerate() {
            let miss = Miss::of(prediction, self.targets, self.quantile);
            if miss.is_none() {
                meeting.push(at);
                keys_ms.push(match self.policy {
                    SloPolicy::Pack => total_ms - cost.own_ms,
                    SloPolicy::Spread => cost.own_ms,
                });
            } else {
                missing.push(at);
                misses_ms.push(miss.total_ms(expected_output_tokens) + total_ms - cost.own_ms);
            }
        }
        let of = |candidates: &[usize], order: Vec<usize>| -> Vec<usize> {
            order.into_iter().filter_map(|at| candidates.get(at).copied()).collect()
        };
        let mut ranked = of(&meeting, order(&keys_ms, tie_share, random));
        ranked.extend(of(&missing, order(&misses_ms, tie_share, random)));
        Some(ranked)
    }
}

/// Whether the targets were met, as far as it can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attained {
    /// TTFT; `None` without a target, or when nobody knows.
    pub ttft: Option<bool>,
    /// TPOT; likewise.
    pub tpot: Option<bool>,
}

impl Attained {
    /// By what a request's sample says. What failed has missed; a client that left before it could be told, and an
    /// answer that was not streamed, say nothing.
    #[must_use]
    pub fn of(targets: Targets, sample: &Sample) -> Self {
        let failed = sample.ending == Ending::Failed || sample.status == 0 || sample.status >= 500;
        let good = sample.status == 200 && sample.streamed;
        let met = |target: Option<f32>, measured: Option<f32>| {
            let target = target?;
            match measured.filter(|_| good) {
                Some(ms) => Some(ms <= target && !failed),
                None => (failed && sample.ending != Ending::Cancelled).then_some(false),
            }
        };
        Self { ttft: met(targets.ttft_ms, sample.ttft_ms), tpot: met(targets.tpot_ms, sample.tpot_ms) }
    }
}

#[cfg(test)]
mod tests;
