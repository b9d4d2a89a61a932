//! Latency targets: what it is worth to meet them.
//!
//! A pod is judged by what a placement costs, as without targets, and by the chance that the request misses its
//! targets there, at a price. The price is in the same milliseconds, so a target bends the decision and does not
//! overrule it: to take whatever pod meets the target, whatever that costs others, is the greedy objective again and
//! makes everybody late at high load; and near a target a prediction cannot tell which side it will be.
//!
//! What it is not: a promise. A target changes where a request goes, and whether a sheddable one goes at all
//! ([`crate::shed`]); nothing is held back for it. Without targets nothing here has any effect.

use crate::config::{PolicyConfig, PriorityConfig, RouteSettings, SloPolicy, SloQuantile};
use crate::model::Prediction;
use crate::policy::Cost;
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
}

/// Spread of a time about its median where the model gives no 90th percentile: that one is 1.5 times the median.
const BELIEF_SPREAD: f32 = 0.185;

/// No prediction is surer than this.
const LEAST_SPREAD: f32 = 0.05;

/// Chance, 0 to 1, that a request of which this is predicted misses one of its targets.
///
/// Each time is taken as log-logistic: P(T > t) = 1 / (1 + (t / p50)^(1/s)), of which p90 / p50 = 9^s.
#[must_use]
pub fn miss_chance(prediction: &Prediction, targets: Targets) -> f32 {
    let meets = |p50: f32, p90: f32, target: Option<f32>| {
        let Some(target) = target else { return 1.0 };
        let told = (p90 / p50).ln() / 9.0_f32.ln();
        let spread = if told.is_finite() { told.max(LEAST_SPREAD) } else { BELIEF_SPREAD };
        let miss = 1.0 / (1.0 + (target / p50).powf(spread.recip()));
        if miss.is_finite() { 1.0 - miss } else { 0.0 }
    };
    1.0 - meets(prediction.ttft_ms_p50, prediction.ttft_ms_p90, targets.ttft_ms)
        * meets(prediction.tpot_ms_p50, prediction.tpot_ms_p90, targets.tpot_ms)
}

/// What one request is promised and what it may cost others: from its route and its headers
/// ([`crate::asked::Asked::terms`]). The default asks for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// Its targets.
    pub targets: Targets,
    /// Which prediction must meet them for the request to be in time.
    pub quantile: SloQuantile,
    /// What counts beside them.
    pub policy: SloPolicy,
    /// Price of a miss, ms.
    pub miss_ms: f32,
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
            miss_ms: route.miss_ms,
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
            crowding: policy.crowding * weight,
            evicted: policy.evicted * weight,
            ..policy.clone()
        }
    }

    /// What each candidate costs with the chance of a miss there, in ms; `None` when there are no targets, so that
    /// the cost alone decides. All slices are by candidate, the totals weighted by `policy`.
    #[must_use]
    pub fn price(
        &self,
        policy: &PolicyConfig,
        predictions: &[Prediction],
        costs: &[Cost],
        total_ms: &[f32],
    ) -> Option<Vec<f32>> {
        if !self.targets.any() {
            return None;
        }
        let priced = |((prediction, cost), total_ms): ((&Prediction, &Cost), &f32)| {
            let kept_ms = match self.policy {
                SloPolicy::Balance => *total_ms,
                SloPolicy::Pack => *total_ms - cost.own_weighed_ms(policy),
                SloPolicy::Spread => cost.own_weighed_ms(policy),
            };
            kept_ms + self.miss_ms * miss_chance(prediction, self.targets)
        };
        Some(predictions.iter().zip(costs).zip(total_ms).map(priced).collect())
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
