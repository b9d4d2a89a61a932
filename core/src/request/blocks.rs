//! Pieces to the canonical prompt's length and chained block hashes, without building the prompt.
//!
//! Block n's hash covers blocks 0 to n, so equal hashes mean equal prefixes, and a longer conversation has
//! the hashes of the shorter one as its own first ones. The last, unfilled block is not hashed:
//! its bytes change meaning with what follows.

use super::body::Body;
use super::piece::Piece;
use super::{BlockOptions, Prompt};
use crate::{hash, num};

/// Control characters stand between the pieces: JSON text holds them only when escaped, and chat hardly ever.
const TOOLS: u8 = 0x01;
const MESSAGE: u8 = 0x02;
const CONTENT: u8 = 0x03;
const NEXT_PROMPT: u8 = 0x04;
const CALLS: u8 = 0x05;
const MEDIA: u8 = 0x06;

/// Key of a model in tables and the seed of its block chains: the hash of its name.
///
/// [`super::LlmRequest::model`] is the name to pass.
#[must_use]
pub fn model_key(model: &str) -> u64 {
    hash::chain(0x666f_7265_6d6f_6465, model.as_bytes())
}

/// Length and block hashes of a body's prompt.
pub(super) fn hash_prompt(model: &str, body: &Body<'_>, options: BlockOptions) -> Prompt {
    let seed = match &body.cache_salt {
        Some(salt) => hash::chain(model_key(model), salt.as_bytes()),
        None => model_key(model),
    };
    let mut hasher = BlockHasher::new(seed, options);
    if let Some(tools) = body.tools {
        hasher.write(&[TOOLS]);
        hasher.write(tools.as_bytes());
    }
    for piece in &body.pieces {
        match piece {
            Piece::Message(role) => {
                hasher.write(&[MESSAGE]);
                hasher.write(role.as_bytes());
                hasher.write(&[CONTENT]);
            }
            Piece::Text(text) => hasher.write(text.as_bytes()),
            Piece::Json(calls) => {
                hasher.write(&[CALLS]);
                hasher.write(calls.as_bytes());
            }
            Piece::Media(digest) => {
                hasher.write(&[MEDIA]);
                hasher.write(&digest.to_le_bytes());
            }
            Piece::NextPrompt => hasher.write(&[NEXT_PROMPT]),
            Piece::TokenIds(ids) => hasher.write(ids),
        }
    }
    Prompt {
        text_bytes: num::u32_of_usize(hasher.total_bytes),
        exact_tokens: body.exact_tokens,
        blocks: hasher.blocks,
    }
}

/// Hashes a stream of slices block by block; copies only what lies across two slices.
struct BlockHasher {
    state: u64,
    block_bytes: usize,
    max_blocks: usize,
    unfilled: Vec<u8>,
    blocks: Vec<u64>,
    total_bytes: usize,
}

impl BlockHasher {
    fn new(seed: u64, options: BlockOptions) -> Self {
        Self {
            state: seed,
            block_bytes: usize::try_from(options.block_bytes.max(1)).unwrap_or(usize::MAX),
            max_blocks: usize::try_from(options.max_blocks).unwrap_or(usize::MAX),
            unfilled: Vec::new(),
            blocks: Vec::new(),
            total_bytes: 0,
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.total_bytes = self.total_bytes.saturating_add(bytes.len());
        let mut rest = bytes;
        while !rest.is_empty() && self.blocks.len() < self.max_blocks {
            let wanted = self.block_bytes.saturating_sub(self.unfilled.len());
            let Some((head, tail)) = rest.split_at_checked(wanted) else {
                self.unfilled.extend_from_slice(rest);
                return;
            };
            rest = tail;
            if self.unfilled.is_empty() {
                self.state = hash::chain(self.state, head);
            } else {
                self.unfilled.extend_from_slice(head);
                self.state = hash::chain(self.state, &self.unfilled);
                self.unfilled.clear();
            }
            self.blocks.push(self.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_hashes_do_not_depend_on_how_the_bytes_are_sliced() {
        let text: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
        let options = BlockOptions { block_bytes: 64, max_blocks: 1000 };
        let mut whole = BlockHasher::new(7, options);
        whole.write(&text);
        assert_eq!(whole.blocks.len(), 1000 / 64);
        for step in [1, 3, 63, 64, 65, 200] {
            let mut sliced = BlockHasher::new(7, options);
            for slice in text.chunks(step) {
                sliced.write(slice);
            }
            assert_eq!(sliced.blocks, whole.blocks, "slices of {step}");
            assert_eq!(sliced.total_bytes, whole.total_bytes);
        }
    }

    #[test]
    fn beyond_the_bound_bytes_are_counted_and_not_hashed() {
        let mut hasher = BlockHasher::new(7, BlockOptions { block_bytes: 10, max_blocks: 3 });
        hasher.write(&[1; 95]);
        assert_eq!((hasher.blocks.len(), hasher.total_bytes), (3, 95));
        assert!(hasher.unfilled.is_empty());
    }

    #[test]
    fn a_block_size_of_zero_does_not_spin() {
        let mut hasher = BlockHasher::new(7, BlockOptions { block_bytes: 0, max_blocks: 3 });
        hasher.write(&[1; 95]);
        assert_eq!(hasher.blocks.len(), 3);
    }
}
