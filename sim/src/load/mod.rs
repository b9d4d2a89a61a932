//! Load: seeded workloads, a client that measures what a user would feel, and the report.
//!
//! * [`workload`]: what is asked for, as JSON or a named preset.
//! * [`script`]: a workload and a seed become conversations with texts and times.
//! * [`runner`]: plays a workload against one or more base URLs, with a progress callback.
//! * [`report`]: TTFT, TPOT, E2E, failures, cached share; records of every request.
//!
//! Definitions. TTFT: from just before the request is handed to the connection pool to the first event
//! that carries a token. TPOT: (last token - first token) / (output tokens - 1), absent below two tokens.
//! E2E: to the last token. Percentiles are nearest-rank.
//!
//! What it is not: a stress tool that saturates a network. It makes some tens of requests a second with
//! little CPU, so that it can share two cores with the pods and the proxy it measures.

pub mod client;
pub mod report;
pub mod runner;
pub mod script;
mod sse;
#[cfg(test)]
mod virtual_tests;
mod words;
pub mod workload;

pub use report::{Record, Report};
pub use runner::{Balance, Progress, RunOptions, run};
pub use workload::Workload;
