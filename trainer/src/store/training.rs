//! The training set: what of all the traffic a fit learns from, within a bound.
//!
//! Half of it is the newest samples as they came: what the gate judges on, and what drift shows in first.
//! What leaves that half is offered to a reservoir, which is kept even over strata (load, cache hits, input
//! length, class of pod): when it is full, the largest stratum gives up a sample. So a regime that is one in a
//! thousand requests is still there a day later, and the common one does not crowd it out.
//!
//! Within a stratum it is a weighted sample without replacement whose weights halve with every
//! [`HALF_LIFE_MS`] of age: the survivors are those with the largest `time / half-life × ln 2 + Gumbel noise`
//! (Efraimidis and Spirakis 2006, in the Gumbel form), which needs no second look at what is already in.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use foretoken_core::features::{Feature, Row};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Serialize;

use crate::dataset::Example;

/// Age at which a sample's chance to stay is half that of a new one: six hours. Traffic repeats by the day,
/// hardware and engines do not.
pub const HALF_LIFE_MS: f64 = 6.0 * 3600.0 * 1000.0;

/// Share of the training set that is the newest samples as they came.
const RECENT_SHARE: f64 = 0.5;

/// Upper bounds of the classes of load: requests at the pod, by the ledger or the scrape, whichever is more.
const LOAD: [f32; 4] = [1.0, 4.0, 16.0, 64.0];

/// Names of the classes of load, idle first.
pub const LOAD_NAMES: [&str; 5] = ["idle", "light", "medium", "heavy", "full"];

/// Upper bounds of the classes of cache hits: share of the prompt.
const CACHE: [f32; 2] = [0.1, 0.6];

/// Names of the classes of cache hits.
pub const CACHE_NAMES: [&str; 3] = ["miss", "part", "hit"];

/// Upper bounds of the classes of input length, tokens.
const LENGTH: [f32; 3] = [512.0, 2048.0, 8192.0];

/// Names of the classes of input length.
pub const LENGTH_NAMES: [&str; 4] = ["short", "medium", "long", "very_long"];

/// Classes of pods: powers of two of the learned prefill time per token, the last for unknown.
const POD_CLASSES: u8 = 8;

/// Prefill time per token, ms, in the middle of the classes.
const POD_MIDDLE: f32 = 0.1;

/// What makes samples alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stratum {
    /// Index into [`LOAD_NAMES`].
    pub load: u8,
    /// Index into [`CACHE_NAMES`].
    pub cache: u8,
    /// Index into [`LENGTH_NAMES`].
    pub length: u8,
    /// Class of pod by its learned speed, slow last; the last of all is unknown.
    pub pod: u8,
}

/// The class of a value: how many bounds it is not below. Unknown is in the first.
fn class(value: f32, bounds: &[f32]) -> u8 {
    bounds.iter().map(|bound| u8::from(value >= *bound)).sum()
}

impl Stratum {
    /// The stratum of a row.
    #[must_use]
    pub fn of(row: &Row) -> Self {
        let scraped = row.get(Feature::WaitingRequests) + row.get(Feature::RunningRequests);
        // `max` takes the one that is known.
        let load = row.get(Feature::InflightRequests).max(scraped);
        let octave = (row.get(Feature::PrefillMsPerToken) / POD_MIDDLE).log2().round();
        let middle = f32::from(POD_CLASSES / 2 - 1);
        let pod = if octave.is_finite() {
            (0..POD_CLASSES - 2).map(|step| u8::from(octave + middle > f32::from(step))).sum()
        } else {
            POD_CLASSES - 1
        };
        Self {
            load: class(load, &LOAD),
            cache: class(row.get(Feature::CachedShare), &CACHE),
            length: class(row.get(Feature::PromptTokens), &LENGTH),
            pod,
        }
    }

