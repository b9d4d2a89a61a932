//! The requests: one list, as texts for real engines and as blocks for simulated ones.
//!
//! Two kinds come mixed. Conversations: each turn repeats all that was said before and asks on, so that a pod that
//! served the turns before has most of it. Documents: long, never seen before or again, so that a pod that takes one
//! is busy and loses something it held. A turn comes at its time and not after an answer, and what the model said
//! before is made up: then both worlds, and all policies, get the same requests at the same times.
//!
//! A token is a byte (see `scripts/engines/make_tiny_gguf.py`), so lengths are exact. Conversations share nothing:
//! llama.cpp gives a request the slot that is most alike and throws away what else it held, which a common beginning
//! would make it do all the time, and which an engine with blocks does not do.

use foretoken_sim::virtual_time::{Arrival, Content, Request};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Things that begin, of which this share are conversations; the others are documents.
const CONVERSATIONS: f64 = 0.5;
/// Turns of a conversation.
const TURNS: std::ops::RangeInclusive<u32> = 3..=6;
/// Mean gap between two turns, in mean gaps between any two requests: about five conversations at a time.
const TURN_GAP: f64 = 8.0;
/// What a conversation begins with.
const CONTEXT_TOKENS: std::ops::RangeInclusive<u32> = 500..=1000;
/// What each turn asks.
const QUESTION_TOKENS: std::ops::RangeInclusive<u32> = 40..=100;
/// A document with its question.
const DOCUMENT_TOKENS: std::ops::RangeInclusive<u32> = 900..=1900;
/// Answers.
const OUTPUT_TOKENS: std::ops::RangeInclusive<u32> = 16..=64;
/// llama.cpp puts one token before every prompt.
const BEGIN_TOKENS: u32 = 1;
/// The letters of texts. The models know one pair of letters as one token, and neither of the two is here.
const LETTERS: &[u8] = b"abcdefghijklmnoprstuvwxyABCDEFGHIJKLMNOPRSTUVWXY0123456789.,:;+-*/";

/// A text of as many tokens, always the same of one source.
#[must_use]
pub fn text(source: u64, tokens: u32) -> String {
    let mut rng = StdRng::seed_from_u64(source);
    (0..tokens).map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())])).collect()
}

/// One request in both forms.
#[derive(Debug, Clone)]
pub struct Asked {
    /// For the simulator. Its time is in mean gaps between requests until [`Traffic::at_rate`] has set it.
    pub arrival: Arrival,
    /// What the prompt is made of: source and tokens.
    runs: Vec<(u64, u32)>,
}

impl Asked {
    fn new(at: f64, tag: u64, runs: Vec<(u64, u32)>, output_tokens: u32, answer: u64) -> Self {
        let mut content = Content::default();
        content.push(0, BEGIN_TOKENS);
        runs.iter().for_each(|(source, tokens)| content.push(*source, *tokens));
        let prompt_tokens = content.tokens();
        content.push(answer, output_tokens);
        let request = Request {
            prompt_tokens,
            output_tokens,
            blocks: content.blocks(),
            max_tokens: Some(output_tokens),
            tag,
            slo: None,
            priority: 0,
        };
        Self { arrival: Arrival { at_us: (at * UNIT_US) as u64, request }, runs }
    }

    /// The prompt's text, without the token that llama.cpp puts before it.
    #[must_use]
    pub fn prompt(&self) -> String {
        self.runs.iter().map(|(source, tokens)| text(*source, *tokens)).collect()
    }
}

/// Times are drawn with this mean gap.
const UNIT_US: f64 = 1e6;

/// A list of requests in order of their times.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// The requests.
    pub asked: Vec<Asked>,
}

