//! vLLM's series.
//!
//! One series per data-parallel rank (label `engine`), each a queue of its own behind one address. A
//! request to the pod meets all of them, so queues and counters add up; of the KV usage the fullest rank's
//! counts. Names changed with the move to engine v1 (`gpu_cache_usage_perc`, `gpu_prefix_cache_…`)
//! and with client libraries (`_total`); both are read. Source of the names: vLLM's `vllm/v1/metrics/loggers.py`
//! and, before v1, `vllm/engine/metrics.py`.
//!
//! The waiting requests stand once as a whole and once more by reason (`num_requests_waiting_by_reason`), which
//! is read only where the whole is missing.
//!
//! vLLM counts a look-up in its prefix cache when a request is scheduled for the first time. Look-ups less hits
//! are the prompt tokens that it writes to the cache, whether it computes them or a connector brings them from
//! another tier. With the cache turned off nothing is looked up, and all prompt tokens are computed.
//!
//! The tier in host memory is that of the offloading connector (`kv_offload_cpu_…`, from
//! `vllm/v1/kv_offload/cpu/common.py`); before v1, blocks swapped to the CPU.

use super::adapters::Adapters;
use super::expected::Missing;
use super::gather::Gathered;
use super::text::Series;
use super::{Dialect, Scrape, TelemetryError};
use crate::num::f32_of_f64;

pub(super) const PREFIX: &[u8] = b"vllm:";

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct Vllm {
    running: Gathered,
    waiting: Gathered,
    waiting_by_reason: Gathered,
    kv_usage: Gathered,
    old_kv_usage: Gathered,
    queries: Gathered,
    hits: Gathered,
    old_queries: Gathered,
    old_hits: Gathered,
    external_hits: Gathered,
    prompt_tokens: Gathered,
    prompt_tokens_cached: Gathered,
    generation_tokens: Gathered,
    preemptions: Gathered,
    capacity_tokens: Gathered,
    block_tokens: Gathered,
    host_tokens: Gathered,
    host_usage: Gathered,
    lora: Lora,
}

/// The newest of the series that tell of LoRA: their value is the time at which their labels were true.
#[derive(Debug)]
struct Lora {
    at: f64,
    running: f64,
    waiting: f64,
    max: f64,
    adapters: Adapters,
}

impl Default for Lora {
    fn default() -> Self {
        Self {
            at: f64::NEG_INFINITY,
            running: f64::NAN,
            waiting: f64::NAN,
            max: f64::NAN,
            adapters: Adapters::default(),
        }
    }
}