    /// The name of its class of load.
    #[must_use]
    pub fn load_name(self) -> &'static str {
        LOAD_NAMES.get(usize::from(self.load)).copied().unwrap_or("full")
    }

    /// The name of its class of cache hits.
    #[must_use]
    pub fn cache_name(self) -> &'static str {
        CACHE_NAMES.get(usize::from(self.cache)).copied().unwrap_or("hit")
    }
}

/// A sample in the reservoir, ordered so that the first to go is the greatest.
#[derive(Debug, Clone)]
struct Kept {
    key: f64,
    example: Example,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Kept {}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.total_cmp(&self.key)
    }
}

/// The set.
#[derive(Debug)]
pub struct TrainingSet {
    recent: VecDeque<Example>,
    recent_capacity: usize,
    reservoir: BTreeMap<Stratum, BinaryHeap<Kept>>,
    reservoir_len: usize,
    reservoir_capacity: usize,
    max_age_ms: u64,
    newest_ms: u64,
    random: StdRng,
}

/// How the set is filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Filling {
    /// Newest samples as they came.
    pub recent: usize,
    /// Older samples, even over strata.
    pub reservoir: usize,
    /// Strata that have any.
    pub strata: usize,
}

impl TrainingSet {
    /// An empty set of at most `capacity` samples, none older than `max_age_ms` before the newest.
    #[must_use]
    pub fn new(capacity: usize, max_age_ms: u64) -> Self {
        let recent_capacity = ((capacity as f64 * RECENT_SHARE) as usize).max(1);
        Self {
            recent: VecDeque::new(),
            recent_capacity,
            reservoir: BTreeMap::new(),
            reservoir_len: 0,
            reservoir_capacity: capacity.saturating_sub(recent_capacity),
            max_age_ms,
            newest_ms: 0,
            // Fixed, so that the same samples in the same order give the same set.
            random: StdRng::seed_from_u64(1),
        }
    }

    /// Takes a new sample.
    pub fn push(&mut self, example: Example) {
        self.newest_ms = self.newest_ms.max(example.at_ms);
        self.recent.push_back(example);
        if self.recent.len() > self.recent_capacity
            && let Some(oldest) = self.recent.pop_front()
        {
            self.keep(oldest);
        }
    }

    fn keep(&mut self, example: Example) {
        if self.reservoir_capacity == 0 {
            return;
        }
        let uniform: f64 = self.random.random_range(f64::MIN_POSITIVE..1.0);
        let gumbel = -(-uniform.ln()).ln();
        let key = example.at_ms as f64 / HALF_LIFE_MS * std::f64::consts::LN_2 + gumbel;
        self.reservoir.entry(Stratum::of(&example.row)).or_default().push(Kept { key, example });
        self.reservoir_len += 1;
        if self.reservoir_len > self.reservoir_capacity {
            let largest = self.reservoir.iter_mut().max_by_key(|(_, kept)| kept.len());
            if let Some((_, kept)) = largest
                && kept.pop().is_some()
            {
                self.reservoir_len -= 1;
            }
        }
    }

    /// The samples in order of time, those too old left out.
    #[must_use]
    pub fn examples(&self) -> Vec<Example> {
        let oldest_ms = self.newest_ms.saturating_sub(self.max_age_ms);
        let kept = self.reservoir.values().flatten().map(|kept| &kept.example);
        let mut examples: Vec<Example> =
            kept.chain(&self.recent).filter(|example| example.at_ms >= oldest_ms).cloned().collect();
        // Several workers send in batches, so the order of arrival is only roughly that of time.
        examples.sort_by_key(|example| example.at_ms);
        examples
    }

    /// Samples in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.recent.len() + self.reservoir_len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many samples are newer than this.
    #[must_use]
    pub fn newer_than(&self, at_ms: u64) -> usize {
        // What is in the reservoir is older than everything that a model waits for, but for a sample that
        // travelled for long.
        self.recent.iter().filter(|example| example.at_ms > at_ms).count()
    }

