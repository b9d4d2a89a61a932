//! The text that a simulated pod answers with: pseudo-words, one word a token.
//!
//! A real model with temperature 0 answers the same prompt with the same words, on every replica; so does
//! this one: the word at a position depends only on the prompt's digest and on the position. Every word
//! is visible ASCII (no token whose text is empty, nothing that JSON must escape), begins with a space
//! and is short enough to be one token again when it comes back in the next prompt.

use crate::tokenizer::{TokenId, token_id};

/// Longest word, its leading space included.
pub const MAX_WORD_BYTES: usize = 6;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";
/// Consonant and vowel patterns; one word takes one of them.
const SHAPES: [&[u8]; 4] = [b"CV", b"CVC", b"CVCV", b"CVCVC"];

/// One word of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    bytes: [u8; MAX_WORD_BYTES],
    len: u8,
}

impl Word {
    /// The word at `position` (from 0) of the answer to the prompt with this digest.
    #[must_use]
    pub fn at(prompt_digest: u64, position: u32) -> Self {
        let mut bits = mix(prompt_digest ^ u64::from(position).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let shape = SHAPES[take(&mut bits, 2)];
        let mut bytes = [b' '; MAX_WORD_BYTES];
        for (slot, kind) in bytes.iter_mut().skip(1).zip(shape) {
            *slot = match kind {
                b'C' => CONSONANTS[take(&mut bits, 4)],
                _ => VOWELS[take(&mut bits, 2)],
            };
        }
        Self { bytes, len: shape.len() as u8 + 1 }
    }

    /// The word with its leading space.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its token.
    #[must_use]
    pub fn token(&self) -> TokenId {
        token_id(self.as_bytes())
    }
}

/// Takes the lowest `count` bits.
fn take(bits: &mut u64, count: u32) -> usize {
    let value = *bits & ((1 << count) - 1);
    *bits >>= count;
    value as usize
}

/// The splitmix64 finaliser: every input bit reaches every output bit.
fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::pieces;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_answer_is_cut_back_into_its_own_tokens(digest: u64, len in 1u32..200, head in "[a-z .\n]{0,20}") {
            let words: Vec<Word> = (0..len).map(|position| Word::at(digest, position)).collect();
            let mut text = head.into_bytes();
            for word in &words {
                text.extend_from_slice(word.as_bytes());
            }
            let mut tokens = Vec::new();
            let text = String::from_utf8(text).unwrap();
            pieces(&text, |piece| tokens.push(token_id(piece)));
            let expected: Vec<TokenId> = words.iter().map(Word::token).collect();
            prop_assert_eq!(&tokens[tokens.len() - words.len()..], &expected[..]);
        }
    }

    #[test]
    fn answers_differ_by_prompt_and_by_position() {
        let distinct: std::collections::HashSet<Vec<u8>> =
            (0..500).map(|position| Word::at(7, position).as_bytes().to_vec()).collect();
        assert!(distinct.len() > 200, "{}", distinct.len());
        assert_ne!(
            (0..8).map(|p| Word::at(1, p)).collect::<Vec<_>>(),
            (0..8).map(|p| Word::at(2, p)).collect::<Vec<_>>()
        );
    }
}
