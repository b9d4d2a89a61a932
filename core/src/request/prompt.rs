//! `prompt` of a completions request and `input` of an embeddings request, in their four spellings.

use core::fmt;
use std::borrow::Cow;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::piece::{Piece, push_piece};
use super::trail::Trail;

/// Stands between two lists of token ids in one batch; no vocabulary is that large.
const BETWEEN_ID_LISTS: [u8; 4] = [0xff; 4];

/// `prompt` of a completions request, `input` of an embeddings request.
pub(super) struct PromptSeed<'t> {
    pub(super) trail: &'t Trail,
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
