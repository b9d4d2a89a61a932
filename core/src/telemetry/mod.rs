//! Reading engines' metrics pages.
//!
//! A page of vLLM is 50 kB, of which routing needs a dozen lines, several times a second and pod. So the
//! page is walked once: a line is told by its name alone, and only a wanted one is read further.
//!
//! * `text`: the Prometheus text format, line by line, without copying.
//! * `vllm`, `llama_cpp`: which series an engine has, and what they mean.
//!
//! Names are matched whole: client libraries add twins (`…_created`) and engines add neighbours
//! (`…_waiting_by_reason`) that share the beginning. What a page does not say is unknown (NaN), never zero.
//!
//! What it is not: a scraper (the filter has the timer and the calls) or a store of series.

mod llama_cpp;
mod text;
mod vllm;

use serde::{Deserialize, Serialize};

use llama_cpp::LlamaCpp;
use vllm::Vllm;

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
    /// Share of the KV cache in use, 0..1; the fullest rank's where there are several.
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
    #[error(
        "no series of a known engine (vllm:, llamacpp:) on the metrics page; set `telemetry.path` to the engine's page"
    )]
    UnknownDialect,
    /// The engine is known but a series that routing needs is missing.
    #[error("series {0} is missing from the metrics page")]
    Missing(&'static str),
}

/// Reads a metrics page. `dialect` overrides detection, which goes by the first series of a known engine.
///
/// # Errors
/// [`TelemetryError`] when no known engine speaks, or one does and does not tell its load.
pub fn read_metrics(page: &[u8], dialect: Option<Dialect>) -> Result<Scrape, TelemetryError> {
    let mut dialect = dialect;
    let mut vllm = Vllm::default();
    let mut llama_cpp = LlamaCpp::default();
    for series in text::series(page) {
        if let Some(name) = series.name.strip_prefix(vllm::PREFIX) {
            if *dialect.get_or_insert(Dialect::Vllm) == Dialect::Vllm {
                vllm.take(name, &series);
            }
        } else if let Some(name) = series.name.strip_prefix(llama_cpp::PREFIX)
            && *dialect.get_or_insert(Dialect::LlamaCpp) == Dialect::LlamaCpp
        {
            llama_cpp.take(name, &series);
        }
    }
    match dialect {
        Some(Dialect::Vllm) => vllm.scrape(),
        Some(Dialect::LlamaCpp) => llama_cpp.scrape(),
        None => Err(TelemetryError::UnknownDialect),
    }
}

/// Adds a series to a sum that is NaN until its first value. What is not finite says nothing.
fn add(sum: &mut f64, value: f64) {
    if value.is_finite() {
        *sum = if sum.is_nan() { value } else { *sum + value };
    }
}

#[cfg(test)]
mod tests;
