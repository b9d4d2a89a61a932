//! The candidate pods and what their metrics pages last said.
//!
//! One VM of an Envoy (the holder of the polling lease) keeps this table up to date and shares it as one
//! blob; the others only read it. Health is here because the `override_host` load-balancing policy that
//! follows the pick ignores it.

use crate::codec::{Reader, Writer};
use crate::hash::pod_key;
use crate::num::{f32_of_u64, ms_between};
use crate::telemetry::Scrape;

/// Most pods kept; further ones of a listing are ignored.
pub const MAX_PODS: usize = 1024;

/// First byte of the blob; another one is another module's.
const FORMAT: u8 = 1;

/// What one scrape of a pod said, as far as routing needs it. NaN is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodScrape {
    /// When the page arrived.
    pub taken_us: u64,
    /// Requests in the engine's queue.
    pub waiting_requests: f32,
    /// Requests running.
    pub running_requests: f32,
    /// Share of the KV cache in use, 0..1.
    pub kv_usage: f32,
    /// KV cache size in tokens.
    pub kv_capacity_tokens: f32,
}

/// One candidate pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// `ip:port`.
    pub address: String,
    /// [`pod_key`] of the address.
    pub key: u64,
    /// Whether Envoy holds it healthy.
    pub healthy: bool,
    /// The newest scrape, if there was one.
    pub scrape: Option<PodScrape>,
}

/// All candidate pods, in the order of their addresses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    pods: Vec<Pod>,
}

impl Fleet {
    /// The pods.
    #[must_use]
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// Replaces the membership; a pod that stays keeps its scrape. Returns whether anything changed.
    ///
    /// `members` are `ip:port` with health. Order and duplicates do not matter.
    pub fn set_members(&mut self, members: impl IntoIterator<Item = (String, bool)>) -> bool {
        let mut pods: Vec<Pod> = members
            .into_iter()
            .take(MAX_PODS)
            .map(|(address, healthy)| Pod { key: pod_key(&address), address, healthy, scrape: None })
            .collect();
        pods.sort_by(|a, b| a.address.cmp(&b.address));
        pods.dedup_by(|a, b| a.address == b.address);
        for pod in &mut pods {
            pod.scrape = self.find(pod.key).and_then(|old| old.scrape);
        }
        // Not by `==`: a scrape with an unknown (NaN) in it equals nothing.
        let changed = pods.len() != self.pods.len()
            || pods.iter().zip(&self.pods).any(|(new, old)| (new.key, new.healthy) != (old.key, old.healthy));
        self.pods = pods;
        changed
    }

    /// The pod with this key.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.key == key)
    }

    /// Stores what a pod's page said. A pod that has left meanwhile is ignored.
    pub fn set_scrape(&mut self, key: u64, scrape: &Scrape, taken_us: u64) {
        if let Some(pod) = self.pods.iter_mut().find(|pod| pod.key == key) {
            pod.scrape = Some(PodScrape {
                taken_us,
                waiting_requests: scrape.waiting_requests,
                running_requests: scrape.running_requests,
                kv_usage: scrape.kv_usage,
                kv_capacity_tokens: scrape.kv_capacity_tokens,
            });
        }
    }

    /// Packs the table.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u16(u16::try_from(self.pods.len()).unwrap_or(u16::MAX));
        for pod in &self.pods {
            out.short_text(&pod.address);
            out.u8(u8::from(pod.healthy) | (u8::from(pod.scrape.is_some()) << 1));
            if let Some(scrape) = &pod.scrape {
                out.u64(scrape.taken_us);
                out.f32(scrape.waiting_requests);
                out.f32(scrape.running_requests);
                out.f32(scrape.kv_usage);
                out.f32(scrape.kv_capacity_tokens);
            }
        }
        out.finish()
    }

    /// Unpacks a table; `None` when it is not one of this format.
    #[must_use]
    pub fn read(blob: &[u8]) -> Option<Self> {
        let mut input = Reader::new(blob);
        if input.u8()? != FORMAT {
            return None;
        }
        let count = usize::from(input.u16()?).min(MAX_PODS);
        let mut pods = Vec::with_capacity(count);
        for _ in 0..count {
            let address = input.short_text()?.to_owned();
            let flags = input.u8()?;
            let scrape = if flags & 2 == 0 {
                None
            } else {
                Some(PodScrape {
                    taken_us: input.u64()?,
                    waiting_requests: input.f32()?,
                    running_requests: input.f32()?,
                    kv_usage: input.f32()?,
                    kv_capacity_tokens: input.f32()?,
                })
            };
            pods.push(Pod { key: pod_key(&address), address, healthy: flags & 1 == 1, scrape });
        }
        Some(Self { pods })
    }
}

impl PodScrape {
    /// Age in milliseconds.
    #[must_use]
    pub fn age_ms(&self, now_us: u64) -> f32 {
        ms_between(self.taken_us, now_us)
    }

    /// This scrape, unless it is older than `stale_after_ms`.
    #[must_use]
    pub fn fresh(self, now_us: u64, stale_after_ms: u32) -> Option<Self> {
        (self.age_ms(now_us) <= f32_of_u64(u64::from(stale_after_ms))).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Dialect;
    use proptest::prelude::*;

    fn scrape(waiting: f32) -> Scrape {
        Scrape {
            dialect: Dialect::Vllm,
            waiting_requests: waiting,
            running_requests: 2.0,
            kv_usage: 0.5,
            kv_capacity_tokens: f32::NAN,
            prefix_query_tokens: 0.0,
            prefix_hit_tokens: 0.0,
            preemptions: 0.0,
        }
    }

    #[test]
    fn a_pod_that_stays_keeps_its_scrape_and_one_that_left_is_gone() {
        let mut fleet = Fleet::default();
        assert!(fleet.set_members([("10.0.0.2:80".to_owned(), true), ("10.0.0.1:80".to_owned(), true)]));
        fleet.set_scrape(pod_key("10.0.0.1:80"), &scrape(3.0), 5);
        assert!(fleet.set_members([("10.0.0.1:80".to_owned(), false), ("10.0.0.1:80".to_owned(), false)]));
        assert_eq!(fleet.pods().len(), 1);
        let pod = fleet.find(pod_key("10.0.0.1:80")).unwrap();
        assert!(!pod.healthy);
        assert_eq!(pod.scrape.unwrap().taken_us, 5);
        assert!(
            !fleet.set_members([("10.0.0.1:80".to_owned(), false)]),
            "an unknown in the scrape is no change"
        );
        fleet.set_scrape(pod_key("10.0.0.2:80"), &scrape(1.0), 9);
        assert!(fleet.find(pod_key("10.0.0.2:80")).is_none());
    }

    #[test]
    fn a_table_is_written_and_read_back_with_its_unknowns() {
        let mut fleet = Fleet::default();
        fleet.set_members([("10.0.0.2:80".to_owned(), true), ("[::1]:80".to_owned(), false)]);
        fleet.set_scrape(pod_key("[::1]:80"), &scrape(1.0), 9);
        let back = Fleet::read(&fleet.write()).unwrap();
        assert_eq!(back.pods().len(), 2);
        assert!(back.find(pod_key("[::1]:80")).unwrap().scrape.unwrap().kv_capacity_tokens.is_nan());
        assert_eq!(back.write(), fleet.write());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(blob in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Fleet::read(&blob);
        }
    }
}
