//! Reading engines' metrics pages.
//!
//! (placeholder head; owner: request/response/telemetry)

use serde::{Deserialize, Serialize};

/// Whose metric names a page uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// `vllm:` series.
    Vllm,
    /// `llamacpp:` series.
    LlamaCpp,
}

/// What one scrape said. NaN is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scrape {
    /// Whose names were used.
    pub dialect: Dialect,
    /// Requests in the engine's queue.
    pub waiting_requests: f32,
    /// Requests running.
    pub running_requests: f32,
    /// Share of the KV cache in use, 0..1.
    pub kv_usage: f32,
    /// KV cache size in tokens.
    pub kv_capacity_tokens: f32,
    /// Prompt tokens looked up in the prefix cache, a counter.
    pub prefix_query_tokens: f64,
    /// Prompt tokens found there, a counter.
    pub prefix_hit_tokens: f64,
    /// Preemptions, a counter.
    pub preemptions: f64,
}

/// Why a page could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// No series of a known engine.
    #[error("no series of a known engine (vllm:, llamacpp:) on the metrics page; set `telemetry.path` to the engine's page")]
    UnknownDialect,
    /// The engine is known but a series that routing needs is missing.
    #[error("series {0} is missing from the metrics page")]
    Missing(&'static str),
}

/// Reads a metrics page. `dialect` overrides detection.
///
/// # Errors
/// [`TelemetryError`] when no known engine speaks.
pub fn read_metrics(_page: &[u8], _dialect: Option<Dialect>) -> Result<Scrape, TelemetryError> {
    Err(TelemetryError::UnknownDialect)
}
