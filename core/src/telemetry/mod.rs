//! Reading engines' metrics pages.
//!
//! A page of vLLM is 50 kB, of which routing needs a dozen lines, several times a second and pod. So the
//! page is walked once: a line is told by its name alone, and only a wanted one is read further.
//!
//! * `text`: the Prometheus text format, line by line, without copying.
//! * `vllm`, `llama_cpp`: which series an engine has, and what they mean.
//! * [`scrape`]: what a page says, in the same terms for every engine.
//! * [`expected`]: what a page should have said. * [`adapters`]: LoRA adapters.
//! * [`orca`]: load reports in responses' headers.
//!
//! Names are matched whole: client libraries add twins (`…_created`) and engines add neighbours
//! (`…_waiting_by_reason`) that share the beginning. What a page does not say is unknown (NaN), never zero.
//!
//! What it is not: a scraper (the filter has the timer and the calls) or a store of series.

pub mod adapters;
pub mod expected;
mod gather;
mod llama_cpp;
pub mod orca;
pub mod scrape;
mod text;
mod vllm;

use serde::{Deserialize, Serialize};

pub use adapters::Adapters;
pub use expected::Missing;
pub use orca::LoadReport;
pub use scrape::Scrape;

use gather::Gathered;
use llama_cpp::LlamaCpp;
use vllm::Vllm;

/// Whose metric names a page uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// `vllm:` series.
    Vllm,
    /// `llamacpp:` series.
    LlamaCpp,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Vllm, Self::LlamaCpp];
}

/// Of every Python client library's process, and of many others'.
const START_TIME: &[u8] = b"process_start_time_seconds";

/// Why a page could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// No series of a known engine.
    #[error(
        "no series of a known engine (vllm:, llamacpp:) on the metrics page; set `telemetry.path` to the engine's page"
    )]
    UnknownDialect,
    /// The engine is known but nothing tells its load.
    #[error("neither series {0} nor any other of this engine's load is on the metrics page")]
    Missing(&'static str),
}

/// Reads a metrics page. `dialect` overrides detection, which goes by the first series of a known engine.
///
/// # Errors
/// [`TelemetryError`] when no known engine speaks, or one does and does not tell its load.
pub fn read_metrics(page: &[u8], dialect: Option<Dialect>) -> Result<Scrape, TelemetryError> {
    let mut dialect = dialect;
    let mut start_time_s = Gathered::default();
    let mut vllm = Vllm::default();
    let mut llama_cpp = LlamaCpp::default();
    for series in text::series(page) {
        if let Some(name) = series.name.strip_prefix(vllm::PREFIX) {
            if *dialect.get_or_insert(Dialect::Vllm) == Dialect::Vllm {
                vllm.take(name, &series);
            }
        } else if let Some(name) = series.name.strip_prefix(llama_cpp::PREFIX) {
            if *dialect.get_or_insert(Dialect::LlamaCpp) == Dialect::LlamaCpp {
                llama_cpp.take(name, &series);
            }
        } else if series.name == START_TIME {
            start_time_s.raise_series(&series);
        }
    }
    let scrape = match dialect {
        Some(Dialect::Vllm) => vllm.scrape(),
        Some(Dialect::LlamaCpp) => llama_cpp.scrape(),
        None => Err(TelemetryError::UnknownDialect),
    };
    scrape.map(|scrape| Scrape { start_time_s: start_time_s.0, ..scrape })
}

#[cfg(test)]
mod tests;
