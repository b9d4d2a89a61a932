//! The candidate pods and what their metrics pages last said.
//!
//! One VM of an Envoy (the holder of the polling lease) keeps this table up to date and shares it as one
//! blob; the others only read it. Health is here because the `override_host` load-balancing policy that
//! follows the pick ignores it.
//!
//! The table also notices restarts: an engine that starts again starts with an empty KV cache, and what was
//! believed of it is void. Its start time changes, or a counter falls behind what it was.

use std::sync::Arc;

use crate::codec::{Reader, Writer};
use crate::hash::pod_key;
use crate::num::{f32_of_u64, ms_between};
use crate::served::ServedModels;
use crate::telemetry::{Adapters, LoadReport, Scrape};

/// Most pods kept; further ones of a listing are ignored.
pub const MAX_PODS: usize = 1024;

/// First byte of the blob; another one is another module's.
const FORMAT: u8 = 3;

/// In place of a list's number: [`Served::Unknown`] and [`Served::Awaited`].
const NO_LIST: u16 = u16::MAX;
const LIST_AWAITED: u16 = u16::MAX - 1;

/// Start times that differ by less are the same start: client libraries derive it from the boot time, which
/// clock corrections move a little.
const SAME_START_S: f64 = 5.0;

/// What one scrape of a pod said, as far as routing needs it. NaN is unknown.
///
/// The fields mean what those of [`Scrape`] of the same names do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodScrape {
    /// As of when `waiting_requests`, `running_requests` and `kv_usage` are: the page's arrival, or that of a
    /// response that carried a newer load report.
    pub taken_us: u64,
    /// When the page that everything else is from arrived; 0 when there was none yet.
    pub page_us: u64,
    /// Requests in the engine's queue.
    pub waiting_requests: f32,
    /// Requests running.
    pub running_requests: f32,
    /// Share of the KV cache in use, 0..1.
    pub kv_usage: f32,
    /// KV cache size in tokens.
    pub kv_capacity_tokens: f32,
    /// Tokens in one block of the engine's KV cache.
    pub block_tokens: f32,
    /// Size in tokens of the tier behind the KV cache.
    pub host_kv_capacity_tokens: f32,
    /// Share of that tier in use, 0..1.
    pub host_kv_usage: f32,
    /// Prompt tokens looked up in the prefix cache since the engine's start.
    pub prefix_query_tokens: f64,
    /// Prompt tokens found there.
    pub prefix_hit_tokens: f64,
    /// Prompt tokens found in a tier behind it.
    pub host_hit_tokens: f64,
    /// Tokens newly written to the KV cache since the engine's start.
    pub computed_tokens_total: f64,
    /// Preemptions since the engine's start.
    pub preemptions: f64,
    /// When the engine's process started, in seconds since 1970.
    pub start_time_s: f64,
    /// LoRA adapters in the running batch.
    pub running_adapters: f32,
    /// LoRA adapters of requests that wait.
    pub waiting_adapters: f32,
    /// LoRA adapters that fit in one batch.
    pub max_adapters: f32,
    /// Which adapters run or wait.
    pub adapters: Adapters,
}

/// One candidate pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// `ip:port`.
    pub address: Arc<str>,
    /// [`pod_key`] of the address.
    pub key: u64,
    /// Whether Envoy holds it healthy.
    pub healthy: bool,
    /// How often the engine was seen to have started again. What was learned of its cache before the last
    /// time is void.
    pub restarts: u32,
    /// The newest scrape, if there was one.
    pub scrape: Option<PodScrape>,
    /// The models that it serves.
    pub served: Served,
}

/// What is known of the models that a pod serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Served {
    /// It has no list, or is not asked for one: it may serve anything.
    #[default]
    Unknown,
    /// It has been asked for its list and has not answered yet.
    Awaited,
    /// These. Pods with the same list share it.
    List(Arc<ServedModels>),
}

impl Served {
    /// A list that no pod shares yet.
    #[must_use]
    pub fn list(models: ServedModels) -> Self {
        Self::List(Arc::new(models))
    }

    fn models(&self) -> Option<&Arc<ServedModels>> {
        match self {
            Self::List(models) => Some(models),
            Self::Unknown | Self::Awaited => None,
        }
    }
}

impl Pod {
    /// Whether it may serve the model of this key: it lists it, or has no list.
    #[must_use]
    pub fn may_serve(&self, model_key: u64) -> bool {
        match &self.served {
            Served::Unknown => true,
            Served::Awaited => false,
            Served::List(models) => models.has(model_key),
        }
    }

