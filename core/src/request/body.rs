//! JSON to the pieces of a prompt, in one pass.
//!
//! Hand-written visitors rather than derived structs, for three reasons: a prompt has many spellings
//! (string, strings, token ids, messages, parts) that untagged enums would read by buffering; the pieces
//! land in one flat list whose length is bounded; and an error must name the field without quoting the
//! client's text, which serde's own messages do.
//!
//! The nesting depth is bounded by serde_json's own limit, the memory by the body's length and
//! the bound on pieces. A repeated key counts as engines count it: the last one wins.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::messages::{Conversation, MessagesSeed, SystemSeed};
use super::piece::{Piece, Text};
use super::prompt::PromptSeed;
use super::trail::Trail;
use super::{Api, RequestError};
use crate::hash;

/// What is read of a body.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    pub(super) model: Cow<'a, str>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) max_tokens: Option<u32>,
    pub(super) max_completion_tokens: Option<u32>,
    /// vLLM shares cached prefixes only among requests of one salt.
    pub(super) cache_salt: Option<Cow<'a, str>>,
    /// Raw JSON of `tools`, unless there are none.
    pub(super) tools: Option<&'a str>,
    /// The message before all others, where it is a field of its own.
    pub(super) system: Vec<Piece<'a>>,
    pub(super) conversation: Conversation<'a>,
    pub(super) exact_tokens: Option<u32>,
    /// Digest of what stands before the prompt and only the engine knows.
    pub(super) unseen: Option<u64>,
    /// Whether the last message is to be continued rather than answered.
    pub(super) continues_message: bool,
    /// Whether the answer repeats the prompt.
    pub(super) echo: bool,
}

/// Reads a body.
pub(super) fn read(api: Api, json: &[u8]) -> Result<Body<'_>, RequestError> {
    let trail = Trail::default();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seen = deserializer
        .deserialize_map(BodyVisitor { api, trail: &trail })
        .and_then(|body| deserializer.end().map(|()| body))
        .map_err(|error| trail.explain(&error))?;
    let prompt_field = prompt_field(api);
    seen.ok_or_else(|| {
        RequestError::NotRequest(format!("`{}` is missing: expected {}", prompt_field.0, prompt_field.1))
    })
}

