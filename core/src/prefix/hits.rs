//! Hits by the engine's counters, for engines whose answers do not report cached tokens.
//!
//! vLLM reports `cached_tokens` only when it was started so, but always counts the prompt tokens it looked up and
//! those it found. Over some answers the share found is held against the share that the index expected.
//! One such window says as much as one answer that reports. The counters are those of all traffic: where others
//! use the pod too, their share of hits is taken for ours.

use super::{PrefixMatch, Survival};

/// Looked-up tokens that make a window.
const WINDOW_TOKENS: f64 = 20_000.0;

/// A window of one pod.
#[derive(Debug, Clone, Copy, Default)]
pub struct HitWindow {
    start: Option<(f64, f64)>,
    prompt_tokens: f32,
    expected: PrefixMatch,
    /// The estimate that the last match of the window was made with.
    survival: Survival,
    reported: bool,
}

/// What a full window says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullWindow {
    /// What was expected, over all its answers.
    pub expected: PrefixMatch,
    /// The estimate that it was expected by.
    pub survival: Survival,
    /// Tokens found.
    pub found_tokens: f32,
}

impl HitWindow {
    /// A prompt of this length was answered; `seen` is what was expected of the cache. `reported`: the answer said what
    /// was cached, so the counters would say it twice.
    pub fn answered(&mut self, prompt_tokens: f32, seen: &PrefixMatch, survival: &Survival, reported: bool) {
        self.reported |= reported;
        self.survival = *survival;
        self.prompt_tokens += prompt_tokens;
        let sum = &mut self.expected;
        // Gradients are per matched token; the window's is that of all matched tokens.
        let gradient =
            sum.capacity_gradient * sum.matched_tokens + seen.capacity_gradient * seen.matched_tokens;
        sum.matched_tokens += seen.matched_tokens;
        sum.surviving_tokens += seen.surviving_tokens;
        sum.host_tokens += seen.host_tokens;
        sum.capacity_gradient = if sum.matched_tokens > 0.0 { gradient / sum.matched_tokens } else { 0.0 };
    }

    /// The engine's counters now; hits of all its tiers. Says something when a window is full.
    pub fn counters(&mut self, query_tokens: f64, hit_tokens: f64) -> Option<FullWindow> {
        if !(query_tokens.is_finite() && hit_tokens.is_finite()) {
            return None;
        }
        let (queries, hits) = match self.start {
            Some((queries, hits)) if query_tokens >= queries && hit_tokens >= hits => (queries, hits),
            _ => {
                *self = Self { start: Some((query_tokens, hit_tokens)), ..Self::default() };
                return None;
            }
        };
        if query_tokens - queries < WINDOW_TOKENS {
            return None;
        }
        let share = crate::num::f32_of_f64((hit_tokens - hits) / (query_tokens - queries));
        let full = *self;
        *self = Self { start: Some((query_tokens, hit_tokens)), ..Self::default() };
        let known = !full.reported && full.expected.matched_tokens > 0.0;
        known.then_some(FullWindow {
            expected: full.expected,
            survival: full.survival,
            found_tokens: share * full.prompt_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> PrefixMatch {
        PrefixMatch {
            matched_tokens: 800.0,
            surviving_tokens: 600.0,
            host_tokens: 0.0,
            probability: 0.5,
            capacity_gradient: 0.5,
        }
    }

    #[test]
    fn a_full_window_says_how_much_of_what_was_expected_was_found() {
        let mut window = HitWindow::default();
        assert!(window.counters(1000.0, 100.0).is_none());
        for answer in 1..=20 {
            window.answered(1000.0, &seen(), &Survival::default(), false);
            let full =
                window.counters(1000.0 + f64::from(answer) * 1000.0, 100.0 + f64::from(answer) * 500.0);
            assert_eq!(full.is_some(), answer == 20);
            if let Some(FullWindow { expected, found_tokens, .. }) = full {
                assert_eq!((expected.matched_tokens, expected.surviving_tokens), (16_000.0, 12_000.0));
                assert!((expected.capacity_gradient - 0.5).abs() < 1e-6);
                assert_eq!(found_tokens, 10_000.0);
            }
        }
        assert!(window.counters(21_000.0, 10_100.0).is_none(), "the next one starts empty");
    }

    #[test]
    fn answers_that_report_are_not_counted_twice_and_restarts_begin_anew() {
        let mut window = HitWindow::default();
        window.counters(0.0, 0.0);
        window.answered(1000.0, &seen(), &Survival::default(), true);
        assert!(window.counters(30_000.0, 10.0).is_none());
        window.answered(1000.0, &seen(), &Survival::default(), false);
        assert!(window.counters(5.0, 0.0).is_none(), "restarted");
        assert!(window.counters(30_005.0, 0.0).is_none(), "nothing was expected of this one");
        assert!(window.counters(f64::NAN, 0.0).is_none());
    }
}