impl Vllm {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        let sum = match name {
            b"num_requests_running" => &mut self.running,
            b"num_requests_waiting" => &mut self.waiting,
            b"num_requests_waiting_by_reason" => &mut self.waiting_by_reason,
            b"prefix_cache_queries_total" | b"prefix_cache_queries" => &mut self.queries,
            b"prefix_cache_hits_total" | b"prefix_cache_hits" => &mut self.hits,
            b"gpu_prefix_cache_queries_total" | b"gpu_prefix_cache_queries" => &mut self.old_queries,
            b"gpu_prefix_cache_hits_total" | b"gpu_prefix_cache_hits" => &mut self.old_hits,
            b"external_prefix_cache_hits_total" | b"external_prefix_cache_hits" => &mut self.external_hits,
            b"prompt_tokens_total" => &mut self.prompt_tokens,
            b"prompt_tokens_cached_total" => &mut self.prompt_tokens_cached,
            b"generation_tokens_total" => &mut self.generation_tokens,
            b"num_preemptions_total" | b"num_preemptions" => &mut self.preemptions,
            b"kv_cache_usage_perc" => return self.kv_usage.raise_series(series),
            b"gpu_cache_usage_perc" => return self.old_kv_usage.raise_series(series),
            b"kv_offload_cpu_cache_usage_perc" | b"cpu_cache_usage_perc" => {
                return self.host_usage.raise_series(series);
            }
            b"kv_offload_cpu_capacity_tokens" => &mut self.host_tokens,
            b"kv_offload_cpu_config_info" => return self.take_host(series),
            b"cache_config_info" => return self.take_cache(series),
            b"lora_requests_info" => return self.lora.take(series),
            _ => return,
        };
        sum.add_series(series);
    }

    /// Size of one rank's cache, from the labels that carry its configuration.
    ///
    /// Newer versions state the size itself. It differs from blocks times block size where layers of several
    /// kinds (sliding window, Mamba) share the blocks.
    fn take_cache(&mut self, series: &Series<'_>) {
        let (mut size, mut blocks, mut block_size, mut host) = (f64::NAN, f64::NAN, f64::NAN, f64::NAN);
        for label in series.labels() {
            let slot = match label.name {
                b"kv_cache_size_tokens" => &mut size,
                b"num_gpu_blocks" => &mut blocks,
                b"block_size" => &mut block_size,
                b"num_cpu_blocks" => &mut host,
                _ => continue,
            };
            *slot = label.number().filter(|number| *number > 0.0).unwrap_or(f64::NAN);
        }
        self.capacity_tokens.add(if size.is_nan() { blocks * block_size } else { size });
        self.block_tokens.raise(block_size);
        self.host_tokens.add(host * block_size);
    }

    /// Size of the tier in host memory, from the labels that carry its configuration.
    fn take_host(&mut self, series: &Series<'_>) {
        for label in series.labels() {
            if label.name == b"capacity_tokens" {
                self.host_tokens.add(label.number().unwrap_or(f64::NAN));
            }
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        let waiting = self.waiting.or(self.waiting_by_reason);
        if self.running.is_unknown() && waiting.is_unknown() {
            return Err(TelemetryError::Missing("vllm:num_requests_running"));
        }
        let kv_usage = self.kv_usage.or(self.old_kv_usage);
        let (queries, hits) = if self.queries.is_unknown() {
            (self.old_queries.0, self.old_hits.0)
        } else {
            (self.queries.0, self.hits.0)
        };
        // Each of the two only grows, so the larger of them does too. `max` prefers a number to NaN.
        let cached = self.prompt_tokens_cached.or(Gathered(hits));
        let prompt_computed = (queries - hits).max(self.prompt_tokens.0 - cached.0);
        Ok(Scrape {
            waiting_requests: waiting.count(),
            running_requests: self.running.count(),
            kv_usage: kv_usage.share(),
            kv_capacity_tokens: self.capacity_tokens.size(),
            block_tokens: self.block_tokens.size(),
            host_kv_capacity_tokens: self.host_tokens.size(),
            host_kv_usage: self.host_usage.share(),
            prefix_query_tokens: queries,
            prefix_hit_tokens: hits,
            host_hit_tokens: self.external_hits.0,
            computed_tokens_total: prompt_computed + self.generation_tokens.0,
            preemptions: self.preemptions.0,
            running_adapters: f32_of_f64(self.lora.running),
            waiting_adapters: f32_of_f64(self.lora.waiting),
            max_adapters: f32_of_f64(self.lora.max),
            adapters: self.lora.adapters,
            missing: Missing::of(&[
                self.running.is_unknown(),
                waiting.is_unknown(),
                kv_usage.is_unknown(),
                self.capacity_tokens.is_unknown(),
                queries.is_nan() || hits.is_nan(),
                self.generation_tokens.is_unknown(),
            ]),
            ..Scrape::unknown(Dialect::Vllm)
        })
    }
}

impl Lora {
    /// vLLM makes a new series whenever the adapters change and never takes one back, so the page holds old ones.
    fn take(&mut self, series: &Series<'_>) {
        let Some(at) = series.value().filter(|at| *at >= self.at) else { return };
        let (mut running, mut waiting, mut max) = (&b""[..], &b""[..], f64::NAN);
        for label in series.labels() {
            match label.name {
                b"running_lora_adapters" => running = label.value,
                b"waiting_lora_adapters" => waiting = label.value,
                b"max_lora" => max = label.number().unwrap_or(f64::NAN),
                _ => {}
            }
        }
        let mut adapters = Adapters::default();
        self.running = f64::from(adapters.insert_list(running));
        self.waiting = f64::from(adapters.insert_list(waiting));
        (self.at, self.max, self.adapters) = (at, max, adapters);
    }
}
