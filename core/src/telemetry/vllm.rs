//! vLLM's series.
//!
//! One series per data-parallel rank (label `engine`), each a queue of its own behind one address. A
//! request to the pod meets all of them, so queues and counters add up; of the KV usage the fullest rank's
//! counts. Names changed with the move to engine v1 (`gpu_cache_usage_perc`, `gpu_prefix_cache_…`)
//! and with client libraries (`_total`); both are read.

use super::text::Series;
use super::{Dialect, Scrape, TelemetryError, add};
use crate::num;

pub(super) const PREFIX: &[u8] = b"vllm:";

/// What has been read so far; NaN until seen.
#[derive(Debug)]
pub(super) struct Vllm {
    running: f64,
    waiting: f64,
    kv_usage: f64,
    old_kv_usage: f64,
    queries: f64,
    hits: f64,
    old_queries: f64,
    old_hits: f64,
    preemptions: f64,
    capacity_tokens: f64,
}

impl Default for Vllm {
    fn default() -> Self {
        Self {
            running: f64::NAN,
            waiting: f64::NAN,
            kv_usage: f64::NAN,
            old_kv_usage: f64::NAN,
            queries: f64::NAN,
            hits: f64::NAN,
            old_queries: f64::NAN,
            old_hits: f64::NAN,
            preemptions: f64::NAN,
            capacity_tokens: f64::NAN,
        }
    }
}

impl Vllm {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        let sum = match name {
            b"num_requests_running" => &mut self.running,
            b"num_requests_waiting" => &mut self.waiting,
            b"prefix_cache_queries_total" | b"prefix_cache_queries" => &mut self.queries,
            b"prefix_cache_hits_total" | b"prefix_cache_hits" => &mut self.hits,
            b"gpu_prefix_cache_queries_total" | b"gpu_prefix_cache_queries" => &mut self.old_queries,
            b"gpu_prefix_cache_hits_total" | b"gpu_prefix_cache_hits" => &mut self.old_hits,
            b"num_preemptions_total" | b"num_preemptions" => &mut self.preemptions,
            b"kv_cache_usage_perc" => return raise(&mut self.kv_usage, series),
            b"gpu_cache_usage_perc" => return raise(&mut self.old_kv_usage, series),
            b"cache_config_info" => return add(&mut self.capacity_tokens, capacity_in(series)),
            _ => return,
        };
        if let Some(value) = series.value() {
            add(sum, value);
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        if self.running.is_nan() {
            return Err(TelemetryError::Missing("vllm:num_requests_running"));
        }
        if self.waiting.is_nan() {
            return Err(TelemetryError::Missing("vllm:num_requests_waiting"));
        }
        let kv_usage = if self.kv_usage.is_nan() { self.old_kv_usage } else { self.kv_usage };
        let (queries, hits) =
            if self.queries.is_nan() { (self.old_queries, self.old_hits) } else { (self.queries, self.hits) };
        Ok(Scrape {
            dialect: Dialect::Vllm,
            waiting_requests: num::f32_of_f64(self.waiting.max(0.0)),
            running_requests: num::f32_of_f64(self.running.max(0.0)),
            kv_usage: num::f32_of_f64(kv_usage.clamp(0.0, 1.0)),
            kv_capacity_tokens: num::f32_of_f64(self.capacity_tokens),
            prefix_query_tokens: queries,
            prefix_hit_tokens: hits,
            preemptions: self.preemptions,
        })
    }
}

fn raise(most: &mut f64, series: &Series<'_>) {
    if let Some(value) = series.value().filter(|value| value.is_finite()) {
        // `max` of NaN and a number is the number.
        *most = most.max(value);
    }
}

/// Tokens that one rank's KV cache holds, from the labels that carry its configuration; NaN when they do not say.
///
/// Newer versions state the size itself. It differs from blocks times block size where layers of
/// several kinds (sliding window, Mamba) share the blocks.
fn capacity_in(series: &Series<'_>) -> f64 {
    let (mut size, mut blocks, mut block_size) = (f64::NAN, f64::NAN, f64::NAN);
    for label in series.labels() {
        let slot = match label.name {
            b"kv_cache_size_tokens" => &mut size,
            b"num_gpu_blocks" => &mut blocks,
            b"block_size" => &mut block_size,
            _ => continue,
        };
        let number = core::str::from_utf8(label.value).ok().and_then(|value| value.parse::<f64>().ok());
        *slot = number.filter(|number| *number > 0.0).unwrap_or(f64::NAN);
    }
    if size.is_nan() { blocks * block_size } else { size }
}
