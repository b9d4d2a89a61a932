//! Calls into Envoy, as a trait: what the filter asks of its host, and how it may fail.
//!
//! One implementation speaks the proxy-wasm ABI (`abi`, wasm only); one keeps everything in memory for
//! native tests (`mock`). No call panics, whatever the host answers.

#[cfg(target_family = "wasm")]
pub(crate) mod abi;
#[cfg(target_family = "wasm")]
pub(crate) mod logger;
#[cfg(test)]
pub(crate) mod mock;
pub mod pairs;
#[cfg(any(target_family = "wasm", test))]
pub(crate) mod resolver;

/// A call that the host did not carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("host call {call} failed with {} (status {status})", self.name())]
pub struct HostError {
    /// The call, by its name in the ABI.
    pub call: &'static str,
    /// The status that the host gave.
    pub status: u32,
}

impl HostError {
    /// Status of a write whose compare-and-swap number was out of date.
    pub const CAS_MISMATCH: u32 = 8;

    /// Whether another VM has written the value since it was read.
    #[must_use]
    pub fn is_cas_mismatch(&self) -> bool {
        self.status == Self::CAS_MISMATCH
    }

    /// The status by its name in the ABI (proxy-wasm 0.2.1, `WasmResult`).
    fn name(&self) -> &'static str {
        match self.status {
            1 => "not found",
            2 => "bad argument",
            3 => "serialization failure",
            4 => "parse failure",
            5 => "bad expression",
            6 => "invalid memory access",
            7 => "empty",
            Self::CAS_MISMATCH => "CAS mismatch",
            9 => "result mismatch",
            10 => "internal failure",
            11 => "broken connection",
            12 => "unimplemented",
            _ => "unknown",
        }
    }
}

/// A map of headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Headers {
    /// Of the request.
    Request,
    /// Of the response.
    Response,
    /// Of the response to a callout, inside its callback.
    Callout,
}

/// A buffer of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The request's body, as far as it is held.
    RequestBody,
    /// This callback's part of the response's body.
    ResponseBody,
    /// The body of the response to a callout, inside its callback.
    CalloutBody,
    /// The filter's configuration, inside `on_configure`.
    Configuration,
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Set to what is so now.
    Gauge,
    /// A distribution.
    Histogram,
}

impl MetricKind {
    /// The name used in the documentation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A request of the filter's own.
#[derive(Debug, Clone, Copy)]
pub struct Callout<'a> {
    /// Envoy cluster to send it to.
    pub cluster: &'a str,
    /// Headers; `:method`, `:path` and `:authority` must be among them.
    pub headers: &'a [(&'a str, &'a str)],
    /// Body.
    pub body: &'a [u8],
    /// Bound on the whole exchange.
    pub timeout_ms: u32,
}

/// A value in shared data and its compare-and-swap number. The value is empty when there is none: shared data
/// has no removal, so empty and absent are the same.
pub type Shared = (Vec<u8>, Option<u32>);

/// What the filter asks of Envoy.
pub trait Host {
    /// Monotonic clock, microseconds. The same for every VM of the process; a wall clock that steps would
    /// expire every heartbeat and ruin the times that are learned from.
    fn now_us(&self) -> u64;

    /// Wall clock, milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;

    /// A random number.
    fn random(&self) -> u64;

    /// All pairs of a header map, packed; [`pairs::pairs`] reads them.
    ///
    /// # Errors
    /// When the host does not give them.
    fn headers(&self, map: Headers) -> Result<Vec<u8>, HostError>;

    /// Value of a header. Several of one name are joined by Envoy with commas.
    ///
    /// # Errors
    /// When the host does not give it, absence aside.
    fn header(&self, map: Headers, name: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// Sets a header, in place of all of that name.
    ///
    /// # Errors
    /// When the host does not do it.
    fn set_header(&self, map: Headers, name: &str, value: &str) -> Result<(), HostError>;

    /// Removes all headers of a name.
    ///
    /// # Errors
    /// When the host does not do it.
    fn remove_header(&self, map: Headers, name: &str) -> Result<(), HostError>;

    /// Answers the request, which goes nowhere. `details` names the reason in access logs
    /// (`RESPONSE_CODE_DETAILS`). The caller must hold the request from then on.
    ///
    /// # Errors
    /// When the host does not do it.
    fn answer(
        &self,
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
        details: &str,
    ) -> Result<(), HostError>;

    /// Up to `max_bytes` of a buffer, from its start.
    ///
    /// # Errors
    /// When the host does not give them; an absent buffer is empty.
    fn bytes(&self, buffer: Buffer, max_bytes: usize) -> Result<Vec<u8>, HostError>;

    /// A property (an Envoy attribute) by its path.
    ///
    /// # Errors
    /// When the host does not give it, absence aside.
    fn property(&self, path: &[&str]) -> Result<Option<Vec<u8>>, HostError>;

    /// Sets a property: filter state `wasm.<name>` of the request, for access logs.
    ///
    /// # Errors
    /// When the host does not do it.
    fn set_property(&self, name: &str, value: &[u8]) -> Result<(), HostError>;

    /// A value of shared data.
    ///
    /// # Errors
    /// When the host does not give it, absence aside.
    fn shared(&self, key: &str) -> Result<Shared, HostError>;

    /// Writes a value of shared data; with a number, only if it is still the value's number.
    ///
    /// # Errors
    /// [`HostError::is_cas_mismatch`] when it is not; anything else when the host does not do it.
    fn set_shared(&self, key: &str, value: &[u8], cas: Option<u32>) -> Result<(), HostError>;

    /// Finds or makes a metric.
    ///
    /// # Errors
    /// When the host does not do it.
    fn define_metric(&self, kind: MetricKind, name: &str) -> Result<u32, HostError>;

    /// Adds to a counter.
    ///
    /// # Errors
    /// When the host does not do it.
    fn add_to_metric(&self, id: u32, amount: u32) -> Result<(), HostError>;

    /// Sets a gauge, or enters a value into a histogram.
    ///
    /// # Errors
    /// When the host does not do it.
    fn record_metric(&self, id: u32, value: u64) -> Result<(), HostError>;

    /// Asks for `on_tick` of the current root at this period.
    ///
    /// # Errors
    /// When the host does not do it.
    fn set_tick_period(&self, period_ms: u32) -> Result<(), HostError>;

    /// Sends a request of the filter's own; its answer comes to the current context under the returned token.
    ///
    /// # Errors
    /// When the host does not send it: no such cluster, or a header that it does not take.
    fn call(&self, callout: &Callout<'_>) -> Result<u32, HostError>;

    /// Asks Envoy's resolver for a name's addresses, for root context `root`, which must be the one whose
    /// callback is running. [`Host::resolved`] has the answer later, under the returned token.
    ///
    /// # Errors
    /// When the host does not ask.
    fn resolve(&self, root: u32, name: &str) -> Result<u32, HostError>;

    /// The answer to [`Host::resolve`], once, as [`crate::poll::dns`] reads it; `None` before it came.
    fn resolved(&self, token: u32) -> Option<Vec<u8>>;

    /// Root context `root` is asked to go. Returns whether it may now; if not, the host lets it go later.
    fn leave(&self, root: u32) -> bool;
}
