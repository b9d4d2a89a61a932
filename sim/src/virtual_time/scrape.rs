//! What a pod's metrics page says at a moment: the part of vLLM's page that routers read.
//!
//! Routers of this repository get it as text and read it with core's own parser, so that whatever a real page
//! says, and whatever is made of it, is the same here. The live pods' page (`crate::pod`) has more series; these
//! have the same names and meanings.

use std::fmt::Write;

use crate::engine::Engine;

/// The figures on a metrics page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodMetrics {
    /// Requests in the engine's queue.
    pub waiting: u32,
    /// Requests running.
    pub running: u32,
    /// KV blocks that requests hold.
    pub held_blocks: u32,
    /// KV blocks on the pod.
    pub kv_blocks: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Prompt tokens looked up in the prefix cache, a counter.
    pub prefix_query_tokens: u64,
    /// Prompt tokens found there, a counter.
    pub prefix_hit_tokens: u64,
    /// Prompt tokens computed, a counter.
    pub prompt_tokens: u64,
    /// Tokens generated, a counter.
    pub generated_tokens: u64,
    /// Preemptions, a counter.
    pub preemptions: u64,
}

impl PodMetrics {
    /// The engine's figures now.
    #[must_use]
    pub fn of(engine: &Engine) -> Self {
        let (stats, profile) = (engine.stats(), engine.profile());
        Self {
            waiting: stats.waiting,
            running: stats.running,
            held_blocks: stats.kv_held_blocks,
            kv_blocks: profile.kv_blocks,
            block_tokens: profile.block_tokens,
            prefix_query_tokens: stats.prefix_query_tokens,
            prefix_hit_tokens: stats.prefix_hit_tokens,
            prompt_tokens: stats.prefill_tokens + stats.prefix_hit_tokens,
            generated_tokens: stats.generated_tokens,
            preemptions: stats.preemptions,
        }
    }

    /// Share of the KV cache that requests hold, 0..1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.held_blocks) / f64::from(self.kv_blocks.max(1))
    }

    /// Writes the page into `out`, which is cleared.
    pub fn write_page(&self, out: &mut String) {
        out.clear();
        let labels = "{engine=\"0\",model_name=\"m\"}";
        for (name, value) in [
            ("num_requests_running", f64::from(self.running)),
            ("num_requests_waiting", f64::from(self.waiting)),
            ("kv_cache_usage_perc", self.kv_usage()),
            ("prefix_cache_queries_total", self.prefix_query_tokens as f64),
            ("prefix_cache_hits_total", self.prefix_hit_tokens as f64),
            ("prompt_tokens_total", self.prompt_tokens as f64),
            ("generation_tokens_total", self.generated_tokens as f64),
            ("num_preemptions_total", self.preemptions as f64),
        ] {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "vllm:{name}{labels} {value:?}");
        }
        let tokens = u64::from(self.kv_blocks) * u64::from(self.block_tokens);
        let _ = writeln!(
            out,
            "vllm:cache_config_info{{block_size=\"{}\",engine=\"0\",kv_cache_size_tokens=\"{tokens}\",\
             num_gpu_blocks=\"{}\"}} 1.0",
            self.block_tokens, self.kv_blocks
        );
    }
}
