//! llama.cpp's series.
//!
//! No labels, no KV gauge and no preemption: its slots hold a fixed context each, and a request without a
//! slot is deferred. Prompt tokens are counted apart, processed and taken from the cache; their sum is what
//! was looked up.

use super::text::Series;
use super::{Dialect, Scrape, TelemetryError, add};
use crate::num;

pub(super) const PREFIX: &[u8] = b"llamacpp:";

/// What has been read so far; NaN until seen.
#[derive(Debug)]
pub(super) struct LlamaCpp {
    processing: f64,
    deferred: f64,
    processed_tokens: f64,
    cached_tokens: f64,
}

impl Default for LlamaCpp {
    fn default() -> Self {
        Self { processing: f64::NAN, deferred: f64::NAN, processed_tokens: f64::NAN, cached_tokens: f64::NAN }
    }
}

impl LlamaCpp {
    /// Takes one series; `name` is without the prefix.
    pub(super) fn take(&mut self, name: &[u8], series: &Series<'_>) {
        let sum = match name {
            b"requests_processing" => &mut self.processing,
            b"requests_deferred" => &mut self.deferred,
            b"prompt_tokens_total" => &mut self.processed_tokens,
            b"prompt_tokens_cached_total" => &mut self.cached_tokens,
            _ => return,
        };
        if let Some(value) = series.value() {
            add(sum, value);
        }
    }

    /// What the page said.
    pub(super) fn scrape(&self) -> Result<Scrape, TelemetryError> {
        if self.processing.is_nan() {
            return Err(TelemetryError::Missing("llamacpp:requests_processing"));
        }
        if self.deferred.is_nan() {
            return Err(TelemetryError::Missing("llamacpp:requests_deferred"));
        }
        Ok(Scrape {
            dialect: Dialect::LlamaCpp,
            waiting_requests: num::f32_of_f64(self.deferred.max(0.0)),
            running_requests: num::f32_of_f64(self.processing.max(0.0)),
            kv_usage: f32::NAN,
            kv_capacity_tokens: f32::NAN,
            // Unknown without the count of cached tokens, which older servers lack.
            prefix_query_tokens: self.processed_tokens + self.cached_tokens,
            prefix_hit_tokens: self.cached_tokens,
            preemptions: f64::NAN,
        })
    }
}
