//! Publishing through the Kubernetes API, for Envoys that Istio configures.
//!
//! Two ways, which may be mixed. A `WasmPlugin` carries the model itself in its `pluginConfig`: istiod brings it to every
//! proxy, and the object's size is bounded by etcd. An `EnvoyFilter` carries no model: it makes proxies ask the trainer
//! (ECDS), which has no such bound and knows who runs what. Both are written by server-side apply under a field manager
//! of our own, so that what others own of an object stays theirs and a dispute is an error that names the other.
//!
//! One task an object: what one object's API server says holds up no other. A failure is tried again after a while that
//! doubles, with the newest publication; a publication that came and went while waiting is never sent. What it is not: a
//! controller. It watches nothing; an object that somebody changed back is applied again at the next publication, an
//! `EnvoyFilter` every [`RESYNC`].

pub mod api;
pub mod objects;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use self::api::{Failure, Server};
use self::objects::{Gateway, envoy_filter, wasm_plugin};
use super::targets::{Key, Targets};
use super::{Publication, Template};
use crate::metrics::Metrics;

/// Who owns the fields that are applied.
pub const FIELD_MANAGER: &str = "foretoken-trainer";

/// How often an `EnvoyFilter`, which no publication changes, is applied again.
pub const RESYNC: Duration = Duration::from_secs(600);

/// First and longest wait after a failure, unless told otherwise.
pub const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Longest wait that the API server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(600);

/// What is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Istio's plugin object, with the model in it.
    WasmPlugin,
    /// Istio's patch of Envoy's configuration, which points at the trainer.
    EnvoyFilter,
}

impl Kind {
    /// Group and version.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::WasmPlugin => "extensions.istio.io/v1alpha1",
            Self::EnvoyFilter => "networking.istio.io/v1alpha3",
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WasmPlugin => "WasmPlugin",
            Self::EnvoyFilter => "EnvoyFilter",
        }
    }

    /// Its name in paths.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::WasmPlugin => "wasmplugins",
            Self::EnvoyFilter => "envoyfilters",
        }
    }
}

/// Where an object is, `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Namespace.
    pub namespace: String,
    /// Name in it.
    pub name: String,
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The names become parts of a path.
        let is_name = |text: &str, longest: usize| {
            (1..=longest).contains(&text.len())
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
        };
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace, 63) && is_name(name, 253) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("expected NAMESPACE/NAME, lower-case letters, digits, - and .".to_owned()),
        }
    }
}

/// An object that the API server would refuse for its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the object would have {bytes} bytes, etcd takes {limit}: fit fewer or shallower trees (--max-rounds, --max-depth), or let Envoys ask the trainer (--envoy-filter)"
)]
pub struct TooLarge {
    /// Bytes of its JSON.
    pub bytes: usize,
    /// Most that are sent.
    pub limit: usize,
}

/// What to publish where.
#[derive(Debug, Clone)]
pub struct KubernetesOptions {
    /// Kubeconfig file; without it `KUBECONFIG`, then the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Plugins that carry the model.
    pub wasm_plugins: Vec<Name>,
    /// Filters that point at the trainer.
    pub envoy_filters: Vec<Name>,
    /// Where proxies reach the trainer; needed with filters.
    pub gateway: Option<Gateway>,
    /// Shortest time between two applications of one plugin.
    pub interval: Duration,
    /// Take fields that others own.
    pub force: bool,
    /// First and longest wait after a failure.
    pub waits: (Duration, Duration),
}

/// One object and all that its task needs.
struct Task {
    kind: Kind,
    name: Name,
    server: Server,
    targets: Arc<Targets>,
    metrics: Arc<Metrics>,
    waits: (Duration, Duration),
}

