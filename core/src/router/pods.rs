//! What the table of pods means for what is known of each: capacity, restarts, foreign traffic, hits by counters.
//!
//! The polling VM writes the table, every worker reads it and keeps its own index by it. Pods that left are
//! forgotten, and one that comes back under the same address starts as a new one.

use super::Router;
use crate::config::Config;
use crate::fleet::{Fleet, Pod};
use crate::foreign::ForeignTokens;
use crate::ledger::Phase;
use crate::num::{f32_of_u64, u64_of_f64};
use crate::prefix::{Capacity, HitWindow};
use crate::request::LlmRequest;

/// What this worker has made of one pod's pages so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PodMemory {
    restarts: u32,
    page_us: u64,
    foreign: ForeignTokens,
    pub(super) hits: HitWindow,
}

impl Router {
    /// Takes the newest table of pods. What is known of pods that left is dropped.
    pub fn set_fleet(&mut self, mut fleet: Fleet, now_us: u64) {
        fleet.keep_newer_load(&self.fleet);
        let same_pods = fleet.pods().len() == self.fleet.pods().len()
            && fleet.pods().iter().zip(self.fleet.pods()).all(|(new, old)| new.key == old.key);
        self.fleet = fleet;
        if !same_pods {
            let fleet = &self.fleet;
            self.ledger.retain_pods(|key| fleet.find(key).is_some());
            self.prefix.retain_pods(|key| fleet.find(key).is_some());
            self.pods.retain(|key, _| fleet.find(*key).is_some());
        }
        for at in 0..self.fleet.pods().len() {
            self.take_page(at, now_us);
        }
    }

    /// Reads what is new of one pod.
    fn take_page(&mut self, at: usize, now_us: u64) {
        let Some(pod) = self.fleet.pods().get(at) else { return };
        let key = pod.key;
        let capacity = capacity(&self.config, pod);
        let first = !self.pods.contains_key(&key);
        let memory = self.pods.entry(key).or_default();
        if first {
            memory.restarts = pod.restarts;
            self.prefix.set_capacity(key, capacity);
        } else if memory.restarts != pod.restarts {
            *memory = PodMemory { restarts: pod.restarts, ..PodMemory::default() };
            self.prefix.forget(key);
            self.prefix.set_capacity(key, capacity);
            self.ledger.forget_cache(key);
        }
        let Some(scrape) = pod.scrape.filter(|scrape| scrape.page_us > memory.page_us) else { return };
        memory.page_us = scrape.page_us;
        self.prefix.set_capacity(key, capacity);

        let (mut ours, mut in_flight) = (0.0, 0.0);
        let peers = || Self::live_peers(&self.peers, now_us);
        let entries = self.ledger.entries().chain(peers().flat_map(|view| &view.entries));
        for entry in entries.filter(|entry| entry.pod_key == key && entry.phase != Phase::Ended) {
            in_flight += f64::from(entry.prefill_tokens + entry.output_tokens);
        }
        // What a worker that is silent caused was computed all the same.
        let own = self.ledger.activity_of(key).into_iter();
        let activity = own.chain(self.peers.values().filter_map(|peer| peer.view.activity_of(key)));
        for activity in activity {
            ours += activity.computed_tokens;
        }
        let foreign = memory.foreign.settle(scrape.computed_tokens_total, ours, in_flight);
        self.prefix.allocate(key, foreign);

        let queries = scrape.prefix_query_tokens;
        if let Some((expected, found)) = memory.hits.counters(queries, scrape.prefix_hit_tokens) {
            self.ledger.learn(key, |activity| {
                let before = activity.survival;
                activity.survival.observe(&before, &expected, found);
            });
        }
    }

    /// The pod's cache is probably empty: nothing answers there.
    pub(super) fn forget_cache(&mut self, pod_key: u64) {
        self.prefix.forget(pod_key);
        if let Some(pod) = self.fleet.find(pod_key) {
            self.prefix.set_capacity(pod_key, capacity(&self.config, pod));
        }
    }

    /// Prompt tokens in one block of the index, for this prompt.
    pub(super) fn block_tokens(&self, request: &LlmRequest, prompt_tokens: f32) -> f32 {
        let bytes = f32_of_u64(u64::from(request.prompt.text_bytes)).max(1.0);
        prompt_tokens * f32_of_u64(u64::from(self.config.prefix.block_bytes)) / bytes
    }
}

/// The pod's cache: as it says, else as configured.
fn capacity(config: &Config, pod: &Pod) -> Capacity {
    let known = |tokens: f32| (tokens > 0.0).then(|| u64_of_f64(f64::from(tokens)));
    let kv = pod.scrape.and_then(|scrape| known(scrape.kv_capacity_tokens));
    let host = pod.scrape.and_then(|scrape| known(scrape.host_kv_capacity_tokens));
    Capacity {
        kv_tokens: kv.unwrap_or(u64::from(config.prefix.default_capacity_tokens)),
        host_tokens: host.unwrap_or(u64::from(config.prefix.default_host_tokens)),
    }
}
