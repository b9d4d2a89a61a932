//! `choices` of OpenAI's completions and chat.
//!
//! Every choice counts, and only the first is the answer that the next turn of a conversation repeats.
//! Each is read and let go of: a body may hold thousands.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use super::answer::Piece;
use super::event::Facts;
use super::json::{Count, Lenient, Shape, TokenList, Value};

/// Tool calls of one event that are read; models make a few at a time.
const MAX_CALLS: usize = 64;

/// The choices of one event, or of one body.
#[derive(Default)]
pub(super) struct Choices<'a> {
    facts: Facts,
    /// Content and tool calls of the first choice.
    text: Cow<'a, str>,
    calls: Vec<Function<'a>>,
}

impl Choices<'_> {
    /// Adds what they say.
    pub(super) fn tell(&self, facts: &mut Facts, on_piece: &mut impl FnMut(Piece<'_>)) {
        facts.of_choice = self.facts.of_choice;
        facts.parts = self.facts.parts;
        facts.tokens = self.facts.tokens;
        facts.stated = self.facts.stated;
        facts.bytes = self.facts.bytes;
        if !self.text.is_empty() {
            on_piece(Piece::Text(&self.text));
        }
        for call in &self.calls {
            if call.name.shape == Shape::Filled {
                on_piece(Piece::Call(call.name.text()));
            }
            on_piece(Piece::Arguments(call.arguments.text()));
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor;
        impl<'de> Visitor<'de> for ChoicesVisitor {
            type Value = Choices<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array of choices")
            }
            fn visit_unit<E>(self) -> Result<Choices<'de>, E> {
                Ok(Choices::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices<'de>, A::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = seq.next_element::<Choice<'de>>()? {
                    choices.facts.of_choice = true;
                    choice.count(&mut choices.facts);
                    if choice.index.or_zero() == 0 {
                        choice.answer(&mut choices);
                    }
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_any(ChoicesVisitor)
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: Count,
    #[serde(default, borrow)]
    text: Value<'a>,
    #[serde(default, borrow)]
    delta: Lenient<Message<'a>>,
    #[serde(default, borrow)]
    message: Lenient<Message<'a>>,
    #[serde(default)]
    logprobs: TokenList,
    #[serde(default)]
    token_ids: TokenList,
    #[serde(default)]
    finish_reason: Shape,
}

impl<'a> Choice<'a> {
    fn count(&self, facts: &mut Facts) {
        let messages = || [&self.delta.0, &self.message.0].into_iter().flatten();
        let bytes = messages().map(Message::bytes).fold(self.text.text().len(), usize::saturating_add);
        let stated = self.token_ids.0.max(self.logprobs.0);
        facts.part(u32::from(self.carries_token()), bytes, stated);
    }

    fn carries_token(&self) -> bool {
        let finishes = self.finish_reason == Shape::Filled;
        match self.text.shape {
            Shape::Filled => return true,
            Shape::Empty if !finishes => return true,
            _ => {}
        }
        [&self.delta.0, &self.message.0].into_iter().flatten().any(|message| message.carries_token(finishes))
    }

    fn answer(self, choices: &mut Choices<'a>) {
        let mut content = None;
        if let Some(message) = self.delta.0.or(self.message.0) {
            content = message.content.into_text();
            choices.calls = message.tool_calls.functions;
            choices.calls.extend(message.function_call.0);
        }
        choices.text = self.text.into_text().or(content).unwrap_or_default();
    }
}

/// `delta` of a streamed choice, `message` of an unstreamed one.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: Shape,
    #[serde(default, borrow)]
    content: Value<'a>,
    #[serde(default, borrow)]
    reasoning_content: Value<'a>,
    #[serde(default, borrow)]
    reasoning: Value<'a>,
    #[serde(default, borrow)]
    refusal: Value<'a>,
    #[serde(default, borrow)]
    tool_calls: Calls<'a>,
    #[serde(default, borrow)]
    function_call: Lenient<Function<'a>>,
}

impl Message<'_> {
    fn texts(&self) -> [&Value<'_>; 4] {
        [&self.content, &self.reasoning_content, &self.reasoning, &self.refusal]
    }

    fn carries_token(&self, finishes: bool) -> bool {
        let filled = self.texts().into_iter().any(|value| value.shape == Shape::Filled);
        if filled || self.tool_calls.any || self.function_call.0.is_some() {
            return true;
        }
        let opens = self.role == Shape::Filled;
        !opens && !finishes && self.texts().into_iter().any(|value| value.shape == Shape::Empty)
    }

    fn bytes(&self) -> usize {
        let texts = self.texts().into_iter().map(|value| value.text().len());
        let calls = self.tool_calls.functions.iter().chain(&self.function_call.0);
        let calls = calls.map(|call| call.name.text().len().saturating_add(call.arguments.text().len()));
        texts.chain(calls).fold(0, usize::saturating_add)
    }
}

#[derive(Default, Deserialize)]
struct Function<'a> {
    #[serde(default, borrow)]
    name: Value<'a>,
    #[serde(default, borrow)]
    arguments: Value<'a>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(default, borrow)]
    function: Lenient<Function<'a>>,
}

/// `tool_calls`.
#[derive(Default)]
struct Calls<'a> {
    any: bool,
    functions: Vec<Function<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Calls<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CallsVisitor;
        impl<'de> Visitor<'de> for CallsVisitor {
            type Value = Calls<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array of tool calls")
            }
            fn visit_unit<E>(self) -> Result<Calls<'de>, E> {
                Ok(Calls::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Calls<'de>, A::Error> {
                let mut calls = Calls::default();
                while let Some(call) = seq.next_element::<Lenient<Call<'de>>>()? {
                    calls.any = true;
                    if calls.functions.len() < MAX_CALLS {
                        calls.functions.extend(call.0.and_then(|call| call.function.0));
                    }
                }
                Ok(calls)
            }
        }
        deserializer.deserialize_any(CallsVisitor)
    }
}
