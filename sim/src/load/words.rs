//! English-like filler of an exact length in tokens.

use rand::Rng;

use crate::tokenizer::count_tokens;

/// Common words, short ones early: the draw favours the front, as English does.
const WORDS: &[&str] = &[
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "this",
    "are",
    "or",
    "from",
    "at",
    "which",
    "but",
    "have",
    "an",
    "had",
    "they",
    "you",
    "were",
    "their",
    "one",
    "all",
    "we",
    "can",
    "has",
    "there",
    "been",
    "if",
    "more",
    "when",
    "will",
    "would",
    "who",
    "so",
    "no",
    "out",
    "up",
    "into",
    "than",
    "its",
    "time",
    "only",
    "some",
    "could",
    "these",
    "two",
    "may",
    "first",
    "then",
    "do",
    "any",
    "like",
    "over",
    "such",
    "our",
    "most",
    "even",
    "after",
    "also",
    "made",
    "many",
    "must",
    "before",
    "through",
    "years",
    "where",
    "much",
    "way",
    "down",
    "should",
    "because",
    "long",
    "each",
    "just",
    "state",
    "people",
    "those",
    "how",
    "well",
    "little",
    "between",
    "under",
    "system",
    "group",
    "number",
    "question",
    "problem",
    "business",
    "service",
    "company",
    "program",
    "public",
    "market",
    "report",
    "result",
    "change",
    "reason",
    "morning",
    "history",
    "research",
    "education",
    "community",
    "government",
    "development",
    "information",
    "technology",
    "experience",
    "management",
    "important",
    "different",
    "available",
    "following",
    "including",
    "particular",
    "production",
    "understand",
];

/// A word of exactly one token, leading space included.
const FILLER: &str = " also";

/// Text of exactly `tokens` tokens that begins with a space, so that it can follow anything.
pub(super) fn text(rng: &mut impl Rng, tokens: u32) -> String {
    let mut out = String::with_capacity(tokens as usize * 5);
    let mut left = tokens;
    let mut sentence = rng.random_range(8..18);
    while left > 0 {
        // The square of a uniform draw favours the front of the list.
        let draw: f64 = rng.random();
        let word = WORDS[((draw * draw) * WORDS.len() as f64) as usize % WORDS.len()];
        let needed = 1 + (word.len() as u32) / 6;
        if needed > left {
            out.push_str(FILLER);
            left -= 1;
            continue;
        }
        out.push(' ');
        out.push_str(word);
        left -= needed;
        sentence -= 1;
        if sentence == 0 && left > 0 {
            out.push('.');
            left -= 1;
            sentence = rng.random_range(8..18);
        }
    }
    debug_assert_eq!(count_tokens(&out), tokens);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn text_has_exactly_the_tokens_asked_for_and_reads_like_english_in_bytes() {
        for tokens in [0, 1, 2, 7, 100, 5000] {
            let text = text(&mut StdRng::seed_from_u64(tokens), tokens as u32);
            assert_eq!(u64::from(count_tokens(&text)), tokens);
        }
        let text = text(&mut StdRng::seed_from_u64(1), 4000);
        let ratio = text.len() as f64 / 4000.0;
        assert!((3.5..=4.2).contains(&ratio), "{ratio}");
    }
}
