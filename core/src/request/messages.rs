//! Conversations, in all the spellings of the APIs: `messages` of a chat, `messages` and `system` of
//! Anthropic's API, `input` and `instructions` of the responses API.
//!
//! The APIs disagree about names and nesting and not about substance: messages of a role with text, media, tool
//! calls and tool results. So one visitor reads them all, by the union of their keys, into the same pieces.
//!
//! What models are not shown again is left out: reasoning of earlier turns (`reasoning_content`, `thinking`
//! blocks, `reasoning` items) is dropped by chat templates.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::calls::{ArgumentsJson, CallsSeed, FunctionCall};
use super::content::ContentSeed;
use super::piece::{Piece, Text, push_piece};
use super::trail::Trail;
use crate::hash;

/// Role of the model's own messages, in every API.
pub(crate) const ASSISTANT: &str = "assistant";

/// The messages of a conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation<'a> {
    pub(super) pieces: Vec<Piece<'a>>,
    /// Whether the last message is the assistant's.
    pub(super) ends_with_assistant: bool,
    pub(super) messages: u32,
}

/// `messages`, or the items of `input`.
pub(super) struct MessagesSeed<'t> {
    pub(super) trail: &'t Trail,
    /// Whether a text may stand for the one message of the user.
    pub(super) text_is_message: bool,
}

impl<'de> DeserializeSeed<'de> for MessagesSeed<'_> {
    type Value = Conversation<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MessagesSeed<'_> {
    type Value = Conversation<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of messages")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        self.one_message(Cow::Borrowed(text))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        self.one_message(Cow::Owned(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let trail = self.trail;
        let mut conversation = Conversation::default();
        let mut index = 0usize;
        loop {
            trail.inside(index, "", "a message object with `role` and `content`");
            let message = MessageSeed { conversation: &mut conversation, trail, index };
            if seq.next_element_seed(message)?.is_none() {
                return Ok(conversation);
            }
            index = index.saturating_add(1);
        }
    }
}

impl MessagesSeed<'_> {
    fn one_message<'de, E: serde::de::Error>(self, text: Cow<'de, str>) -> Result<Conversation<'de>, E> {
        if !self.text_is_message {
            return Err(E::custom("a string"));
        }
        let pieces = vec![Piece::Message(Cow::Borrowed("user")), Piece::Text(text)];
        Ok(Conversation { pieces, ends_with_assistant: false, messages: 1 })
    }
}

/// `system` or `instructions`: the content of one message before all others.
pub(super) struct SystemSeed<'t> {
    pub(super) trail: &'t Trail,
}

impl<'de> DeserializeSeed<'de> for SystemSeed<'_> {
    type Value = Vec<Piece<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let mut pieces = vec![Piece::Message(Cow::Borrowed("system"))];
        ContentSeed::new(&mut pieces, self.trail).deserialize(deserializer)?;
        if pieces.len() == 1 {
            pieces.clear();
        }
        Ok(pieces)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum MessageKey {
    Type,
    Id,
    Role,
    Content,
    ToolCalls,
    FunctionCall,
    Name,
    Arguments,
    Input,
    Output,
    #[serde(other)]
    Other,
}

/// One message, or one item of the responses API.
struct MessageSeed<'c, 'de, 't> {
    conversation: &'c mut Conversation<'de>,
    trail: &'t Trail,
    index: usize,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// What an item is, by its `type`.
enum Item {
    Message,
    /// A call that the model made.
    Call,
    /// What a tool answered.
    CallOutput,
    /// What models are not shown again.
    Reasoning,
    /// One that is known by its id only.
    Other,
}

