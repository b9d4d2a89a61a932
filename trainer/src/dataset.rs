//! Clean samples to rows, labels and weights.
//!
//! The label is the ratio of what happened to what the analytic prior said: a model then learns what the
//! formula misses, and predicts sensibly for loads it has not seen. TTFT and TPOT are separate problems: a
//! sample without a usable TPOT (a single token) still teaches TTFT.

use foretoken_core::features::{COUNT, Feature, Row, SCHEMA_ID};
use foretoken_core::sample::{Ending, Sample};

/// Ratios beyond these are clipped. A pod 50 times slower than the prior says is stuck, not slow, and one
/// such row must not move a leaf by its distance; quantile losses need the side, not the size.
pub const RATIO_RANGE: (f32, f32) = (0.02, 50.0);

/// Fewest output tokens from which a TPOT is taken: below, one network hiccup is most of it.
const MIN_TPOT_TOKENS: u32 = 4;

/// Output tokens from which a TPOT has full weight; below, in proportion (it is a mean of as many gaps).
const FULL_TPOT_TOKENS: f32 = 32.0;

/// What happened to one target of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Measured, ms.
    pub actual_ms: f32,
    /// The prior of the row, ms.
    pub prior_ms: f32,
    /// Trust in the measurement, above 0 up to 1.
    pub weight: f32,
}

impl Outcome {
    /// The label.
    #[must_use]
    pub fn ratio(&self) -> f32 {
        (self.actual_ms / self.prior_ms).clamp(RATIO_RANGE.0, RATIO_RANGE.1)
    }
}

/// One row to learn from or to be scored on.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Request's first byte, ms since the Unix epoch.
    pub at_ms: u64,
    /// The row that the model saw.
    pub row: Row,
    /// TTFT; absent when the prior is unusable.
    pub ttft: Option<Outcome>,
    /// TPOT; absent when the prior is unusable or there were too few tokens.
    pub tpot: Option<Outcome>,
}

fn outcome(actual_ms: f32, prior_ms: f32, weight: f32) -> Option<Outcome> {
    let usable = |value: f32| value.is_finite() && value > 0.0;
    (usable(actual_ms) && usable(prior_ms)).then_some(Outcome { actual_ms, prior_ms, weight })
}

