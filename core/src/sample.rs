//! The record of one finished request: what was known at the pick, what was predicted, what happened.
//!
//! One JSON object a line (NDJSON) from filter to trainer. `features` is the very row the model saw, so
//! the trainer never recomputes a feature. Not a log: a record that must not train still travels, with
//! the flags that say why.

use serde::{Deserialize, Serialize};

/// How many output tokens there were, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// `usage` in the response.
    Usage,
    /// The engine's own `timings`.
    Timings,
    /// Events that carried a token were counted: the client had not asked for usage. Such a sample has a TPOT only
    /// where an event can be taken for a token ([`crate::response::EventCount::counts_tokens`]).
    #[default]
    Events,
}

/// How the request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The response was complete.
    Complete,
    /// The client went away first.
    Cancelled,
    /// The upstream broke off, or no upstream answered.
    Failed,
    /// The response ended without the mark that its format ends with.
    Truncated,
}

/// One finished request. Times are milliseconds; TPOT excludes the first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Unique in the fleet: `<worker incarnation>-<sequence>`, hexadecimal. Duplicates are dropped by it.
    pub id: String,
    /// Wall clock at the request's first byte, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Feature schema of `features` ([`crate::features::SCHEMA_ID`]).
    pub schema: String,
    /// Name of the LLM asked for.
    pub model: String,
    /// `ip:port` of the pod that answered.
    pub pod: String,
    /// `ip:port` of the pod that was picked first.
    pub picked: String,
    /// The row of the pod that answered, in schema order; `null` is unknown.
    #[serde(with = "nullable_row")]
    pub features: Vec<f32>,
    /// The prior's TTFT for that row, the base of the ratio that is learned.
    pub prior_ttft_ms: f32,
    /// The prior's TPOT for that row.
    pub prior_tpot_ms: f32,
    /// Predicted TTFT, median, by whatever rung routed.
    pub predicted_ttft_ms: f32,
    /// Predicted TPOT, median.
    pub predicted_tpot_ms: f32,
    /// Id of the model that predicted; empty for the prior.
    pub model_id: String,
    /// Which rung of the ladder routed.
    pub rung: crate::fallback::Rung,
    /// Request's first header byte at Envoy to the first event that carries a token.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttft_ms: Option<f32>,
    /// (last token - first token) / (output tokens - 1); absent below two tokens, and where they were not counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tpot_ms: Option<f32>,
    /// First header byte to last token; to the end of the body for an embedding, which has none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub e2e_ms: Option<f32>,
    /// Prompt tokens as the engine counted them; the estimate is in `features`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that the engine took from its cache.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cached_tokens: Option<u32>,
    /// Output tokens.
    pub output_tokens: u32,
    /// Where `output_tokens` comes from.
    pub tokens_from: TokenSource,
    /// Whether the response was streamed. TTFT of an unstreamed response is not a TTFT.
    pub streamed: bool,
    /// HTTP status of the response; 0 when there was none.
    pub status: u16,
    /// Upstream attempts that Envoy made.
    pub attempts: u32,
    /// How it ended.
    pub ending: Ending,
}

impl Sample {
    /// Whether the sample may train and score a model: one attempt, 200, streamed,
    /// complete, with a TTFT and the row of the pod that answered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.status == 200
            && self.attempts <= 1
            && self.streamed
            && self.ending == Ending::Complete
            && self.features.len() == crate::features::COUNT
            && self.ttft_ms.is_some_and(|ttft_ms| ttft_ms.is_finite() && ttft_ms > 0.0)
    }
}

/// JSON has no NaN; unknown features travel as `null`.
mod nullable_row {
    use serde::{Deserialize, Deserializer, Serializer, ser::SerializeSeq};

    pub(super) fn serialize<S: Serializer>(row: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_seq(Some(row.len()))?;
        for value in row {
            out.serialize_element(&value.is_finite().then_some(*value))?;
        }
        out.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let row = Vec::<Option<f32>>::deserialize(deserializer)?;
        Ok(row.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect())
    }
}
