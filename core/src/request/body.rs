//! JSON to the pieces of a prompt, in one pass.
//!
//! Hand-written visitors rather than derived structs, for three reasons: a prompt has many spellings
//! (string, strings, token ids, messages, parts) that untagged enums would read by buffering; the pieces
//! land in one flat list whose length is bounded; and an error must name the field without quoting the
//! client's text, which serde's own messages do.
//!
//! The nesting depth is bounded by serde_json's own limit, the memory by the body's length and
//! [`MAX_PIECES`]. A repeated key counts as engines count it: the last one wins.

use core::cell::Cell;
use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::{Api, RequestError};
use crate::hash;

/// Messages and content parts, or prompts of one batch, in one request. Far above any real conversation;
/// it keeps `[{},{},…]` of a full-size body from costing ten times the body in memory.
const MAX_PIECES: usize = 65_536;

/// Stands between two lists of token ids in one batch; no vocabulary is that large.
const BETWEEN_ID_LISTS: [u8; 4] = [0xff; 4];

/// A part of the canonical prompt.
#[derive(Debug, PartialEq)]
pub(super) enum Piece<'a> {
    /// A message starts, of this role.
    Message(Cow<'a, str>),
    /// Text of a message or a prompt.
    Text(Cow<'a, str>),
    /// JSON that engines render into the prompt: a message's `tool_calls`.
    Json(&'a str),
    /// Digest of an image's, a video's or a sound's URL or data.
    Media(u64),
    /// The next prompt of a batch starts.
    NextPrompt,
    /// Token ids, four little-endian bytes each.
    TokenIds(Vec<u8>),
}

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
    pub(super) pieces: Vec<Piece<'a>>,
    pub(super) exact_tokens: Option<u32>,
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
        Api::Chat => ("messages", "an array of message objects"),
    }
}

/// Where the reader is, for errors.
#[derive(Default)]
struct Trail {
    field: Cell<&'static str>,
    /// Index and field inside `messages`.
    inside: Cell<Option<(usize, &'static str)>>,
    expected: Cell<&'static str>,
}

impl Trail {
    fn at(&self, field: &'static str, expected: &'static str) {
        self.field.set(field);
        self.inside.set(None);
        self.expected.set(expected);
    }

    fn inside(&self, index: usize, field: &'static str, expected: &'static str) {
        self.inside.set(Some((index, field)));
        self.expected.set(expected);
    }

    fn explain(&self, error: &serde_json::Error) -> RequestError {
        if error.classify() != Category::Data {
            return RequestError::NotJson(error.to_string());
        }
        let (line, column, expected) = (error.line(), error.column(), self.expected.get());
        let place = match (self.field.get(), self.inside.get()) {
            ("", _) => "the body".to_owned(),
            (field, None) => format!("`{field}`"),
            (field, Some((index, ""))) => format!("`{field}[{index}]`"),
            (field, Some((index, inner))) => format!("`{field}[{index}].{inner}`"),
        };
        let expected = if expected.is_empty() { "a JSON object" } else { expected };
        RequestError::NotRequest(format!("{place} at line {line} column {column}: expected {expected}"))
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
    CacheSalt,
    Prompt,
    Messages,
    Tools,
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
                (BodyKey::Prompt, Api::Completions) => {
                    let (field, expected) = prompt_field(self.api);
                    trail.at(field, expected);
                    (body.pieces, body.exact_tokens) = map.next_value_seed(PromptSeed { trail })?;
                    has_prompt = true;
                }
                (BodyKey::Messages, Api::Chat) => {
                    let (field, expected) = prompt_field(self.api);
                    trail.at(field, expected);
                    body.pieces = map.next_value_seed(MessagesSeed { trail })?;
                    has_prompt = true;
                }
                (BodyKey::Tools, Api::Chat) => {
                    trail.at("tools", "an array");
                    body.tools =
                        map.next_value::<Option<&RawValue>>()?.map(RawValue::get).filter(|raw| *raw != "[]");
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(has_prompt.then_some(body))
    }
}

/// A string, borrowed unless it holds escapes.
#[derive(Default)]
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
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

/// `prompt` of a completions request.
struct PromptSeed<'t> {
    trail: &'t Trail,
}

impl<'de> DeserializeSeed<'de> for PromptSeed<'_> {
    type Value = (Vec<Piece<'de>>, Option<u32>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PromptSeed<'_> {
    type Value = (Vec<Piece<'de>>, Option<u32>);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a prompt")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok((vec![Piece::Text(Cow::Borrowed(text))], None))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok((vec![Piece::Text(Cow::Owned(text.to_owned()))], None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut batch = Batch::default();
        while seq.next_element_seed(BatchItem { batch: &mut batch, trail: self.trail })?.is_some() {}
        if batch.holds_ids() {
            Ok((vec![Piece::TokenIds(batch.ids)], Some(batch.tokens)))
        } else {
            Ok((batch.texts, None))
        }
    }
}

/// The items of an array prompt: all texts, all token ids, or all lists of token ids.
#[derive(Default)]
struct Batch<'a> {
    texts: Vec<Piece<'a>>,
    ids: Vec<u8>,
    tokens: u32,
    lists: usize,
}

impl<'a> Batch<'a> {
    fn holds_ids(&self) -> bool {
        self.tokens > 0 || self.lists > 0
    }

