//! An Envoy in memory, for native tests: clock, headers, buffers, shared data, metrics, callouts.
//!
//! Several `MockHost`s that share one [`World`] are several VMs of one Envoy.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::resolver::Resolver;
use super::{Buffer, Callout, Headers, Host, HostError, MetricKind, Shared, pairs};

/// What the VMs of one Envoy have in common.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) now_us: Cell<u64>,
    shared: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    metrics: RefCell<Vec<(MetricKind, String, Vec<u64>)>>,
    random: Cell<u64>,
}

/// A callout that was made.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) token: u32,
    pub(crate) cluster: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Made {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }
}

/// An answer of the filter's own.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) details: String,
}

impl Answered {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// One VM's view of it.
#[derive(Debug, Default)]
pub(crate) struct MockHost {
    pub(crate) world: Rc<World>,
    headers: RefCell<HashMap<Headers, Vec<(String, String)>>>,
    buffers: RefCell<HashMap<Buffer, Vec<u8>>>,
    properties: RefCell<HashMap<String, Vec<u8>>>,
    calls: RefCell<Vec<Made>>,
    answers: RefCell<Vec<Answered>>,
    counts: RefCell<HashMap<&'static str, u32>>,
    failing: RefCell<HashMap<&'static str, (u32, bool)>>,
    pub(crate) tick_ms: Cell<u32>,
    tokens: Cell<u32>,
    pub(crate) resolver: RefCell<Resolver>,
    resolving: RefCell<Vec<(u32, String)>>,
}

impl MockHost {
    pub(crate) fn of(world: &Rc<World>) -> Rc<Self> {
        Rc::new(Self { world: Rc::clone(world), ..Self::default() })
    }

    /// The call answers "internal failure" from now on.
    pub(crate) fn fail(&self, call: &'static str) {
        self.failing.borrow_mut().insert(call, (10, false));
    }

    /// The call answers with this status once.
    pub(crate) fn fail_once(&self, call: &'static str, status: u32) {
        self.failing.borrow_mut().insert(call, (status, true));
    }

    pub(crate) fn heal(&self) {
        self.failing.borrow_mut().clear();
    }

    pub(crate) fn count(&self, call: &str) -> u32 {
        self.counts.borrow().get(call).copied().unwrap_or(0)
    }

    pub(crate) fn set_headers(&self, map: Headers, headers: &[(&str, &str)]) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.headers.borrow_mut().insert(map, headers);
    }

    pub(crate) fn header_text(&self, map: Headers, name: &str) -> Option<String> {
        let headers = self.headers.borrow();
        headers.get(&map)?.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone())
    }

    pub(crate) fn set_buffer(&self, buffer: Buffer, bytes: &[u8]) {
        self.buffers.borrow_mut().insert(buffer, bytes.to_vec());
    }

    pub(crate) fn put_property(&self, path: &[&str], value: &[u8]) {
        self.properties.borrow_mut().insert(path.join("."), value.to_vec());
    }

    pub(crate) fn property_text(&self, name: &str) -> Option<String> {
        self.properties.borrow().get(name).map(|value| String::from_utf8(value.clone()).unwrap())
    }

    /// The names asked for since the last time, with their tokens.
    pub(crate) fn take_names(&self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.resolving.borrow_mut())
    }

    /// The answers given since the last time.
    pub(crate) fn take_answers(&self) -> Vec<Answered> {
        std::mem::take(&mut self.answers.borrow_mut())
    }

    /// The callouts made since the last time.
    pub(crate) fn take_calls(&self) -> Vec<Made> {
        std::mem::take(&mut self.calls.borrow_mut())
    }

    /// Values of a metric: the sum of a counter, the last of a gauge, all of a histogram.
    pub(crate) fn metric(&self, name: &str) -> Vec<u64> {
        let metrics = self.world.metrics.borrow();
        metrics
            .iter()
            .find(|(_, found, _)| found == name)
            .map(|(_, _, values)| values.clone())
            .unwrap_or_default()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.metric(name).first().copied().unwrap_or(0)
    }

    pub(crate) fn shared_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.world.shared.borrow().keys().cloned().collect();
        keys.sort();
        keys
    }

    fn enter(&self, call: &'static str) -> Result<(), HostError> {
        *self.counts.borrow_mut().entry(call).or_default() += 1;
        let mut failing = self.failing.borrow_mut();
        let Some((status, once)) = failing.get(call).copied() else { return Ok(()) };
        if once {
            failing.remove(call);
        }
        Err(HostError { call, status })
    }
}

impl Host for MockHost {
    fn now_us(&self) -> u64 {
        self.world.now_us.get()
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.now_us() / 1000
    }

    fn random(&self) -> u64 {
        self.world.random.set(self.world.random.get() + 1);
        self.world.random.get()
    }

    fn headers(&self, map: Headers) -> Result<Vec<u8>, HostError> {
        self.enter("proxy_get_header_map_pairs")?;
        let headers = self.headers.borrow();
        let headers = headers.get(&map).map_or(&[][..], Vec::as_slice);
        let borrowed: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Ok(pairs::pack(&borrowed))
    }

