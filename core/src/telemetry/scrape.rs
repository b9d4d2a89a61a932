//! What one metrics page says, in the same terms for every engine.

use super::Dialect;
use super::adapters::Adapters;
use super::expected::Missing;

/// What one scrape said. NaN is unknown.
///
/// Counters run since the engine's start; readers take differences. Where an engine has several ranks behind
/// one address, queues, counters and capacities are those of all of them together.
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
    /// Tokens in one block of the engine's KV cache: prefixes are kept in whole blocks.
    pub block_tokens: f32,
    /// Size in tokens of the tier behind the KV cache (host memory).
    pub host_kv_capacity_tokens: f32,
    /// Share of that tier in use, 0..1.
    pub host_kv_usage: f32,
    /// Prompt tokens looked up in the prefix cache, a counter.
    pub prefix_query_tokens: f64,
    /// Prompt tokens found there, a counter.
    pub prefix_hit_tokens: f64,
    /// Prompt tokens found in a tier behind the KV cache (host memory, disk, another pod), a counter.
    pub host_hit_tokens: f64,
    /// Tokens newly written to the KV cache, a counter: prompt tokens that were not found there, and
    /// generated tokens. Its rate is the pace at which the cache turns over.
    pub computed_tokens_total: f64,
    /// Preemptions, a counter.
    pub preemptions: f64,
    /// When the engine's process started, in seconds since 1970.
    pub start_time_s: f64,
    /// LoRA adapters in the running batch.
    pub running_adapters: f32,
    /// LoRA adapters of requests that wait.
    pub waiting_adapters: f32,
    /// LoRA adapters that fit in one batch.
    pub max_adapters: f32,
    /// Which adapters run or wait, running ones first.
    pub adapters: Adapters,
    /// Series of this engine that the page should have had.
    pub missing: Missing,
}

impl Scrape {
    /// A scrape that knows nothing but whose page it was.
    #[must_use]
    pub fn unknown(dialect: Dialect) -> Self {
        Self {
            dialect,
            waiting_requests: f32::NAN,
            running_requests: f32::NAN,
            kv_usage: f32::NAN,
            kv_capacity_tokens: f32::NAN,
            block_tokens: f32::NAN,
            host_kv_capacity_tokens: f32::NAN,
            host_kv_usage: f32::NAN,
            prefix_query_tokens: f64::NAN,
            prefix_hit_tokens: f64::NAN,
            host_hit_tokens: f64::NAN,
            computed_tokens_total: f64::NAN,
            preemptions: f64::NAN,
            start_time_s: f64::NAN,
            running_adapters: f32::NAN,
            waiting_adapters: f32::NAN,
            max_adapters: f32::NAN,
            adapters: Adapters::default(),
            missing: Missing::default(),
        }
    }
}
