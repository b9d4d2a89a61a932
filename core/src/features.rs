//! The feature schema: one table that gives every column its name, unit, source and meaning.
//!
//! A row describes one candidate pod for one request at the moment of the pick. The order of the table is
//! the order of the columns; a model carries the schema's id and its names and is refused when they
//! differ. A signal that is not known is NaN, never zero: trees learn a direction for it.
//!
//! Changing this table in any way means a new [`SCHEMA_ID`].

/// Identifies the columns below; models and samples carry it.
pub const SCHEMA_ID: &str = "foretoken-3";

/// Where a column's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The request's body.
    Request,
    /// The pod's metrics page.
    Telemetry,
    /// What this Envoy has sent and not yet seen answered, over all workers.
    Ledger,
    /// The prefix index.
    Prefix,
    /// Learned online from this pod's answers.
    Speed,
    /// The analytic prior.
    Prior,
}

/// One column.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Column {
    /// Name, with the unit in it where there is one.
    pub name: &'static str,
    /// Unit in words.
    pub unit: &'static str,
    /// Where the value comes from.
    pub source: Source,
    /// What it means.
    pub doc: &'static str,
}

macro_rules! schema {
    ($($variant:ident $name:literal, $unit:literal, $source:ident, $doc:literal;)+) => {
        /// Index of a column in a row.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Feature { $(#[doc = $doc] $variant,)+ }

        /// All columns, in the order of a row.
        pub const COLUMNS: &[Column] = &[
            $(Column { name: $name, unit: $unit, source: Source::$source, doc: $doc },)+
        ];
    };
}

schema! {
    PromptTokens "prompt_tokens", "tokens", Request, "Length of the prompt: estimated from bytes, exact for token ids.";
    UncachedTokens "uncached_tokens", "tokens", Prefix, "Prompt tokens that the pod must compute: neither its KV cache nor a tier behind it is expected to hold them.";
    CachedShare "cached_share", "0..1", Prefix, "Share of the prompt that need not be computed.";
    MatchedTokens "matched_tokens", "tokens", Prefix, "Leading prompt tokens that the pod was sent or generated before, evicted since or not.";
    SurvivingTokens "surviving_tokens", "tokens", Prefix, "Of the matched tokens, those expected in the pod's KV cache.";
    SurvivalProbability "survival_probability", "0..1", Prefix, "Chance that the whole match is in the KV cache; unknown without a match.";
    HostTokens "host_tokens", "tokens", Prefix, "Of the matched tokens, those expected only in the host-memory tier behind the KV cache.";
    ExpectedOutputTokens "expected_output_tokens", "tokens", Request, "Mean output length of this model's recent answers, bounded by the request's maximum.";
    WaitingRequests "waiting_requests", "requests", Telemetry, "Requests in the engine's queue at the last scrape.";
    RunningRequests "running_requests", "requests", Telemetry, "Requests that the engine was running at the last scrape.";
    KvUsage "kv_usage", "0..1", Telemetry, "Share of the KV cache in use at the last scrape.";
    TelemetryAgeMs "telemetry_age_ms", "ms", Telemetry, "Time since the last scrape.";
    InflightRequests "inflight_requests", "requests", Ledger, "Requests sent and not ended.";
    PrefillRequests "prefill_requests", "requests", Ledger, "Requests sent that have not produced a first token.";
    PrefillTokens "prefill_tokens", "tokens", Ledger, "Uncached prompt tokens of the requests that have not produced a first token.";
    DecodingRequests "decoding_requests", "requests", Ledger, "Requests past their first token.";
    DecodeTokensLeft "decode_tokens_left", "tokens", Ledger, "Expected output tokens still to come from all requests in flight.";
    ContextTokens "context_tokens", "tokens", Ledger, "Prompt and output tokens held by the requests in flight.";
    UnscrapedRequests "unscraped_requests", "requests", Ledger, "Requests sent since the last scrape: telemetry cannot know them.";
    ForeignRequests "foreign_requests", "requests", Telemetry, "Requests at the pod that this Envoy did not send: scraped, less the ledger's share.";
    HeadElapsedMs "head_elapsed_ms", "ms", Ledger, "How long the pod has been at work on the oldest request without a first token.";
    ArrivalsPerS "arrivals_per_s", "requests/s", Ledger, "Recent rate of requests sent to the pod.";
    PrefillLoad "prefill_load", "0..1", Ledger, "Share of the pod's time that the prefill work recently sent takes.";
    RunningAdapters "running_adapters", "adapters", Telemetry, "LoRA adapters in the pod's running batch at the last scrape.";
    AdapterActive "adapter_active", "0 or 1", Telemetry, "Whether the adapter asked for was running or waiting there at the last scrape; unknown for a base model, and where the pod does not tell.";
    PrefillMsPerToken "prefill_ms_per_token", "ms/token", Speed, "Learned prefill time per uncached prompt token.";
    PriorQueueMs "prior_queue_ms", "ms", Prior, "The analytic prior's time for the prefill work ahead of the request.";
    PriorStepMs "prior_step_ms", "ms", Prior, "The analytic prior's time of a decode step of what the pod holds.";
    PriorTtftMs "prior_ttft_ms", "ms", Prior, "The analytic prior's TTFT.";
    PriorTpotMs "prior_tpot_ms", "ms", Prior, "The analytic prior's TPOT.";
}

/// Number of columns.
pub const COUNT: usize = COLUMNS.len();

/// One row in schema order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row(pub [f32; COUNT]);

impl Default for Row {
    fn default() -> Self {
        Self([f32::NAN; COUNT])
    }
}

impl Row {
    /// Value of a column.
    #[must_use]
    pub fn get(&self, feature: Feature) -> f32 {
        self.0.get(feature as usize).copied().unwrap_or(f32::NAN)
    }

    /// Sets a column; a value that is not finite is stored as unknown.
    pub fn set(&mut self, feature: Feature, value: f32) {
        if let Some(slot) = self.0.get_mut(feature as usize) {
            *slot = if value.is_finite() { value } else { f32::NAN };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_a_new_row_knows_nothing() {
        let names: std::collections::HashSet<_> = COLUMNS.iter().map(|column| column.name).collect();
        assert_eq!(names.len(), COUNT);
        assert!(Row::default().0.iter().all(|value| value.is_nan()));
    }

    #[test]
    fn an_infinite_value_is_stored_as_unknown() {
        let mut row = Row::default();
        row.set(Feature::KvUsage, f32::INFINITY);
        assert!(row.get(Feature::KvUsage).is_nan());
    }
}
