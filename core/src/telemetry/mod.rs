//! Reading engines' metrics pages.
//!
//! A page of vLLM is 50 kB, of which routing needs a dozen lines, several times a second and pod. So the
//! page is walked once: a line is told by its name alone, and only a wanted one is read further.
//!
//! * `text`: the Prometheus text format, line by line, without copying. * `scan`: where a line or a name ends.
//! * `vllm`, `sglang`, `tgi`, `trtllm`, `triton`, `llama_cpp`: which series an engine has, and what they mean.
//! * `gather`: one value out of several series.
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
mod scan;
pub mod scrape;
mod sglang;
mod text;
mod tgi;
mod triton;
mod trtllm;
mod vllm;

use serde::{Deserialize, Serialize};

pub use adapters::Adapters;
pub use expected::Missing;
pub use orca::LoadReport;
pub use scrape::Scrape;

use gather::Gathered;
use llama_cpp::LlamaCpp;
use sglang::Sglang;
use text::Series;
use tgi::Tgi;
use triton::TritonTrtllm;
use trtllm::TrtllmServe;
use vllm::Vllm;

/// Whose metric names a page uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// `vllm:` series.
    Vllm,
    /// `sglang:` series.
    Sglang,
    /// `tgi_` series: Text Generation Inference.
    Tgi,
    /// `trtllm_` series: TensorRT-LLM's own server.
    TrtllmServe,
    /// `nv_trt_llm_` series: Triton with the TensorRT-LLM backend.
    TritonTrtllm,
    /// `llamacpp:` series.
    LlamaCpp,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Vllm, Self::Sglang, Self::Tgi, Self::TrtllmServe, Self::TritonTrtllm, Self::LlamaCpp];

    /// Whose series this is, and its name without the engine's prefix.
    fn of_series(name: &[u8]) -> Option<(Self, &[u8])> {
        // By the first byte, because most lines of most pages are of an engine that is told by it.
        let (dialect, prefix) = match name.first()? {
            b'v' => (Self::Vllm, vllm::PREFIX),
            b's' if name.starts_with(sglang::OTHER_PREFIX) => (Self::Sglang, sglang::OTHER_PREFIX),
            b's' => (Self::Sglang, sglang::PREFIX),
            b't' if name.starts_with(tgi::PREFIX) => (Self::Tgi, tgi::PREFIX),
            b't' => (Self::TrtllmServe, trtllm::PREFIX),
            b'n' => (Self::TritonTrtllm, triton::PREFIX),
            b'l' => (Self::LlamaCpp, llama_cpp::PREFIX),
            _ => return None,
        };
        Some((dialect, name.strip_prefix(prefix)?))
    }
}

/// Of every Python client library's process, and of many others'.
const START_TIME: &[u8] = b"process_start_time_seconds";

/// Why a page could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// No series of a known engine.
    #[error(
        "no series of a known engine (vllm:, sglang:, tgi_, trtllm_, nv_trt_llm_, llamacpp:) on the metrics page; set `telemetry.path` to the engine's page"
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
    let mut page_of = dialect.map(Engine::new);
    let mut start_time_s = Gathered::default();
    for series in text::series(page) {
        if let Some((dialect, name)) = Dialect::of_series(series.name) {
            let engine = page_of.get_or_insert_with(|| Engine::new(dialect));
            if engine.dialect() == dialect {
                engine.take(name, &series);
            }
        } else if series.name == START_TIME {
            start_time_s.raise_series(&series);
        }
    }
    let scrape = page_of.ok_or(TelemetryError::UnknownDialect)?.scrape()?;
    Ok(Scrape { start_time_s: start_time_s.0, ..scrape })
}

/// What has been read of one engine's page.
#[derive(Debug)]
enum Engine {
    Vllm(Box<Vllm>),
    Sglang(Sglang),
    Tgi(Tgi),
    TrtllmServe(TrtllmServe),
    TritonTrtllm(TritonTrtllm),
    LlamaCpp(LlamaCpp),
}

impl Engine {
    fn new(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Vllm => Self::Vllm(Box::default()),
            Dialect::Sglang => Self::Sglang(Sglang::default()),
            Dialect::Tgi => Self::Tgi(Tgi::default()),
            Dialect::TrtllmServe => Self::TrtllmServe(TrtllmServe::default()),
            Dialect::TritonTrtllm => Self::TritonTrtllm(TritonTrtllm::default()),
            Dialect::LlamaCpp => Self::LlamaCpp(LlamaCpp::default()),
        }
    }

    fn dialect(&self) -> Dialect {
        match self {
            Self::Vllm(_) => Dialect::Vllm,
            Self::Sglang(_) => Dialect::Sglang,
            Self::Tgi(_) => Dialect::Tgi,
            Self::TrtllmServe(_) => Dialect::TrtllmServe,
            Self::TritonTrtllm(_) => Dialect::TritonTrtllm,
            Self::LlamaCpp(_) => Dialect::LlamaCpp,
        }
    }

    fn take(&mut self, name: &[u8], series: &Series<'_>) {
        match self {
            Self::Vllm(engine) => engine.take(name, series),
            Self::Sglang(engine) => engine.take(name, series),
            Self::Tgi(engine) => engine.take(name, series),
            Self::TrtllmServe(engine) => engine.take(name, series),
            Self::TritonTrtllm(engine) => engine.take(name, series),
            Self::LlamaCpp(engine) => engine.take(name, series),
        }
    }

    fn scrape(&self) -> Result<Scrape, TelemetryError> {
        match self {
            Self::Vllm(engine) => engine.scrape(),
            Self::Sglang(engine) => engine.scrape(),
            Self::Tgi(engine) => engine.scrape(),
            Self::TrtllmServe(engine) => engine.scrape(),
            Self::TritonTrtllm(engine) => engine.scrape(),
            Self::LlamaCpp(engine) => engine.scrape(),
        }
    }
}

#[cfg(test)]
mod tests;
