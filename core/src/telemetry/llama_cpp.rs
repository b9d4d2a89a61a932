//! llama.cpp's series.
//!
//! No labels, no KV gauge and no preemption: its slots hold a fixed context each, and a request without a
//! slot is deferred. Prompt tokens are counted apart, processed and taken from the cache; their sum is what
//! was looked up. Source of the names: llama.cpp's `tools/server`, the metrics endpoint, and pages captured
//! from it.

use super::expected::Missing;
use super::gather::Gathered;
use super::text::Series;
use super::{Dialect, Scrape, TelemetryError};

pub(super) const PREFIX: &[u8] = b"llamacpp:";

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct LlamaCpp {
    processing: Gathered,
    deferred: Gathered,
    processed_tokens: Gathered,
    cached_tokens: Gathered,
    predicted_tokens: Gathered,
    kv_usage: Gathered,
}

impl LlamaCpp {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        match name {
            b"requests_processing" => self.processing.add_series(series),
            b"requests_deferred" => self.deferred.add_series(series),
            b"prompt_tokens_total" => self.processed_tokens.add_series(series),
            b"prompt_tokens_cached_total" => self.cached_tokens.add_series(series),
            b"tokens_predicted_total" => self.predicted_tokens.add_series(series),
            // Servers up to mid-2025 had this gauge.
            b"kv_cache_usage_ratio" => self.kv_usage.raise_series(series),
            _ => {}
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        if self.processing.is_unknown() && self.deferred.is_unknown() {
            return Err(TelemetryError::Missing("llamacpp:requests_processing"));
        }
        Ok(Scrape {
            waiting_requests: self.deferred.count(),
            running_requests: self.processing.count(),
            kv_usage: self.kv_usage.share(),
            // Unknown without the count of cached tokens, which older servers lack.
            prefix_query_tokens: self.processed_tokens.0 + self.cached_tokens.0,
            prefix_hit_tokens: self.cached_tokens.0,
            computed_tokens_total: self.processed_tokens.0 + self.predicted_tokens.0,
            missing: Missing::of(&[
                self.processing.is_unknown(),
                self.deferred.is_unknown(),
                self.cached_tokens.is_unknown(),
                self.predicted_tokens.is_unknown(),
            ]),
            ..Scrape::unknown(Dialect::LlamaCpp)
        })
    }
}
