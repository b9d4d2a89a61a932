//! A prompt as the engine sees it: a count, chained hashes of full blocks, and the tokens left over.
//!
//! The chain begins with the model's name, so that two models never share a block. Hash `i` stands for
//! all tokens up to the end of block `i`; equal hashes therefore mean equal prefixes.
//!
//! In virtual time nobody has tokens, only their blocks' hashes: [`TokenBlocks::foretold`] takes those of the
//! prompt and of the answer that will follow it, and tokens are then merely counted.

use std::sync::Arc;

use foretoken_core::hash::chain;

use crate::answer::Word;
use crate::tokenizer::{TokenId, pieces, token_id};

const DIGEST_SEED: u64 = 0x6469_6765_7374_0001;

/// Tokens cut into blocks; grows at the end, by prompt first and by generated tokens later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBlocks {
    tokens: u32,
    hashes: Vec<u64>,
    /// Ids of the tokens behind the last full block, four bytes each.
    tail: Vec<u8>,
    chain: u64,
    block_tokens: u32,
    /// Hashes of all blocks there will ever be, where they are known beforehand.
    foretold: Option<Arc<[u64]>>,
}

impl TokenBlocks {
    /// No tokens yet, of `model`, in blocks of `block_tokens`.
    #[must_use]
    pub fn new(model: &str, block_tokens: u32) -> Self {
        let block_tokens = block_tokens.max(1);
        Self {
            tokens: 0,
            hashes: Vec::new(),
            tail: Vec::with_capacity(block_tokens as usize * size_of::<TokenId>()),
            chain: chain(DIGEST_SEED, model.as_bytes()),
            block_tokens,
            foretold: None,
        }
    }

    /// `tokens` tokens whose blocks have these hashes; `hashes` may go on for what will be appended. Blocks
    /// behind the last hash are never found again.
    #[must_use]
    pub fn foretold(tokens: u32, block_tokens: u32, hashes: Arc<[u64]>) -> Self {
        Self {
            tokens,
            hashes: Vec::new(),
            tail: Vec::new(),
            chain: 0,
            block_tokens: block_tokens.max(1),
            foretold: Some(hashes),
        }
    }

    /// The tokens of `text`.
    #[must_use]
    pub fn of_text(model: &str, block_tokens: u32, text: &str) -> Self {
        let mut blocks = Self::new(model, block_tokens);
        pieces(text, |piece| blocks.push(token_id(piece)));
        blocks
    }

    /// Appends one token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens += 1;
        self.tail.extend_from_slice(&token.to_le_bytes());
        if self.tokens.is_multiple_of(self.block_tokens) {
            self.chain = chain(self.chain, &self.tail);
            self.hashes.push(self.chain);
            self.tail.clear();
        }
    }

    /// Appends the token that the pseudo model generates at `position` of the answer to `prompt_digest`.
    pub(super) fn push_generated(&mut self, prompt_digest: u64, position: u32) {
        if self.foretold.is_some() {
            self.tokens += 1;
        } else {
            self.push(Word::at(prompt_digest, position).token());
        }
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.tokens
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Chained hashes of the full blocks.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        match &self.foretold {
            Some(hashes) => &hashes[..hashes.len().min((self.tokens / self.block_tokens) as usize)],
            None => &self.hashes,
        }
    }

    /// One number for all the tokens: what the answer depends on.
    #[must_use]
    pub fn digest(&self) -> u64 {
        chain(self.chain ^ DIGEST_SEED, &self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prompt_keeps_the_hashes_of_the_shorter_one() {
        let short = TokenBlocks::of_text("m", 4, "one two three four five six");
        let long = TokenBlocks::of_text("m", 4, "one two three four five six seven eight nine");
        assert_eq!(short.len(), 6);
        assert_eq!(short.hashes(), &long.hashes()[..1]);
        assert_eq!(long.hashes().len(), 2);
        assert_ne!(short.digest(), long.digest());
    }

    #[test]
    fn foretold_blocks_come_into_view_as_tokens_are_generated() {
        let mut blocks = TokenBlocks::foretold(7, 4, Arc::from([1, 2, 3]));
        assert_eq!((blocks.len(), blocks.hashes()), (7, &[1][..]));
        blocks.push_generated(0, 0);
        assert_eq!((blocks.len(), blocks.hashes()), (8, &[1, 2][..]));
        (0..20).for_each(|position| blocks.push_generated(0, position));
        assert_eq!((blocks.len(), blocks.hashes()), (28, &[1, 2, 3][..]));
    }

    #[test]
    fn two_models_share_nothing() {
        let one = TokenBlocks::of_text("a", 4, "one two three four");
        let two = TokenBlocks::of_text("b", 4, "one two three four");
        assert_ne!(one.hashes(), two.hashes());
    }
}