impl Traffic {
    /// `count` requests, one a second on average.
    #[must_use]
    pub fn new(count: usize, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mean_turns = f64::from(TURNS.start() + TURNS.end()) / 2.0;
        let begins_per_gap = 1.0 / (CONVERSATIONS * mean_turns + 1.0 - CONVERSATIONS);
        let mut exponential = |mean: f64| -mean * (1.0 - rng.random::<f64>()).ln();
        // Conversations that began earlier are there from the first second.
        let mut at = -mean_turns * TURN_GAP * 2.0;
        let mut begins = Vec::new();
        while at < count as f64 * 1.5 + 20.0 {
            begins.push(at);
            at += exponential(1.0 / begins_per_gap);
        }
        let mut asked = Vec::new();
        for (thing, begin) in begins.into_iter().enumerate() {
            // Sources are told apart by seed, thing and turn, and 0 is the token before every prompt.
            let source = |part: u64| (seed << 32 | (thing as u64 + 1) << 8) + part;
            let mut rng = StdRng::seed_from_u64(source(0xFF));
            let tag = thing as u64;
            if rng.random::<f64>() >= CONVERSATIONS {
                let runs = vec![(source(0), rng.random_range(DOCUMENT_TOKENS))];
                asked.push(Asked::new(begin, tag, runs, rng.random_range(OUTPUT_TOKENS), source(1)));
                continue;
            }
            let mut runs = vec![(source(0), rng.random_range(CONTEXT_TOKENS))];
            let mut at = begin;
            for turn in 0..u64::from(rng.random_range(TURNS)) {
                runs.push((source(4 * turn + 1), rng.random_range(QUESTION_TOKENS)));
                let output_tokens = rng.random_range(OUTPUT_TOKENS);
                asked.push(Asked::new(at, tag, runs.clone(), output_tokens, source(4 * turn + 2)));
                // What is taken for the answer in the turns to come.
                runs.push((source(4 * turn + 3), output_tokens));
                at += TURN_GAP * (0.5 - 0.5 * (1.0 - rng.random::<f64>()).ln());
            }
        }
        // A time before the start is 0 as `u64`, and that is where it is cut off.
        asked.retain(|one| one.arrival.at_us > 0);
        asked.sort_by_key(|one| one.arrival.at_us);
        asked.truncate(count);
        Self { asked }
    }

    /// The same requests at `rate` a second.
    #[must_use]
    pub fn at_rate(mut self, rate: f64) -> Self {
        for one in &mut self.asked {
            one.arrival.at_us = (one.arrival.at_us as f64 / rate.max(1e-9)) as u64;
        }
        self
    }

    /// Mean of something over the requests.
    #[must_use]
    pub fn mean(&self, of: impl Fn(&Request) -> f64) -> f64 {
        self.asked.iter().map(|one| of(&one.arrival.request)).sum::<f64>() / self.asked.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_shared_where_texts_are() {
        let traffic = Traffic::new(120, 3);
        let mut shared = 0;
        for (at, one) in traffic.asked.iter().enumerate() {
            let prompt = one.prompt();
            assert_eq!(prompt.len() as u32 + BEGIN_TOKENS, one.arrival.request.prompt_tokens);
            for other in &traffic.asked[..at] {
                let bytes = prompt.bytes().zip(other.prompt().bytes()).take_while(|(a, b)| a == b).count();
                let (own, others) =
                    (one.arrival.request.prompt_blocks(), other.arrival.request.prompt_blocks());
                let blocks = own.iter().zip(others).take_while(|(a, b)| a == b).count();
                // Where a run ends within a block, the block is another one although some bytes more are the same.
                let of_text = (bytes + 1) / 64;
                assert!(blocks <= of_text && of_text <= blocks + 1, "{blocks} blocks, {bytes} bytes");
                shared += usize::from(blocks > 0);
            }
        }
        assert!(shared > 50, "{shared} pairs share a beginning");
    }

    #[test]
    fn arrivals_are_level_and_scale_with_the_rate() {
        let traffic = Traffic::new(400, 1);
        let end_s = |traffic: &Traffic| traffic.asked.last().unwrap().arrival.at_us as f64 / 1e6;
        assert!((end_s(&traffic) / 400.0 - 1.0).abs() < 0.2, "{}", end_s(&traffic));
        let half = traffic.asked[200].arrival.at_us as f64 / 1e6;
        assert!((half / 200.0 - 1.0).abs() < 0.3, "{half}");
        assert!((end_s(&traffic.clone().at_rate(8.0)) * 8.0 / end_s(&traffic) - 1.0).abs() < 1e-3);
    }
}
