//! How likely a block that a pod was sent is still in its cache, and how that is learned.
//!
//! Under LRU a block lives while its depth (tokens used after it) is below the cache's size. What a router
//! knows of both is inexact: it counts bytes where the engine counts tokens, others may use the pod, engines
//! keep some room to themselves. So the chance falls over a stretch around the size, and two numbers are learned per
//! pod from the cached tokens that its answers report: the share of the reported size that really serves
//! (`capacity_factor`), and how much of what should hit does hit at all (`trust`: a pod that does not reuse prefixes
//! goes to 0).
//!
//! Not per block: one answer says one number, and two parameters are what it can teach.

use crate::codec::{Reader, Writer};

/// Width of the stretch over which the chance falls, in shares of the cache's size.
const SPREAD: f32 = 0.04;

/// Spreads from the edge at which the chance is 1 or 0 to a thousandth.
const FAR: f32 = 7.0;

/// Step of the normalised gradient: an answer corrects this share of its error.
const STEP: f32 = 0.12;

/// Gradients below this say next to nothing; keeps the normalised step small for them.
const LEAST_GRADIENT: f32 = 0.02;

/// An answer's weight among the workers' estimates is bounded by this many answers.
const MAX_ANSWERS: f32 = 100.0;

/// Weight, in answers, of the belief that a pod keeps what it says.
const BELIEF_ANSWERS: f32 = 0.25;

/// What was learned of one pod's cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Survival {
    /// Share of the reported KV size that serves as cache.
    pub capacity_factor: f32,
    /// Share of the expected hits that are hits.
    pub trust: f32,
    /// Answers that it was learned from.
    pub answers: f32,
}

impl Default for Survival {
    fn default() -> Self {
        Self { capacity_factor: 1.0, trust: 1.0, answers: 0.0 }
    }
}

/// What the index says of one prompt on one pod. Tokens are prompt tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PrefixMatch {
    /// Leading tokens that the pod was sent before, whether or not they survived.
    pub matched_tokens: f32,
    /// Of these, expected in the engine's KV cache.
    pub surviving_tokens: f32,
    /// Of these, expected in the engine's host-memory tier only.
    pub host_tokens: f32,
    /// Chance that the whole match is in the KV cache.
    pub probability: f32,
    /// Change of the expected hit share of `matched_tokens` per unit of `capacity_factor`.
    pub capacity_gradient: f32,
}

impl Survival {
    /// Chance that a block is within `size` (1: the KV cache) at `depth`, both in shares of the reported size.
    pub(super) fn chance(&self, depth: f32, size: f32) -> f32 {
        let beyond = (depth - self.capacity_factor * size) / SPREAD;
        // Most blocks are far from the edge: an exponential for each would be most of a look-up's arithmetic.
        if beyond < -FAR {
            1.0
        } else if beyond > FAR {
            0.0
        } else {
            1.0 / (1.0 + beyond.exp())
        }
    }

    /// Change of [`Self::chance`] per unit of `capacity_factor`.
    pub(super) fn gradient(chance: f32) -> f32 {
        chance * (1.0 - chance) / SPREAD
    }

    /// What is believed before any answer, to [`Self::absorb`] the workers' estimates into.
    #[must_use]
    pub fn belief() -> Self {
        Self { answers: BELIEF_ANSWERS, ..Self::default() }
    }

    /// Takes another worker's estimate in, each by the answers that it was learned from.
    pub fn absorb(&mut self, other: &Self) {
        let answers = self.answers + other.answers;
        if answers > 0.0 {
            let share = other.answers / answers;
            self.capacity_factor += (other.capacity_factor - self.capacity_factor) * share;
            self.trust += (other.trust - self.trust) * share;
            self.answers = answers;
        }
    }

