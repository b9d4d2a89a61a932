//! A hardware profile: how long a step takes on a pod, and how much the pod holds.
//!
//! One step computes what the scheduler put into it, in
//!
//! ```text
//! step_ms = floor_ms
//!         + prefill_ms_per_token      x prompt tokens computed
//!         + attention_ms_per_token2   x sum over prompt chunks of (chunk x mean context of the chunk)
//!         + decode_ms_per_seq         x sequences decoding
//!         + decode_ms_per_context_token x context tokens of those sequences
//!         + host_load_ms_per_token    x tokens whose KV comes back from host memory
//! ```
//!
//! times a log-normal factor with mean 1. `h100` and `a100` are a 70B model on eight cards, fitted to the
//! published splitwise measurements (prompt of 1,024 tokens: 78 ms measured, 83 here; decode batch of 64
//! at 512 tokens: 50 and 49). `fast` and `slow` are an 8B model in 16 bits on one large and one small
//! card, from arithmetic: weights over memory bandwidth for the floor, 16 GFLOP a token at about half
//! of peak for prefill, 128 KiB of KV a token for the context term. Read ratios, not milliseconds.

use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why there is no such profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// Neither a built-in name nor a readable file.
    #[error("profile `{name}` is neither built in ({}) nor a readable file: {source}", BUILT_IN.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Why the file could not be read.
        source: std::io::Error,
    },
    /// The file is not the JSON of a profile.
    #[error("profile `{name}`: {source}; `foretoken-sim profiles --json` prints complete ones")]
    Json {
        /// Which profile.
        name: String,
        /// What the JSON reader says: names the field, line and column.
        source: serde_json::Error,
    },
    /// A field's value cannot work.
    #[error("profile `{name}`: `{field}` is {value}: {fix}")]
    Value {
        /// Which profile.
        name: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What to do instead.
        fix: String,
    },
}

/// Speed and size of one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name in reports.
    pub name: String,
    /// Time of a step that computes next to nothing.
    pub floor_ms: f64,
    /// Time of each prompt token that is computed.
    pub prefill_ms_per_token: f64,
    /// Time of each pair of a computed prompt token and a token before it.
    pub attention_ms_per_token2: f64,
    /// Time of each sequence that decodes.
    pub decode_ms_per_seq: f64,
    /// Time of each context token of a sequence that decodes.
    pub decode_ms_per_context_token: f64,
    /// Sigma of the log-normal factor on each step; 0 for none.
    pub jitter_sigma: f64,
    /// Most sequences in one step.
    pub max_num_seqs: u32,
    /// Most tokens in one step (the chunked-prefill budget).
    pub max_batched_tokens: u32,
    /// Longest prompt and answer together.
    pub max_model_len_tokens: u32,
    /// Tokens in one KV block.
    pub block_tokens: u32,
    /// KV blocks on the pod.
    pub kv_blocks: u32,
    /// Tokens that a decoding sequence gains in a step, on average: above 1 with speculative decoding.
    #[serde(default = "one")]
    pub tokens_per_step: f64,
    /// Blocks that host memory keeps of those evicted; 0 for no such tier.
    #[serde(default)]
    pub host_kv_blocks: u32,
    /// Time of each token whose KV is loaded from there.
    #[serde(default)]
    pub host_load_ms_per_token: f64,
}

fn one() -> f64 {
    1.0
}

/// Names of the profiles that are built in.
pub const BUILT_IN: [&str; 4] = ["fast", "slow", "h100", "a100"];

/// What one step computes, in the terms of the step time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepWork {
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Sum over chunks of chunk length times mean context.
    pub attention_token2: f64,
    /// Sequences decoding.
    pub decode_seqs: u64,
    /// Context tokens of the sequences decoding.
    pub decode_context_tokens: u64,
    /// Tokens whose KV is loaded from host memory.
    pub host_tokens: u64,
}

impl StepWork {
    /// Adds a prompt chunk of `tokens` behind `computed` tokens.
    pub fn add_prefill(&mut self, computed: u32, tokens: u32) {
        self.prefill_tokens += u64::from(tokens);
        let mean_context = f64::from(computed) + f64::from(tokens) / 2.0;
        self.attention_token2 += f64::from(tokens) * mean_context;
    }

