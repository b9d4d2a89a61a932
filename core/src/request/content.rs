//! `content` of a message: a text, or parts of text, media, tool calls and tool results.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::calls::ArgumentsJson;
use super::piece::{MediaDigest, Piece, Text, push_piece};
use super::trail::Trail;

/// Where content may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The content of a message: a text or an array of parts.
    Message,
    /// A part.
    Part,
    /// The content of a part that is a tool's result.
    Result,
    /// A part inside a tool's result.
    ResultPart,
}

impl Level {
    /// Where the items of an array at this level stand; `None` where there may be no array.
    fn of_items(self) -> Option<Self> {
        match self {
            Self::Message => Some(Self::Part),
            Self::Result => Some(Self::ResultPart),
            Self::Part | Self::ResultPart => None,
        }
    }

    fn is_part(self) -> bool {
        matches!(self, Self::Part | Self::ResultPart)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum PartKey {
    Text,
    Refusal,
    ImageUrl,
    AudioUrl,
    VideoUrl,
    InputAudio,
    ImageEmbeds,
    AudioEmbeds,
    File,
    FileId,
    FileData,
    FileUrl,
    Source,
    Name,
    Input,
    Content,
    #[serde(other)]
    Other,
}

/// `content` of a message, or one part of it.
pub(super) struct ContentSeed<'p, 'de, 't> {
    pieces: &'p mut Vec<Piece<'de>>,
    trail: &'t Trail,
    level: Level,
}

impl<'p, 'de, 't> ContentSeed<'p, 'de, 't> {
    /// The content of a message.
    pub(super) fn new(pieces: &'p mut Vec<Piece<'de>>, trail: &'t Trail) -> Self {
        Self { pieces, trail, level: Level::Message }
    }
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
        let Self { pieces, trail, level } = self;
        let Some(level) = level.of_items() else {
            return Err(A::Error::custom("an array inside an array of parts"));
        };
        while seq.next_element_seed(ContentSeed { pieces, trail, level })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { pieces, trail, level } = self;
        if !level.is_part() {
            return Err(A::Error::custom("an object outside an array of parts"));
        }
        let mut name = None;
        let mut input = None;
        while let Some(key) = map.next_key::<PartKey>()? {
            match key {
                PartKey::Text | PartKey::Refusal => {
                    if let Some(text) = map.next_value::<Option<Text<'de>>>()? {
                        push_piece(pieces, Piece::Text(text.0), trail)?;
                    }
                }
                PartKey::ImageUrl
                | PartKey::AudioUrl
                | PartKey::VideoUrl
                | PartKey::InputAudio
                | PartKey::ImageEmbeds
                | PartKey::AudioEmbeds
                | PartKey::File
                | PartKey::FileId
                | PartKey::FileData
                | PartKey::FileUrl
                | PartKey::Source => {
                    if let Some(media) = map.next_value::<Option<MediaDigest>>()? {
                        push_piece(pieces, Piece::Media(media.0), trail)?;
                    }
                }
                PartKey::Name => {
                    name = map.next_value::<ArgumentsJson<'de>>()?.text();
                }
                PartKey::Input => {
                    input = map.next_value::<ArgumentsJson<'de>>()?.text();
                }
                PartKey::Content if level == Level::Part => {
                    push_piece(pieces, Piece::Result, trail)?;
                    map.next_value_seed(ContentSeed { pieces, trail, level: Level::Result })?;
                }
                PartKey::Content | PartKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // `{"type": "tool_use", "name": …, "input": {…}}`; a name alone is a file's or a document's.
        if let Some(input) = input {
            push_piece(pieces, Piece::Call(name.unwrap_or_default()), trail)?;
            push_piece(pieces, Piece::Arguments(input), trail)?;
        }
        Ok(())
    }
}