/// Name of the field that holds the prompt, and what it may hold.
fn prompt_field(api: Api) -> (&'static str, &'static str) {
    match api {
        Api::Completions => (
            "prompt",
            "a string, an array of strings, an array of token ids, or an array of arrays of token ids",
        ),
        Api::Chat | Api::Messages => ("messages", "an array of message objects"),
        Api::Responses => ("input", "a string or an array of input items"),
        Api::Embeddings => (
            "input",
            "a string, an array of strings, an array of token ids, or an array of arrays of token ids",
        ),
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum BodyKey {
    Model,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    CacheSalt,
    Prompt,
    Messages,
    Input,
    System,
    Instructions,
    Tools,
    Functions,
    PreviousResponseId,
    Conversation,
    ContinueFinalMessage,
    Echo,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

struct BodyVisitor<'t> {
    api: Api,
    trail: &'t Trail,
}

impl<'de> Visitor<'de> for BodyVisitor<'_> {
    /// `None` when the field that holds the prompt is missing.
    type Value = Option<Body<'de>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a request object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let trail = self.trail;
        let mut body = Body::default();
        let mut has_prompt = false;
        while let Some(key) = map.next_key::<BodyKey>()? {
            match (key, self.api) {
                (BodyKey::Model, _) => {
                    trail.at("model", "a string");
                    body.model = map.next_value::<Option<Text<'de>>>()?.unwrap_or_default().0;
                }
                (BodyKey::Stream, _) => {
                    trail.at("stream", "true or false");
                    body.stream = map.next_value::<Option<bool>>()?.unwrap_or(false);
                }
                (BodyKey::StreamOptions, _) => {
                    trail.at("stream_options", "an object whose `include_usage` is true or false");
                    let options = map.next_value::<Option<StreamOptions>>()?;
                    body.include_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
                }
                (BodyKey::MaxTokens, _) => {
                    trail.at("max_tokens", "a whole number");
                    body.max_tokens = map.next_value::<TokenBound>()?.0;
                }
                (BodyKey::MaxCompletionTokens, _) => {
                    trail.at("max_completion_tokens", "a whole number");
                    body.max_completion_tokens = map.next_value::<TokenBound>()?.0;
                }
                (BodyKey::CacheSalt, _) => {
                    trail.at("cache_salt", "a string");
                    body.cache_salt = map.next_value::<Option<Text<'de>>>()?.map(|text| text.0);
                }
                (BodyKey::MaxOutputTokens, Api::Responses) => {
                    trail.at("max_output_tokens", "a whole number");
                    body.max_completion_tokens = map.next_value::<TokenBound>()?.0;
                }
                (BodyKey::Prompt, Api::Completions) | (BodyKey::Input, Api::Embeddings) => {
                    let (field, expected) = prompt_field(self.api);
                    trail.at(field, expected);
                    (body.conversation.pieces, body.exact_tokens) =
                        map.next_value_seed(PromptSeed { trail })?;
                    has_prompt = true;
                }
                // Some engines embed conversations, too.
                (BodyKey::Messages, Api::Chat | Api::Messages | Api::Embeddings)
                | (BodyKey::Input, Api::Responses) => {
                    let (field, expected) = match self.api {
                        Api::Embeddings => prompt_field(Api::Chat),
                        api => prompt_field(api),
                    };
                    trail.at(field, expected);
                    let text_is_message = self.api == Api::Responses;
                    body.conversation = map.next_value_seed(MessagesSeed { trail, text_is_message })?;
                    body.exact_tokens = None;
                    has_prompt = true;
                }
                (BodyKey::System, Api::Messages) => {
                    trail.at("system", "a string or an array of text blocks");
                    body.system = map.next_value_seed(SystemSeed { trail })?;
                }
                (BodyKey::Instructions, Api::Responses) => {
                    trail.at("instructions", "a string");
                    body.system = map.next_value_seed(SystemSeed { trail })?;
                }
                (BodyKey::Tools, Api::Chat | Api::Responses | Api::Messages)
                | (BodyKey::Functions, Api::Chat) => {
                    trail.at("tools", "an array");
                    let tools = map.next_value::<Option<&RawValue>>()?.map(RawValue::get);
                    body.tools = tools.filter(|raw| *raw != "[]").or(body.tools);
                }
                // The engine keeps what these name, and puts it before the input.
                (BodyKey::PreviousResponseId | BodyKey::Conversation | BodyKey::Prompt, Api::Responses) => {
                    trail.at("previous_response_id", "a string or an object");
                    let raw = map.next_value::<&RawValue>()?.get();
                    if raw != "null" {
                        body.unseen = Some(hash::chain(body.unseen.unwrap_or(0), raw.as_bytes()));
                    }
                }
                (BodyKey::ContinueFinalMessage, Api::Chat) => {
                    trail.at("continue_final_message", "true or false");
                    body.continues_message = map.next_value::<Option<bool>>()?.unwrap_or(false);
                }
                (BodyKey::Echo, Api::Completions | Api::Chat) => {
                    trail.at("echo", "true or false");
                    body.echo = map.next_value::<Option<bool>>()?.unwrap_or(false);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(has_prompt.then_some(body))
    }
}

/// A bound on output tokens. A negative one is llama.cpp's way to say that there is none.
struct TokenBound(Option<u32>);

impl<'de> Deserialize<'de> for TokenBound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoundVisitor;
        impl Visitor<'_> for BoundVisitor {
            type Value = TokenBound;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number")
            }
            fn visit_unit<E>(self) -> Result<TokenBound, E> {
                Ok(TokenBound(None))
            }
            fn visit_u64<E>(self, value: u64) -> Result<TokenBound, E> {
                Ok(TokenBound(Some(u32::try_from(value).unwrap_or(u32::MAX))))
            }
            fn visit_i64<E>(self, value: i64) -> Result<TokenBound, E> {
                // serde_json gives every number from zero up as u64.
                Ok(TokenBound(u32::try_from(value).ok()))
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<TokenBound, E> {
                if value.fract() != 0.0 {
                    return Err(E::custom("a fraction"));
                }
                let bound = u32::try_from(crate::num::u64_of_f64(value)).unwrap_or(u32::MAX);
                Ok(TokenBound((value >= 0.0).then_some(bound)))
            }
        }
        deserializer.deserialize_any(BoundVisitor)
    }
}
