//! What the table of pods means for what is known of each: capacity, restarts, foreign traffic, hits by counters.
//!
//! The polling VM writes the table, every worker reads it and keeps its own index by it. Pods that left are
//! forgotten, and one that comes back under the same address starts as a new one.

use super::Router;
use crate::fleet::{Fleet, Pod};
use crate::foreign::ForeignTokens;
use crate::hash::KeyMap;
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
    pub fn set_fleet(&mut self, mut fleet: Fleet) {
        fleet.keep_newer_load(&self.fleet);
        let same_pods = fleet.pods().len() == self.fleet.pods().len()
            && fleet.pods().iter().zip(self.fleet.pods()).all(|(new, old)| new.key == old.key);
        let old = core::mem::replace(&mut self.fleet, fleet);
        if !same_pods {
            let fleet = &self.fleet;
            self.ledger.retain_pods(|key| fleet.find(key).is_some());
            self.prefix.retain_pods(|key| fleet.find(key).is_some());
            self.pods.retain(|key, _| fleet.find(*key).is_some());
            self.size_caches();
            return;
        }
        // A table comes with every page of every pod, and says most often nothing new of caches.
        for at in 0..self.fleet.pods().len() {
            let is_known = self.fleet.pods().get(at).zip(old.pods().get(at)).is_some_and(|(new, old)| {
                new.restarts == old.restarts && self.capacity(new) == self.capacity(old)
            });
            if !is_known {
                self.keep_pod(at);
            }
        }
    }

    /// Reads what is new on the pods' pages. To be called after [`Router::set_fleet`] and after the other workers'
    /// ledgers were imported: what they sent would else be taken for somebody else's.
    pub fn take_pages(&mut self, now_us: u64) {
        // Per pod with a new page: tokens that ended requests of ours caused, and those in flight.
        let mut ours: KeyMap<(f64, f64)> = KeyMap::default();
        let pages = self.fleet.pods().iter().filter_map(|pod| Some((pod.key, pod.scrape?.page_us)));
        ours.extend(pages.filter_map(|(key, page_us)| {
            (page_us > self.pods.get(&key)?.page_us).then_some((key, (0.0, 0.0)))
        }));
        if ours.is_empty() {
            return;
        }
        let entries = Self::live_peers(&self.peers, now_us).flat_map(|view| &view.entries);
        for entry in self.ledger.entries().chain(entries).filter(|entry| entry.phase != Phase::Ended) {
            // All of the prompt: the index may expect a hit where the engine finds none.
            if let Some(ours) = ours.get_mut(&entry.pod_key) {
                ours.1 += f64::from(entry.prompt_tokens + entry.output_tokens);
            }
        }
        // What a worker that is silent caused was computed all the same.
        let activity =
            self.peers.values().flat_map(|peer| peer.view.activity.iter().map(|(key, of)| (*key, of)));
        for (key, activity) in self.ledger.activity().chain(activity) {
            if let Some(ours) = ours.get_mut(&key) {
                ours.0 += activity.computed_tokens;
            }
        }
        for at in 0..self.fleet.pods().len() {
            if let Some(known) = self.fleet.pods().get(at).and_then(|pod| ours.get(&pod.key)).copied() {
                self.take_page(at, known);
            }
        }
    }

    /// Sizes all pods' caches by the configuration in use.
    pub(super) fn size_caches(&mut self) {
        for at in 0..self.fleet.pods().len() {
            self.keep_pod(at);
        }
    }

    /// Sizes the pod's cache as it is said to be now; a pod that restarted starts anew.
    fn keep_pod(&mut self, at: usize) {
        let Some(pod) = self.fleet.pods().get(at) else { return };
        let key = pod.key;
        let capacity = self.capacity(pod);
        let first = !self.pods.contains_key(&key);
        let memory = self.pods.entry(key).or_default();
        if first {
            memory.restarts = pod.restarts;
        } else if memory.restarts != pod.restarts {
            *memory = PodMemory { restarts: pod.restarts, ..PodMemory::default() };
            self.prefix.forget(key);
            self.ledger.forget_cache(key);
        }
        self.prefix.set_capacity(key, capacity);
    }

    fn take_page(&mut self, at: usize, (ours, in_flight): (f64, f64)) {
        let Some(pod) = self.fleet.pods().get(at) else { return };
        let key = pod.key;
        let Some(memory) = self.pods.get_mut(&key) else { return };
        let Some(scrape) = pod.scrape.filter(|scrape| scrape.page_us > memory.page_us) else { return };
        memory.page_us = scrape.page_us;
        let foreign = memory.foreign.settle(scrape.computed_tokens_total, ours, in_flight);
        self.prefix.allocate(key, foreign);

        let host_hits = if scrape.host_hit_tokens.is_finite() { scrape.host_hit_tokens } else { 0.0 };
        let hits = scrape.prefix_hit_tokens + host_hits;
        if let Some(full) = memory.hits.counters(scrape.prefix_query_tokens, hits) {
            self.ledger.learn(key, |activity| {
                activity.survival.observe(&full.survival, &full.expected, full.found_tokens);
            });
        }
    }

    /// The pod's cache is probably empty: nothing answers there.
    pub(super) fn forget_cache(&mut self, pod_key: u64) {
        self.prefix.forget(pod_key);
        if let Some(pod) = self.fleet.find(pod_key) {
            self.prefix.set_capacity(pod_key, self.capacity(pod));
        }
    }

    /// The pod's cache: as it says, else as configured.
    fn capacity(&self, pod: &Pod) -> Capacity {
        let known = |tokens: f32| (tokens > 0.0).then(|| u64_of_f64(f64::from(tokens)));
        let kv = pod.scrape.and_then(|scrape| known(scrape.kv_capacity_tokens));
        let host = pod.scrape.and_then(|scrape| known(scrape.host_kv_capacity_tokens));
        let prefix = &self.config.prefix;
        self.ablation.capacity(Capacity {
            kv_tokens: kv.unwrap_or(u64::from(prefix.default_capacity_tokens)),
            host_tokens: host.unwrap_or(u64::from(prefix.default_host_tokens)),
        })
    }

    /// Prompt tokens in one block of the index, for this prompt.
    pub(super) fn block_tokens(&self, request: &LlmRequest, prompt_tokens: f32) -> f32 {
        let bytes = f32_of_u64(u64::from(request.prompt.text_bytes)).max(1.0);
        prompt_tokens * f32_of_u64(u64::from(self.config.prefix.block_bytes)) / bytes
    }
}
