//! JSON values as engines send them, read without complaint.
//!
//! An event carries its token whatever the fields around it hold, so nothing here fails on a value of another
//! type than expected: it is then absent.

use core::fmt;
use core::marker::PhantomData;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::num;

/// What a JSON value is, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Shape {
    /// Absent, null or false.
    #[default]
    Nothing,
    /// An empty string, array or object.
    Empty,
    /// Anything else.
    Filled,
}

/// A value's shape, and its text if it is a string.
#[derive(Debug, Default)]
pub(super) struct Value<'a> {
    pub(super) shape: Shape,
    text: Option<Cow<'a, str>>,
}

impl<'a> Value<'a> {
    /// The string; empty for anything else.
    pub(super) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// The string, unless it is empty.
    pub(super) fn into_text(self) -> Option<Cow<'a, str>> {
        self.text.filter(|text| !text.is_empty())
    }
}

/// A string, or an object of a kind.
#[derive(Default)]
pub(super) struct TextOr<'a, T> {
    pub(super) text: Option<Cow<'a, str>>,
    pub(super) object: T,
}

/// A count; unknown for anything but a number from zero up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count(pub(super) Option<u32>);

/// An object of a kind, or nothing.
#[derive(Debug)]
pub(super) struct Lenient<T>(pub(super) Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self(None)
    }
}

/// Tokens in a list of ids or log probabilities: an array of them, or an object that holds such an array in
/// `content` (chat) or `tokens` (completions).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TokenList(pub(super) u32);

/// What is made of any JSON value.
trait Seen<'de>: Default {
    fn text(_: Cow<'de, str>) -> Self {
        Self::default()
    }
    /// A number, or true.
    fn scalar() -> Self {
        Self::default()
    }
    /// A number; `None` below zero.
    fn number(_: Option<u32>) -> Self {
        Self::scalar()
    }
    /// An array of this many items.
    fn array(_: u32) -> Self {
        Self::default()
    }
    fn object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

struct AnyValue<S>(PhantomData<S>);

fn any<'de, D: Deserializer<'de>, S: Seen<'de>>(deserializer: D) -> Result<S, D::Error> {
    deserializer.deserialize_any(AnyValue::<S>(PhantomData))
}

impl<'de, S: Seen<'de>> Visitor<'de> for AnyValue<S> {
    type Value = S;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }
    fn visit_unit<E>(self) -> Result<S, E> {
        Ok(S::default())
    }
    fn visit_bool<E>(self, value: bool) -> Result<S, E> {
        Ok(if value { S::scalar() } else { S::default() })
    }
    fn visit_u64<E>(self, value: u64) -> Result<S, E> {
        Ok(S::number(Some(u32::try_from(value).unwrap_or(u32::MAX))))
    }
    fn visit_i64<E>(self, _: i64) -> Result<S, E> {
        // serde_json gives every number from zero up as u64.
        Ok(S::number(None))
    }
    fn visit_f64<E>(self, value: f64) -> Result<S, E> {
        let count = u32::try_from(num::u64_of_f64(value)).unwrap_or(u32::MAX);
        Ok(S::number((value >= 0.0).then_some(count)))
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<S, E> {
        Ok(S::text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<S, E> {
        Ok(S::text(Cow::Owned(text.to_owned())))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<S, A::Error> {
        let mut items = 0u32;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            items = items.saturating_add(1);
        }
        Ok(S::array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<S, A::Error> {
        S::object(map)
    }
}

impl<'de: 'a, 'a> Seen<'de> for Value<'a> {
    fn text(text: Cow<'de, str>) -> Self {
        let shape = if text.is_empty() { Shape::Empty } else { Shape::Filled };
        Self { shape, text: Some(text) }
    }
    fn scalar() -> Self {
        Self { shape: Shape::Filled, text: None }
    }
    fn array(items: u32) -> Self {
        Self { shape: if items == 0 { Shape::Empty } else { Shape::Filled }, text: None }
    }
    fn object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut shape = Shape::Empty;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            shape = Shape::Filled;
        }
        Ok(Self { shape, text: None })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any(deserializer)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| value.shape)
    }
}

impl Seen<'_> for Count {
    fn number(count: Option<u32>) -> Self {
        Self(count)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any(deserializer)
    }
}

impl Count {
    /// The count, or zero.
    pub(super) fn or_zero(self) -> u32 {
        self.0.unwrap_or(0)
    }
}

impl<'de: 'a, 'a, T: Default + Deserialize<'de>> Seen<'de> for TextOr<'a, T> {
    fn text(text: Cow<'de, str>) -> Self {
        Self { text: Some(text), object: T::default() }
    }
    fn object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|object| Self { text: None, object })
    }
}

impl<'de: 'a, 'a, T: Default + Deserialize<'de>> Deserialize<'de> for TextOr<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any(deserializer)
    }
}

impl<'de, T: Deserialize<'de>> Seen<'de> for Lenient<T> {
    fn object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|object| Self(Some(object)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any(deserializer)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ListKey {
    Content,
    Tokens,
    #[serde(other)]
    Other,
}

impl<'de> Seen<'de> for TokenList {
    fn array(items: u32) -> Self {
        Self(items)
    }
    fn object<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut list = Self::default();
        while let Some(key) = map.next_key::<ListKey>()? {
            match key {
                ListKey::Content | ListKey::Tokens => list = map.next_value::<Items>()?.0,
                ListKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(list)
    }
}

impl<'de> Deserialize<'de> for TokenList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any(deserializer)
    }
}

/// The array inside a [`TokenList`]'s object; objects inside it are not followed.
#[derive(Default)]
struct Items(TokenList);

impl Seen<'_> for Items {
    fn array(items: u32) -> Self {
        Self(TokenList(items))
    }
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        any(deserializer)
    }
}
