//! One scope's router in one VM, with everything around it: seat, peers, poller, samples, callouts.
//!
//! Roots call [`State::tick`] and [`State::call_response`], streams [`State::sync`], [`State::publish`] and the
//! router itself. A callout can only be made from a root: a stream's would be cancelled with it.

use std::sync::Arc;

use foretoken_core::config::{Config, ModelConfig};
use foretoken_core::fleet::Fleet;
use foretoken_core::model::Model;
use foretoken_core::router::{Router, SegmentWrite};
use foretoken_core::sample::Sample;
use foretoken_core::{hash, num};
use hashbrown::HashMap;

use crate::host::{Buffer, Callout, Headers, Host, HostError};
use crate::keys::Keys;
use crate::lease::Lease;
use crate::metrics::{Metric, Metrics, Series, Slot};
use crate::poll::busy::Busy;
use crate::poll::{self, Ask, Poller};
use crate::samples::{Batch, Samples};
use crate::slots::Slots;

/// How often a VM without news writes its ledger, to show that it lives.
const HEARTBEAT_US: u64 = 500_000;

/// How often a VM looks who else is there, and takes their news though it has nothing to decide: a log of
/// placements that is never read overflows.
const LOOK_AROUND_US: u64 = 200_000;

/// Least time between two writes of the ledger for nothing but output tokens.
const PROGRESS_US: u64 = 20_000;

/// Bound on a batch of samples on its way.
const SAMPLES_TIMEOUT_MS: u32 = 5000;

/// A callout whose answer is this much later than its own bound will not come: its root is gone.
const LOST_AFTER_US: u64 = 5_000_000;

/// Time between two log lines about failing host calls.
const COMPLAIN_EVERY_US: u64 = 10_000_000;

/// Tells whether a configured model is the one in use, without keeping its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelTag {
    generation: u64,
    bytes: usize,
    digest: u64,
}

impl ModelTag {
    /// Tag of a model as configured.
    #[must_use]
    pub fn of(model: &ModelConfig) -> Self {
        let text = model.onnx_deflate_base64.as_bytes();
        Self { generation: model.generation, bytes: text.len(), digest: hash::chain(0, text) }
    }
}

/// A configuration that was read whole: its model is parsed, and the model's text is gone from it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub config: Arc<Config>,
    /// The model, if there is one, with its tag.
    pub model: Option<(ModelTag, Arc<Model>)>,
}

#[derive(Debug)]
enum Purpose {
    Listing,
    Page(u64),
    Models(u64),
    Samples(Batch),
}

#[derive(Debug)]
struct Call {
    purpose: Purpose,
    lost_us: u64,
}

/// See the module's head.
#[derive(Debug)]
pub struct State {
    keys: Keys,
    loaded: Loaded,
    /// The root whose ticks count: the one configured last.
    active_root: Option<u32>,
    /// The router.
    pub router: Router,
    slots: Slots,
    lease: Lease,
    poller: Option<Poller>,
    busy: Busy,
    fleet_version: Option<(u64, u64)>,
    samples: Samples,
    calls: HashMap<u32, Call>,
    /// The resolver's token of the pods' name.
    resolving: Option<u32>,
    served: bool,
    looked_us: u64,
    exported_us: u64,
    export_buffer: Vec<u8>,
    reported: Option<(u8, u64)>,
    applied: u64,
    complained_us: Option<u64>,
    hinted: bool,
}

