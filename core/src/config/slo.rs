//! Settings of latency targets, priorities and shedding ([`crate::slo`], [`crate::shed`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What counts beside the chance that a request misses its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SloPolicy {
    /// All that counts without targets.
    Balance,
    /// What the request costs others: fast pods stay free for those who need them.
    #[default]
    Pack,
    /// When the request itself is done.
    Spread,
}

/// Which prediction must meet a target for a request to be in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SloQuantile {
    /// The median: half of the requests that just meet it will miss.
    P50,
    /// The 90th percentile.
    #[default]
    P90,
}

/// Whose word is taken in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Nobody's: the headers are removed and the route's settings hold.
    None,
    /// A client speaks for itself only: it sets its targets and may lower its priority, never raise it, and where
    /// its route is sheddable it may not loosen what it is shed by.
    #[default]
    Own,
    /// Everybody's, in full: for networks in which only trusted parties set these headers.
    All,
}

/// What becomes of a request whose target or priority cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Malformed {
    /// It goes on as if the header were not there. Counted.
    #[default]
    Ignore,
    /// It is answered 400 with the header's name. Counted.
    Reject,
}

/// Latency targets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloConfig {
    /// Target of requests that bring none: TTFT in ms, 0 for none.
    pub ttft_ms: f32,
    /// Target of requests that bring none: TPOT in ms, 0 for none.
    pub tpot_ms: f32,
    /// Which prediction must meet a target for a request to be in time.
    pub quantile: SloQuantile,
    /// What counts beside the chance of a miss.
    pub policy: SloPolicy,
    /// Price of a miss: so many ms of one's own or others' time is a certain one worth avoiding.
    pub miss_ms: f32,
    /// Whose targets and priorities in headers are obeyed.
    pub trust: Trust,
    /// What becomes of headers that cannot be read.
    pub malformed: Malformed,
    /// Whether these headers go on to the pods.
    pub forward_headers: bool,
}

impl Default for SloConfig {
    fn default() -> Self {
        Self {
            ttft_ms: 0.0,
            tpot_ms: 0.0,
            quantile: SloQuantile::default(),
            policy: SloPolicy::default(),
            miss_ms: 20_000.0,
            trust: Trust::default(),
            malformed: Malformed::default(),
            forward_headers: true,
        }
    }
}

/// Priorities. Below 0: may be shed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriorityConfig {
    /// Priority of requests that bring none.
    pub default: i32,
    /// Priorities by the names that `x-llm-d-inference-objective` and `x-gateway-inference-objective` carry.
    pub objectives: BTreeMap<String, i32>,
    /// The delay to others weighs so many times as much for a request below 0, and as little above it.
    pub weight: f32,
}

impl Default for PriorityConfig {
    fn default() -> Self {
        Self { default: 0, objectives: BTreeMap::new(), weight: 2.0 }
    }
}

/// Shedding of requests with a priority below 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShedConfig {
    /// A sheddable request without a TTFT target is shed when no pod is predicted to give it a token in this time.
    pub ttft_ms: f32,
    /// Longest `Retry-After`.
    pub max_retry_after_s: u32,
}

impl Default for ShedConfig {
    fn default() -> Self {
        Self { ttft_ms: 10_000.0, max_retry_after_s: 60 }
    }
}
