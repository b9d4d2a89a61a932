//! Hardware drawn at random, as various as fleets are: what has learned on many kinds of it has learned what they
//! have in common.
//!
//! What it is not: measured. The ranges enclose the built-in profiles, which are never among the drawn ones, so they
//! are left to be tested on.

use rand::Rng;
use rand::rngs::StdRng;

use crate::engine::profile::Profile;
use crate::virtual_time::BLOCK_TOKENS;

/// Longest context of a drawn model.
const LONGEST_TOKENS: u32 = 131_072;

/// Evenly on a log scale.
fn log_uniform(rng: &mut StdRng, low: f64, high: f64) -> f64 {
    (rng.random_range(low.ln()..high.ln())).exp()
}

fn one_of<T: Copy>(rng: &mut StdRng, values: &[T]) -> T {
    values[rng.random_range(0..values.len())]
}

/// A profile with every figure drawn.
#[must_use]
pub fn drawn(name: &str, rng: &mut StdRng) -> Profile {
    let floor_ms = log_uniform(rng, 4.0, 120.0);
    let prefill_ms_per_token = log_uniform(rng, 0.01, 2.0);
    let max_model_len_tokens = one_of(rng, &[16_384_u32, 32_768, LONGEST_TOKENS]);
    let kv_tokens = log_uniform(rng, 60_000.0, 800_000.0).max(f64::from(max_model_len_tokens));
    let has_host_tier = rng.random_bool(0.15);
    let kv_blocks = (kv_tokens / f64::from(BLOCK_TOKENS)).ceil() as u32;
    Profile {
        name: name.to_owned(),
        floor_ms,
        prefill_ms_per_token,
        attention_ms_per_token2: prefill_ms_per_token * log_uniform(rng, 1e-5, 1e-4),
        decode_ms_per_seq: floor_ms * log_uniform(rng, 0.003, 0.03),
        decode_ms_per_context_token: floor_ms * log_uniform(rng, 1e-6, 2e-5),
        jitter_sigma: rng.random_range(0.01..0.12),
        max_num_seqs: one_of(rng, &[16, 32, 64, 128, 256, 512]),
        max_batched_tokens: one_of(rng, &[512, 1024, 2048, 4096, 8192]),
        max_model_len_tokens,
        block_tokens: BLOCK_TOKENS,
        kv_blocks,
        tokens_per_step: if rng.random_bool(0.15) { rng.random_range(1.2..3.0) } else { 1.0 },
        host_kv_blocks: if has_host_tier { kv_blocks * rng.random_range(1..4) } else { 0 },
        host_load_ms_per_token: if has_host_tier {
            prefill_ms_per_token * rng.random_range(0.02..0.2)
        } else {
            0.0
        },
    }
}

/// Makes room for the longest conversations.
pub fn lengthen(profile: &mut Profile) {
    profile.max_model_len_tokens = LONGEST_TOKENS;
    profile.kv_blocks = profile.kv_blocks.max(3 * LONGEST_TOKENS / profile.block_tokens);
}

/// The profile with the blocks of virtual time.
#[must_use]
pub fn in_virtual_blocks(profile: Profile) -> Profile {
    let kv_blocks = (profile.kv_capacity_tokens() / u64::from(BLOCK_TOKENS)) as u32;
    Profile { kv_blocks, block_tokens: BLOCK_TOKENS, ..profile }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::engine::profile::BUILT_IN;

    #[test]
    fn what_is_drawn_can_be_simulated_and_the_built_in_profiles_lie_within() {
        let mut rng = StdRng::seed_from_u64(1);
        let all: Vec<Profile> = (0..400).map(|at| drawn(&format!("{at}"), &mut rng)).collect();
        for profile in &all {
            profile.check().unwrap();
        }
        for name in BUILT_IN {
            let known = in_virtual_blocks(Profile::built_in(name).unwrap());
            known.check().unwrap();
            for of in [
                |p: &Profile| p.floor_ms,
                |p: &Profile| p.prefill_ms_per_token,
                |p: &Profile| p.decode_ms_per_seq / p.floor_ms,
                |p: &Profile| p.kv_capacity_tokens() as f64,
            ] {
                let below = all.iter().filter(|one| of(one) < of(&known)).count();
                assert!((20..=380).contains(&below), "{name}: {below}");
            }
        }
    }
}
