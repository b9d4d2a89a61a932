//! The demo's result, as it is written with `--json`. Times are milliseconds unless the name says
//! otherwise, measured by the client; TPOT excludes the first token.

use std::collections::BTreeMap;

use foretoken_sim::load::report::Summary;
use serde::Serialize;

use super::Engine;

/// Everything the demo measured.
#[derive(Debug, Clone, Serialize)]
pub struct DemoResult {
    /// One entry a phase, in the order they were played.
    pub phases: Vec<Phase>,
    /// Models that the trainer published.
    pub models_pushed: u64,
    /// Model generations that were seen to run on every worker.
    pub models_applied: u64,
    /// Time that the filter takes for a decision, in the trained phase, as Envoy counted it.
    pub decision_us: DecisionUs,
    /// Version of Envoy.
    pub envoy_version: String,
    /// Envoy's worker threads.
    pub workers: u32,
    /// Pods.
    pub pods: usize,
    /// What the pods were.
    pub engine: Engine,
    /// Seconds of each phase in which requests were sent.
    pub seconds: f64,
    /// Seed of the workload.
    pub seed: u64,
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// `least_request`, `foretoken_prior` or `foretoken_trained`.
    pub name: String,
    /// Requests that ended, failed ones included.
    pub requests: u64,
    /// Failed ones.
    pub failed: u64,
    /// Failures by reason.
    pub failures: BTreeMap<String, u64>,
    /// Share of the prompt tokens that pods found in their caches.
    pub cached_share: f64,
    /// Request sent to first token.
    pub ttft_ms: Quantiles,
    /// (last token - first token) / (output tokens - 1).
    pub tpot_ms: Quantiles,
    /// Request sent to last token.
    pub e2e_ms: Quantiles,
    /// Median of |measured - predicted| / measured over the last third; null where nothing is predicted.
    pub ttft_error_median: Option<f64>,
    /// The same for TPOT.
    pub tpot_error_median: Option<f64>,
}

/// A distribution.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl From<&Summary> for Quantiles {
    fn from(summary: &Summary) -> Self {
        Self { mean: summary.mean, p50: summary.p50, p90: summary.p90, p99: summary.p99 }
    }
}

/// Decision times, microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct DecisionUs {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}
