//! The engine's own token counts, as engines spell them.
//!
//! `usage` is OpenAI's object; vLLM sends it in the last event, or in every one when asked for continuous
//! usage. `timings` is llama.cpp's, sent with the last event whether asked or not. A count that is no whole
//! number is unknown, never an error: the event around it still carries its token.

use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Usage;
use crate::num;

/// A count; unknown for anything but a number from zero up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count(pub(super) Option<u32>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;
        impl<'de> Visitor<'de> for CountVisitor {
            type Value = Count;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a count")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Count, E> {
                Ok(Count(Some(u32::try_from(value).unwrap_or(u32::MAX))))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Count, E> {
                let count = u32::try_from(num::u64_of_f64(value)).unwrap_or(u32::MAX);
                Ok(Count((value >= 0.0).then_some(count)))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Count, E> {
                Ok(Count(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Count, E> {
                Ok(Count(None))
            }
            fn visit_unit<E>(self) -> Result<Count, E> {
                Ok(Count(None))
            }
            fn visit_str<E>(self, _: &str) -> Result<Count, E> {
                Ok(Count(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Count, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Count(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Count(None))
            }
        }
        deserializer.deserialize_any(CountVisitor)
    }
}

/// `usage`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct UsageObject {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    completion_tokens: Count,
    #[serde(default)]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Debug, Default, Deserialize)]
struct PromptTokensDetails {
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
        Self {
            prompt_tokens: object.prompt_tokens.0,
            completion_tokens: object.completion_tokens.0,
            cached_tokens: object.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens.0),
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
