//! The parts of a canonical prompt, in one flat list of bounded length.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::trail::Trail;
use crate::hash;

/// Messages and content parts, or prompts of one batch, in one request. Far above any real conversation;
/// it keeps `[{},{},…]` of a full-size body from costing ten times the body in memory.
const MAX_PIECES: usize = 65_536;

/// A part of the canonical prompt.
#[derive(Debug, PartialEq)]
pub(super) enum Piece<'a> {
    /// A message starts, of this role.
    Message(Cow<'a, str>),
    /// Text of a message or a prompt.
    Text(Cow<'a, str>),
    /// A call of the tool of this name.
    Call(Cow<'a, str>),
    /// The call's arguments: JSON, as text or as it stands in the body.
    Arguments(Cow<'a, str>),
    /// The result of a tool call follows, inside a message.
    Result,
    /// Digest of an image's, a video's, a sound's or a file's URL or data.
    Media(u64),
    /// Digest of something whose content only the engine knows.
    Opaque(u64),
    /// The next prompt of a batch starts.
    NextPrompt,
    /// Token ids, four little-endian bytes each.
    TokenIds(Vec<u8>),
}

/// Adds a part.
pub(super) fn push_piece<'a, E: serde::de::Error>(
    pieces: &mut Vec<Piece<'a>>,
    piece: Piece<'a>,
    trail: &Trail,
) -> Result<(), E> {
    if pieces.len() >= MAX_PIECES {
        trail.expect("at most 65536 messages, content parts and prompts in one request");
        return Err(E::custom("too many"));
    }
    pieces.push(piece);
    Ok(())
}

/// A string, borrowed unless it holds escapes.
#[derive(Debug, Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

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

/// Digest of a media part's URL or data, hashed where it lies: an image is megabytes of base64.
pub(super) struct MediaDigest(pub(super) u64);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum MediaKey {
    Url,
    Data,
    FileData,
    FileId,
    FileUrl,
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
