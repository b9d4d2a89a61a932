//! What a text is made of, as far as tokenizers care: words, signs, lines, ideographs.
//!
//! Tokenizers first cut text at the same places (between letters, signs, digits, line ends) and then join bytes
//! within the parts, so these few counts predict the number of tokens far better than the bytes alone do. They
//! also tell the scripts apart: prose is letters, code has signs and lines besides, Chinese is ideographs.
//!
//! Eight bytes at a time, in plain integer arithmetic: every prompt passes through here.
//!
//! What it is not: Unicode-aware. Letters are ASCII letters; other alphabets are counted by their bytes.

use crate::num;

/// Counts over the text of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextCounts {
    /// Runs of ASCII letters.
    pub words: u32,
    /// ASCII letters.
    pub letters: u32,
    /// ASCII digits.
    pub digits: u32,
    /// ASCII signs: neither letters nor digits nor space nor control.
    pub signs: u32,
    /// Runs of signs.
    pub sign_runs: u32,
    /// Line ends.
    pub lines: u32,
    /// Runs of two or more spaces: indents and columns.
    pub indents: u32,
    /// Characters of three UTF-8 bytes from U+3000 up: Chinese, Japanese, Korean.
    pub ideographs: u32,
    /// Other bytes beyond ASCII.
    pub foreign_bytes: u32,
}

const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const HIGH: u64 = 0x8080_8080_8080_8080;
const ONES: u64 = 0x0101_0101_0101_0101;

/// Sets the high bit of every byte of `low` (7-bit values) that is at least `least`.
fn at_least(low: u64, least: u8) -> u64 {
    (low + ONES * u64::from(0x80 - least)) & HIGH
}

/// One mask a class, in the high bits of the bytes of a word.
struct Masks {
    letters: u64,
    digits: u64,
    signs: u64,
    spaces: u64,
    lines: u64,
    ideograph_leads: u64,
    high: u64,
}

impl Masks {
    fn of(word: u64) -> Self {
        let high = word & HIGH;
        let ascii = !word & HIGH;
        let low = word & LOW;
        let lower = (word | (ONES * 0x20)) & LOW;
        let letters = at_least(lower, b'a') & !at_least(lower, b'z' + 1) & ascii;
        let digits = at_least(low, b'0') & !at_least(low, b'9' + 1) & ascii;
        let graphic = at_least(low, b'!') & !at_least(low, 0x7f) & ascii;
        Self {
            letters,
            digits,
            signs: graphic & !letters & !digits,
            spaces: at_least(low, b' ') & !at_least(low, b' ' + 1) & ascii,
            lines: at_least(low, b'\n') & !at_least(low, b'\n' + 1) & ascii,
            // Lead bytes e3 to ef; the high bit is set apart.
            ideograph_leads: at_least(low, 0x63) & !at_least(low, 0x70) & high,
            high,
        }
    }
}

/// The mask one byte further: who has one of the class before it. `carry` is the last byte of the word before.
fn after(mask: u64, carry: u64) -> u64 {
    (mask << 8) | (carry >> 56)
}

impl TextCounts {
    /// Adds the counts of `text`.
    pub(crate) fn add(&mut self, text: &[u8]) {
        let (words, tail) = text.as_chunks::<8>();
        let mut last = Masks::of(0);
        let mut doubled = 0;
        let mut high = 0;
        let mut leads = 0;
        for word in words {
            self.word(u64::from_le_bytes(*word), &mut last, &mut doubled, &mut high, &mut leads);
        }
        if !tail.is_empty() {
            // Zero is a control character and counts as nothing.
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(tail) {
                *to = *from;
            }
            self.word(u64::from_le_bytes(word), &mut last, &mut doubled, &mut high, &mut leads);
        }
        self.ideographs = self.ideographs.saturating_add(leads);
        self.foreign_bytes = self.foreign_bytes.saturating_add(high.saturating_sub(leads.saturating_mul(3)));
    }

