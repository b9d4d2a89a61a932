//! Tool calls that the assistant made, as later requests repeat them.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::piece::Piece;
use super::trail::Trail;

/// Arguments of a call: a string of JSON (OpenAI) or the JSON itself (Anthropic, Ollama).
///
/// Also reads any other value that is a string as a rule and must not matter when it is not.
pub(super) struct ArgumentsJson<'a>(&'a RawValue);

impl<'de> Deserialize<'de> for ArgumentsJson<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(Self)
    }
}

impl<'a> ArgumentsJson<'a> {
    /// The text of a string, the JSON of anything else; `None` for null.
    pub(super) fn text(&self) -> Option<Cow<'a, str>> {
        let raw = self.0.get();
        if raw == "null" {
            return None;
        }
        let Some(quoted) = raw.strip_prefix('"') else { return Some(Cow::Borrowed(raw)) };
        if !raw.contains('\\') {
            return Some(Cow::Borrowed(quoted.strip_suffix('"').unwrap_or(quoted)));
        }
        serde_json::from_str::<String>(raw).ok().map(Cow::Owned)
    }
}

/// Name and arguments of one call.
#[derive(Default)]
pub(super) struct FunctionCall<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) arguments: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum CallKey {
    Function,
    Custom,
    Name,
    Arguments,
    Input,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for FunctionCall<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CallVisitor;
        impl<'de> Visitor<'de> for CallVisitor {
            type Value = FunctionCall<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object with `name` and `arguments`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut call = FunctionCall::default();
                while let Some(key) = map.next_key::<CallKey>()? {
                    match key {
                        // `{"id": …, "type": "function", "function": {"name": …, "arguments": …}}`
                        CallKey::Function | CallKey::Custom => {
                            if let Some(inner) = map.next_value::<Option<FunctionCall<'de>>>()? {
                                call = inner;
                            }
                        }
                        CallKey::Name => {
                            call.name = map.next_value::<ArgumentsJson<'de>>()?.text().unwrap_or_default();
                        }
                        CallKey::Arguments | CallKey::Input => {
                            call.arguments =
                                map.next_value::<ArgumentsJson<'de>>()?.text().unwrap_or_default();
                        }
                        CallKey::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(call)
            }
        }
        deserializer.deserialize_map(CallVisitor)
    }
}

/// `tool_calls` of a message.
pub(super) struct CallsSeed<'t> {
    pub(super) trail: &'t Trail,
}

impl<'de> DeserializeSeed<'de> for CallsSeed<'_> {
    type Value = Vec<Piece<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CallsSeed<'_> {
    type Value = Vec<Piece<'de>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of calls")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut pieces = Vec::new();
        while let Some(call) = seq.next_element::<FunctionCall<'de>>()? {
            call.push(&mut pieces, self.trail)?;
        }
        Ok(pieces)
    }
}
