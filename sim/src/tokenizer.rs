//! What a token is to a simulated pod: a deterministic cut of text, with ids that are hashes.
//!
//! Real vocabularies cannot be shipped and are not needed; what routing depends on is kept: about 3.5 to
//! 4.2 bytes a token in English, 3 bytes (one character) in Chinese or Japanese, and cuts that depend
//! only on the text around them, so that a longer prompt with the same beginning has the same leading
//! tokens. A generated word (see [`crate::answer`]) is cut back into exactly the one token that it was,
//! which is why the next turn of a conversation finds its answer in the cache.
//!
//! What it is not: reversible. Nothing here turns ids back into text.

use foretoken_core::hash::chain;

/// Identity of a token: a hash of its bytes.
pub type TokenId = u32;

/// Longest piece of a word, leading space included. Chosen so that English comes out at about 3.9
/// bytes a token.
const MAX_WORD_PIECE_BYTES: usize = 6;
/// Longest run of white space in one token.
const MAX_SPACE_BYTES: usize = 16;
/// Longest `<|name|>` mark that is one token.
const MAX_MARK_BYTES: usize = 24;
/// Digits in one token, as in the common vocabularies.
const MAX_DIGITS: usize = 3;
/// Two-byte characters (Cyrillic, Greek, accents) in one token.
const MAX_TWO_BYTE_CHARACTERS: usize = 2;

const TOKEN_SEED: u64 = 0x746f_6b65_6e00_0001;

/// Id of the token with these bytes.
#[must_use]
pub fn token_id(piece: &[u8]) -> TokenId {
    (chain(TOKEN_SEED, piece) >> 32) as TokenId
}

/// Calls `emit` with the bytes of each token of `text`, in order. The pieces joined are the text.
pub fn pieces<'a>(text: &'a str, mut emit: impl FnMut(&'a [u8])) {
    let bytes = text.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        let end = piece_end(bytes, start);
        emit(&bytes[start..end]);
        start = end;
    }
}

/// Number of tokens in `text`.
#[must_use]
pub fn count_tokens(text: &str) -> u32 {
    let mut count = 0;
    pieces(text, |_| count += 1);
    count
}

/// Where the piece that begins at `start` ends. Always beyond `start`, always on a character boundary.
fn piece_end(bytes: &[u8], start: usize) -> usize {
    if let Some(end) = mark_end(bytes, start) {
        return end;
    }
    match bytes[start] {
        // A single space belongs to the word or sign behind it.
        b' ' if bytes.get(start + 1).is_some_and(|&next| takes_space(next)) => {
            glyphs_end(bytes, start + 1, MAX_WORD_PIECE_BYTES - 1)
        }
        byte if byte.is_ascii_whitespace() => spaces_end(bytes, start),
        _ => glyphs_end(bytes, start, MAX_WORD_PIECE_BYTES),
    }
}

/// End of a `<|name|>` mark of the chat template; marks never melt into their surroundings.
fn mark_end(bytes: &[u8], start: usize) -> Option<usize> {
    if !bytes[start..].starts_with(b"<|") {
        return None;
    }
    let window = &bytes[start..bytes.len().min(start + MAX_MARK_BYTES)];
    let close = window.windows(2).skip(2).position(|pair| pair == b"|>")? + 2;
    let name = &window[2..close];
    name.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_').then_some(start + close + 2)
}

/// Whether a space in front of `byte` is part of the same token.
fn takes_space(byte: u8) -> bool {
    byte.is_ascii_graphic() && !byte.is_ascii_digit() && byte != b'<'
}

/// End of a run of white space. The last space of a run is left to the word behind it.
fn spaces_end(bytes: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    while end < bytes.len() && bytes[end].is_ascii_whitespace() {
        end += 1;
    }
    let left_to_word =
        end - start > 1 && bytes[end - 1] == b' ' && bytes.get(end).is_some_and(|&next| takes_space(next));
    (end - usize::from(left_to_word)).min(start + MAX_SPACE_BYTES)
}

/// End of a piece of letters (at most `limit` bytes), digits, wide characters, or one sign.
fn glyphs_end(bytes: &[u8], start: usize, limit: usize) -> usize {
    let first = bytes[start];
    if first.is_ascii_alphabetic() {
        run_end(bytes, start, limit, u8::is_ascii_alphabetic)
    } else if first.is_ascii_digit() {
        run_end(bytes, start, MAX_DIGITS, u8::is_ascii_digit)
    } else if first.is_ascii() {
        start + 1
    } else if (0xC0..0xE0).contains(&first) {
        let mut end = start;
        while end < start + 2 * MAX_TWO_BYTE_CHARACTERS
            && bytes.get(end).is_some_and(|lead| (0xC0..0xE0).contains(lead))
        {
            end += 2;
        }
        end.min(bytes.len())
    } else {
        let width = if first < 0xF0 { 3 } else { 4 };
        (start + width).min(bytes.len())
    }
}

fn run_end(bytes: &[u8], start: usize, limit: usize, belongs: impl Fn(&u8) -> bool) -> usize {
    let longest = bytes.len().min(start + limit);
    let window = &bytes[start..longest];
    start + window.iter().position(|byte| !belongs(byte)).unwrap_or(window.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        pieces(text, |piece| out.push(String::from_utf8(piece.to_vec()).unwrap()));
        out
    }

    #[test]
    fn words_keep_their_space_and_long_words_are_cut() {
        assert_eq!(cut("the cat predicted"), ["the", " cat", " predi", "cted"]);
        assert_eq!(cut("a  b\n\n c"), ["a", " ", " b", "\n\n", " c"]);
        assert_eq!(cut("in 2026, (x)"), ["in", " ", "202", "6", ",", " (", "x", ")"]);
        assert_eq!(cut("<|user|> hi<|end|>"), ["<|user|>", " hi", "<|end|>"]);
        assert_eq!(cut("<|Not a mark"), ["<", "|", "Not", " a", " mark"]);
    }

    #[test]
    fn english_takes_between_three_and_a_half_and_a_bit_over_four_bytes_a_token() {
        let text = "A proxy that forwards requests to several servers has to choose one of them for \
                    every request it receives. When the servers hold state that some requests can \
                    reuse, such as a cache of earlier computations, the choice matters twice: once \
                    for the queue that the request joins, and once for the work that it brings along. \
                    Simple policies look at one of the two. They do well while the other is small.";
        let ratio = text.len() as f64 / f64::from(count_tokens(text));
        assert!((3.5..=4.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn chinese_takes_one_token_a_character() {
        assert_eq!(count_tokens("令牌预测"), 4);
        assert_eq!(cut("да нет"), ["да", " ", "не", "т"]);
    }

    proptest! {
        #[test]
        fn the_pieces_joined_are_the_text(text in "\\PC{0,64}|[ \\n<|>a-z0-9é令]{0,64}") {
            prop_assert_eq!(cut(&text).concat(), text);
        }

        #[test]
        fn a_prefix_that_ends_before_a_spaced_word_keeps_all_its_tokens(
            head in "[ \\n<|>a-z0-9.é令]{0,64}",
            tail in "[a-z]{1,5}",
        ) {
            let before = cut(&head);
            let after = cut(&format!("{head} {tail}"));
            prop_assert_eq!(&after[..before.len()], &before[..]);
        }
    }
}