    fn header(&self, map: Headers, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.enter("proxy_get_header_map_value")?;
        Ok(self.header_text(map, name).map(String::into_bytes))
    }

    fn set_header(&self, map: Headers, name: &str, value: &str) -> Result<(), HostError> {
        self.enter("proxy_replace_header_map_value")?;
        let mut headers = self.headers.borrow_mut();
        let headers = headers.entry(map).or_default();
        headers.retain(|(found, _)| found != name);
        headers.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    fn remove_header(&self, map: Headers, name: &str) -> Result<(), HostError> {
        self.enter("proxy_remove_header_map_value")?;
        self.headers.borrow_mut().entry(map).or_default().retain(|(found, _)| found != name);
        Ok(())
    }

    fn answer(
        &self,
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
        details: &str,
    ) -> Result<(), HostError> {
        self.enter("proxy_send_local_response")?;
        self.answers.borrow_mut().push(Answered {
            status,
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: body.to_owned(),
            details: details.to_owned(),
        });
        Ok(())
    }

    fn bytes(&self, buffer: Buffer, max_bytes: usize) -> Result<Vec<u8>, HostError> {
        self.enter("proxy_get_buffer_bytes")?;
        let mut bytes = self.buffers.borrow().get(&buffer).cloned().unwrap_or_default();
        bytes.truncate(max_bytes);
        Ok(bytes)
    }

    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError> {
        self.enter("proxy_get_property")?;
        Ok(self.properties.borrow().get(&path.join(".")).cloned())
    }

    fn set_property(&self, name: &str, value: &[u8]) -> Result<(), HostError> {
        self.enter("proxy_set_property")?;
        self.put_property(&[name], value);
        Ok(())
    }

    fn shared(&self, key: &str) -> Result<Shared, HostError> {
        self.enter("proxy_get_shared_data")?;
        let shared = self.world.shared.borrow();
        Ok(shared.get(key).map(|(value, cas)| (value.clone(), Some(*cas))).unwrap_or_default())
    }

    fn set_shared(&self, key: &str, value: &[u8], cas: Option<u32>) -> Result<(), HostError> {
        self.enter("proxy_set_shared_data")?;
        let mut shared = self.world.shared.borrow_mut();
        let slot = shared.entry(key.to_owned()).or_insert((Vec::new(), 0));
        if cas.is_some_and(|cas| cas != slot.1) {
            return Err(HostError { call: "proxy_set_shared_data", status: HostError::CAS_MISMATCH });
        }
        *slot = (value.to_vec(), slot.1 + 1);
        Ok(())
    }

    fn define_metric(&self, kind: MetricKind, name: &str) -> Result<u32, HostError> {
        self.enter("proxy_define_metric")?;
        let mut metrics = self.world.metrics.borrow_mut();
        let at = metrics.iter().position(|(_, found, _)| found == name).unwrap_or_else(|| {
            metrics.push((kind, name.to_owned(), Vec::new()));
            metrics.len() - 1
        });
        Ok(at as u32)
    }

    fn add_to_metric(&self, id: u32, amount: u32) -> Result<(), HostError> {
        self.enter("proxy_increment_metric")?;
        let mut metrics = self.world.metrics.borrow_mut();
        let values = &mut metrics[id as usize].2;
        let sum = values.first().copied().unwrap_or(0) + u64::from(amount);
        *values = vec![sum];
        Ok(())
    }

    fn record_metric(&self, id: u32, value: u64) -> Result<(), HostError> {
        self.enter("proxy_record_metric")?;
        let mut metrics = self.world.metrics.borrow_mut();
        let (kind, _, values) = &mut metrics[id as usize];
        if *kind == MetricKind::Gauge {
            values.clear();
        }
        values.push(value);
        Ok(())
    }

    fn set_tick_period(&self, period_ms: u32) -> Result<(), HostError> {
        self.enter("proxy_set_tick_period_milliseconds")?;
        self.tick_ms.set(period_ms);
        Ok(())
    }

    fn call(&self, callout: &Callout<'_>) -> Result<u32, HostError> {
        self.enter("proxy_http_call")?;
        self.tokens.set(self.tokens.get() + 1);
        self.calls.borrow_mut().push(Made {
            token: self.tokens.get(),
            cluster: callout.cluster.to_owned(),
            headers: callout
                .headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: String::from_utf8(callout.body.to_vec()).unwrap(),
        });
        Ok(self.tokens.get())
    }

    fn resolve(&self, root: u32, name: &str) -> Result<u32, HostError> {
        self.enter("envoy_resolve_dns")?;
        self.tokens.set(self.tokens.get() + 1);
        self.resolver.borrow_mut().asked(self.tokens.get(), root);
        self.resolving.borrow_mut().push((self.tokens.get(), name.to_owned()));
        Ok(self.tokens.get())
    }

    fn resolved(&self, token: u32) -> Option<Vec<u8>> {
        self.resolver.borrow_mut().take(token)
    }

    fn leave(&self, root: u32) -> bool {
        self.resolver.borrow_mut().leave(root)
    }
}