    /// Learns that of a match `cached_tokens` were hits. `before` is the merged estimate that the match was made with.
    ///
    /// A normalised gradient step on the squared error of the hit share.
    pub fn observe(&mut self, before: &Self, seen: &PrefixMatch, cached_tokens: f32) {
        if seen.matched_tokens <= 0.0 || !cached_tokens.is_finite() {
            return;
        }
        let expected = (seen.surviving_tokens + seen.host_tokens) / seen.matched_tokens;
        let error = (cached_tokens / seen.matched_tokens).min(1.0) - expected;
        let of_trust = if before.trust > 0.05 { expected / before.trust } else { 1.0 };
        let of_capacity = seen.capacity_gradient;
        let step = STEP * error / (of_trust * of_trust + of_capacity * of_capacity).max(LEAST_GRADIENT);
        if self.answers == 0.0 {
            (self.trust, self.capacity_factor) = (before.trust, before.capacity_factor);
        }
        // On top of what was learned since the match was made, not instead of it.
        self.trust = (self.trust + step * of_trust).clamp(0.0, 1.0);
        self.capacity_factor = (self.capacity_factor + step * of_capacity).clamp(0.05, 2.0);
        self.answers = (self.answers + 1.0).min(MAX_ANSWERS);
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        for value in [self.capacity_factor, self.trust, self.answers] {
            out.f32(value);
        }
    }

    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let (capacity_factor, trust, answers) = (input.f32()?, input.f32()?, input.f32()?);
        let sound = [capacity_factor, trust, answers].iter().all(|value| value.is_finite() && *value >= 0.0);
        sound.then_some(Self { capacity_factor, trust, answers: answers.min(MAX_ANSWERS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(survival: &Survival, depth: f32) -> PrefixMatch {
        let chance = survival.chance(depth, 1.0);
        PrefixMatch {
            matched_tokens: 1000.0,
            surviving_tokens: 1000.0 * chance * survival.trust,
            host_tokens: 0.0,
            probability: chance * survival.trust,
            capacity_gradient: Survival::gradient(chance) * survival.trust,
        }
    }

    #[test]
    fn the_chance_falls_around_the_size() {
        let survival = Survival::default();
        assert!(survival.chance(0.8, 1.0) > 0.99);
        assert!((survival.chance(1.0, 1.0) - 0.5).abs() < 1e-6);
        assert!(survival.chance(1.2, 1.0) < 0.01);
        assert!(survival.chance(1.2, 1.5) > 0.99, "with a second tier");
    }

    #[test]
    fn a_cache_that_serves_less_than_it_reports_is_found_out() {
        let mut survival = Survival::default();
        for answer in 0..400_u32 {
            let depth = (answer * 37 % 120) as f32 / 100.0;
            let cached = if depth < 0.8 { 1000.0 } else { 0.0 };
            let before = survival;
            survival.observe(&before, &seen(&before, depth), cached);
        }
        assert!((survival.capacity_factor - 0.8).abs() < 0.05, "{survival:?}");
        assert!(survival.trust > 0.85, "{survival:?}");
    }

    #[test]
    fn a_pod_without_prefix_caching_is_not_believed_after_twenty_answers() {
        let mut survival = Survival::default();
        for _ in 0..20 {
            let before = survival;
            survival.observe(&before, &seen(&before, 0.1), 0.0);
        }
        assert!(survival.trust < 0.15, "{survival:?}");
        for _ in 0..40 {
            let before = survival;
            survival.observe(&before, &seen(&before, 0.1), 1000.0);
        }
        assert!(survival.trust > 0.9, "and is again once it caches: {survival:?}");
    }

    #[test]
    fn workers_count_by_what_they_have_seen() {
        let mut merged = Survival::belief();
        merged.absorb(&Survival { capacity_factor: 0.5, trust: 1.0, answers: 30.0 });
        merged.absorb(&Survival { capacity_factor: 0.1, trust: 0.0, answers: 0.0 });
        assert!((merged.capacity_factor - 0.504).abs() < 0.001, "{merged:?}");
        assert_eq!(merged.trust, 1.0);
    }
}