impl Item {
    fn of(kind: Option<&str>) -> Self {
        match kind {
            None | Some("message") => Self::Message,
            Some("function_call" | "custom_tool_call") => Self::Call,
            Some("function_call_output" | "custom_tool_call_output") => Self::CallOutput,
            Some("reasoning") => Self::Reasoning,
            Some(_) => Self::Other,
        }
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { conversation, trail, index } = self;
        let Conversation { pieces, ends_with_assistant, messages } = conversation;
        // The role leads in the canonical prompt whatever the order of the keys: some clients sort them.
        let head = pieces.len();
        let content = head.saturating_add(1);
        push_piece(pieces, Piece::Message(Cow::Borrowed("")), trail)?;
        let mut role = Cow::Borrowed("");
        let mut kind = None;
        let mut id = None;
        let mut name = None;
        let mut arguments = None;
        let mut calls = Vec::new();
        while let Some(key) = map.next_key::<MessageKey>()? {
            match key {
                MessageKey::Type => {
                    trail.inside(index, "type", "a string");
                    kind = map.next_value::<Option<Text<'de>>>()?.map(|text| text.0);
                }
                MessageKey::Id => {
                    id = map.next_value::<IdDigest>()?.0;
                }
                MessageKey::Role => {
                    trail.inside(index, "role", "a string");
                    role = map.next_value::<Option<Text<'de>>>()?.unwrap_or_default().0;
                }
                MessageKey::Content => {
                    trail.inside(index, "content", "a string, null, or an array of content parts");
                    pieces.truncate(content);
                    map.next_value_seed(ContentSeed::new(pieces, trail))?;
                }
                MessageKey::Output => {
                    trail.inside(index, "output", "a string, null, or an array of content parts");
                    pieces.truncate(content);
                    map.next_value_seed(ContentSeed::new(pieces, trail))?;
                }
                MessageKey::ToolCalls => {
                    trail.inside(index, "tool_calls", "an array of calls");
                    calls = map.next_value_seed(CallsSeed { trail })?;
                }
                MessageKey::FunctionCall => {
                    trail.inside(index, "function_call", "an object with `name` and `arguments`");
                    if let Some(call) = map.next_value::<Option<FunctionCall<'de>>>()? {
                        calls.clear();
                        call.push(&mut calls, trail)?;
                    }
                }
                MessageKey::Name => {
                    name = map.next_value::<ArgumentsJson<'de>>()?.text();
                }
                MessageKey::Arguments | MessageKey::Input => {
                    arguments = map.next_value::<ArgumentsJson<'de>>()?.text();
                }
                MessageKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let after_assistant = *ends_with_assistant;
        let mut set_role = |role: Cow<'de, str>, pieces: &mut Vec<Piece<'de>>| {
            *ends_with_assistant = role == ASSISTANT;
            *messages = messages.saturating_add(1);
            if let Some(slot) = pieces.get_mut(head) {
                *slot = Piece::Message(role);
            }
        };
        match Item::of(kind.as_deref()) {
            Item::Message => {
                set_role(role, pieces);
                for call in calls {
                    push_piece(pieces, call, trail)?;
                }
            }
            Item::Call => {
                // Templates render a call as part of the assistant's message.
                if after_assistant {
                    pieces.truncate(head);
                } else {
                    pieces.truncate(content);
                    set_role(Cow::Borrowed(ASSISTANT), pieces);
                }
                push_piece(pieces, Piece::Call(name.unwrap_or_default()), trail)?;
                push_piece(pieces, Piece::Arguments(arguments.unwrap_or_default()), trail)?;
            }
            Item::CallOutput => set_role(Cow::Borrowed("tool"), pieces),
            Item::Reasoning => pieces.truncate(head),
            Item::Other => {
                set_role(kind.unwrap_or_default(), pieces);
                push_piece(pieces, Piece::Opaque(id.unwrap_or(0)), trail)?;
            }
        }
        Ok(())
    }
}

/// Digest of an id, whatever it is.
struct IdDigest(Option<u64>);

impl<'de> Deserialize<'de> for IdDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = ArgumentsJson::deserialize(deserializer)?.text();
        Ok(Self(text.map(|text| hash::chain(0, text.as_bytes()))))
    }
}

impl<'de> FunctionCall<'de> {
    /// Adds the call to a list of pieces.
    pub(super) fn push<E: serde::de::Error>(
        self,
        pieces: &mut Vec<Piece<'de>>,
        trail: &Trail,
    ) -> Result<(), E> {
        push_piece(pieces, Piece::Call(self.name), trail)?;
        push_piece(pieces, Piece::Arguments(self.arguments), trail)
    }
}
