//! Text to tokens: how long a prompt is in the engine's terms, learned per model.
//!
//! A filter cannot carry every model's tokenizer, and a fixed "four bytes a token" is wrong by three for
//! Chinese and by two for code. But every answer with `usage` states the true count, and what a
//! deployment is asked changes slowly. So the count is learned as a sum over what the text is made of (`fit`):
//! words, signs, lines and ideographs each have their tokens, in each model. That holds for prose, code and
//! Chinese alike, also when they take turns or stand in one prompt; a constant and a share of every message
//! stand for the chat template. Old answers are forgotten.
//!
//! Beside it a plain ratio of bytes to tokens is kept, for turning blocks of bytes into tokens.
//!
//! What it is not: a tokenizer. A prompt of token ids needs none of this ([`Prompt::exact_tokens`]).

use super::fit::Fit;
use super::{Prompt, PromptShape, TextCounts};
use crate::codec::{Reader, Writer};
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
/// One answer counts as if it were at most this factor off: a template that repeats a document, or an
/// engine that counts oddly, is no news about text.
const MOST_SURPRISE: f32 = 2.0;
/// One answer weighs at most this many tokens in the ratio, so that a single book does not silence a hundred
/// questions.
const MOST_WEIGHT_TOKENS: f32 = 8192.0;
/// Tokens of a picture before any was seen: 24 by 24 patches, as LLaVA's encoder gives.
const DEFAULT_MEDIA_TOKENS: f32 = 576.0;
/// Share of the news in an answer to a prompt with media.
const MEDIA_NEWS: f32 = 0.1;
/// Models tracked; the one not heard of for longest makes room.
const MAX_MODELS: usize = 64;
/// Models that are written for other workers: those heard of last.
const MAX_SHARED_MODELS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Learned {
    model_key: u64,
    bytes: f32,
    tokens: f32,
    fit: Fit,
    /// Tokens of one picture, sound or file.
    media_tokens: f32,
    /// Answers to prompts with media, decayed.
    media_seen: f32,
    /// Value of the estimator's counter at the last answer.
    heard_at: u64,
}

impl Learned {
    fn new(model_key: u64) -> Self {
        Self {
            model_key,
            bytes: DEFAULT_BYTES_PER_TOKEN * DEFAULT_WEIGHT_TOKENS,
            tokens: DEFAULT_WEIGHT_TOKENS,
            fit: Fit::default(),
            media_tokens: DEFAULT_MEDIA_TOKENS,
            media_seen: 0.0,
            heard_at: 0,
        }
    }

    fn bytes_per_token(&self) -> f32 {
        (self.bytes / self.tokens).clamp(LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN)
    }

    /// Tokens of a prompt's text, without its media.
    fn text_tokens(&self, text_bytes: u32, shape: &PromptShape) -> f32 {
        let bytes = num::f32_of_u64(u64::from(text_bytes));
        if shape.text == TextCounts::default() {
            return bytes / self.bytes_per_token();
        }
        let tokens = num::f32_of_f64(self.fit.tokens(shape));
        // The constant of a template may be more than a short text has bytes.
        tokens.clamp(bytes / MOST_BYTES_PER_TOKEN, bytes / LEAST_BYTES_PER_TOKEN + 64.0)
    }

    fn tokens(&self, text_bytes: u32, shape: &PromptShape) -> f32 {
        let media = num::f32_of_u64(u64::from(shape.media));
        self.text_tokens(text_bytes, shape) + media * self.media_tokens
    }

    fn observe(&mut self, text_bytes: u32, shape: &PromptShape, tokens: f32) {
        let known = self.text_tokens(text_bytes, shape);
        if shape.media > 0 {
            // Of the tokens beyond the text's, each has its part; the text's own are known well enough.
            let each = (tokens - known).max(0.0) / num::f32_of_u64(u64::from(shape.media));
            self.media_seen = self.media_seen * (1.0 - MEDIA_NEWS) + 1.0;
            self.media_tokens += (each - self.media_tokens) / self.media_seen;
            return;
        }
        let bytes = num::f32_of_u64(u64::from(text_bytes));
        let ratio = self.bytes_per_token();
        let seen = (bytes / tokens)
            .clamp(ratio / MOST_SURPRISE, ratio * MOST_SURPRISE)
            .clamp(LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN);
        let weight = tokens.min(MOST_WEIGHT_TOKENS);
        self.bytes = self.bytes * KEEP + seen * weight;
        self.tokens = self.tokens * KEEP + weight;
        if shape.text != TextCounts::default() {
            let believed = tokens.clamp(known / MOST_SURPRISE, known * MOST_SURPRISE);
            self.fit.observe(shape, f64::from(believed), f64::from(KEEP));
        }
    }

    /// Adds what another worker learned of the same model.
    fn merge(&mut self, other: &Self) {
        // The default is in both sums.
        self.bytes += other.bytes - DEFAULT_BYTES_PER_TOKEN * DEFAULT_WEIGHT_TOKENS;
        self.tokens += other.tokens - DEFAULT_WEIGHT_TOKENS;
        self.bytes = self.bytes.max(f32::MIN_POSITIVE);
        self.tokens = self.tokens.max(1.0);
        self.fit.merge(&other.fit);
        let seen = self.media_seen + other.media_seen;
        if seen > 0.0 {
            let sum = self.media_tokens * self.media_seen + other.media_tokens * other.media_seen;
            self.media_tokens = sum / seen;
            self.media_seen = seen;
        }
    }
}

