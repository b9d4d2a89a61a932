//! The filter's configuration: one JSON object, read by the filter and written back by the trainer.
//!
//! It arrives as the wasm filter's `configuration` (a `StringValue`; Istio's and Envoy Gateway's
//! structured configuration reach the filter as the same JSON text). The trainer publishes the user's
//! own object with nothing changed but [`ModelConfig`] under `model`, so there is one source of every
//! setting. Unknown fields are errors: a misspelt setting that is silently ignored is worse than a
//! refused configuration, which leaves the old one serving.

pub mod routes;
pub mod slo;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use routes::{RouteConfig, RouteSettings};
pub use slo::{Malformed, PriorityConfig, ShedConfig, SloConfig, SloPolicy, SloQuantile, Trust};

/// Why a configuration was refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Not the JSON of a configuration object.
    #[error("filter configuration: {0}; see docs/configuration.md for the fields")]
    Json(#[from] serde_json::Error),
    /// A field's value cannot work.
    #[error("filter configuration: `{field}` is {value}: {fix}")]
    Value {
        /// Path of the field, dots between the levels.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// What to do instead.
        fix: &'static str,
    },
}

/// The whole configuration. Every field but `cluster` has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Envoy cluster that holds the pods; telemetry is scraped through it.
    pub cluster: String,
    /// Where the list of candidate pods comes from.
    #[serde(default)]
    pub endpoints: Endpoints,
    /// How the pick is handed to Envoy.
    #[serde(default)]
    pub pick: Pick,
    /// What is read of requests.
    #[serde(default)]
    pub request: RequestConfig,
    /// How pods' metrics pages are read.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// Where samples go.
    #[serde(default)]
    pub samples: SamplesConfig,
    /// Which models the pods serve.
    #[serde(default)]
    pub models: ModelsConfig,
    /// When a pod that fails is left alone.
    #[serde(default)]
    pub health: HealthConfig,
    /// How predictions become a choice.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// Latency targets.
    #[serde(default)]
    pub slo: SloConfig,
    /// Priorities.
    #[serde(default)]
    pub priority: PriorityConfig,
    /// Shedding of requests with a priority below 0.
    #[serde(default)]
    pub shed: ShedConfig,
    /// What single routes do otherwise, by their names.
    #[serde(default)]
    pub routes: BTreeMap<String, RouteConfig>,
    /// The prefix index.
    #[serde(default)]
    pub prefix: PrefixConfig,
    /// Explain headers.
    #[serde(default)]
    pub explain: ExplainConfig,
    /// The model that predicts; absent before the trainer's first push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelConfig>,
}

/// Where the list of candidate pods comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Endpoints {
    /// Fixed `ip:port` addresses.
    pub addresses: Vec<String>,
    /// `name:port`: the pods are the addresses that the name resolves to. `addresses` come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// Where neither is set, Envoy's admin listing is asked: the Envoy cluster whose one endpoint is this Envoy's own admin address.
    pub admin_cluster: String,
    /// How often the name is resolved or the admin listing is read.
    pub refresh_ms: u32,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { addresses: Vec::new(), dns: None, admin_cluster: String::new(), refresh_ms: 1000 }
    }
}

impl Endpoints {
    /// Name and port of `dns`; `None` when it is not set, or is no such pair.
    #[must_use]
    pub fn dns_target(&self) -> Option<(&str, u16)> {
        let (name, port) = self.dns.as_deref()?.rsplit_once(':')?;
        let is_name = (1..=253).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        let port = port.parse().ok().filter(|port| *port > 0)?;
        is_name.then_some((name, port))
    }
}

/// How the pick is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PickForm {
    /// `ip:port,ip:port`, best first: for the `override_host` load-balancing policy.
    List,
    /// Base64 of one `ip:port`: for the `stateful_session` filter in its header form.
    StatefulSession,
}

/// How the pick is handed to Envoy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pick {
    /// Request header that carries the pick. What a client sends in it is removed.
    pub header: String,
    /// How many pods are named, best first; Envoy's retries walk the list.
    pub count: u32,
    /// How they are written.
    pub form: PickForm,
}

impl Default for Pick {
    fn default() -> Self {
        Self { header: "x-gateway-destination-endpoint".to_owned(), count: 3, form: PickForm::List }
    }
}

/// Whether a request's body is read before the pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyMode {
    /// It is: model, prompt and prefix are known.
    #[default]
    Read,
    /// It is not, and the request is held at no time: for an Envoy that cannot hold headers without holding the
    /// body. The prompt's length is taken from `content-length`; of its prefix nothing is known.
    None,
}

