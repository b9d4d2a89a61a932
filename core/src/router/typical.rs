//! The typical speed of a pod's class: what a pod of which nothing is known yet is taken for.
//!
//! Pods with the same KV size are the same hardware running the same model, most often, so they are a class;
//! a class without answers is taken for the fleet. The medians move slowly and over many pods cost as much as the
//! rest of a decision, so they are worked out anew only now and then.

use crate::fleet::Pod;
use crate::load::PodLoad;
use crate::num::{u32_of_f32, u32_of_usize};
use crate::speed::{DEFAULT_SPEED, PodSpeed, typical};

/// How long the medians stand, for each pod that they are worked out over.
const KEPT_US_PER_POD: u64 = 500;

/// KV sizes within about 9 % of each other are one class: engines size it by the memory that happens to be left.
const CLASSES_PER_DOUBLING: f32 = 4.0;

/// A class, by the KV size; 0 where it is unknown.
fn class(pod: &Pod) -> u32 {
    let tokens = pod.scrape.map_or(f32::NAN, |scrape| scrape.kv_capacity_tokens);
    u32_of_f32((tokens.log2() * CLASSES_PER_DOUBLING).round())
}

/// Medians of the classes that were seen.
#[derive(Debug, Default)]
pub(super) struct TypicalSpeeds {
    classes: Vec<(u32, PodSpeed)>,
    pods: usize,
    at_us: u64,
}

impl TypicalSpeeds {
    /// Works the medians out anew if they are old. `loads` are those of `pods`.
    pub(super) fn refresh(&mut self, pods: &[Pod], loads: &[PodLoad], now_us: u64) {
        let kept_us = KEPT_US_PER_POD * u64::from(u32_of_usize(pods.len()));
        if self.pods == pods.len() && now_us.saturating_sub(self.at_us) < kept_us {
            return;
        }
        (self.pods, self.at_us) = (pods.len(), now_us);
        self.classes.clear();
        let mut by_class: Vec<_> =
            pods.iter().zip(loads).map(|(pod, load)| (class(pod), load.speed)).collect();
        let all: Vec<_> = by_class.iter().map(|(_, speed)| *speed).collect();
        let fleet = typical(&all, &DEFAULT_SPEED);
        by_class.sort_by_key(|(class, _)| *class);
        for members in by_class.chunk_by(|(a, _), (b, _)| a == b) {
            let speeds: Vec<_> = members.iter().map(|(_, speed)| *speed).collect();
            self.classes.extend(members.first().map(|(class, _)| (*class, typical(&speeds, &fleet))));
        }
    }

    /// The typical speed of this pod's class.
    pub(super) fn of(&self, pod: &Pod) -> PodSpeed {
        let class = class(pod);
        let found = self.classes.binary_search_by_key(&class, |(class, _)| *class).ok();
        let found = found.or_else(|| (!self.classes.is_empty()).then_some(0));
        found.and_then(|at| self.classes.get(at)).map_or(DEFAULT_SPEED, |(_, speed)| *speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Fleet;
    use crate::hash::pod_key;
    use crate::telemetry::{Dialect, Scrape};

    fn load(ms_per_token: f32) -> PodLoad {
        let mut load = PodLoad::default();
        for i in 0..40_u16 {
            let tokens = f32::from(i % 9) * 300.0;
            load.speed.observe_ttft(tokens, 10.0 + ms_per_token * tokens);
        }
        load
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
        let new = PodLoad::default;
        let loads = [load(0.1), load(0.1), new(), load(0.4), new(), new()];
        let mut speeds = TypicalSpeeds::default();
        speeds.refresh(fleet.pods(), &loads, 1_000_000);
        let slope = |pod: usize| speeds.of(&fleet.pods()[pod]).ttft.slope;
        assert!((slope(2) - 0.1).abs() < 0.02, "{}", slope(2));
        assert!((slope(4) - 0.4).abs() < 0.08, "{}", slope(4));
        assert!((slope(5) - 0.1).abs() < 0.02, "the median of the fleet: {}", slope(5));
        assert_eq!(TypicalSpeeds::default().of(&fleet.pods()[0]), DEFAULT_SPEED);
    }
}