    /// How the set is filled.
    #[must_use]
    pub fn filling(&self) -> Filling {
        let strata = self.reservoir.values().filter(|kept| !kept.is_empty()).count();
        Filling { recent: self.recent.len(), reservoir: self.reservoir_len, strata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Outcome;

    const HOUR_MS: u64 = 3_600_000;

    fn example(at_ms: u64, inflight: f32) -> Example {
        let mut row = Row::default();
        row.set(Feature::InflightRequests, inflight);
        row.set(Feature::PromptTokens, 100.0);
        let outcome = Outcome { actual_ms: 1.0, prior_ms: 1.0, weight: 1.0 };
        Example { at_ms, row, ttft: Some(outcome), tpot: None }
    }

    #[test]
    fn a_rare_regime_survives_a_flood_of_the_common_one() {
        let mut set = TrainingSet::new(2000, 1000 * HOUR_MS);
        for index in 0..100_000u64 {
            // One in a thousand finds a full pod.
            set.push(example(index * 10, if index % 1000 == 0 { 100.0 } else { 2.0 }));
        }
        assert_eq!(set.len(), 2000);
        let rare = set.examples().iter().filter(|e| e.row.get(Feature::InflightRequests) > 50.0).count();
        // All but the one or two still among the recent: none was given up.
        assert!(rare >= 99, "{rare}");
        assert_eq!(set.filling(), Filling { recent: 1000, reservoir: 1000, strata: 2 });
    }

    #[test]
    fn in_a_stratum_the_old_fade_by_half_lives_and_the_too_old_are_left_out() {
        let mut set = TrainingSet::new(8000, 48 * HOUR_MS);
        // Twelve hours, two half-lives, evenly.
        for index in 0..40_000u64 {
            set.push(example(index * 12 * HOUR_MS / 40_000, 2.0));
        }
        let kept: Vec<u64> = set.reservoir.values().flatten().map(|kept| kept.example.at_ms).collect();
        assert_eq!(kept.len(), 4000);
        let in_hours = |from: u64, to: u64| {
            kept.iter().filter(|at_ms| (from * HOUR_MS..to * HOUR_MS).contains(at_ms)).count() as f64
        };
        let ratio = in_hours(0, 2) / in_hours(6, 8);
        assert!((0.4..0.65).contains(&ratio), "{ratio}");
        set.push(example(51 * HOUR_MS, 2.0));
        assert!(set.examples().first().unwrap().at_ms >= 3 * HOUR_MS);
        assert_eq!(set.newer_than(50 * HOUR_MS), 1);
    }

    #[test]
    fn the_same_samples_give_the_same_set_in_order_of_time() {
        let fill = || {
            let mut set = TrainingSet::new(100, HOUR_MS);
            for index in 0..1000 {
                set.push(example(index * 10 + 7 * (index % 3), (index % 70) as f32));
            }
            set.examples()
        };
        assert_eq!(format!("{:?}", fill()), format!("{:?}", fill()));
        assert!(fill().is_sorted_by_key(|example| example.at_ms));
    }

    #[test]
    fn strata_are_told_apart_by_load_hits_length_and_speed_and_unknown_is_one_of_its_own() {
        let mut row = Row::default();
        let unknown = Stratum::of(&row);
        assert_eq!((unknown.load_name(), unknown.pod), ("idle", POD_CLASSES - 1));
        row.set(Feature::RunningRequests, 60.0);
        row.set(Feature::WaitingRequests, 10.0);
        row.set(Feature::CachedShare, 0.9);
        row.set(Feature::PromptTokens, 1e5);
        let mut classes: Vec<u8> = Vec::new();
        for speed in [1e-6, 0.026, 0.05, 0.1, 0.2, 0.4, 0.81, 1e6] {
            row.set(Feature::PrefillMsPerToken, speed);
            classes.push(Stratum::of(&row).pod);
        }
        assert_eq!(classes, [0, 1, 2, 3, 4, 5, 6, 6]);
        let full = Stratum::of(&row);
        assert_eq!((full.load_name(), full.cache_name(), full.length), ("full", "hit", 3));
    }
}