/// Estimates prompt tokens, per model. Memory is bounded by 64 models of about 1 KiB.
#[derive(Debug, Clone, Default, PartialEq)]
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

    /// Learns from an answer: a prompt of `text_bytes` and this shape was `prompt_tokens` long to the engine.
    ///
    /// Not for prompts of token ids ([`Prompt::exact_tokens`]): their bytes are no text. `model_key` is
    /// [`super::model_key`]. Zero bytes or tokens teach nothing and are ignored, and so are prompts of which the
    /// engine knew more than the request said.
    pub fn observe(&mut self, model_key: u64, text_bytes: u32, shape: &PromptShape, prompt_tokens: u32) {
        if text_bytes == 0 || prompt_tokens == 0 || shape.unseen {
            return;
        }
        self.heard = self.heard.saturating_add(1);
        let heard_at = self.heard;
        if let Some(learned) = self.slot(model_key) {
            learned.heard_at = heard_at;
            learned.observe(text_bytes, shape, num::f32_of_u64(u64::from(prompt_tokens)));
        }
    }

    /// Tokens of a prompt: exact where the client sent ids, estimated otherwise; at least 1.
    #[must_use]
    pub fn estimate(&self, model_key: u64, prompt: &Prompt) -> f32 {
        let tokens = match prompt.exact_tokens {
            Some(tokens) => num::f32_of_u64(u64::from(tokens)),
            None => match self.of(model_key) {
                Some(learned) => learned.tokens(prompt.text_bytes, &prompt.shape),
                None => Learned::new(model_key).tokens(prompt.text_bytes, &prompt.shape),
            },
        };
        tokens.max(1.0)
    }

    /// Mean prompt bytes per token of a model, 0.5 to 16; 4 before its first answer.
    #[must_use]
    pub fn bytes_per_token(&self, model_key: u64) -> f32 {
        self.of(model_key).map_or(DEFAULT_BYTES_PER_TOKEN, Learned::bytes_per_token)
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

    /// Adds what another worker learned, as if its answers had been seen here.
    ///
    /// Keep one's own answers apart from the sum (`let mut all = own.clone(); all.merge(&peer);`), or they come
    /// back through the other worker and count again.
    pub fn merge(&mut self, other: &Self) {
        self.heard = self.heard.max(other.heard);
        for learned in &other.models {
            if let Some(own) = self.slot(learned.model_key) {
                own.merge(learned);
                own.heard_at = own.heard_at.max(learned.heard_at);
            }
        }
    }

    /// Packs the eight models heard of last for the other workers: at most 2.7 KiB.
    pub fn write(&self, out: &mut Writer) {
        let mut models: Vec<&Learned> = self.models.iter().collect();
        models.sort_unstable_by_key(|learned| core::cmp::Reverse(learned.heard_at));
        models.truncate(MAX_SHARED_MODELS);
        out.u64(self.heard);
        out.u8(u8::try_from(models.len()).unwrap_or(u8::MAX));
        for learned in models {
            out.u64(learned.model_key);
            out.u64(learned.heard_at);
            out.f32(learned.bytes);
            out.f32(learned.tokens);
            out.f32(learned.media_tokens);
            out.f32(learned.media_seen);
            learned.fit.write(out);
        }
    }

    /// Reads what [`TokenEstimator::write`] packed; `None` when it is short or holds what nobody learns.
    #[must_use]
    pub fn read(input: &mut Reader<'_>) -> Option<Self> {
        let heard = input.u64()?;
        let count = input.u8()?;
        let mut models = Vec::with_capacity(usize::from(count).min(MAX_SHARED_MODELS));
        for _ in 0..count {
            let (model_key, heard_at) = (input.u64()?, input.u64()?);
            let mut number = || input.f32().filter(|number| number.is_finite() && *number >= 0.0);
            let (bytes, tokens, media_tokens, media_seen) = (number()?, number()?, number()?, number()?);
            let fit = Fit::read(input)?;
            models.push(Learned { model_key, bytes, tokens, fit, media_tokens, media_seen, heard_at });
        }
        Some(Self { models, heard })
    }

    fn of(&self, model_key: u64) -> Option<&Learned> {
        self.models.iter().find(|learned| learned.model_key == model_key)
    }

    fn slot(&mut self, model_key: u64) -> Option<&mut Learned> {
        let index = match self.models.iter().position(|learned| learned.model_key == model_key) {
            Some(index) => index,
            None if self.models.len() < MAX_MODELS => {
                self.models.push(Learned::new(model_key));
                self.models.len().saturating_sub(1)
            }
            None => {
                let (index, _) =
                    self.models.iter().enumerate().min_by_key(|(_, learned)| learned.heard_at)?;
                *self.models.get_mut(index)? = Learned::new(model_key);
                index
            }
        };
        self.models.get_mut(index)
    }
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
