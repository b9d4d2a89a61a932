//! Bytes to tokens: how long a prompt is in the engine's terms, learned per model.
//!
//! A filter cannot carry every model's tokenizer, and a fixed "four bytes a token" is wrong by three
//! for Chinese and by two for code. But every answer with `usage` states the true count, and what a
//! deployment is asked changes slowly, so the ratio of the two sums, with old answers forgotten,
//! estimates the next prompt.
//!
//! What it is not: a tokenizer. A prompt of token ids needs none of this ([`Prompt::exact_tokens`]).

use super::Prompt;
use crate::num;

/// English text under the vocabularies in use; stands until answers say better.
const DEFAULT_BYTES_PER_TOKEN: f32 = 4.0;
/// No real mix of text leaves these bounds: single bytes are the least a tokenizer splits to (with template
/// tokens on top), and long runs of spaces or repeated words the most it joins.
const LEAST_BYTES_PER_TOKEN: f32 = 0.5;
const MOST_BYTES_PER_TOKEN: f32 = 16.0;
/// The default counts as one answer of this many tokens, so that a first "hi" does not decide.
const DEFAULT_WEIGHT_TOKENS: f32 = 64.0;
/// Each answer leaves this share of what was known: about the last 100 answers count.
const KEEP: f32 = 0.99;
/// One answer moves the ratio as if it were at most this factor off: an image of few bytes and
/// thousands of tokens is no news about text.
const MOST_SURPRISE: f32 = 2.0;
/// One answer weighs at most this many tokens, so that a single book does not silence a hundred questions.
const MOST_WEIGHT_TOKENS: f32 = 8192.0;
/// Models tracked; the one not heard of for longest makes room.
const MAX_MODELS: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Learned {
    model_key: u64,
    bytes: f32,
    tokens: f32,
    /// Value of the estimator's counter at the last answer.
    heard_at: u64,
}

impl Learned {
    fn bytes_per_token(&self) -> f32 {
        (self.bytes / self.tokens).clamp(LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN)
    }
}

/// Estimates prompt tokens from prompt bytes, per model. Memory is bounded by 64 models.
#[derive(Debug, Clone, Default)]
pub struct TokenEstimator {
    // A scan over at most 64 keys costs less than hashing would, and finds the oldest as well.
    models: Vec<Learned>,
    heard: u64,
}

impl TokenEstimator {
    /// An estimator that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from an answer: a prompt of `text_bytes` was `prompt_tokens` long to the engine.
    ///
    /// Not for prompts of token ids ([`Prompt::exact_tokens`]): their bytes are no text. `model_key` is
    /// [`super::model_key`]. Zero bytes or tokens teach nothing and are ignored.
    pub fn observe(&mut self, model_key: u64, text_bytes: u32, prompt_tokens: u32) {
        if text_bytes == 0 || prompt_tokens == 0 {
            return;
        }
        self.heard = self.heard.saturating_add(1);
        let heard_at = self.heard;
        let Some(learned) = self.slot(model_key) else {
            return;
        };
        let known = learned.bytes_per_token();
        let tokens = num::f32_of_u64(u64::from(prompt_tokens));
        let seen = (num::f32_of_u64(u64::from(text_bytes)) / tokens)
            .clamp(known / MOST_SURPRISE, known * MOST_SURPRISE)
            .clamp(LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN);
        let weight = tokens.min(MOST_WEIGHT_TOKENS);
        learned.bytes = learned.bytes * KEEP + seen * weight;
        learned.tokens = learned.tokens * KEEP + weight;
        learned.heard_at = heard_at;
    }

    /// Tokens of a prompt: exact where the client sent ids, estimated from its bytes otherwise; at least 1.
    #[must_use]
    pub fn estimate(&self, model_key: u64, prompt: &Prompt) -> f32 {
        let tokens = match prompt.exact_tokens {
            Some(tokens) => num::f32_of_u64(u64::from(tokens)),
            None => num::f32_of_u64(u64::from(prompt.text_bytes)) / self.bytes_per_token(model_key),
        };
        tokens.max(1.0)
    }

    /// Mean prompt bytes per token of a model, 0.5 to 16; 4 before its first answer.
    #[must_use]
    pub fn bytes_per_token(&self, model_key: u64) -> f32 {
        self.models
            .iter()
            .find(|learned| learned.model_key == model_key)
            .map_or(DEFAULT_BYTES_PER_TOKEN, Learned::bytes_per_token)
    }