    /// Whether it lists the model of this key as a LoRA adapter; `None` where no list is known.
    #[must_use]
    pub fn lists_adapter(&self, model_key: u64) -> Option<bool> {
        self.served.models().map(|models| models.has_adapter(model_key))
    }
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
            .map(|(address, healthy)| Pod {
                key: pod_key(&address),
                address: address.into(),
                healthy,
                restarts: 0,
                scrape: None,
                served: Served::Unknown,
            })
            .collect();
        pods.sort_by(|a, b| a.address.cmp(&b.address));
        pods.dedup_by(|a, b| a.address == b.address);
        for pod in &mut pods {
            if let Some(old) = self.find(pod.key) {
                pod.scrape = old.scrape;
                pod.restarts = old.restarts;
                pod.served.clone_from(&old.served);
            }
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

    /// Stores what a pod's page said, and counts a restart when it shows one. A pod that has left meanwhile is
    /// ignored.
    pub fn set_scrape(&mut self, key: u64, scrape: &Scrape, taken_us: u64) {
        if let Some(pod) = self.pods.iter_mut().find(|pod| pod.key == key) {
            let new = PodScrape::of_page(scrape, taken_us);
            if pod.scrape.is_some_and(|old| new.is_after_restart(&old)) {
                pod.restarts = pod.restarts.saturating_add(1);
            }
            pod.scrape = Some(new);
        }
    }

    /// Stores which models a pod serves. Returns whether that is news.
    pub fn set_served(&mut self, key: u64, served: Served) -> bool {
        let same = self.pods.iter().map(|pod| &pod.served).find(|other| **other == served).cloned();
        match self.pods.iter_mut().find(|pod| pod.key == key) {
            Some(pod) if pod.served != served => {
                pod.served = same.unwrap_or(served);
                true
            }
            _ => false,
        }
    }

    /// Takes what a response of a pod said of the pod's load. It stands until the next page.
    pub fn note_load_report(&mut self, key: u64, report: &LoadReport, now_us: u64) {
        if let Some(pod) = self.pods.iter_mut().find(|pod| pod.key == key) {
            pod.scrape.get_or_insert_with(|| PodScrape::unknown(now_us)).take_report(report, now_us);
        }
    }

    /// Keeps of `old` what is newer there: load reports that came after the pages of this table.
    pub fn keep_newer_load(&mut self, old: &Self) {
        let mut olds = old.pods.iter().peekable();
        for pod in &mut self.pods {
            while olds.next_if(|old| old.address < pod.address).is_some() {}
            let Some(old) = olds.next_if(|old| old.address == pod.address).and_then(|old| old.scrape) else {
                continue;
            };
            match &mut pod.scrape {
                Some(new) if old.taken_us > new.taken_us => new.keep_load(&old),
                Some(_) => {}
                // No page ever came: all that is known is from reports.
                None => pod.scrape = (old.page_us == 0).then_some(old),
            }
        }
    }

    /// Packs the table.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        // Most pods of a cluster serve the same models: each list is written once.
        let mut lists: Vec<&Arc<ServedModels>> = Vec::new();
        for served in self.pods.iter().filter_map(|pod| pod.served.models()) {
            if !lists.iter().any(|list| Arc::ptr_eq(list, served)) {
                lists.push(served);
            }
        }
        out.u16(u16::try_from(lists.len()).unwrap_or(u16::MAX));
        lists.iter().for_each(|list| list.write(&mut out));
        out.u16(u16::try_from(self.pods.len()).unwrap_or(u16::MAX));
        for pod in &self.pods {
            out.short_text(&pod.address);
            out.u8(u8::from(pod.healthy) | (u8::from(pod.scrape.is_some()) << 1));
            let number = |own| lists.iter().position(|list| Arc::ptr_eq(list, own));
            out.u16(match &pod.served {
                Served::Unknown => NO_LIST,
                Served::Awaited => LIST_AWAITED,
                Served::List(own) => {
                    number(own).and_then(|number| u16::try_from(number).ok()).unwrap_or(NO_LIST)
                }
            });
            out.u32(pod.restarts);
            if let Some(scrape) = &pod.scrape {
                scrape.write(&mut out);
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
        let mut lists = Vec::with_capacity(count);
        for _ in 0..count {
            lists.push(Arc::new(ServedModels::read(&mut input)?));
        }
        let count = usize::from(input.u16()?).min(MAX_PODS);
        let mut pods = Vec::with_capacity(count);
        for _ in 0..count {
            let address: Arc<str> = input.short_text()?.into();
            let flags = input.u8()?;
            let served = match input.u16()? {
                LIST_AWAITED => Served::Awaited,
                number => lists
                    .get(usize::from(number))
                    .map_or(Served::Unknown, |list| Served::List(Arc::clone(list))),
            };
            let restarts = input.u32()?;
            let scrape = if flags & 2 == 0 { None } else { Some(PodScrape::read(&mut input)?) };
            let healthy = flags & 1 == 1;
            pods.push(Pod { key: pod_key(&address), address, healthy, restarts, scrape, served });
        }
        Some(Self { pods })
    }
}

impl PodScrape {
    pub(crate) fn of_page(scrape: &Scrape, taken_us: u64) -> Self {
        Self {
            taken_us,
            page_us: taken_us,
            waiting_requests: scrape.waiting_requests,
            running_requests: scrape.running_requests,
            kv_usage: scrape.kv_usage,
            kv_capacity_tokens: scrape.kv_capacity_tokens,
            block_tokens: scrape.block_tokens,
            host_kv_capacity_tokens: scrape.host_kv_capacity_tokens,
            host_kv_usage: scrape.host_kv_usage,
            prefix_query_tokens: scrape.prefix_query_tokens,
            prefix_hit_tokens: scrape.prefix_hit_tokens,
            host_hit_tokens: scrape.host_hit_tokens,
            computed_tokens_total: scrape.computed_tokens_total,
            preemptions: scrape.preemptions,
            start_time_s: scrape.start_time_s,
            running_adapters: scrape.running_adapters,
            waiting_adapters: scrape.waiting_adapters,
            max_adapters: scrape.max_adapters,
            adapters: scrape.adapters,
        }
    }

    /// The scrape of a pod whose page was never read.
    fn unknown(taken_us: u64) -> Self {
        Self { page_us: 0, ..Self::of_page(&Scrape::unknown(crate::telemetry::Dialect::Vllm), taken_us) }
    }

    fn is_after_restart(&self, old: &Self) -> bool {
        // A comparison with an unknown (NaN) is false.
        (self.start_time_s - old.start_time_s).abs() > SAME_START_S
            || self.prefix_query_tokens < old.prefix_query_tokens
            || self.prefix_hit_tokens < old.prefix_hit_tokens
            || self.host_hit_tokens < old.host_hit_tokens
            || self.computed_tokens_total < old.computed_tokens_total
            || self.preemptions < old.preemptions
    }

    fn take_report(&mut self, report: &LoadReport, now_us: u64) {
        self.taken_us = self.taken_us.max(now_us);
        for (own, reported) in [
            (&mut self.waiting_requests, report.waiting_requests),
            (&mut self.running_requests, report.running_requests),
            (&mut self.kv_usage, report.kv_usage),
        ] {
            if !reported.is_nan() {
                *own = reported;
            }
        }
    }

    fn keep_load(&mut self, old: &Self) {
        self.taken_us = old.taken_us;
        self.waiting_requests = old.waiting_requests;
        self.running_requests = old.running_requests;
        self.kv_usage = old.kv_usage;
    }

    fn write(&self, out: &mut Writer) {
        out.u64(self.taken_us);
        out.u64(self.page_us);
        for value in [
            self.waiting_requests,
            self.running_requests,
            self.kv_usage,
            self.kv_capacity_tokens,
            self.block_tokens,
            self.host_kv_capacity_tokens,
            self.host_kv_usage,
            self.running_adapters,
            self.waiting_adapters,
            self.max_adapters,
        ] {
            out.f32(value);
        }
        for value in [
            self.prefix_query_tokens,
            self.prefix_hit_tokens,
            self.host_hit_tokens,
            self.computed_tokens_total,
            self.preemptions,
            self.start_time_s,
        ] {
            out.f64(value);
        }
        self.adapters.write(out);
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        // Fields are read in the order they stand here, which is the order of `write`.
        Some(Self {
            taken_us: input.u64()?,
            page_us: input.u64()?,
            waiting_requests: input.f32()?,
            running_requests: input.f32()?,
            kv_usage: input.f32()?,
            kv_capacity_tokens: input.f32()?,
            block_tokens: input.f32()?,
            host_kv_capacity_tokens: input.f32()?,
            host_kv_usage: input.f32()?,
            running_adapters: input.f32()?,
            waiting_adapters: input.f32()?,
            max_adapters: input.f32()?,
            prefix_query_tokens: input.f64()?,
            prefix_hit_tokens: input.f64()?,
            host_hit_tokens: input.f64()?,
            computed_tokens_total: input.f64()?,
            preemptions: input.f64()?,
            start_time_s: input.f64()?,
            adapters: Adapters::read(input)?,
        })
    }

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
mod tests;