    /// Adds a sequence that decodes one token behind `context` tokens.
    pub fn add_decode(&mut self, context: u32) {
        self.decode_seqs += 1;
        self.decode_context_tokens += u64::from(context);
    }
}

impl Profile {
    /// The built-in profile of this name.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        let small = Self {
            name: name.to_owned(),
            floor_ms: 11.0,
            prefill_ms_per_token: 0.085,
            attention_ms_per_token2: 3e-6,
            decode_ms_per_seq: 0.12,
            decode_ms_per_context_token: 6.5e-5,
            jitter_sigma: 0.03,
            max_num_seqs: 128,
            max_batched_tokens: 2048,
            max_model_len_tokens: 16_384,
            block_tokens: 16,
            kv_blocks: 10_000,
            tokens_per_step: 1.0,
            host_kv_blocks: 0,
            host_load_ms_per_token: 0.0,
        };
        let large = Self {
            name: name.to_owned(),
            floor_ms: 31.0,
            prefill_ms_per_token: 0.05,
            attention_ms_per_token2: 2e-6,
            decode_ms_per_seq: 0.25,
            decode_ms_per_context_token: 5e-5,
            jitter_sigma: 0.03,
            max_num_seqs: 256,
            max_batched_tokens: 2048,
            max_model_len_tokens: 131_072,
            block_tokens: 64,
            kv_blocks: 6250,
            tokens_per_step: 1.0,
            host_kv_blocks: 0,
            host_load_ms_per_token: 0.0,
        };
        match name {
            "fast" => Some(small),
            "slow" => Some(Self {
                floor_ms: 22.0,
                prefill_ms_per_token: 0.17,
                attention_ms_per_token2: 6e-6,
                decode_ms_per_seq: 0.24,
                decode_ms_per_context_token: 1.5e-4,
                kv_blocks: 5000,
                ..small
            }),
            "h100" => Some(large),
            "a100" => Some(Self {
                floor_ms: 44.0,
                prefill_ms_per_token: 0.105,
                attention_ms_per_token2: 4e-6,
                decode_ms_per_seq: 0.35,
                decode_ms_per_context_token: 1e-4,
                ..large
            }),
            _ => None,
        }
    }

    /// A built-in profile by name, else a JSON file by path.
    ///
    /// # Errors
    /// [`ProfileError`] names the field and the fix.
    pub fn load(name_or_path: &str) -> Result<Self, ProfileError> {
        if let Some(profile) = Self::built_in(name_or_path) {
            return Ok(profile);
        }
        let name = name_or_path.to_owned();
        match std::fs::read(Path::new(name_or_path)) {
            Ok(text) => Self::from_json(&name, &text),
            Err(source) => Err(ProfileError::Unknown { name, source }),
        }
    }

    /// Reads and checks a profile; `name` is only used in errors.
    ///
    /// # Errors
    /// [`ProfileError`] names the field and the fix.
    pub fn from_json(name: &str, text: &[u8]) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_slice(text)
            .map_err(|source| ProfileError::Json { name: name.to_owned(), source })?;
        profile.check()?;
        Ok(profile)
    }

    /// Checks that the engine can run with this profile.
    ///
    /// # Errors
    /// [`ProfileError::Value`] names the first field that cannot work.
    pub fn check(&self) -> Result<(), ProfileError> {
        let fail = |field, value: String, fix: String| {
            Err(ProfileError::Value { name: self.name.clone(), field, value, fix })
        };
        for (field, value, low) in [
            ("floor_ms", self.floor_ms, 0.01),
            ("prefill_ms_per_token", self.prefill_ms_per_token, 0.0),
            ("attention_ms_per_token2", self.attention_ms_per_token2, 0.0),
            ("decode_ms_per_seq", self.decode_ms_per_seq, 0.0),
            ("decode_ms_per_context_token", self.decode_ms_per_context_token, 0.0),
            ("host_load_ms_per_token", self.host_load_ms_per_token, 0.0),
        ] {
            if !(low..=60_000.0).contains(&value) {
                return fail(field, value.to_string(), format!("use {low} to 60000"));
            }
        }
        if !(0.0..=1.0).contains(&self.jitter_sigma) {
            return fail("jitter_sigma", self.jitter_sigma.to_string(), "use 0 to 1".to_owned());
        }
        if !(1.0..=16.0).contains(&self.tokens_per_step) {
            return fail("tokens_per_step", self.tokens_per_step.to_string(), "use 1 to 16".to_owned());
        }
        if self.host_kv_blocks > 1 << 26 {
            return fail("host_kv_blocks", self.host_kv_blocks.to_string(), format!("use 0 to {}", 1 << 26));
        }
        for (field, value, high) in [
            ("max_num_seqs", self.max_num_seqs, 4096),
            ("max_batched_tokens", self.max_batched_tokens, 1 << 20),
            ("max_model_len_tokens", self.max_model_len_tokens, 1 << 24),
            ("block_tokens", self.block_tokens, 4096),
            ("kv_blocks", self.kv_blocks, 1 << 24),
        ] {
            if value == 0 || value > high {
                return fail(field, value.to_string(), format!("use 1 to {high}"));
            }
        }
        if self.max_batched_tokens < self.max_num_seqs {
            return fail(
                "max_batched_tokens",
                self.max_batched_tokens.to_string(),
                format!(
                    "use at least max_num_seqs ({}), so that every sequence can decode",
                    self.max_num_seqs
                ),
            );
        }
        if u64::from(self.max_model_len_tokens) > self.kv_capacity_tokens() {
            return fail(
                "max_model_len_tokens",
                self.max_model_len_tokens.to_string(),
                format!(
                    "use at most kv_blocks x block_tokens ({}): one sequence must fit",
                    self.kv_capacity_tokens()
                ),
            );
        }
        Ok(())
    }

    /// Tokens that the KV cache holds.
    #[must_use]
    pub fn kv_capacity_tokens(&self) -> u64 {
        u64::from(self.kv_blocks) * u64::from(self.block_tokens)
    }

    /// Time of a step with this work, before jitter.
    #[must_use]
    pub fn step_ms(&self, work: &StepWork) -> f64 {
        self.floor_ms
            + self.prefill_ms_per_token * work.prefill_tokens as f64
            + self.attention_ms_per_token2 * work.attention_token2
            + self.decode_ms_per_seq * work.decode_seqs as f64
            + self.decode_ms_per_context_token * work.decode_context_tokens as f64
            + self.host_load_ms_per_token * work.host_tokens as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_passes_its_own_check_and_survives_json() {
        for name in BUILT_IN {
            let profile = Profile::built_in(name).unwrap();
            profile.check().unwrap();
            let text = serde_json::to_vec(&profile).unwrap();
            assert_eq!(Profile::from_json(name, &text).unwrap(), profile);
        }
    }

    #[test]
    fn a_misspelt_field_is_named() {
        let mut value = serde_json::to_value(Profile::built_in("fast").unwrap()).unwrap();
        value["flor_ms"] = 1.into();
        let error = Profile::from_json("mine", value.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("flor_ms") && error.contains("mine"), "{error}");
    }

    #[test]
    fn a_model_longer_than_the_cache_is_refused_with_the_fix() {
        let profile = Profile { kv_blocks: 100, ..Profile::built_in("fast").unwrap() };
        let error = profile.check().unwrap_err().to_string();
        assert!(error.contains("max_model_len_tokens") && error.contains("1600"), "{error}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Profile::load("no-such-profile").unwrap_err().to_string();
        assert!(error.contains("fast, slow, h100, a100"), "{error}");
    }

    /// Time to prefill `prompt` tokens alone in chunks of the budget.
    fn prefill_ms(profile: &Profile, prompt: u32) -> f64 {
        let mut computed = 0;
        let mut total = 0.0;
        while computed < prompt {
            let chunk = profile.max_batched_tokens.min(prompt - computed);
            let mut work = StepWork::default();
            work.add_prefill(computed, chunk);
            total += profile.step_ms(&work);
            computed += chunk;
        }
        total
    }

    #[test]
    fn the_h100_profile_meets_its_published_anchors() {
        let h100 = Profile::built_in("h100").unwrap();
        assert!((prefill_ms(&h100, 1024) - 83.2).abs() < 0.2);
        assert!((prefill_ms(&h100, 4096) - 283.6).abs() < 0.2);
        let mut work = StepWork::default();
        (0..64).for_each(|_| work.add_decode(512));
        assert!((h100.step_ms(&work) - 48.6).abs() < 0.1);
    }
}
