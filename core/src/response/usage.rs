//! The engine's own token counts, as engines spell them.
//!
//! `usage` is OpenAI's object; vLLM sends it in the last event, or in every one when asked for continuous
//! usage. `timings` is llama.cpp's, sent with the last event whether asked or not. A count that is no whole
//! number is unknown, never an error: the event around it still carries its token.

use serde::Deserialize;

use super::Usage;
use super::json::{Count, Lenient};

/// `usage`, in the words of OpenAI's older APIs, of its responses API, or of Anthropic's.
#[derive(Debug, Default, Deserialize)]
pub(super) struct UsageObject {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    input_tokens: Count,
    #[serde(default)]
    completion_tokens: Count,
    #[serde(default)]
    output_tokens: Count,
    #[serde(default)]
    prompt_tokens_details: Lenient<TokensDetails>,
    #[serde(default)]
    input_tokens_details: Lenient<TokensDetails>,
    /// Anthropic's `input_tokens` are those that neither came from the cache nor went into it.
    #[serde(default)]
    cache_read_input_tokens: Count,
    #[serde(default)]
    cache_creation_input_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
struct TokensDetails {
    #[serde(default)]
    cached_tokens: Count,
}

/// llama.cpp's `timings`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Timings {
    /// Prompt tokens taken from the cache.
    #[serde(default)]
    cache_n: Count,
    /// Prompt tokens processed: those not taken from the cache.
    #[serde(default)]
    prompt_n: Count,
    /// Output tokens.
    #[serde(default)]
    predicted_n: Count,
}

impl From<&UsageObject> for Usage {
    fn from(object: &UsageObject) -> Self {
        let details = object.prompt_tokens_details.0.as_ref().or(object.input_tokens_details.0.as_ref());
        let beside = object
            .cache_read_input_tokens
            .or_zero()
            .saturating_add(object.cache_creation_input_tokens.or_zero());
        let input = object.input_tokens.0.map(|tokens| tokens.saturating_add(beside));
        Self {
            // Zero stands for "not known yet": every prompt has a token.
            prompt_tokens: object.prompt_tokens.0.or(input).filter(|tokens| *tokens > 0),
            completion_tokens: object.completion_tokens.0.or(object.output_tokens.0),
            cached_tokens: details
                .and_then(|details| details.cached_tokens.0)
                .or(object.cache_read_input_tokens.0),
        }
    }
}

impl From<&Timings> for Usage {
    fn from(timings: &Timings) -> Self {
        let cached = timings.cache_n.0;
        Self {
            prompt_tokens: timings.prompt_n.0.map(|processed| processed.saturating_add(cached.unwrap_or(0))),
            completion_tokens: timings.predicted_n.0,
            cached_tokens: cached,
        }
    }
}

impl Usage {
    /// These counts, where known, before `older`.
    pub(super) fn or(self, older: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(older.prompt_tokens),
            completion_tokens: self.completion_tokens.or(older.completion_tokens),
            cached_tokens: self.cached_tokens.or(older.cached_tokens),
        }
    }
}