/// Publishes until `stop` turns true: one task an object.
///
/// # Errors
/// [`Failure`] when there is no usable configuration of a cluster.
pub async fn follow(
    options: &KubernetesOptions,
    template: &Template,
    publications: &watch::Receiver<Arc<Publication>>,
    stop: &watch::Receiver<bool>,
    targets: &Arc<Targets>,
    metrics: &Arc<Metrics>,
) -> Result<(), Failure> {
    let server = Server::connect(options.kubeconfig.as_deref(), options.force).await?;
    let task = |kind, name: &Name| Task {
        kind,
        name: name.clone(),
        server: server.clone(),
        targets: targets.clone(),
        metrics: metrics.clone(),
        waits: options.waits,
    };
    for name in &options.wasm_plugins {
        let task = task(Kind::WasmPlugin, name);
        targets.update(&task.key(), |_| {});
        let (publications, interval) = (publications.clone(), options.interval);
        until(stop.clone(), async move { task.follow(publications, interval).await });
    }
    for name in &options.envoy_filters {
        let task = task(Kind::EnvoyFilter, name);
        targets.update(&task.key(), |_| {});
        if let Some(gateway) = &options.gateway {
            let object = envoy_filter(name, gateway, template);
            until(stop.clone(), async move { task.keep(object).await });
        }
    }
    Ok(())
}

/// Runs a task until `stop` turns true.
fn until(mut stop: watch::Receiver<bool>, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move {
        tokio::select! {
            () = task => {}
            // An error means that the sender is gone: the end as well.
            _ = stop.wait_for(|stop| *stop) => {}
        }
    });
}

impl Task {
    fn key(&self) -> Key {
        (self.kind.name(), self.name.namespace.clone(), self.name.name.clone())
    }

    /// Applies every publication, the newest first and only, at most one an interval.
    async fn follow(self, mut publications: watch::Receiver<Arc<Publication>>, interval: Duration) {
        publications.mark_changed();
        while publications.changed().await.is_ok() {
            let begun = Instant::now();
            let mut failures = 0;
            loop {
                let publication = publications.borrow_and_update().clone();
                let object = wasm_plugin(&self.name, &publication).map_err(Failure::TooLarge);
                let applied = match object {
                    Ok(object) => self.server.apply(self.kind, &self.name, &object, false).await,
                    Err(failure) => Err(failure),
                };
                match applied {
                    Ok(object_generation) => {
                        self.succeeded(publication.generation, object_generation);
                        break;
                    }
                    // Only another publication can help.
                    Err(failure @ (Failure::TooLarge(_) | Failure::TooLargeThere(_))) => {
                        self.failed(&failure);
                        break;
                    }
                    Err(failure) => {
                        failures += 1;
                        self.wait(&failure, failures).await;
                    }
                }
            }
            tokio::time::sleep_until(begun + interval).await;
        }
    }

    /// Applies one object again and again.
    async fn keep(self, object: Value) {
        let mut failures = 0;
        loop {
            match self.server.apply(self.kind, &self.name, &object, true).await {
                Ok(object_generation) => {
                    failures = 0;
                    // It holds no model.
                    self.succeeded(0, object_generation);
                    tokio::time::sleep(RESYNC).await;
                }
                Err(failure) => {
                    failures += 1;
                    self.wait(&failure, failures).await;
                }
            }
        }
    }

    fn succeeded(&self, generation: u64, object_generation: Option<i64>) {
        self.metrics.kubernetes_applies.with_label_values(&["applied"]).inc();
        tracing::info!(object = %self.name, kind = self.kind.name(), generation, "applied");
        self.targets.update(&self.key(), |status| {
            status.applied += 1;
            status.applied_generation = Some(generation);
            status.object_generation = object_generation;
            status.last_error = None;
        });
    }

    fn failed(&self, failure: &Failure) {
        self.metrics.kubernetes_applies.with_label_values(&[failure.name()]).inc();
        tracing::warn!(object = %self.name, kind = self.kind.name(), error = %failure, "cannot apply");
        self.targets.failed(&self.key(), &failure.to_string());
    }

    /// Notes a failure and waits: twice as long after each, but as long as the server asks, and never two objects in step.
    async fn wait(&self, failure: &Failure, failures: u32) {
        self.failed(failure);
        let (first, longest) = self.waits;
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
        let spread = doubled.mul_f64(rand::rng().random_range(0.75..1.25));
        let asked = failure.retry_after().unwrap_or_default().min(LONGEST_ASKED);
        tokio::time::sleep(spread.max(asked)).await;
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