    /// Mean prompt bytes per token over all models' answers; 4 before the first.
    #[must_use]
    pub fn mean_bytes_per_token(&self) -> f32 {
        let (bytes, tokens) = self.models.iter().fold(
            (DEFAULT_BYTES_PER_TOKEN * DEFAULT_WEIGHT_TOKENS, DEFAULT_WEIGHT_TOKENS),
            |(bytes, tokens), learned| (bytes + learned.bytes, tokens + learned.tokens),
        );
        (bytes / tokens).clamp(LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN)
    }

    fn slot(&mut self, model_key: u64) -> Option<&mut Learned> {
        let fresh = Learned {
            model_key,
            bytes: DEFAULT_BYTES_PER_TOKEN * DEFAULT_WEIGHT_TOKENS,
            tokens: DEFAULT_WEIGHT_TOKENS,
            heard_at: 0,
        };
        let index = match self.models.iter().position(|learned| learned.model_key == model_key) {
            Some(index) => index,
            None if self.models.len() < MAX_MODELS => {
                self.models.push(fresh);
                self.models.len().saturating_sub(1)
            }
            None => {
                let (index, _) =
                    self.models.iter().enumerate().min_by_key(|(_, learned)| learned.heard_at)?;
                *self.models.get_mut(index)? = fresh;
                index
            }
        };
        self.models.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text_bytes: u32) -> Prompt {
        Prompt { text_bytes, ..Prompt::default() }
    }

    #[test]
    fn before_any_answer_four_bytes_make_a_token() {
        let estimator = TokenEstimator::new();
        assert_eq!(estimator.bytes_per_token(1), 4.0);
        assert_eq!(estimator.estimate(1, &text(400)), 100.0);
        assert_eq!(estimator.estimate(1, &text(0)), 1.0);
    }

    #[test]
    fn token_ids_are_exact_whatever_was_learned() {
        let mut estimator = TokenEstimator::new();
        estimator.observe(1, 1000, 1000);
        let prompt = Prompt { text_bytes: 400, exact_tokens: Some(77), blocks: Vec::new() };
        assert_eq!(estimator.estimate(1, &prompt), 77.0);
    }

    #[test]
    fn the_ratio_of_a_model_is_learned_and_no_other_model_is_touched() {
        let mut estimator = TokenEstimator::new();
        for _ in 0..50 {
            estimator.observe(1, 3000, 2000);
        }
        assert!((estimator.bytes_per_token(1) - 1.5).abs() < 0.05, "{}", estimator.bytes_per_token(1));
        assert_eq!(estimator.bytes_per_token(2), 4.0);
    }

    #[test]
    fn a_change_of_language_is_followed_within_a_few_hundred_answers() {
        let mut estimator = TokenEstimator::new();
        for _ in 0..1000 {
            estimator.observe(1, 4400, 1000);
        }
        for _ in 0..400 {
            estimator.observe(1, 1700, 1000);
        }
        assert!((estimator.bytes_per_token(1) - 1.7).abs() < 0.1, "{}", estimator.bytes_per_token(1));
    }

    #[test]
    fn one_outlier_moves_the_estimate_by_little() {
        let mut estimator = TokenEstimator::new();
        for _ in 0..200 {
            estimator.observe(1, 4000, 1000);
        }
        estimator.observe(1, 40, 8000);
        assert!((estimator.bytes_per_token(1) - 4.0).abs() < 0.25, "{}", estimator.bytes_per_token(1));
    }

    #[test]
    fn the_estimate_stays_within_its_bounds_whatever_engines_report() {
        let mut estimator = TokenEstimator::new();
        for _ in 0..1000 {
            estimator.observe(1, 1, u32::MAX);
            estimator.observe(2, u32::MAX, 1);
        }
        assert!((0.5..0.51).contains(&estimator.bytes_per_token(1)), "{}", estimator.bytes_per_token(1));
        assert!((15.9..=16.0).contains(&estimator.bytes_per_token(2)), "{}", estimator.bytes_per_token(2));
    }

    #[test]
    fn the_model_not_heard_of_for_longest_makes_room() {
        let mut estimator = TokenEstimator::new();
        for key in 0..64 {
            estimator.observe(key, 2000, 1000);
        }
        estimator.observe(0, 2000, 1000);
        estimator.observe(64, 2000, 1000);
        assert_eq!(estimator.models.len(), 64);
        assert!(estimator.bytes_per_token(0) < 3.0);
        assert_eq!(estimator.bytes_per_token(1), 4.0);
        assert!(estimator.bytes_per_token(64) < 3.0);
    }
}