/// What is read of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestConfig {
    /// Whether bodies are read.
    pub body: BodyMode,
    /// Longer bodies pass through to Envoy's own policy. Envoy's buffer limit must allow as much.
    pub max_body_bytes: u32,
}

impl Default for RequestConfig {
    fn default() -> Self {
        Self { body: BodyMode::default(), max_body_bytes: 8 << 20 }
    }
}

/// How pods' metrics pages are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Path of the metrics page.
    pub path: String,
    /// Time between two scrapes of a pod at which requests are in flight.
    pub interval_ms: u32,
    /// Time between two scrapes of an idle pod. At least `interval_ms` and at most half of `stale_after_ms` apply.
    pub idle_interval_ms: u32,
    /// A scrape that takes longer is given up.
    pub timeout_ms: u32,
    /// Telemetry older than this counts as unknown.
    pub stale_after_ms: u32,
    /// Whose metric names the page uses; detected from the page when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<crate::telemetry::Dialect>,
    /// Envoy cluster to scrape through, one that obeys the pick header; `cluster` when absent. With pick form
    /// `stateful_session` the pods' own cluster does not obey it, so without this no pod is scraped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Port of the metrics pages where it is not the pods' own (Triton's is 8002). Needs `cluster`: one that knows
    /// the pods under that port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Take the load reports that responses carry (ORCA).
    pub orca: bool,
    /// Ask the pods for them, with every request.
    pub orca_request: bool,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            path: "/metrics".to_owned(),
            interval_ms: 200,
            idle_interval_ms: 1000,
            timeout_ms: 1000,
            stale_after_ms: 5000,
            dialect: None,
            cluster: None,
            port: None,
            orca: true,
            orca_request: false,
        }
    }
}

/// Where samples go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplesConfig {
    /// Envoy cluster of the trainer; empty sends no samples.
    pub cluster: String,
    /// Path of the ingest endpoint.
    pub path: String,
    /// Shared token, sent as `authorization: Bearer <token>`; empty sends none.
    pub token: String,
    /// Samples are sent when this many wait…
    pub batch: u32,
    /// …or when the oldest has waited this long.
    pub flush_ms: u32,
    /// At most this many wait; further ones are dropped and counted.
    pub buffer: u32,
}

impl Default for SamplesConfig {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            path: "/v1/samples".to_owned(),
            token: String::new(),
            batch: 64,
            flush_ms: 250,
            buffer: 4096,
        }
    }
}

/// Which models the pods serve ([`crate::served`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsConfig {
    /// Whether each pod is asked for its list of models.
    pub discover: bool,
    /// Path of the list.
    pub path: String,
    /// Time between two readings of a pod's list.
    pub refresh_ms: u32,
    /// Lists that are fixed: names by `ip:port`. These pods are not asked.
    pub pods: BTreeMap<String, Vec<String>>,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self { discover: true, path: "/v1/models".to_owned(), refresh_ms: 10_000, pods: BTreeMap::new() }
    }
}

/// When a pod that fails is left alone ([`crate::health`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthConfig {
    /// Failures without a good answer between them, over all workers, that eject a pod; 0 never ejects.
    pub consecutive_failures: u32,
    /// How long a pod is left alone the first time; doubles with every further ejection…
    pub eject_base_ms: u32,
    /// …up to this.
    pub eject_max_ms: u32,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { consecutive_failures: 3, eject_base_ms: 1000, eject_max_ms: 60_000 }
    }
}

/// How predictions become a choice (DESIGN section 6). All terms are milliseconds; weights have no unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// Weight of the request's own time to its first token, against its own decoding: while a client reads it does not
    /// wait. Besides, it is what keeps queues short that E2E times in the mean would not mind.
    pub ttft: f32,
    /// Weight of the delay to requests that the pod already holds.
    pub delay_to_others: f32,
    /// Weight of the queueing charge for requests that the pod will soon get.
    pub delay_to_future: f32,
    /// Weight of the delay to those for want of memory. More than that to the future: where memory runs out, what
    /// waits has lost its prefix by the time it runs, and computing that again makes others wait.
    pub crowding: f32,
    /// Weight of the time to compute again what is evicted.
    pub evicted: f32,
    /// Output tokens assumed before any response of a model has been seen.
    pub default_output_tokens: f32,
    /// Two pods whose costs differ by less than this share are not told apart; one is drawn at random.
    pub tie_share: f32,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            ttft: 4.0,
            delay_to_others: 1.0,
            delay_to_future: 2.0,
            crowding: 4.0,
            evicted: 1.0,
            default_output_tokens: 128.0,
            tie_share: 0.002,
        }
    }
}

