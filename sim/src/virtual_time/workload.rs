//! What arrives when. Sources of it are in [`crate::workloads`].

use std::sync::Arc;

use super::content::BLOCK_TOKENS;
use super::record::Record;

/// Latency targets of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Time to first token, ms.
    pub ttft_ms: f64,
    /// Time per output token, ms.
    pub tpot_ms: f64,
}

/// One request, with everything that will come of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Prompt tokens, at least 1.
    pub prompt_tokens: u32,
    /// Tokens that the model will answer with, at least 1. Only the engine and oracles may know.
    pub output_tokens: u32,
    /// Hashes of the full blocks of prompt and answer together.
    pub blocks: Arc<[u64]>,
    /// The bound that the client sends, which is what a router sees.
    pub max_tokens: Option<u32>,
    /// Which of the workload's conversations, groups or rows it belongs to.
    pub tag: u64,
    /// Its targets.
    pub slo: Option<Slo>,
    /// Its priority; negative may be shed.
    pub priority: i32,
}

impl Request {
    /// Hashes of the prompt's full blocks.
    #[must_use]
    pub fn prompt_blocks(&self) -> &[u64] {
        &self.blocks[..self.blocks.len().min((self.prompt_tokens / BLOCK_TOKENS) as usize)]
    }
}

/// A request and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// When it arrives, microseconds from the start.
    pub at_us: u64,
    /// What.
    pub request: Request,
}

/// A source of requests.
pub trait Workload {
    /// The next arrival that depends on nothing; in order of time.
    fn next(&mut self) -> Option<Arrival>;

    /// What follows because this request ended: the next turn of its conversation, say. Not before `now_us`.
    fn follow_up(&mut self, _ended: &Record, _now_us: u64) -> Option<Arrival> {
        None
    }
}

/// Arrivals that are all known beforehand.
#[derive(Debug, Clone)]
pub struct Listed(std::vec::IntoIter<Arrival>);

impl Listed {
    /// These arrivals, in the order of their times.
    #[must_use]
    pub fn new(mut arrivals: Vec<Arrival>) -> Self {
        arrivals.sort_by_key(|arrival| arrival.at_us);
        Self(arrivals.into_iter())
    }
}

impl Workload for Listed {
    fn next(&mut self) -> Option<Arrival> {
        self.0.next()
    }
}
