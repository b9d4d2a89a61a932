//! An event's or a body's JSON to the few facts that count.
//!
//! The APIs are told apart by the JSON itself: OpenAI's completions and chats have `choices`, the events of the
//! responses API and of Anthropic's have a `type`. Which events carry a token is a matter of what engines do,
//! seen in captured bytes:
//!
//! * vLLM opens a chat with role and empty content *together with* the first token, llama.cpp with role and
//!   null content *before* it. Neither is a token: the next event has the same time, or the right one.
//! * An empty text amid the answer is a token whose bytes are not yet a character. An empty text beside a
//!   `finish_reason` is the end mark.
//! * Reasoning, tool calls and refusals are generated like any text.
//! * Token ids and log probabilities, where a client asked for them, tell how many tokens one event holds.

use serde::Deserialize;

use super::Usage;
use super::answer::Piece;
use super::choices::Choices;
use super::items::{Items, Part};
use super::json::{Lenient, Shape, TextOr, TokenList, Value};
use super::usage::{Timings, UsageObject};

/// What one event, or one whole body, says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Whether usage in this event may stand for tokens without text: it belongs to a choice.
    pub(super) of_choice: bool,
    /// Parts of it (choices, deltas) that carry generated tokens.
    pub(super) parts: u32,
    /// Tokens that they carry: as many as the event says, else one a part.
    pub(super) tokens: u32,
    /// Whether the event itself says how many tokens each of its parts holds.
    pub(super) stated: bool,
    /// Bytes of the text that they carry.
    pub(super) bytes: u32,
    /// Counts in `usage`.
    pub(super) usage: Option<Usage>,
    /// Counts in `timings`.
    pub(super) timings: Option<Usage>,
    /// Whether it is or holds an error object.
    pub(super) error: bool,
    /// Whether it says that the answer is over.
    pub(super) ended: bool,
}

#[derive(Deserialize)]
struct Root<'a> {
    // OpenAI's completions and chat.
    #[serde(default, borrow)]
    choices: Choices<'a>,
    #[serde(default)]
    usage: Lenient<UsageObject>,
    #[serde(default)]
    timings: Lenient<Timings>,
    #[serde(default)]
    error: Shape,
    #[serde(default, borrow)]
    object: Value<'a>,
    // Events of the responses API and of Anthropic's.
    #[serde(default, borrow, rename = "type")]
    kind: Value<'a>,
    #[serde(default, borrow)]
    delta: TextOr<'a, DeltaPart<'a>>,
    #[serde(default)]
    logprobs: TokenList,
    #[serde(default, borrow)]
    item: Lenient<Part<'a>>,
    #[serde(default, borrow)]
    content_block: Lenient<Part<'a>>,
    #[serde(default)]
    message: Lenient<Nested>,
    #[serde(default)]
    response: Lenient<Nested>,
    // Whole bodies of those two.
    #[serde(default, borrow)]
    output: Items<'a>,
    #[serde(default, borrow)]
    content: Items<'a>,
    #[serde(default, borrow)]
    status: Value<'a>,
}

/// `response` or `message` inside an event.
#[derive(Default, Deserialize)]
struct Nested {
    #[serde(default)]
    usage: Lenient<UsageObject>,
}

/// `delta` of Anthropic's API; that of the responses API is a text.
#[derive(Default, Deserialize)]
struct DeltaPart<'a> {
    #[serde(default, borrow)]
    text: Value<'a>,
    #[serde(default, borrow)]
    thinking: Value<'a>,
    #[serde(default, borrow)]
    partial_json: Value<'a>,
}

impl Facts {
    /// An event that was too large to read, by its name: engines name the events of those APIs that have
    /// types. Where they do not, only a token with its log probabilities is that large.
    pub(super) fn unread(name: &[u8]) -> Self {
        let ended = matches!(name, b"response.completed" | b"response.incomplete" | b"response.failed");
        let is_token = matches!(name, b"" | b"message") || name.ends_with(b".delta");
        let tokens = u32::from(is_token);
        Self {
            of_choice: is_token,
            parts: tokens,
            tokens,
            ended,
            error: name == b"response.failed",
            ..Self::default()
        }
    }

    fn token(&mut self, text: &str, stated: u32) {
        self.part(1, text.len(), stated);
    }

