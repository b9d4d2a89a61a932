//! Chained block hashes over a stream of slices.
//!
//! Block n's hash covers blocks 0 to n, so equal hashes mean equal prefixes, and a longer conversation has
//! the hashes of the shorter one as its own first ones. The last, unfilled block is not hashed: its bytes change
//! meaning with what follows. They are kept in a [`ChainTail`], from which the answer's blocks go on.

use super::BlockOptions;
use crate::hash;

/// Key of a model in tables and the seed of its block chains: the hash of its name.
///
/// [`super::LlmRequest::model`] is the name to pass.
#[must_use]
pub fn model_key(model: &str) -> u64 {
    hash::chain(0x666f_7265_6d6f_6465, model.as_bytes())
}

/// What an answer adds to its prompt in the next request of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Continues {
    /// Nothing that is known: several prompts or answers, token ids, an embedding.
    #[default]
    Nothing,
    /// Text right after the prompt's.
    Text,
    /// A message of the assistant.
    Message,
    /// More of the assistant's message that the prompt ended with.
    InMessage,
}

/// Where a prompt's chain of blocks stands: what is needed to hash on from it.
///
/// At most one block of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChainTail {
    /// Hash of the last full block, or the chain's seed.
    pub(super) state: u64,
    /// Bytes after the last full block.
    pub(super) unfilled: Vec<u8>,
    /// Bytes in one block.
    pub(super) block_bytes: usize,
    /// Blocks that may still follow within the prompt's bound.
    pub(super) blocks_left: usize,
    /// What the answer will be.
    pub continues: Continues,
}

/// Hashes a stream of slices block by block; copies only what lies across two slices.
#[derive(Debug)]
pub(crate) struct BlockHasher {
    state: u64,
    block_bytes: usize,
    max_blocks: usize,
    unfilled: Vec<u8>,
    pub(crate) blocks: Vec<u64>,
    pub(super) total_bytes: usize,
}

impl BlockHasher {
    pub(super) fn new(seed: u64, options: BlockOptions) -> Self {
        Self {
            state: seed,
            block_bytes: usize::try_from(options.block_bytes.max(1)).unwrap_or(usize::MAX),
            max_blocks: usize::try_from(options.max_blocks).unwrap_or(usize::MAX),
            unfilled: Vec::new(),
            blocks: Vec::new(),
            total_bytes: 0,
        }
    }

    /// A hasher of what follows a prompt; its blocks are those that come after the prompt's.
    pub(super) fn resume(tail: ChainTail, max_blocks: usize) -> Self {
        Self {
            state: tail.state,
            block_bytes: tail.block_bytes.max(1),
            max_blocks: tail.blocks_left.min(max_blocks),
            unfilled: tail.unfilled,
            blocks: Vec::new(),
            total_bytes: 0,
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
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

    /// The blocks, and where their chain stands.
    pub(super) fn into_blocks(self, continues: Continues) -> (Vec<u64>, ChainTail) {
        let blocks_left = self.max_blocks.saturating_sub(self.blocks.len());
        let tail = ChainTail {
            state: self.state,
            unfilled: self.unfilled,
            block_bytes: self.block_bytes,
            blocks_left,
            continues,
        };
        (self.blocks, tail)
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
    fn a_chain_goes_on_from_its_tail_as_if_it_had_never_stopped() {
        let text: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
        let options = BlockOptions { block_bytes: 64, max_blocks: 12 };
        let mut whole = BlockHasher::new(7, options);
        whole.write(&text);
        for at in 0..=text.len() {
            let (head, tail) = text.split_at(at);
            let mut first = BlockHasher::new(7, options);
            first.write(head);
            let (mut blocks, chain) = first.into_blocks(Continues::Text);
            assert!(chain.unfilled.len() < 64);
            let mut second = BlockHasher::resume(chain, usize::MAX);
            second.write(tail);
            blocks.extend(second.blocks);
            assert_eq!(blocks, whole.blocks, "parted at {at}");
        }
    }

    #[test]
    fn beyond_the_bound_bytes_are_counted_and_not_hashed() {
        let mut hasher = BlockHasher::new(7, BlockOptions { block_bytes: 10, max_blocks: 3 });
        hasher.write(&[1; 95]);
        assert_eq!((hasher.blocks.len(), hasher.total_bytes), (3, 95));
        assert!(hasher.unfilled.is_empty());
        assert_eq!(hasher.into_blocks(Continues::Text).1.blocks_left, 0);
    }

    #[test]
    fn a_block_size_of_zero_does_not_spin() {
        let mut hasher = BlockHasher::new(7, BlockOptions { block_bytes: 0, max_blocks: 3 });
        hasher.write(&[1; 95]);
        assert_eq!(hasher.blocks.len(), 3);
        assert_eq!(BlockHasher::resume(ChainTail::default(), 9).blocks.len(), 0);
    }
}
