//! What prompts and answers are made of, without any text: runs of tokens from named sources.
//!
//! Two prompts share a block exactly when they are made of the same runs of the same sources up to its end.
//! That is what a prefix cache sees of real text, and hashing runs instead of tokens keeps a prompt of
//! 100,000 tokens as cheap as its 1,600 blocks.

use std::sync::Arc;

use foretoken_core::hash::chain;

/// Tokens in one block, for the engine's cache and for the router's index alike: at 4 bytes a token, core's
/// default block of 256 bytes.
pub const BLOCK_TOKENS: u32 = 64;

/// Tokens in a row, known by their chained block hashes. Grows at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    hashes: Vec<u64>,
    tokens: u32,
    chain: u64,
}

impl Default for Content {
    fn default() -> Self {
        Self { hashes: Vec::new(), tokens: 0, chain: 0x636F_6E74_656E_7401 }
    }
}

impl Content {
    /// Appends `tokens` tokens of a source. A source is told by its number, and its tokens by their position in
    /// this run, so the same call after equal content gives equal content.
    pub fn push(&mut self, source: u64, tokens: u32) {
        let mut done = 0;
        while done < tokens {
            let room = BLOCK_TOKENS - self.tokens % BLOCK_TOKENS;
            let part = room.min(tokens - done);
            let mut run = [0_u8; 16];
            run[..8].copy_from_slice(&source.to_le_bytes());
            run[8..12].copy_from_slice(&done.to_le_bytes());
            run[12..].copy_from_slice(&part.to_le_bytes());
            self.chain = chain(self.chain, &run);
            self.tokens += part;
            done += part;
            if self.tokens.is_multiple_of(BLOCK_TOKENS) {
                self.hashes.push(self.chain);
            }
        }
    }

    /// Appends whole blocks that a trace names by id.
    pub fn push_blocks(&mut self, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            self.push(id, BLOCK_TOKENS);
        }
    }

    /// Tokens so far.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Hashes of the full blocks so far.
    #[must_use]
    pub fn blocks(&self) -> Arc<[u64]> {
        Arc::from(self.hashes.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_shared_up_to_the_block_where_it_differs() {
        let of = |private: u64| {
            let mut content = Content::default();
            content.push(1, 3000);
            content.push(private, 500);
            content
        };
        let (one, two) = (of(7), of(8));
        assert_eq!(one.tokens(), 3500);
        assert_eq!(one.blocks().len(), 54);
        let shared = one.blocks().iter().zip(two.blocks().iter()).take_while(|(a, b)| a == b).count();
        // 3000 = 46 blocks and 56 tokens.
        assert_eq!(shared, 46);
        assert_eq!(of(7), one);
    }

    #[test]
    fn a_longer_conversation_keeps_the_blocks_of_the_shorter() {
        let mut content = Content::default();
        content.push(1, 100);
        let before = content.blocks();
        content.push(2, 1000);
        assert_eq!(content.blocks()[..before.len()], before[..]);
    }
}
