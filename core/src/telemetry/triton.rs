//! The series of Triton's TensorRT-LLM backend, on Triton's metrics port (8002).
//!
//! Few families, each with a label that says what a series is of; all of them gauges. Tokens are not counted, so
//! the pace of the cache is not known. Source of the names: the Triton chapter of TensorRT-LLM's documentation and
//! Triton's `src/orca_http.cc`; `waiting` and `fraction` came after the others.

use super::expected::Missing;
use super::gather::Gathered;
use super::text::Series;
use super::{Dialect, Scrape, TelemetryError};

pub(super) const PREFIX: &[u8] = b"nv_trt_llm_";

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct TritonTrtllm {
    scheduled: Gathered,
    waiting: Gathered,
    fraction: Gathered,
    used_blocks: Gathered,
    max_blocks: Gathered,
    block_tokens: Gathered,
}

impl TritonTrtllm {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        let of = match name {
            b"request_metrics" => &b"request_type"[..],
            b"kv_cache_block_metrics" => &b"kv_cache_block_type"[..],
            _ => return,
        };
        let Some(of) = series.labels().find(|label| label.name == of) else { return };
        match of.value {
            b"scheduled" => self.scheduled.add_series(series),
            b"waiting" => self.waiting.add_series(series),
            b"fraction" => self.fraction.raise_series(series),
            b"used" => self.used_blocks.add_series(series),
            b"max" if name == b"kv_cache_block_metrics" => self.max_blocks.add_series(series),
            b"tokens_per" => self.block_tokens.raise_series(series),
            _ => {}
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        if self.scheduled.is_unknown() && self.waiting.is_unknown() {
            return Err(TelemetryError::Missing("nv_trt_llm_request_metrics"));
        }
        let usage = self.fraction.or(Gathered(self.used_blocks.0 / self.max_blocks.0));
        let capacity = Gathered(self.max_blocks.0 * self.block_tokens.0);
        Ok(Scrape {
            waiting_requests: self.waiting.count(),
            running_requests: self.scheduled.count(),
            kv_usage: usage.share(),
            kv_capacity_tokens: capacity.size(),
            block_tokens: self.block_tokens.size(),
            missing: Missing::of(&[
                self.scheduled.is_unknown(),
                self.waiting.is_unknown(),
                usage.is_unknown(),
                capacity.is_unknown(),
            ]),
            ..Scrape::unknown(Dialect::TritonTrtllm)
        })
    }
}