impl State {
    /// State of a scope that this VM has none of yet.
    #[must_use]
    pub fn new(host: &dyn Host, keys: Keys, loaded: Loaded) -> Self {
        let incarnation = host.random().max(1);
        Self {
            keys,
            active_root: None,
            router: Router::new(Arc::clone(&loaded.config), incarnation),
            loaded,
            slots: Slots::default(),
            lease: Lease::new(incarnation, host.now_us()),
            poller: None,
            busy: Busy::default(),
            fleet_version: None,
            samples: Samples::default(),
            calls: HashMap::new(),
            resolving: None,
            served: false,
            looked_us: 0,
            exported_us: 0,
            export_buffer: Vec::new(),
            reported: None,
            applied: 0,
            complained_us: None,
            hinted: false,
        }
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Option<Arc<Model>> {
        self.loaded.model.as_ref().map(|(_, model)| Arc::clone(model))
    }

    /// The model in use, if it has this tag.
    #[must_use]
    pub fn model_tagged(&self, tag: ModelTag) -> Option<Arc<Model>> {
        self.loaded.model.as_ref().filter(|(own, _)| *own == tag).map(|(_, model)| Arc::clone(model))
    }

    /// Makes a root's configuration the one in use. Requests on their way are not touched.
    pub fn adopt(&mut self, root: u32, loaded: Loaded) {
        self.active_root = Some(root);
        self.router.set_config(Arc::clone(&loaded.config));
        if let Some(poller) = &mut self.poller {
            poller.reconfigured(&self.loaded.config, &loaded.config);
        }
        match &loaded.model {
            Some((tag, model)) => self.router.set_model(Some(Arc::clone(model)), tag.generation),
            None => self.router.set_model(None, 0),
        }
        self.loaded = loaded;
    }

    /// A root is gone. Another root of the scope, if there is one, takes its place at its next tick.
    pub fn leave(&mut self, root: u32) {
        if self.active_root == Some(root) {
            self.active_root = None;
        }
    }

    /// The root whose ticks count.
    #[must_use]
    pub fn active_root(&self) -> Option<u32> {
        self.active_root
    }

    /// This VM carries streams: see [`crate::lease`].
    pub fn note_served(&mut self) {
        self.served = true;
    }

    /// Says that a host call failed: now and then, not every time.
    pub fn complain(&mut self, error: &HostError, now_us: u64) {
        if self.complained_us.is_none_or(|at_us| now_us >= at_us + COMPLAIN_EVERY_US) {
            self.complained_us = Some(now_us);
            log::warn!("{error}; requests go on by Envoy's own policy where it matters");
        }
    }

    /// A request was closed while its headers were held and before any of its body came. Once in a while that is a
    /// client that left; always, it is Envoy's configuration. Said once.
    pub fn hint_at_held_headers(&mut self) {
        if !core::mem::replace(&mut self.hinted, true) {
            log::warn!(
                "a request was closed while its headers were held and before any of its body came: if this happens to every request, set allow_on_headers_stop_iteration: true in the filter's PluginConfig"
            );
        }
    }

    /// Everything that is due by time.
    pub fn tick(&mut self, host: &dyn Host, metrics: &Metrics) {
        let now_us = host.now_us();
        if now_us >= self.looked_us + LOOK_AROUND_US || self.slots.own().is_none() {
            self.looked_us = now_us;
            self.look_around(host, metrics, now_us);
        }
        if now_us >= self.exported_us + HEARTBEAT_US {
            self.publish(host, None, now_us);
        }
        self.write_off(host, metrics, now_us);
        self.poll(host, metrics, now_us);
        self.send_samples(host, metrics, now_us);
        self.report(host, metrics);
    }

    fn look_around(&mut self, host: &dyn Host, metrics: &Metrics, now_us: u64) {
        match self.slots.refresh(host, &self.keys, self.router.incarnation(), now_us) {
            Ok(change) => {
                if change.moved {
                    self.exported_us = 0;
                }
                for slot in change.fell_silent {
                    metrics.record(host, Metric::ModelGeneration(Slot(slot)), 0);
                }
            }
            Err(error) => self.complain(&error, now_us),
        }
        if self.served {
            self.sync(host, now_us);
        }
    }

    /// Takes the newest table of pods and the other workers' news.
    pub fn sync(&mut self, host: &dyn Host, now_us: u64) {
        match host.shared(&self.keys.fleet) {
            Ok((value, _)) => {
                if poll::peek_shared(&value) != self.fleet_version
                    && let Some((version, fleet)) = poll::read_shared(&value)
                {
                    self.fleet_version = Some(version);
                    self.router.set_fleet(fleet);
                }
            }
            Err(error) => self.complain(&error, now_us),
        }
        let mut failed = None;
        for peer in self.slots.peers() {
            match host.shared(&peer.ledger) {
                Ok((blob, _)) => {
                    self.router.import_peer(u32::from(peer.slot), &blob, |segment| {
                        host.shared(peer.place(segment)).ok().map(|(value, _)| value)
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        self.router.take_pages(now_us);
        if let Some(error) = failed {
            self.complain(&error, now_us);
        }
    }

    /// Tells the other workers: a placement, and this worker's ledger as it is now.
    pub fn publish(&mut self, host: &dyn Host, segment: Option<SegmentWrite>, now_us: u64) {
        let Some(own) = self.slots.own() else { return };
        let blob = self.router.export(core::mem::take(&mut self.export_buffer), now_us);
        // The placement first: the ledger says how far the log is.
        let written = segment
            .map_or(Ok(()), |(place, bytes)| host.set_shared(own.place(place), &bytes, None))
            .and_then(|()| host.set_shared(&own.ledger, &blob, None));
        self.export_buffer = blob;
        self.exported_us = now_us;
        if let Err(error) = written {
            self.complain(&error, now_us);
        }
    }

    /// Tells of output tokens, if the last word is not too fresh.
    pub fn publish_progress(&mut self, host: &dyn Host, now_us: u64) {
        if now_us >= self.exported_us + PROGRESS_US {
            self.publish(host, None, now_us);
        }
    }

    /// Takes a finished request's sample.
    pub fn take_sample(&mut self, host: &dyn Host, metrics: &Metrics, sample: &Sample, now_us: u64) {
        let config = &self.loaded.config.samples;
        if config.cluster.is_empty() {
            return;
        }
        // A sample is numbers and texts: it always serializes.
        if let Ok(json) = serde_json::to_string(sample) {
            metrics.add(host, Metric::SamplesDropped, self.samples.push(json, config, now_us));
        }
    }

    fn call(
        &mut self,
        host: &dyn Host,
        callout: &Callout<'_>,
        purpose: Purpose,
        now_us: u64,
    ) -> Result<(), (HostError, Purpose)> {
        match host.call(callout) {
            Ok(token) => {
                let lost_us = now_us + u64::from(callout.timeout_ms) * 1000 + LOST_AFTER_US;
                self.calls.insert(token, Call { purpose, lost_us });
                Ok(())
            }
            Err(error) => Err((error, purpose)),
        }
    }

    fn poll(&mut self, host: &dyn Host, metrics: &Metrics, now_us: u64) {
        match self.lease.step(host, &self.keys, self.served, now_us) {
            Ok(true) if self.poller.is_none() => {
                let fleet = host
                    .shared(&self.keys.fleet)
                    .ok()
                    .and_then(|(value, _)| poll::read_shared(&value))
                    .map_or_else(Fleet::default, |(_, fleet)| fleet);
                self.poller = Some(Poller::resume(fleet, host.random()));
            }
            Ok(true) => {}
            Ok(false) => self.poller = None,
            Err(error) => {
                self.poller = None;
                self.complain(&error, now_us);
            }
        }
        if let Some(poller) = &mut self.poller {
            let slots = self.slots.own().into_iter().chain(self.slots.peers());
            poller.set_busy(self.busy.pods(slots, |key| host.shared(key).ok().map(|(blob, _)| blob), now_us));
        }
        self.ask_what_is_due(host, metrics, now_us);
        self.share_fleet(host, metrics, now_us);
    }

    fn ask_what_is_due(&mut self, host: &dyn Host, metrics: &Metrics, now_us: u64) {
        let config = Arc::clone(&self.loaded.config);
        self.take_resolved(host, metrics, &config);
        let asks = self.poller.as_mut().map(|poller| poller.due(&config, now_us)).unwrap_or_default();
        for ask in asks {
            self.ask(host, metrics, &config, ask, now_us);
        }
    }

    fn ask(&mut self, host: &dyn Host, metrics: &Metrics, config: &Config, ask: Ask, now_us: u64) {
        let timeout_ms = config.telemetry.timeout_ms;
        match ask {
            Ask::Listing => {
                let path = poll::admin::listing_path(&config.cluster);
                let headers = [(":method", "GET"), (":path", path.as_str()), (":authority", "foretoken")];
                let callout = Callout {
                    cluster: &config.endpoints.admin_cluster,
                    headers: &headers,
                    body: &[],
                    timeout_ms,
                };
                if let Err((error, _)) = self.call(host, &callout, Purpose::Listing, now_us) {
                    self.members_not_asked(host, metrics, error);
                }
            }
            Ask::Resolve { name } => match host.resolve(self.active_root.unwrap_or(0), &name) {
                Ok(token) => self.resolving = Some(token),
                Err(error) => self.members_not_asked(host, metrics, error),
            },
            Ask::Models { key, address } => {
                let headers = [
                    (":method", "GET"),
                    (":path", config.models.path.as_str()),
                    (":authority", address.as_str()),
                    (config.pick.header.as_str(), address.as_str()),
                ];
                let cluster = poll::models::cluster(config).unwrap_or_default();
                let callout = Callout { cluster, headers: &headers, body: &[], timeout_ms };
                if let Err((error, _)) = self.call(host, &callout, Purpose::Models(key), now_us) {
                    self.models(host, metrics, key, 0, &[], now_us);
                    self.complain(&error, now_us);
                }
            }
            Ask::Page { key, address } => {
                let address = poll::page_address(config, &address);
                let headers = [
                    (":method", "GET"),
                    (":path", config.telemetry.path.as_str()),
                    (":authority", address.as_str()),
                    (config.pick.header.as_str(), address.as_str()),
                ];
                let cluster = poll::scrape_cluster(config).unwrap_or_default();
                let callout = Callout { cluster, headers: &headers, body: &[], timeout_ms };
                if let Err((error, _)) = self.call(host, &callout, Purpose::Page(key), now_us) {
                    self.page(host, metrics, key, 0, &[], now_us);
                    self.complain(&error, now_us);
                }
            }
        }
    }

    fn members_not_asked(&mut self, host: &dyn Host, metrics: &Metrics, error: HostError) {
        metrics.add(host, Metric::ListingFailures, 1);
        if let Some(poller) = &mut self.poller {
            poller.members_not_asked(error.to_string());
        }
    }

    fn take_resolved(&mut self, host: &dyn Host, metrics: &Metrics, config: &Config) {
        let Some(answer) = self.resolving.and_then(|token| host.resolved(token)) else { return };
        self.resolving = None;
        if let Some(poller) = &mut self.poller
            && !poller.resolved(config, &answer)
        {
            metrics.add(host, Metric::ListingFailures, 1);
        }
    }

    fn models(
        &mut self,
        host: &dyn Host,
        metrics: &Metrics,
        key: u64,
        status: u16,
        body: &[u8],
        now_us: u64,
    ) {
        let Some(poller) = &mut self.poller else { return };
        if !poller.models(&self.loaded.config, key, status, body, now_us) {
            metrics.add(host, Metric::ModelListFailures, 1);
        }
    }

    fn page(&mut self, host: &dyn Host, metrics: &Metrics, key: u64, status: u16, body: &[u8], now_us: u64) {
        let Some(poller) = &mut self.poller else { return };
        let read = poller.page(&self.loaded.config, key, status, body, now_us);
        metrics.add(host, if read { Metric::Scrapes } else { Metric::ScrapeFailures }, 1);
        for series in poller.take_missing() {
            metrics.add(host, Metric::TelemetryMissing(Series(series)), 1);
        }
    }

    fn share_fleet(&mut self, host: &dyn Host, metrics: &Metrics, now_us: u64) {
        let Some(poller) = &mut self.poller else { return };
        let Some(value) = poller.to_share(self.router.incarnation(), now_us) else { return };
        metrics.record(host, Metric::Pods, u64::from(num::u32_of_usize(poller.pods())));
        if let Err(error) = host.set_shared(&self.keys.fleet, &value, None) {
            poller.not_shared();
            self.complain(&error, now_us);
        }
    }

    fn send_samples(&mut self, host: &dyn Host, metrics: &Metrics, now_us: u64) {
        let config = Arc::clone(&self.loaded.config);
        let samples = &config.samples;
        if samples.cluster.is_empty() {
            return;
        }
        let bearer = format!("Bearer {}", samples.token);
        let mut headers = vec![
            (":method", "POST"),
            (":path", samples.path.as_str()),
            (":authority", "foretoken-trainer"),
            ("content-type", "application/x-ndjson"),
        ];
        if !samples.token.is_empty() {
            headers.push(("authorization", bearer.as_str()));
        }
        while let Some(batch) = self.samples.due(samples, now_us) {
            let body = batch.body();
            let callout = Callout {
                cluster: &samples.cluster,
                headers: &headers,
                body: &body,
                timeout_ms: SAMPLES_TIMEOUT_MS,
            };
            if let Err((error, Purpose::Samples(batch))) =
                self.call(host, &callout, Purpose::Samples(batch), now_us)
            {
                self.settle_samples(host, metrics, batch, 0, now_us);
                self.complain(&error, now_us);
            }
        }
    }

    fn settle_samples(&mut self, host: &dyn Host, metrics: &Metrics, batch: Batch, status: u16, now_us: u64) {
        let settled = self.samples.answered(batch, status, &self.loaded.config.samples, now_us);
        metrics.add(host, Metric::SamplesSent, settled.sent);
        metrics.add(host, Metric::SamplesDropped, settled.dropped);
    }

    /// The answer to a callout. `num_headers` is 0 when there was none.
    pub fn call_response(
        &mut self,
        host: &dyn Host,
        metrics: &Metrics,
        token: u32,
        num_headers: usize,
        body_size: usize,
    ) {
        let Some(call) = self.calls.remove(&token) else { return };
        let now_us = host.now_us();
        let status = if num_headers == 0 { 0 } else { status_of(host, Headers::Callout) };
        let body = |most: usize| host.bytes(Buffer::CalloutBody, body_size.min(most)).unwrap_or_default();
        match call.purpose {
            Purpose::Listing => {
                let config = Arc::clone(&self.loaded.config);
                if let Some(poller) = &mut self.poller
                    && !poller.listing(&config, status, &body(poll::admin::MAX_LISTING_BYTES))
                {
                    metrics.add(host, Metric::ListingFailures, 1);
                }
            }
            Purpose::Page(key) => {
                self.page(host, metrics, key, status, &body(poll::MAX_PAGE_BYTES), now_us);
                if self.poller.as_ref().is_some_and(Poller::is_behind) {
                    self.ask_what_is_due(host, metrics, now_us);
                }
            }
            Purpose::Models(key) => {
                let list = body(poll::models::MAX_LIST_BYTES);
                self.models(host, metrics, key, status, &list, now_us);
            }
            Purpose::Samples(batch) => {
                self.settle_samples(host, metrics, batch, status, now_us);
                self.send_samples(host, metrics, now_us);
            }
        }
        self.share_fleet(host, metrics, now_us);
    }

    /// Callouts of a root that is gone are cancelled without a word. The poller asks again by its own clock.
    fn write_off(&mut self, host: &dyn Host, metrics: &Metrics, now_us: u64) {
        let lost: Vec<Call> =
            self.calls.extract_if(|_, call| call.lost_us <= now_us).map(|(_, call)| call).collect();
        for call in lost {
            if let Purpose::Samples(batch) = call.purpose {
                self.settle_samples(host, metrics, batch, 0, now_us);
            }
        }
    }

    /// The generation in use, where it can be watched: a push is done when all workers say so.
    fn report(&mut self, host: &dyn Host, metrics: &Metrics) {
        let generation = self.router.generation();
        if generation != self.applied {
            self.applied = generation;
            metrics.add(host, Metric::ModelsApplied, usize::from(generation != 0));
        }
        let Some(slot) = self.slots.own().map(|own| own.slot) else { return };
        if self.reported != Some((slot, generation)) {
            self.reported = Some((slot, generation));
            metrics.record(host, Metric::ModelGeneration(Slot(slot)), generation);
        }
    }
}

/// `:status` of a response; 0 when there is none.
pub(crate) fn status_of(host: &dyn Host, map: Headers) -> u16 {
    let value = host.header(map, ":status").ok().flatten().unwrap_or_default();
    core::str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
