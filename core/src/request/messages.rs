//! `messages` of a chat request.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::piece::{MediaDigest, Piece, Text, push_piece};
use super::trail::Trail;

/// `messages` of a chat request.
pub(super) struct MessagesSeed<'t> {
    pub(super) trail: &'t Trail,
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
