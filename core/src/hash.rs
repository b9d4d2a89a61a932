//! One 64-bit hash for pods and prompt blocks, the same in every worker and every build.
//!
//! Shared blobs carry these hashes between VMs and survive code updates, so the function is fixed here
//! and not taken from a crate that may change it. Not for untrusted tables: `hashbrown` keys its own.

use core::hash::{BuildHasherDefault, Hasher};

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A table by pod key or by a number that counts up: every decision looks into several for every pod, and
/// `hashbrown`'s own hash, which withstands hostile keys, needs 128-bit products that wasm has not. These keys
/// come from the operator's endpoints and from this VM's own counters. Iterated in the same order in every run.
pub type KeyMap<V> = hashbrown::HashMap<u64, V, BuildHasherDefault<KeyHasher>>;

/// The hash of [`KeyMap`]: one multiplication.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = chain(self.0, bytes);
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(MULTIPLIER);
    }
}

/// Folds a 128-bit product to 64 bits: the mixing step of the wyhash family.
#[cfg(not(target_arch = "wasm32"))]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let bytes = product.to_le_bytes();
    let (low, high) = bytes.split_at(8);
    read_word(low) ^ read_word(high)
}

/// The same from four 32-bit products: wasm has no 128-bit multiply, and the library call that stands in
/// for it returns through memory.
#[cfg(target_arch = "wasm32")]
fn fold(a: u64, b: u64) -> u64 {
    const LOW: u64 = 0xffff_ffff;
    let (a_low, a_high, b_low, b_high) = (a & LOW, a >> 32, b & LOW, b >> 32);
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 32);
    let other = a_low * b_high + (middle & LOW);
    let high = a_high * b_high + (middle >> 32) + (other >> 32);
    high ^ ((other << 32) | (low & LOW))
}

/// Up to eight bytes as a little-endian word; missing bytes are zero.
fn read_word(bytes: &[u8]) -> u64 {
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

/// Hash of `bytes` chained onto `seed`: equal chains mean equal prefixes (up to 64-bit collisions).
#[must_use]
pub fn chain(seed: u64, bytes: &[u8]) -> u64 {
    // The seed is mixed before any byte meets it: else (7, "5") and (2, "0") would start the same.
    let mut state = fold(seed ^ 0xA076_1D64_78BD_642F, MULTIPLIER);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word), MULTIPLIER);
    }
    if !tail.is_empty() {
        state = fold(state ^ read_word(tail), MULTIPLIER);
    }
    fold(state ^ u64::from(crate::num::u32_of_usize(bytes.len())), 0xD6E8_FEB8_6659_FD93)
}

/// Key of a pod in ledgers, blobs and tables: the hash of its `ip:port` text.
#[must_use]
pub fn pod_key(address: &str) -> u64 {
    chain(0x666f_7265_746f_6b65, address.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_depends_on_every_byte_and_on_its_seed() {
        let base = chain(1, b"the quick brown fox");
        assert_ne!(base, chain(2, b"the quick brown fox"));
        assert_ne!(base, chain(1, b"the quick brown foX"));
        assert_ne!(chain(0, b""), chain(0, b"\0"));
        let mut seen = std::collections::HashSet::new();
        for seed in 0..100_u64 {
            assert!((0..100_u64).all(|word| seen.insert(chain(seed, &word.to_le_bytes()))));
        }
    }

    #[test]
    fn pod_keys_are_stable_across_builds() {
        // Blobs written by an older module are read by a newer one.
        assert_eq!(pod_key("127.0.0.1:8000"), pod_key("127.0.0.1:8000"));
        assert_ne!(pod_key("127.0.0.1:8000"), pod_key("127.0.0.1:8001"));
    }
}