    /// A part that carries `least` tokens or more.
    pub(super) fn part(&mut self, least: u32, bytes: usize, stated: u32) {
        let tokens = stated.max(least);
        if tokens > 0 {
            self.stated = stated > 0 && (self.stated || self.parts == 0);
            self.parts = self.parts.saturating_add(1);
        }
        self.tokens = self.tokens.saturating_add(tokens);
        self.bytes = self.bytes.saturating_add(crate::num::u32_of_usize(bytes));
    }
}

/// Reads the JSON object in `data`, and hands the pieces of the answer in it to `on_piece`. `None` when there
/// is none.
pub(super) fn read(data: &[u8], mut on_piece: impl FnMut(Piece<'_>)) -> Option<Facts> {
    match serde_json::from_slice::<Root<'_>>(data) {
        Ok(root) => Some(root.facts(&mut on_piece)),
        // Some engines stream the bytes of a character one token at a time, each in JSON of its own.
        Err(_) if core::str::from_utf8(data).is_err() => {
            let text = String::from_utf8_lossy(data);
            serde_json::from_str::<Root<'_>>(&text).ok().map(|root| root.facts(&mut on_piece))
        }
        Err(_) => None,
    }
}

/// The end of a body that was too large to read, from `"usage":` on, as an object of its own: `{"usage":…}`.
pub(super) fn usage_at_end(tail: &[u8]) -> Option<Vec<u8>> {
    const KEY: &[u8] = b"\"usage\"";
    let at = tail.windows(KEY.len()).rposition(|window| window == KEY)?;
    let from_key = tail.get(at..)?;
    let open = from_key.iter().position(|byte| *byte == b'{')?;
    let close = from_key.get(open..)?.iter().scan(0_i32, |depth, byte| {
        *depth += i32::from(*byte == b'{') - i32::from(*byte == b'}');
        Some(*depth)
    });
    let length = close.take_while(|depth| *depth > 0).count().saturating_add(open).saturating_add(1);
    Some([b"{", from_key.get(..length)?, b"}"].concat())
}

impl Root<'_> {
    fn facts(&self, on_piece: &mut impl FnMut(Piece<'_>)) -> Facts {
        let mut facts = Facts {
            usage: self.usage.0.as_ref().map(Usage::from),
            timings: self.timings.0.as_ref().map(Usage::from),
            // vLLM before 0.9 marks its error bodies by their `object`.
            error: self.error == Shape::Filled || self.object.text() == "error",
            ..Facts::default()
        };
        match self.kind.text() {
            "" => self.choices.tell(&mut facts, on_piece),
            "message" => self.content.tell(&mut facts, on_piece),
            kind => self.event(kind, &mut facts, on_piece),
        }
        if self.object.text() == "response" {
            self.output.tell(&mut facts, on_piece);
            facts.error |= self.status.text() == "failed";
        }
        facts
    }

    /// An event of the responses API or of Anthropic's.
    fn event(&self, kind: &str, facts: &mut Facts, on_piece: &mut impl FnMut(Piece<'_>)) {
        let nested = |nested: &Lenient<Nested>| {
            nested.0.as_ref().and_then(|nested| nested.usage.0.as_ref()).map(Usage::from)
        };
        let text = self.delta.text.as_deref().unwrap_or_default();
        match kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                facts.token(text, self.logprobs.0);
                on_piece(Piece::Text(text));
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                facts.token(text, 0);
                on_piece(Piece::Arguments(text));
            }
            "response.output_item.added" => self.item.0.iter().for_each(|item| {
                item.opens(facts, on_piece);
            }),
            "response.completed" | "response.incomplete" | "response.failed" => {
                facts.usage = nested(&self.response).or(facts.usage);
                facts.ended = true;
                facts.error |= kind == "response.failed";
            }
            // Reasoning, and calls of tools that the engine runs itself.
            _ if kind.starts_with("response.") && kind.ends_with(".delta") => facts.token(text, 0),
            "message_start" => {
                // The output count there is a placeholder.
                facts.usage = nested(&self.message).map(|usage| Usage { completion_tokens: None, ..usage });
            }
            "content_block_start" => self.content_block.0.iter().for_each(|block| {
                block.opens(facts, on_piece);
            }),
            "content_block_delta" => {
                let DeltaPart { text, thinking, partial_json } = &self.delta.object;
                for value in [text, thinking, partial_json] {
                    if value.shape == Shape::Filled {
                        facts.token(value.text(), 0);
                    }
                }
                on_piece(Piece::Text(text.text()));
                on_piece(Piece::Arguments(partial_json.text()));
            }
            "message_stop" => facts.ended = true,
            "error" => facts.error = true,
            _ => {}
        }
    }
}