    fn push_id(&mut self, id: u32) {
        self.ids.extend_from_slice(&id.to_le_bytes());
        self.tokens = self.tokens.saturating_add(1);
    }

    fn push_text<E: serde::de::Error>(&mut self, text: Cow<'a, str>, trail: &Trail) -> Result<(), E> {
        if self.holds_ids() {
            return Err(E::custom("mixed"));
        }
        if !self.texts.is_empty() {
            push_piece(&mut self.texts, Piece::NextPrompt, trail)?;
        }
        push_piece(&mut self.texts, Piece::Text(text), trail)
    }
}

fn push_piece<'a, E: serde::de::Error>(
    pieces: &mut Vec<Piece<'a>>,
    piece: Piece<'a>,
    trail: &Trail,
) -> Result<(), E> {
    if pieces.len() >= MAX_PIECES {
        trail.expected.set("at most 65536 messages, content parts and prompts in one request");
        return Err(E::custom("too many"));
    }
    pieces.push(piece);
    Ok(())
}

struct BatchItem<'b, 'de, 't> {
    batch: &'b mut Batch<'de>,
    trail: &'t Trail,
}

impl<'de> DeserializeSeed<'de> for BatchItem<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BatchItem<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a token id or an array of token ids")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<(), E> {
        self.batch.push_text(Cow::Borrowed(text), self.trail)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.batch.push_text(Cow::Owned(text.to_owned()), self.trail)
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<(), E> {
        let id = u32::try_from(id).map_err(|_| E::custom("too large for a token id"))?;
        if !self.batch.texts.is_empty() || self.batch.lists > 0 {
            return Err(E::custom("mixed"));
        }
        self.batch.push_id(id);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let batch = self.batch;
        if !batch.texts.is_empty() || (batch.lists == 0 && batch.tokens > 0) {
            return Err(A::Error::custom("mixed"));
        }
        if batch.lists > 0 {
            batch.ids.extend_from_slice(&BETWEEN_ID_LISTS);
        }
        batch.lists = batch.lists.saturating_add(1);
        while let Some(id) = seq.next_element::<u32>()? {
            batch.push_id(id);
        }
        Ok(())
    }
}

/// `messages` of a chat request.
struct MessagesSeed<'t> {
    trail: &'t Trail,
}

impl<'de> DeserializeSeed<'de> for MessagesSeed<'_> {
    type Value = Vec<Piece<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MessagesSeed<'_> {
    type Value = Vec<Piece<'de>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let trail = self.trail;
        let mut pieces = Vec::new();
        let mut index = 0usize;
        loop {
            trail.inside(index, "", "a message object with `role` and `content`");
            if seq.next_element_seed(MessageSeed { pieces: &mut pieces, trail, index })?.is_none() {
                return Ok(pieces);
            }
            index = index.saturating_add(1);
        }
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum MessageKey {
    Role,
    Content,
    ToolCalls,
    #[serde(other)]
    Other,
}