/// The prefix index: what each pod's KV cache probably holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixConfig {
    /// Prompt bytes in one block of the index.
    pub block_bytes: u32,
    /// KV capacity assumed for a pod that does not report it.
    pub default_capacity_tokens: u32,
    /// Size of the host-memory tier behind the KV cache assumed for a pod that does not report one; 0 for none.
    pub default_host_tokens: u32,
    /// Upper bound of blocks kept over all pods, in each worker (about 30 bytes each).
    pub max_blocks: u32,
}

impl Default for PrefixConfig {
    fn default() -> Self {
        Self {
            block_bytes: 256,
            default_capacity_tokens: 200_000,
            default_host_tokens: 0,
            max_blocks: 400_000,
        }
    }
}

/// Explain headers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExplainConfig {
    /// Answer `x-foretoken-explain: 1` with the decision's terms. Off by default: the answer names pods.
    pub allow: bool,
}

/// A model as it travels in the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Rises with every push; workers report the one they run in `foretoken_model_generation`.
    pub generation: u64,
    /// Base64 of the raw-deflated ONNX file.
    pub onnx_deflate_base64: String,
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`] names the field and the fix.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_slice(text)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let fail = |field, value: String, fix| Err(ConfigError::Value { field, value, fix });
        if self.cluster.is_empty() {
            return fail("cluster", "empty".to_owned(), "name the Envoy cluster that holds the pods");
        }
        let endpoints = &self.endpoints;
        if endpoints.addresses.is_empty() && endpoints.dns.is_none() && endpoints.admin_cluster.is_empty() {
            return fail(
                "endpoints",
                "empty".to_owned(),
                "list `addresses`, give a `dns` name, or name the `admin_cluster` to read them from",
            );
        }
        if let Some(dns) = endpoints.dns.as_ref().filter(|_| endpoints.dns_target().is_none()) {
            return fail("endpoints.dns", format!("{dns:?}"), "write it as name:port");
        }
        for address in &self.endpoints.addresses {
            if address.parse::<core::net::SocketAddr>().is_err() {
                return fail("endpoints.addresses", format!("{address:?}"), "write each pod as ip:port");
            }
        }
        for (address, names) in &self.models.pods {
            if address.parse::<core::net::SocketAddr>().is_err() {
                return fail("models.pods", format!("{address:?}"), "name each pod as ip:port");
            }
            if names.is_empty() || names.len() > crate::served::MAX_MODELS {
                return fail(
                    "models.pods",
                    format!("{address:?} with {} names", names.len()),
                    "name 1 to 256 models",
                );
            }
        }
        if self.pick.header.is_empty()
            || !self.pick.header.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        {
            return fail("pick.header", format!("{:?}", self.pick.header), "use a lower-case header name");
        }
        for (field, value, low, high, fix) in [
            ("pick.count", self.pick.count, 1, 8, "use 1 to 8"),
            ("endpoints.refresh_ms", self.endpoints.refresh_ms, 100, 600_000, "use 100 to 600000"),
            ("request.max_body_bytes", self.request.max_body_bytes, 1024, 64 << 20, "use 1024 to 67108864"),
            ("telemetry.interval_ms", self.telemetry.interval_ms, 20, 60_000, "use 20 to 60000"),
            ("telemetry.idle_interval_ms", self.telemetry.idle_interval_ms, 20, 600_000, "use 20 to 600000"),
            ("telemetry.timeout_ms", self.telemetry.timeout_ms, 10, 60_000, "use 10 to 60000"),
            ("telemetry.stale_after_ms", self.telemetry.stale_after_ms, 50, 600_000, "use 50 to 600000"),
            ("samples.batch", self.samples.batch, 1, 4096, "use 1 to 4096"),
            ("samples.flush_ms", self.samples.flush_ms, 10, 60_000, "use 10 to 60000"),
            ("samples.buffer", self.samples.buffer, 1, 65_536, "use 1 to 65536"),
            ("models.refresh_ms", self.models.refresh_ms, 100, 3_600_000, "use 100 to 3600000"),
            ("health.consecutive_failures", self.health.consecutive_failures, 0, 1000, "use 0 to 1000"),
            ("health.eject_base_ms", self.health.eject_base_ms, 10, 600_000, "use 10 to 600000"),
            ("health.eject_max_ms", self.health.eject_max_ms, 10, 3_600_000, "use 10 to 3600000"),
            ("prefix.block_bytes", self.prefix.block_bytes, 16, 65_536, "use 16 to 65536"),
            (
                "prefix.default_capacity_tokens",
                self.prefix.default_capacity_tokens,
                1,
                u32::MAX,
                "use 1 or more",
            ),
            ("prefix.max_blocks", self.prefix.max_blocks, 1024, 4_000_000, "use 1024 to 4000000"),
        ] {
            if value < low || value > high {
                return fail(field, value.to_string(), fix);
            }
        }
        for (field, value, low, high, fix) in [
            ("policy.ttft", self.policy.ttft, 0.0, 100.0, "use 0 to 100"),
            ("policy.delay_to_others", self.policy.delay_to_others, 0.0, 100.0, "use 0 to 100"),
            ("policy.delay_to_future", self.policy.delay_to_future, 0.0, 100.0, "use 0 to 100"),
            ("policy.crowding", self.policy.crowding, 0.0, 100.0, "use 0 to 100"),
            ("policy.evicted", self.policy.evicted, 0.0, 100.0, "use 0 to 100"),
            ("policy.default_output_tokens", self.policy.default_output_tokens, 1.0, 1e6, "use 1 to 1000000"),
            ("policy.tie_share", self.policy.tie_share, 0.0, 0.5, "use 0 to 0.5"),
        ] {
            if !(low..=high).contains(&value) {
                return fail(field, value.to_string(), fix);
            }
        }
        self.check_slo()?;
        for (field, value) in [
            ("telemetry.path", &self.telemetry.path),
            ("models.path", &self.models.path),
            ("samples.path", &self.samples.path),
        ] {
            if !value.starts_with('/') || !value.bytes().all(|b| b.is_ascii_graphic()) {
                return fail(field, format!("{value:?}"), "start it with a slash and use visible ASCII");
            }
        }
        if let Some(port) = self.telemetry.port
            && (port == 0 || self.telemetry.cluster.is_none())
        {
            return fail(
                "telemetry.port",
                port.to_string(),
                "use 1 to 65535, and name in `telemetry.cluster` a cluster that knows the pods under that port",
            );
        }
        if !self.samples.token.bytes().all(|b| b.is_ascii_graphic()) {
            return fail(
                "samples.token",
                "not fit for a header".to_owned(),
                "use visible ASCII without spaces",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_configuration_names_a_cluster_and_its_pods() {
        let config =
            Config::from_json(br#"{"cluster":"pods","endpoints":{"addresses":["127.0.0.1:8000"]}}"#).unwrap();
        assert_eq!(config.pick.count, 3);
        assert!(config.model.is_none());
    }

    #[test]
    fn a_misspelt_field_is_refused_by_name() {
        let error = Config::from_json(br#"{"cluster":"pods","policy":{"tie_shares":0.1}}"#).unwrap_err();
        assert!(error.to_string().contains("tie_shares"), "{error}");
    }

    #[test]
    fn a_value_out_of_range_names_field_and_fix() {
        let text = br#"{"cluster":"pods","endpoints":{"addresses":["127.0.0.1:8000"]},"pick":{"count":0}}"#;
        let error = Config::from_json(text).unwrap_err().to_string();
        assert!(error.contains("pick.count") && error.contains("1 to 8"), "{error}");
    }

    #[test]
    fn pages_on_another_port_need_a_cluster_that_knows_it() {
        let with = |telemetry: &str| {
            Config::from_json(
                format!(
                    r#"{{"cluster":"pods","endpoints":{{"admin_cluster":"a"}},"telemetry":{{{telemetry}}}}}"#
                )
                .as_bytes(),
            )
        };
        assert_eq!(with(r#""port":8002,"cluster":"metrics""#).unwrap().telemetry.port, Some(8002));
        for bad in [r#""port":8002"#, r#""port":0,"cluster":"metrics""#] {
            let error = with(bad).unwrap_err().to_string();
            assert!(error.contains("telemetry.port") && error.contains("telemetry.cluster"), "{error}");
        }
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let config =
            Config::from_json(br#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"}}"#).unwrap();
        let text = serde_json::to_vec(&config).unwrap();
        assert_eq!(Config::from_json(&text).unwrap(), config);
    }
}
