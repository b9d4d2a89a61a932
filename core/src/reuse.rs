//! How much of what caches evict is asked for again.
//!
//! A placement pushes others' blocks out of a full cache. What that costs is the time to compute them again, if
//! anybody asks for them again; how often that happens is seen: prompt tokens that some pod held once and none
//! holds now, over the tokens evicted.
//!
//! Not which blocks those will be: engines evict the least recently used, whatever it is worth.

/// Share of the old that a request leaves: the last few hundred count.
const KEEP: f32 = 1.0 - 1.0 / 300.0;

/// Tokens evicted before the share means anything.
const BELIEF_TOKENS: f32 = 10_000.0;

/// Decayed sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reuse {
    lost_tokens: f32,
    evicted_tokens: f32,
}

impl Reuse {
    /// A request asked for `lost_tokens` that were evicted before, and has `evicted_tokens` evicted itself.
    pub fn observe(&mut self, lost_tokens: f32, evicted_tokens: f32) {
        if lost_tokens.is_finite() && evicted_tokens.is_finite() {
            self.lost_tokens = self.lost_tokens * KEEP + lost_tokens.max(0.0);
            self.evicted_tokens = self.evicted_tokens * KEEP + evicted_tokens.max(0.0);
        }
    }

    /// Share of evicted tokens that will be asked for again, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f32 {
        (self.lost_tokens / (self.evicted_tokens + BELIEF_TOKENS)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_what_comes_back() {
        let mut reuse = Reuse::default();
        assert_eq!(reuse.share(), 0.0);
        for _ in 0..2000 {
            reuse.observe(300.0, 1000.0);
        }
        assert!((reuse.share() - 0.29).abs() < 0.01, "{reuse:?}");
        reuse.observe(f32::NAN, 1.0);
        for _ in 0..2000 {
            reuse.observe(9000.0, 1000.0);
        }
        assert_eq!(reuse.share(), 1.0);
    }
}