struct MessageSeed<'p, 'de, 't> {
    pieces: &'p mut Vec<Piece<'de>>,
    trail: &'t Trail,
    index: usize,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { pieces, trail, index } = self;
        // The role leads in the canonical prompt whatever the order of the keys: some clients sort them.
        let head = pieces.len();
        push_piece(pieces, Piece::Message(Cow::Borrowed("")), trail)?;
        let mut tool_calls = None;
        while let Some(key) = map.next_key::<MessageKey>()? {
            match key {
                MessageKey::Role => {
                    trail.inside(index, "role", "a string");
                    let role = map.next_value::<Option<Text<'de>>>()?.unwrap_or_default().0;
                    if let Some(slot) = pieces.get_mut(head) {
                        *slot = Piece::Message(role);
                    }
                }
                MessageKey::Content => {
                    trail.inside(index, "content", "a string, null, or an array of content parts");
                    pieces.truncate(head.saturating_add(1));
                    map.next_value_seed(ContentSeed { pieces, trail, part: false })?;
                }
                MessageKey::ToolCalls => {
                    trail.inside(index, "tool_calls", "an array");
                    tool_calls = map.next_value::<Option<&RawValue>>()?.map(RawValue::get);
                }
                MessageKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match tool_calls {
            None | Some("[]") => Ok(()),
            Some(calls) => push_piece(pieces, Piece::Json(calls), trail),
        }
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum PartKey {
    Text,
    ImageUrl,
    AudioUrl,
    VideoUrl,
    InputAudio,
    File,
    #[serde(other)]
    Other,
}

/// `content` of a message, or one part of it.
struct ContentSeed<'p, 'de, 't> {
    pieces: &'p mut Vec<Piece<'de>>,
    trail: &'t Trail,
    part: bool,
}

impl<'de> DeserializeSeed<'de> for ContentSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ContentSeed<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, null, or an array of content parts")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<(), E> {
        push_piece(self.pieces, Piece::Text(Cow::Borrowed(text)), self.trail)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        push_piece(self.pieces, Piece::Text(Cow::Owned(text.to_owned())), self.trail)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { pieces, trail, part } = self;
        if part {
            return Err(A::Error::custom("an array inside an array of parts"));
        }
        while seq.next_element_seed(ContentSeed { pieces, trail, part: true })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { pieces, trail, part } = self;
        if !part {
            return Err(A::Error::custom("an object outside an array of parts"));
        }
        while let Some(key) = map.next_key::<PartKey>()? {
            match key {
                PartKey::Text => {
                    if let Some(text) = map.next_value::<Option<Text<'de>>>()? {
                        push_piece(pieces, Piece::Text(text.0), trail)?;
                    }
                }
                PartKey::ImageUrl
                | PartKey::AudioUrl
                | PartKey::VideoUrl
                | PartKey::InputAudio
                | PartKey::File => {
                    if let Some(media) = map.next_value::<Option<MediaDigest>>()? {
                        push_piece(pieces, Piece::Media(media.0), trail)?;
                    }
                }
                PartKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Digest of a media part's URL or data, hashed where it lies: an image is megabytes of base64.
struct MediaDigest(u64);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum MediaKey {
    Url,
    Data,
    FileData,
    FileId,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for MediaDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MediaVisitor;
        impl<'de> Visitor<'de> for MediaVisitor {
            type Value = MediaDigest;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a URL, or an object with `url` or `data`")
            }
            fn visit_str<E>(self, source: &str) -> Result<MediaDigest, E> {
                Ok(MediaDigest(hash::chain(0, source.as_bytes())))
            }
            fn visit_unit<E>(self) -> Result<MediaDigest, E> {
                Ok(MediaDigest(0))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MediaDigest, A::Error> {
                let mut digest = 0;
                while let Some(key) = map.next_key::<MediaKey>()? {
                    if matches!(key, MediaKey::Other) {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        digest ^= map.next_value::<Self::Value>()?.0;
                    }
                }
                Ok(MediaDigest(digest))
            }
        }
        deserializer.deserialize_any(MediaVisitor)
    }
}
