//! An event's or a body's JSON to the few facts that count.
//!
//! Which events carry a token is a matter of what engines do, seen in captured bytes:
//!
//! * vLLM opens a chat with role and empty content *together with* the first token, llama.cpp with role and
//!   null content *before* it. Neither is a token: the next event has the same time, or the right one.
//! * An empty text amid the answer is a token whose bytes are not yet a character. An empty text beside a
//!   `finish_reason` is the end mark.
//! * Reasoning, tool calls and refusals are generated like any text.

use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Usage;
use super::usage::{Timings, UsageObject};

/// What one event, or one whole body, says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Choices in it.
    pub(super) choices: u32,
    /// Choices in it that carry generated text.
    pub(super) with_token: u32,
    /// Counts in `usage`.
    pub(super) usage: Option<Usage>,
    /// Counts in `timings`.
    pub(super) timings: Option<Usage>,
    /// Whether it is or holds an error object.
    pub(super) error: bool,
}

#[derive(Deserialize)]
struct EventObject {
    #[serde(default)]
    choices: Choices,
    #[serde(default)]
    usage: Option<UsageObject>,
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(default)]
    error: Shape,
    #[serde(default)]
    object: IsError,
}

impl Facts {
    /// An event that was too large to read.
    pub(super) const UNREAD_TOKEN: Self =
        Self { choices: 1, with_token: 1, usage: None, timings: None, error: false };

    /// Reads the JSON object in `data`; `None` when there is none.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let object = match serde_json::from_slice::<EventObject>(data) {
            Ok(object) => object,
            // Some engines stream the bytes of a character one token at a time, each in JSON of its own.
            Err(_) if core::str::from_utf8(data).is_err() => {
                serde_json::from_str::<EventObject>(&String::from_utf8_lossy(data)).ok()?
            }
            Err(_) => return None,
        };
        Some(Self {
            choices: object.choices.all,
            with_token: object.choices.with_token,
            usage: object.usage.as_ref().map(Usage::from),
            timings: object.timings.as_ref().map(Usage::from),
            error: object.error == Shape::Filled || object.object.0,
        })
    }
}

#[derive(Debug, Default)]
struct Choices {
    all: u32,
    with_token: u32,
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor;
        impl<'de> Visitor<'de> for ChoicesVisitor {
            type Value = Choices;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array of choices")
            }
            fn visit_unit<E>(self) -> Result<Choices, E> {
                Ok(Choices::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices, A::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = seq.next_element::<Choice>()? {
                    choices.all = choices.all.saturating_add(1);
                    choices.with_token = choices.with_token.saturating_add(u32::from(choice.carries_token()));
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_any(ChoicesVisitor)
    }
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Shape,
    #[serde(default)]
    delta: Option<Message>,
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    finish_reason: Shape,
}

impl Choice {
    fn carries_token(&self) -> bool {
        let finishes = self.finish_reason == Shape::Filled;
        match self.text {
            Shape::Filled => return true,
            Shape::Empty if !finishes => return true,
            _ => {}
        }
        [&self.delta, &self.message].into_iter().flatten().any(|message| message.carries_token(finishes))
    }
}

/// `delta` of a streamed choice, `message` of an unstreamed one.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    role: Shape,
    #[serde(default)]
    content: Shape,
    #[serde(default)]
    reasoning_content: Shape,
    #[serde(default)]
    reasoning: Shape,
    #[serde(default)]
    refusal: Shape,
    #[serde(default)]
    tool_calls: Shape,
    #[serde(default)]
    function_call: Shape,
}

impl Message {
    fn carries_token(&self, finishes: bool) -> bool {
        let texts = [self.content, self.reasoning_content, self.reasoning, self.refusal];
        let calls = [self.tool_calls, self.function_call];
        if texts.into_iter().chain(calls).any(|shape| shape == Shape::Filled) {
            return true;
        }
        let opens = self.role == Shape::Filled;
        !opens && !finishes && texts.contains(&Shape::Empty)
    }
}

/// What a JSON value is, as far as it matters here: nothing of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Shape {
    /// Absent, null or false.
    #[default]
    Nothing,
    /// An empty string, array or object.
    Empty,
    /// Anything else.
    Filled,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("any JSON value")
            }
            fn visit_unit<E>(self) -> Result<Shape, E> {
                Ok(Shape::Nothing)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Shape, E> {
                Ok(if value { Shape::Filled } else { Shape::Nothing })
            }
            fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
                Ok(Shape::Filled)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
                Ok(Shape::Filled)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
                Ok(Shape::Filled)
            }
            fn visit_str<E>(self, text: &str) -> Result<Shape, E> {
                Ok(if text.is_empty() { Shape::Empty } else { Shape::Filled })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut shape = Shape::Empty;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    shape = Shape::Filled;
                }
                Ok(shape)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
                let mut shape = Shape::Empty;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    shape = Shape::Filled;
                }
                Ok(shape)
            }
        }
        deserializer.deserialize_any(ShapeVisitor)
    }
}

/// Whether `object` is `"error"`: how vLLM before 0.9 marks its error bodies.
#[derive(Debug, Default)]
struct IsError(bool);

impl<'de> Deserialize<'de> for IsError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = IsError;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a name")
            }
            fn visit_unit<E>(self) -> Result<IsError, E> {
                Ok(IsError(false))
            }
            fn visit_str<E>(self, name: &str) -> Result<IsError, E> {
                Ok(IsError(name == "error"))
            }
        }
        deserializer.deserialize_any(NameVisitor)
    }
}
