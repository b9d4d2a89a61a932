//! A body's parts to the prompt: canonical text in its order, hashed, counted and measured.
//!
//! The order is that in which engines render: tools, system, conversation. Nothing closes the last message, so
//! that an answer or a further message goes on from it.

use super::blocks::{BlockHasher, Continues, model_key};
use super::body::Body;
use super::canonical::Canonical;
use super::piece::Piece;
use super::{Api, BlockOptions, Prompt, PromptShape};
use crate::{hash, num};

/// The prompt of a body.
pub(super) fn prompt(api: Api, model: &str, body: &Body<'_>, options: BlockOptions) -> Prompt {
    let mut seed = model_key(model);
    if let Some(salt) = &body.cache_salt {
        seed = hash::chain(seed, salt.as_bytes());
    }
    if let Some(unseen) = body.unseen {
        seed = hash::chain(seed, &unseen.to_le_bytes());
    }
    let mut canonical = Canonical::new(BlockHasher::new(seed, options));
    let mut media = 0u32;
    if let Some(tools) = body.tools {
        canonical.tools(tools);
    }
    for piece in body.system.iter().chain(&body.conversation.pieces) {
        match piece {
            Piece::Message(role) => canonical.message(role),
            Piece::Text(text) => canonical.text(text),
            Piece::Call(name) => canonical.call(name),
            Piece::Arguments(json) => canonical.arguments(json),
            Piece::Result => canonical.result(),
            Piece::Media(digest) => {
                media = media.saturating_add(1);
                canonical.media(*digest);
            }
            Piece::Opaque(digest) => canonical.media(*digest),
            Piece::NextPrompt => canonical.next_prompt(),
            Piece::TokenIds(ids) => canonical.token_ids(ids),
        }
    }
    let shape = PromptShape {
        text: canonical.counts,
        messages: body.conversation.messages.saturating_add(u32::from(!body.system.is_empty())),
        media,
        unseen: body.unseen.is_some(),
    };
    let hasher = canonical.finish();
    let text_bytes = num::u32_of_usize(hasher.total_bytes);
    let (blocks, tail) = hasher.into_blocks(continues(api, body));
    Prompt { text_bytes, exact_tokens: body.exact_tokens, shape, blocks, tail }
}

/// What an answer to this body adds to the conversation.
fn continues(api: Api, body: &Body<'_>) -> Continues {
    // With state at the engine the next request names this answer instead of repeating it.
    if body.echo || body.unseen.is_some() || body.exact_tokens.is_some() {
        return Continues::Nothing;
    }
    match api {
        Api::Embeddings => Continues::Nothing,
        Api::Completions if body.conversation.pieces.len() > 1 => Continues::Nothing,
        Api::Completions => Continues::Text,
        // Anthropic's API has no field for it: a last message of the assistant is always continued.
        Api::Messages if body.conversation.ends_with_assistant => Continues::InMessage,
        Api::Chat if body.continues_message => Continues::InMessage,
        Api::Chat | Api::Responses | Api::Messages => Continues::Message,
    }
}