    fn word(&mut self, word: u64, last: &mut Masks, doubled: &mut u64, high: &mut u32, leads: &mut u32) {
        let masks = Masks::of(word);
        let letters_before = after(masks.letters, last.letters);
        let signs_before = after(masks.signs, last.signs);
        let in_indent = masks.spaces & after(masks.spaces, last.spaces);
        let add = |count: &mut u32, mask: u64| *count = count.saturating_add(mask.count_ones());
        add(&mut self.words, masks.letters & !letters_before);
        add(&mut self.letters, masks.letters);
        add(&mut self.digits, masks.digits);
        add(&mut self.signs, masks.signs);
        add(&mut self.sign_runs, masks.signs & !signs_before);
        add(&mut self.lines, masks.lines);
        add(&mut self.indents, in_indent & !after(in_indent, *doubled));
        add(high, masks.high);
        add(leads, masks.ideograph_leads);
        *doubled = in_indent;
        *last = masks;
    }

    /// ASCII letters and digits, signs and line ends, ideographs, other bytes: all as numbers.
    pub(super) fn numbers(&self) -> [f64; 9] {
        [
            self.words,
            self.letters,
            self.digits,
            self.signs,
            self.sign_runs,
            self.lines,
            self.indents,
            self.ideographs,
            self.foreign_bytes,
        ]
        .map(|count| num::f64_of_u64(u64::from(count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by the byte, as the field docs say it.
    fn slowly(text: &[u8]) -> TextCounts {
        let mut counts = TextCounts::default();
        let before = |at: usize, back: usize| at.checked_sub(back).map_or(0, |at| text[at]);
        let is_sign = |byte: u8| byte.is_ascii_punctuation();
        let mut high = 0;
        for (at, byte) in text.iter().copied().enumerate() {
            counts.letters += u32::from(byte.is_ascii_alphabetic());
            counts.words += u32::from(byte.is_ascii_alphabetic() && !before(at, 1).is_ascii_alphabetic());
            counts.digits += u32::from(byte.is_ascii_digit());
            counts.signs += u32::from(is_sign(byte));
            counts.sign_runs += u32::from(is_sign(byte) && !is_sign(before(at, 1)));
            counts.lines += u32::from(byte == b'\n');
            counts.indents += u32::from(byte == b' ' && before(at, 1) == b' ' && before(at, 2) != b' ');
            counts.ideographs += u32::from((0xe3..=0xef).contains(&byte));
            high += u32::from(byte >= 0x80);
        }
        counts.foreign_bytes = high.saturating_sub(3 * counts.ideographs);
        counts
    }

    #[test]
    fn prose_code_and_chinese_are_told_apart() {
        let count = |text: &str| {
            let mut counts = TextCounts::default();
            counts.add(text.as_bytes());
            counts
        };
        let prose = count("The quick brown fox, 12 years old.");
        assert_eq!((prose.words, prose.letters, prose.digits, prose.signs), (6, 24, 2, 2));
        let code = count("fn f() {\n    g(1);\n}\n");
        assert_eq!((code.words, code.signs, code.sign_runs, code.lines, code.indents), (3, 7, 5, 3, 1));
        let chinese = count("今天天气很好，我们去公园散步吧。");
        assert_eq!((chinese.ideographs, chinese.foreign_bytes, chinese.letters), (16, 0, 0));
        assert_eq!(count("привет é").foreign_bytes, 14);
    }

    proptest! {
        #[test]
        fn eight_bytes_at_a_time_count_as_one_by_one_do(
            text in "[ -~\n\t\u{e9}\u{4e2d}\u{3042}\u{1f600}]{0,100}", bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            for text in [text.as_bytes(), &bytes] {
                let mut counts = TextCounts::default();
                counts.add(text);
                prop_assert_eq!(counts, slowly(text));
            }
        }
    }
}
