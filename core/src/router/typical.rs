//! The speed of every pod, and of a class of pods: what one of which nothing is known yet is taken for.
//!
//! Pods with the same KV size are the same hardware running the same model, most often, so they are a class;
//! a class without answers is taken for the fleet. Speeds move slowly and over many pods cost as much as the
//! rest of a decision, so they are worked out anew only now and then.

use crate::fleet::Pod;
use crate::num::{u32_of_f32, u32_of_usize};
use crate::speed::{DEFAULT_SPEED, PodSpeed, SpeedSums, speeds};

/// How long the speeds stand: a few answers move them by as many hundredths…
const KEPT_US: u64 = 100_000;
/// …and for each pod that they are worked out over.
const KEPT_US_PER_POD: u64 = 500;

/// KV sizes within about 9 % of each other are one class: engines size it by the memory that happens to be left.
const CLASSES_PER_DOUBLING: f32 = 4.0;

/// A class, by the KV size; 0 where it is unknown.
fn class(pod: &Pod) -> u32 {
    let tokens = pod.scrape.map_or(f32::NAN, |scrape| scrape.kv_capacity_tokens);
    u32_of_f32((tokens.log2() * CLASSES_PER_DOUBLING).round())
}

/// Speeds as of the last refresh.
#[derive(Debug)]
pub(super) struct Speeds {
    /// Of pods, in the order of the fleet then, by their keys.
    pods: Vec<(u64, PodSpeed)>,
    classes: Vec<(u32, PodSpeed)>,
    fleet: PodSpeed,
    at_us: u64,
}

impl Default for Speeds {
    fn default() -> Self {
        Self { pods: Vec::new(), classes: Vec::new(), fleet: DEFAULT_SPEED, at_us: 0 }
    }
}

impl Speeds {
    /// Whether the speeds are old.
    pub(super) fn is_due(&self, pods: usize, now_us: u64) -> bool {
        let kept_us = KEPT_US + KEPT_US_PER_POD * u64::from(u32_of_usize(pods));
        self.pods.len() != pods || now_us.saturating_sub(self.at_us) >= kept_us
    }

    /// Works the speeds out anew. `all` are the sums of `pods`.
    pub(super) fn refresh(&mut self, pods: &[Pod], all: &[SpeedSums], now_us: u64) {
        self.at_us = now_us;
        let mut by_class: Vec<_> = pods.iter().map(class).zip(0_usize..).collect();
        by_class.sort_unstable();
        let one_class = by_class.first().map(|(class, _)| class) == by_class.last().map(|(class, _)| class);
        let (fleet, each) = speeds(all, &DEFAULT_SPEED);
        self.fleet = fleet;
        self.pods.clear();
        self.pods.extend(pods.iter().zip(each).map(|(pod, speed)| (pod.key, speed)));
        self.classes.clear();
        if one_class {
            return;
        }
        for members in by_class.chunk_by(|(a, _), (b, _)| a == b) {
            let sums: Vec<_> = members.iter().filter_map(|(_, at)| all.get(*at).copied()).collect();
            let (typical, each) = speeds(&sums, &fleet);
            for ((class, at), speed) in members.iter().zip(each) {
                if let Some((_, slot)) = self.pods.get_mut(*at) {
                    *slot = speed;
                }
                if self.classes.last().map(|(last, _)| last) != Some(class) {
                    self.classes.push((*class, typical));
                }
            }
        }
    }

    /// The speed of the pod that is at this place of the fleet.
    pub(super) fn of(&self, at: usize, pod: &Pod) -> PodSpeed {
        if let Some((_, speed)) = self.pods.get(at).filter(|(key, _)| *key == pod.key) {
            return *speed;
        }
        let class = class(pod);
        let found = self.classes.binary_search_by_key(&class, |(class, _)| *class).ok();
        found.and_then(|at| self.classes.get(at)).map_or(self.fleet, |(_, speed)| *speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Fleet;
    use crate::hash::pod_key;
    use crate::speed::Work;
    use crate::telemetry::{Dialect, Scrape};

    fn sums(ms_per_token: f32) -> SpeedSums {
        let mut sums = SpeedSums::default();
        for i in 0..40_u16 {
            let work = Work { tokens: f32::from(i % 9) * 300.0, token2: 0.0 };
            sums.observe_ttft(&DEFAULT_SPEED, work, 12.0, 10.0 + ms_per_token * work.tokens);
        }
        sums
    }

    #[test]
    fn a_new_pod_is_taken_for_its_class_and_a_new_class_for_the_fleet() {
        let mut fleet = Fleet::default();
        fleet.set_members((0..6).map(|pod| (format!("10.0.0.{pod}:80"), true)));
        // Two sizes, a little apart within each; the last pod's is another.
        for (pod, kv_tokens) in
            [400_000.0, 401_000.0, 399_500.0, 100_000.0, 100_100.0, 800_000.0].iter().enumerate()
        {
            let scrape = Scrape { kv_capacity_tokens: *kv_tokens, ..Scrape::unknown(Dialect::Vllm) };
            fleet.set_scrape(pod_key(&format!("10.0.0.{pod}:80")), &scrape, 1);
        }
        let new = SpeedSums::default;
        let all = [sums(0.1), sums(0.1), new(), sums(0.4), new(), new()];
        let mut speeds = Speeds::default();
        speeds.refresh(fleet.pods(), &all, 1_000_000);
        let long = Work { tokens: 2400.0, token2: 0.0 };
        let ms = |pod: usize| speeds.of(pod, &fleet.pods()[pod]).prefill.ttft_ms(long, 12.0);
        assert!((ms(2) / 250.0 - 1.0).abs() < 0.1, "{}", ms(2));
        assert!((ms(4) / 970.0 - 1.0).abs() < 0.1, "{}", ms(4));
        assert!(ms(5) > 200.0 && ms(5) < 970.0, "between both: {}", ms(5));
        assert_eq!(Speeds::default().of(0, &fleet.pods()[0]), DEFAULT_SPEED);
    }

    #[test]
    fn equal_pods_are_equal_and_a_slow_one_is_slow() {
        let mut fleet = Fleet::default();
        fleet.set_members((0..5).map(|pod| (format!("10.0.0.{pod}:80"), true)));
        let noisy = |factor: f32, seed: u16| {
            let mut sums = SpeedSums::default();
            for i in 0..60_u16 {
                let noise = 0.8 + 0.4 * f32::from((i * 7 + seed * 13) % 11) / 10.0;
                let (requests, context) = (f32::from(i % 13), f32::from(i % 7) * 3000.0);
                let ms = (12.0 + 0.2 * requests + 4e-5 * context) * noise * factor;
                sums.observe_tpot(&DEFAULT_SPEED, requests, context, ms);
            }
            sums
        };
        let step = |all: &[SpeedSums]| -> Vec<f32> {
            let mut speeds = Speeds::default();
            speeds.refresh(fleet.pods(), all, 1_000_000);
            (0..5).map(|at| speeds.of(at, &fleet.pods()[at]).decode.step_ms(8.0, 9000.0)).collect()
        };
        let equal = step(&[noisy(1.0, 0), noisy(1.0, 1), noisy(1.0, 2), noisy(1.0, 3), noisy(1.0, 4)]);
        assert!(equal.iter().all(|ms| (ms / equal[0] - 1.0).abs() < 0.01), "{equal:?}");
        let mixed = step(&[noisy(1.0, 0), noisy(2.0, 1), noisy(1.0, 2), noisy(2.0, 3), noisy(1.0, 4)]);
        assert!((mixed[1] / mixed[0] - 2.0).abs() < 0.2, "{mixed:?}");
    }
}
