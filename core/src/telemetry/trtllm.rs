//! trtllm-serve's series (TensorRT-LLM's own server), under `/prometheus/metrics`.
//!
//! Gauges come with the statistics of iterations (`enable_iter_perf_stats: true`), counters of tokens with those
//! of finished requests (`return_perf_metrics: true`); each series begins with the first of them. The cache is
//! counted in blocks. Source of the names: TensorRT-LLM's `tensorrt_llm/metrics/collector.py`; earlier versions of
//! it called the queues `num_active_requests` and `num_queued_requests`.

use super::expected::Missing;
use super::gather::Gathered;
use super::text::Series;
use super::{Dialect, Scrape, TelemetryError};

pub(super) const PREFIX: &[u8] = b"trtllm_";

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct TrtllmServe {
    running: Gathered,
    old_running: Gathered,
    waiting: Gathered,
    old_waiting: Gathered,
    usage: Gathered,
    max_blocks: Gathered,
    block_tokens: Gathered,
    host_usage: Gathered,
    prompt_tokens: Gathered,
    cached_tokens: Gathered,
    host_cached_tokens: Gathered,
    generation_tokens: Gathered,
}

impl TrtllmServe {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        match name {
            b"num_requests_running" => self.running.add_series(series),
            b"num_active_requests" => self.old_running.add_series(series),
            b"num_requests_waiting" => self.waiting.add_series(series),
            b"num_queued_requests" => self.old_waiting.add_series(series),
            b"kv_cache_utilization" => self.usage.raise_series(series),
            b"kv_cache_max_blocks" => self.max_blocks.add_series(series),
            b"kv_cache_tokens_per_block" => self.block_tokens.raise_series(series),
            b"kv_cache_host_utilization" => self.host_usage.raise_series(series),
            b"prompt_tokens_total" => self.prompt_tokens.add_series(series),
            b"prompt_cached_tokens_total" => self.cached_tokens.add_series(series),
            // One series a tier; several may be of the GPU.
            b"prompt_cache_hit_tokens_total"
                if series.labels().any(|label| label.name == b"cache_tier" && label.value != b"gpu") =>
            {
                self.host_cached_tokens.add_series(series);
            }
            b"generation_tokens_total" => self.generation_tokens.add_series(series),
            _ => {}
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        let (running, waiting) = (self.running.or(self.old_running), self.waiting.or(self.old_waiting));
        if running.is_unknown() && waiting.is_unknown() {
            return Err(TelemetryError::Missing("trtllm_num_requests_running"));
        }
        let capacity = Gathered(self.max_blocks.0 * self.block_tokens.0);
        // What is cached behind the GPU is written to the GPU's cache when it is found.
        let hits = self.cached_tokens.0 - self.host_cached_tokens.or_zero();
        let computed = self.prompt_tokens.0 - hits + self.generation_tokens.0;
        Ok(Scrape {
            waiting_requests: waiting.count(),
            running_requests: running.count(),
            kv_usage: self.usage.share(),
            kv_capacity_tokens: capacity.size(),
            block_tokens: self.block_tokens.size(),
            host_kv_usage: self.host_usage.share(),
            prefix_query_tokens: self.prompt_tokens.0,
            prefix_hit_tokens: hits,
            host_hit_tokens: self.host_cached_tokens.0,
            computed_tokens_total: computed,
            missing: Missing::of(&[
                running.is_unknown(),
                waiting.is_unknown(),
                self.usage.is_unknown(),
                self.max_blocks.is_unknown(),
                self.block_tokens.is_unknown(),
                computed.is_nan() && self.generation_tokens.0 > 0.0,
            ]),
            ..Scrape::unknown(Dialect::TrtllmServe)
        })
    }
}
