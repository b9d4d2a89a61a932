//! Parts of the router that can be left out, one at a time, to measure what each is worth.
//!
//! For benches: no configuration reaches it, because no deployment wants it. With none left out it changes nothing.

use crate::fleet::Pod;
use crate::load::PodLoad;
use crate::prefix::{Capacity, Survival};
use crate::speed::Work;

/// What is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ablation {
    /// What is in flight is known from the pods' metrics pages alone, as of their last scrape.
    pub no_ledger: bool,
    /// Pods are taken to keep every block that they were sent, for ever.
    pub no_eviction: bool,
}

/// A cache that never evicts, in tokens: more than any run sends, and far from overflow.
const ENDLESS_TOKENS: u64 = 1 << 40;

/// Of the output expected of a running request, the share that is still to come, on average.
const HALF: f32 = 0.5;

impl Ablation {
    /// The pod's cache, as routing takes it to be.
    pub(super) fn capacity(self, capacity: Capacity) -> Capacity {
        if self.no_eviction { Capacity { kv_tokens: ENDLESS_TOKENS, host_tokens: 0 } } else { capacity }
    }

    /// Makes of each load what would be known of it. `is_fresh` says whether a pod's page may be used.
    pub(super) fn apply(
        self,
        pods: &[Pod],
        loads: &mut [PodLoad],
        expected_output_tokens: f32,
        is_fresh: impl Fn(&Pod) -> bool,
    ) {
        if self == Self::default() {
            return;
        }
        for (pod, load) in pods.iter().zip(loads) {
            if self.no_eviction {
                load.survival = Survival::belief();
            }
            if self.no_ledger {
                let scrape = pod.scrape.filter(|_| is_fresh(pod));
                let known = |value: f32| if value.is_finite() { value } else { 0.0 };
                let (waiting, running) = scrape.map_or((0.0, 0.0), |scrape| {
                    (known(scrape.waiting_requests), known(scrape.running_requests))
                });
                *load = PodLoad {
                    // The prior counts those that wait as it does other routers' requests.
                    inflight_requests: running,
                    scraped_requests: running,
                    prefill_requests: 0.0,
                    prefill: Work::default(),
                    prefill_context_tokens: 0.0,
                    decoding_requests: running,
                    decode_left_tokens: (waiting + running * HALF) * expected_output_tokens,
                    common_tokens: running * HALF * expected_output_tokens,
                    context_tokens: scrape
                        .map_or(0.0, |scrape| known(scrape.kv_usage * scrape.kv_capacity_tokens)),
                    unscraped_requests: 0.0,
                    unscraped_context_tokens: 0.0,
                    head_elapsed_ms: 0.0,
                    ..*load
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Fleet;
    use crate::hash::pod_key;
    use crate::telemetry::{Dialect, Scrape};

    fn fleet() -> Fleet {
        let mut fleet = Fleet::default();
        fleet.set_members([("10.0.0.1:80".to_owned(), true)]);
        let scrape = Scrape {
            waiting_requests: 2.0,
            running_requests: 6.0,
            kv_usage: 0.5,
            kv_capacity_tokens: 1000.0,
            ..Scrape::unknown(Dialect::Vllm)
        };
        fleet.set_scrape(pod_key("10.0.0.1:80"), &scrape, 1);
        fleet
    }

    #[test]
    fn with_nothing_left_out_nothing_changes() {
        let load = PodLoad { inflight_requests: 3.0, common_tokens: 9.0, ..PodLoad::default() };
        let mut loads = [load];
        Ablation::default().apply(fleet().pods(), &mut loads, 100.0, |_| true);
        assert_eq!(loads, [load]);
        let capacity = Capacity { kv_tokens: 5, host_tokens: 7 };
        assert_eq!(Ablation::default().capacity(capacity), capacity);
    }

    #[test]
    fn without_the_ledger_the_page_is_all_that_is_known() {
        let ablation = Ablation { no_ledger: true, ..Ablation::default() };
        let load = PodLoad { inflight_requests: 30.0, unscraped_requests: 5.0, ..PodLoad::default() };
        let mut loads = [load];
        ablation.apply(fleet().pods(), &mut loads, 100.0, |_| true);
        assert_eq!((loads[0].inflight_requests, loads[0].decoding_requests), (6.0, 6.0));
        assert_eq!((loads[0].decode_left_tokens, loads[0].context_tokens), (500.0, 500.0));
        assert_eq!(loads[0].unscraped_requests, 0.0);
        let mut stale = [load];
        ablation.apply(fleet().pods(), &mut stale, 100.0, |_| false);
        assert_eq!(stale[0].inflight_requests, 0.0, "a stale page is not known either");
    }
}
