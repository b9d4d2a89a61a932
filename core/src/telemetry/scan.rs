//! Finding a byte eight at a time.
//!
//! A metrics page is read many times a second and nearly all of it is passed over; wasm without vector
//! instructions looks at one byte in the time of a word. The arithmetic is the well-known test of a word for a zero
//! byte: taking one off borrows into the top bit of zero bytes alone, and of bytes above them, which come later.

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// Top bit of every byte of `word` that is zero; of bytes after the first such one it may be wrong.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & TOPS
}

/// Where the first newline is.
pub(super) fn newline(bytes: &[u8]) -> Option<usize> {
    find(bytes, |word| zeros(word ^ (ONES * 0x0a)), |byte| byte == b'\n')
}

/// Where the name of a series ends: at the brace of its labels, or at a space or control character.
pub(super) fn name_end(bytes: &[u8]) -> Option<usize> {
    let below_33 = |word: u64| word.wrapping_sub(ONES * 33) & !word & TOPS;
    find(bytes, |word| zeros(word ^ (ONES * 0x7b)) | below_33(word), |byte| byte == b'{' || byte < 33)
}

/// Where the first byte is for which `is` holds. `mark` sets the top bit of those bytes of a word, where the first
/// one it marks is right.
fn find(bytes: &[u8], mark: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let marks = mark(u64::from_le_bytes(*word));
        if marks != 0 {
            return usize::try_from(marks.trailing_zeros() / 8).ok().map(|within| at * 8 + within);
        }
    }
    rest.iter().position(|byte| is(*byte)).map(|within| words.len() * 8 + within)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_found_is_what_a_byte_by_byte_search_finds(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'{'), Just(b' '), Just(0x0b), Just(0x8a)], 0..70),
        ) {
            prop_assert_eq!(newline(&bytes), bytes.iter().position(|byte| *byte == b'\n'));
            prop_assert_eq!(name_end(&bytes), bytes.iter().position(|byte| *byte == b'{' || *byte < 33));
        }
    }
}