macro_rules! unclean {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Why a sample teaches nothing, though it was well formed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Unclean { $($(#[$doc])* $variant,)+ }

        impl Unclean {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label value in metrics and in the status.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

unclean! {
    /// The client went away first.
    Cancelled = "cancelled",
    /// Envoy made more than one attempt: the times include those that failed.
    Retried = "retried",
    /// The upstream broke off, or no upstream answered.
    Failed = "failed",
    /// The response was not 200.
    Status = "status",
    /// The response ended without the mark that its format ends with.
    Truncated = "truncated",
    /// The response was not streamed: its first byte is its last.
    NotStreamed = "not_streamed",
    /// No event with a token was seen.
    NoFirstToken = "no_first_token",
    /// There is no prior to learn a ratio to.
    NoPrior = "no_prior",
    /// None of these, but the core does not call it clean.
    Other = "other",
}

/// Why a sample teaches nothing; `None` when it teaches something.
#[must_use]
pub fn unclean(sample: &Sample) -> Option<Unclean> {
    let first_token = sample.ttft_ms.is_some_and(|ttft_ms| ttft_ms.is_finite() && ttft_ms > 0.0);
    let faults = [
        (sample.ending == Ending::Cancelled, Unclean::Cancelled),
        (sample.attempts > 1, Unclean::Retried),
        (sample.ending == Ending::Failed, Unclean::Failed),
        (sample.status != 200, Unclean::Status),
        (sample.ending == Ending::Truncated, Unclean::Truncated),
        (!sample.streamed, Unclean::NotStreamed),
        (!first_token, Unclean::NoFirstToken),
        (!sample.is_clean(), Unclean::Other),
        (example(sample).is_none(), Unclean::NoPrior),
    ];
    faults.into_iter().find_map(|(is, reason)| is.then_some(reason))
}

/// Takes what can be learned from a sample; `None` when it is not clean or of another schema.
#[must_use]
pub fn example(sample: &Sample) -> Option<Example> {
    let values: [f32; COUNT] = sample.features.as_slice().try_into().ok()?;
    if !sample.is_clean() || sample.schema != SCHEMA_ID {
        return None;
    }
    let row = Row(values);
    let ttft = outcome(sample.ttft_ms?, row.get(Feature::PriorTtftMs), 1.0);
    let tpot = sample.tpot_ms.filter(|_| sample.output_tokens >= MIN_TPOT_TOKENS).and_then(|tpot_ms| {
        let weight = (sample.output_tokens as f32 / FULL_TPOT_TOKENS).min(1.0);
        outcome(tpot_ms, row.get(Feature::PriorTpotMs), weight)
    });
    (ttft.is_some() || tpot.is_some()).then_some(Example { at_ms: sample.at_ms, row, ttft, tpot })
}

/// Weight of row `index` of `count`, oldest first: the newest has 1, the oldest `oldest`, and those between are
/// spaced evenly on a log scale. By rank and not by time, so that a quiet night does not forget the day.
#[must_use]
pub fn recency_weight(index: usize, count: usize, oldest: f32) -> f32 {
    if count < 2 {
        return 1.0;
    }
    let age = 1.0 - index as f32 / (count - 1) as f32;
    oldest.powf(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    #[test]
    fn the_label_is_the_ratio_to_the_prior_of_the_row_within_bounds() {
        let outcome = |actual_ms, prior_ms| Outcome { actual_ms, prior_ms, weight: 1.0 }.ratio();
        assert_eq!(outcome(300.0, 200.0), 1.5);
        assert_eq!(outcome(1e9, 1.0), RATIO_RANGE.1);
        assert_eq!(outcome(1e-9, 1.0), RATIO_RANGE.0);
    }

    #[test]
    fn a_short_answer_teaches_ttft_only_and_a_longer_one_tpot_by_its_length() {
        let mut sample = synthetic::samples(1, 1).pop().unwrap();
        sample.output_tokens = 2;
        assert_eq!(example(&sample).unwrap().tpot, None);
        sample.output_tokens = 16;
        assert_eq!(example(&sample).unwrap().tpot.unwrap().weight, 0.5);
        sample.output_tokens = 500;
        assert_eq!(example(&sample).unwrap().tpot.unwrap().weight, 1.0);
    }

    #[test]
    fn what_is_not_clean_or_has_no_prior_teaches_nothing() {
        let good = synthetic::samples(1, 1).pop().unwrap();
        assert!(example(&good).is_some());
        let mut retried = good.clone();
        retried.attempts = 2;
        assert_eq!(example(&retried), None);
        let mut other = good.clone();
        other.schema = "foretoken-0".to_owned();
        assert_eq!(example(&other), None);
        let mut short = good.clone();
        short.features.pop();
        assert_eq!(example(&short), None);
        let mut without = good;
        without.features[Feature::PriorTtftMs as usize] = f32::NAN;
        without.features[Feature::PriorTpotMs as usize] = 0.0;
        assert_eq!(example(&without), None);
    }

    #[test]
    fn what_teaches_nothing_is_told_why_and_only_that() {
        let good = synthetic::samples(1, 1).pop().unwrap();
        assert_eq!(unclean(&good), None);
        type Change = fn(&mut Sample);
        let faults: [(Unclean, Change); 8] = [
            (Unclean::Cancelled, |s| s.ending = Ending::Cancelled),
            (Unclean::Retried, |s| s.attempts = 2),
            (Unclean::Failed, |s| s.ending = Ending::Failed),
            (Unclean::Status, |s| s.status = 503),
            (Unclean::Truncated, |s| s.ending = Ending::Truncated),
            (Unclean::NotStreamed, |s| s.streamed = false),
            (Unclean::NoFirstToken, |s| s.ttft_ms = None),
            (Unclean::NoPrior, |s| {
                s.features[Feature::PriorTtftMs as usize] = f32::NAN;
                s.tpot_ms = None;
            }),
        ];
        for (reason, change) in faults {
            let mut sample = good.clone();
            change(&mut sample);
            assert_eq!(unclean(&sample), Some(reason));
            assert_eq!(example(&sample), None);
        }
    }

    #[test]
    fn the_newest_row_weighs_one_and_the_oldest_a_quarter() {
        assert_eq!(recency_weight(99, 100, 0.25), 1.0);
        assert_eq!(recency_weight(0, 100, 0.25), 0.25);
        assert_eq!(recency_weight(0, 1, 0.25), 1.0);
        assert!(recency_weight(40, 100, 0.25) < recency_weight(41, 100, 0.25));
    }
}
