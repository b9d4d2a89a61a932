//! What is sent to which pods: generators at a rate that goes up and down, pods that come and go.

use std::sync::Arc;

use crate::engine::profile::Profile;
use crate::virtual_time::{Arrival, Change, PoolChange, Record, Workload};
use crate::workloads::{Shape, Synthetic};

/// How long each level of load lasts.
const LEVEL_S: f64 = 15.0;

/// Load over time, as a share of what the pool sustains, again and again: from nearly idle to queues that grow.
pub const LEVELS: [f64; 6] = [0.35, 0.7, 0.95, 0.5, 0.85, 0.2];

/// Requests that decode at a time on a pod that is full, where its memory holds them.
const FULL_BATCH: f64 = 64.0;

/// A workload whose rate follows levels over time.
pub struct Paced {
    inner: Synthetic,
    levels: Arc<[f64]>,
    inner_s: f64,
    now_s: f64,
}

impl Paced {
    /// `count` requests of a shape; a level of 1 is `full_rate` a second.
    #[must_use]
    pub fn new(shape: Shape, full_rate: f64, levels: &[f64], count: usize, seed: u64) -> Self {
        let inner = Synthetic::new(shape, full_rate, count, seed);
        Self { inner, levels: levels.into(), inner_s: 0.0, now_s: 0.0 }
    }

    /// The time at which `work_s` seconds of full rate have passed since now.
    fn advance(&mut self, mut work_s: f64) -> f64 {
        loop {
            let index = (self.now_s / LEVEL_S) as usize % self.levels.len().max(1);
            let level = self.levels.get(index).copied().unwrap_or(1.0);
            let left_s = ((self.now_s / LEVEL_S).floor() + 1.0) * LEVEL_S - self.now_s;
            if work_s <= left_s * level {
                self.now_s += work_s / level;
                return self.now_s;
            }
            work_s -= left_s * level;
            // A step that is lost in rounding would never end.
            self.now_s = (self.now_s + left_s).max(self.now_s.next_up());
        }
    }
}

impl Workload for Paced {
    fn next(&mut self) -> Option<Arrival> {
        let arrival = self.inner.next()?;
        let at_s = arrival.at_us as f64 / 1e6;
        let work_s = (at_s - self.inner_s).max(0.0);
        self.inner_s = at_s.max(self.inner_s);
        let now_s = self.advance(work_s);
        Some(Arrival { at_us: (now_s * 1e6) as u64, ..arrival })
    }

    fn follow_up(&mut self, ended: &Record, now_us: u64) -> Option<Arrival> {
        self.inner.follow_up(ended, now_us)
    }
}

/// Requests a second that a pod of this profile sustains of a shape, about: the time that a request takes of a full
/// batch's steps, without any help of caches.
#[must_use]
pub fn pod_rate(shape: Shape, profile: &Profile, seed: u64) -> f64 {
    let mut source = Synthetic::new(shape, 1.0, 500, seed);
    let drawn: Vec<(f64, f64)> = std::iter::from_fn(|| source.next())
        .map(|arrival| (arrival.request.prompt_tokens.into(), arrival.request.output_tokens.into()))
        .collect();
    let mean = |of: fn(&(f64, f64)) -> f64| drawn.iter().map(of).sum::<f64>() / drawn.len().max(1) as f64;
    let (prompt, output) = (mean(|one| one.0), mean(|one| one.1));
    let batch = FULL_BATCH.min(profile.kv_capacity_tokens() as f64 / (prompt + output) / 2.0).max(1.0);
    let prefill_ms = prompt * profile.prefill_ms_per_token
        + profile.attention_ms_per_token2 * mean(|one| one.0 * one.0) / 2.0;
    let context = prompt + output / 2.0;
    let decode_ms = output
        * (profile.floor_ms / batch
            + profile.decode_ms_per_seq
            + context * profile.decode_ms_per_context_token);
    1000.0 / (prefill_ms + decode_ms)
}

/// Pods that come and go over a run of this length: the last joins late, the first leaves and comes back, the second
/// leaves for good.
#[must_use]
pub fn comings_and_goings(pods: usize, length_s: f64) -> Vec<PoolChange> {
    let at =
        |share: f64, pod: usize, change| PoolChange { at_us: (length_s * share * 1e6) as u64, pod, change };
    vec![
        at(0.04, pods - 1, Change::Join),
        at(0.2, 0, Change::Kill),
        at(0.35, pods - 2, Change::Join),
        at(0.5, 0, Change::Join),
        at(0.75, 1, Change::Kill),
        at(0.85, pods - 3, Change::Join),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_the_levels() {
        let mut paced = Paced::new(Shape::ChatLike, 40.0, &[0.5, 1.0], 4000, 1);
        let arrivals: Vec<f64> = std::iter::from_fn(|| paced.next()).map(|a| a.at_us as f64 / 1e6).collect();
        assert!(arrivals.is_sorted());
        let within =
            |from: f64| arrivals.iter().filter(|at| (from..from + LEVEL_S).contains(*at)).count() as f64;
        assert!((within(0.0) / LEVEL_S / 20.0 - 1.0).abs() < 0.2, "{}", within(0.0));
        assert!((within(LEVEL_S) / LEVEL_S / 40.0 - 1.0).abs() < 0.2, "{}", within(LEVEL_S));
    }

    #[test]
    fn a_faster_pod_sustains_more() {
        let rate = |name: &str| pod_rate(Shape::ChatLike, &Profile::built_in(name).unwrap(), 1);
        assert!(rate("fast") > 1.5 * rate("slow"), "{} {}", rate("fast"), rate("slow"));
    }
}
