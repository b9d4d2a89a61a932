//! The trainer as a service: samples in, models out.
//!
//! Three tasks around one shared [`State`]: the HTTP server ([`api`]), the discovery server
//! ([`crate::publish::xds`]) and the loop that fits ([`learn`]). None of them is in the path of a request: when
//! this process is gone, Envoy goes on with the model it has.

pub mod api;
pub mod learn;
pub mod page;
pub mod status;
pub mod stepped;

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::TcpListenerStream;

use self::status::{FitStatus, Rollbacks};
use crate::clock::Clock;
use crate::fit::FitOptions;
use crate::gate;
use crate::ingest::limits::Limits;
use crate::metrics::Metrics;
#[cfg(feature = "kubernetes")]
use crate::publish::kubernetes::{self, KubernetesOptions};
use crate::publish::nodes::Nodes;
use crate::publish::targets::Targets;
use crate::publish::xds::{Ecds, ExtensionConfigDiscoveryServiceServer};
use crate::publish::{Publications, Template, file};
use crate::registry::{Content, Origin, Registry, RegistryError, Version, check_folder};
use crate::store::sync::Progress;
use crate::store::{Bounds, Store, StoreError};
use crate::tls::{TlsError, TlsListener, TlsOptions, server_config};
use crate::watch::Drift;
use crate::xgb::Xgboost;

/// HTTP/2 pings find an Envoy that went without a word.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Clean samples that the first fit needs, unless told otherwise.
pub const MIN_SAMPLES: u32 = 200;

/// Shortest time between two fits, seconds, unless told otherwise.
pub const REFIT_INTERVAL_S: u32 = 30;

/// Longest time between two fits from nothing, seconds, unless told otherwise.
pub const FULL_REFIT_S: u32 = 600;

/// Shortest time between two publications, seconds, unless told otherwise.
pub const PUBLISH_INTERVAL_S: u32 = 5;

/// What a service needs.
#[derive(Debug)]
pub struct ServeOptions {
    /// Where samples, status and metrics are served.
    pub listen: SocketAddr,
    /// Where Envoys ask for the configuration.
    pub xds_listen: SocketAddr,
    /// File that is written with every publication as well.
    pub ecds_file: Option<PathBuf>,
    /// What is published.
    pub template: Template,
    /// Where samples and models are kept.
    pub data_dir: PathBuf,
    /// Clean samples that the first fit needs.
    pub min_samples: usize,
    /// Shortest time from the start of a fit to that of the next.
    pub refit_interval: Duration,
    /// Token that samples and commands must carry; empty for none.
    pub token: String,
    /// Publish nothing until released.
    pub hold: bool,
    /// Bounds of the sample store.
    pub bounds: Bounds,
    /// Samples taken a second, over all senders.
    pub max_samples_per_s: u32,
    /// How to fit.
    pub fit: FitOptions,
    /// Longest time from one fit from nothing to the next.
    pub full_refit_interval: Duration,
    /// Shortest time from one publication to the next.
    pub publish_interval: Duration,
    /// What a model may cost.
    pub model_limits: gate::Limits,
    /// Certificates for both ports; plain text without.
    pub tls: Option<TlsOptions>,
    /// Objects in Kubernetes to publish through.
    #[cfg(feature = "kubernetes")]
    pub kubernetes: Option<KubernetesOptions>,
}

impl ServeOptions {
    /// What `foretoken-trainer serve` does unless told otherwise, on any free ports of the loopback interface and
    /// without a token.
    #[must_use]
    pub fn new(template: Template, data_dir: PathBuf) -> Self {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen: any_port,
            xds_listen: any_port,
            ecds_file: None,
            template,
            data_dir,
            min_samples: MIN_SAMPLES as usize,
            refit_interval: Duration::from_secs(REFIT_INTERVAL_S.into()),
            token: String::new(),
            hold: false,
            bounds: Bounds::default(),
            max_samples_per_s: u32::MAX,
            fit: FitOptions::default(),
            full_refit_interval: Duration::from_secs(FULL_REFIT_S.into()),
            publish_interval: Duration::from_secs(PUBLISH_INTERVAL_S.into()),
            model_limits: gate::Limits::default(),
            tls: None,
            #[cfg(feature = "kubernetes")]
            kubernetes: None,
        }
    }
}

/// Why a service could not start or go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The sample store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The published models.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A port.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
    /// The Kubernetes API.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Kubernetes(#[from] kubernetes::api::Failure),
    /// The HTTP server.
    #[error("HTTP server: {0}")]
    Http(std::io::Error),
    /// The discovery server.
    #[error("discovery server")]
    Xds(#[from] tonic::transport::Error),
    /// The metrics table.
    #[error("metrics")]
    Metrics(#[from] prometheus::Error),
    /// A task ended in a way that it must not.
    #[error("a task ended unexpectedly")]
    Task(#[from] tokio::task::JoinError),
}

/// Where a running service listens.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ready {
    /// Samples, status, metrics.
    pub listen: SocketAddr,
    /// Discovery.
    pub xds: SocketAddr,
}

/// What the tasks share.
#[derive(Debug)]
pub struct State {
    pub(crate) xgboost: Xgboost,
    pub(crate) template: Template,
    pub(crate) token: String,
    pub(crate) min_samples: usize,
    pub(crate) refit_interval: Duration,
    pub(crate) fit_options: FitOptions,
    pub(crate) limits: Limits,
    /// How far the disk is, without the store's lock.
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) clock: Clock,
    pub(crate) full_refit_interval: Duration,
    pub(crate) model_limits: gate::Limits,
    publish_interval: Duration,
    /// Time since the start.
    published_at: Mutex<Option<Duration>>,
    drift: Mutex<Drift>,
    rollbacks: Mutex<Rollbacks>,
    /// Exists while held, so that a restart stays held.
    held_file: PathBuf,
    store: Mutex<Store>,
    registry: Mutex<Registry>,
    fits: Mutex<FitStatus>,
    pending: Mutex<Option<Content>>,
    held: AtomicBool,
    pub(crate) duplicates: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// There are new samples, or the hold has ended.
    pub(crate) news: Notify,
    pub(crate) publications: Publications,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) targets: Arc<Targets>,
    pub(crate) metrics: Arc<Metrics>,
    /// Turns true when the service ends.
    pub(crate) stop: watch::Sender<bool>,
}

/// A panic while a lock was held (none is known of) must not take the rest of the service down.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn open(options: &ServeOptions, xgboost: Xgboost, clock: Clock) -> Result<Self, ServeError> {
        let store = Store::open(&options.data_dir.join("samples"), options.bounds, clock.now_ms())?;
        let registry = Registry::open(&options.data_dir.join("models"))?;
        let metrics = Arc::new(Metrics::new()?);
        let (generation, onnx) = match registry.current() {
            Some((version, onnx)) => (version.generation, Some(onnx)),
            None => (registry.last_generation(), None),
        };
        let publication = options.template.publication(generation, onnx);
        metrics.generation.set(i64::try_from(publication.generation).unwrap_or(i64::MAX));
        metrics.model_bytes.set(onnx.map_or(0, |onnx| i64::try_from(onnx.len()).unwrap_or(i64::MAX)));
        let held_file = options.data_dir.join("held");
        if options.hold {
            remember_held(&held_file, true);
        }
        let held = held_file.exists();
        metrics.held.set(held.into());
        metrics.window.set(i64::try_from(store.window_len()).unwrap_or(i64::MAX));
        tracing::info!(counts = ?store.counts(), generation, "data read");
        Ok(Self {
            xgboost,
            template: options.template.clone(),
            token: options.token.clone(),
            min_samples: options.min_samples,
            refit_interval: options.refit_interval,
            fit_options: options.fit.clone(),
            limits: Limits::new(options.max_samples_per_s),
            progress: store.progress(),
            clock,
            full_refit_interval: options.full_refit_interval,
            model_limits: options.model_limits,
            publish_interval: options.publish_interval,
            published_at: Mutex::default(),
            drift: Mutex::default(),
            rollbacks: Mutex::default(),
            held_file,
            store: Mutex::new(store),
            registry: Mutex::new(registry),
            fits: Mutex::default(),
            pending: Mutex::default(),
            held: AtomicBool::new(held),
            duplicates: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            news: Notify::new(),
            publications: Publications::new(Arc::new(publication)),
            nodes: Arc::new(Nodes::default()),
            targets: Arc::default(),
            metrics,
            stop: watch::Sender::new(false),
        })
    }

    /// Microseconds since the start.
    pub(crate) fn clock_us(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    pub(crate) fn fits(&self) -> MutexGuard<'_, FitStatus> {
        lock(&self.fits)
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Option<Content>> {
        lock(&self.pending)
    }

    /// Whether nothing is published.
    pub(crate) fn held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// What has changed under the live model.
    pub(crate) fn drift(&self) -> MutexGuard<'_, Drift> {
        lock(&self.drift)
    }

    pub(crate) fn drift_mut(&self) -> MutexGuard<'_, Drift> {
        lock(&self.drift)
    }

    pub(crate) fn rollbacks(&self) -> Rollbacks {
        lock(&self.rollbacks).clone()
    }

    /// Notes that the trainer went back by itself, and why.
    pub(crate) fn rolled_back(&self, reasons: Vec<String>) {
        self.metrics.rollbacks.inc();
        let mut rollbacks = lock(&self.rollbacks);
        rollbacks.count += 1;
        rollbacks.last_ms = Some(self.clock.now_ms());
        rollbacks.reasons = reasons;
    }

    /// When the next publication may go out, since the start; `None` for now.
    pub(crate) fn next_publish_at(&self) -> Option<Duration> {
        let at = (*lock(&self.published_at))? + self.publish_interval;
        (at > self.clock.elapsed()).then_some(at)
    }

    pub(crate) fn published_now(&self) {
        *lock(&self.published_at) = Some(self.clock.elapsed());
    }

    /// Holds or releases; a model that was held back is published at the release.
    pub(crate) fn set_held(&self, held: bool) {
        remember_held(&self.held_file, held);
        self.held.store(held, Ordering::SeqCst);
        self.metrics.held.set(held.into());
        tracing::info!(held, "hold");
        self.news.notify_one();
    }

    /// Publishes the content of an old version; by default publishing is then held, or the next fit would
    /// replace what somebody chose.
    ///
    /// # Errors
    /// A sentence for people: there is no such version, or it cannot be written.
    pub(crate) fn publish_again(
        &self,
        generation: Option<u64>,
        origin: Origin,
        hold: bool,
    ) -> Result<Version, String> {
        let content = {
            let registry = self.registry();
            let generation = generation
                .or_else(|| registry.before())
                .ok_or("there is no version to go back to; GET /v1/versions lists what there is")?;
            registry.again(generation, origin).map_err(|error| error.to_string())?
        };
        if hold {
            self.set_held(true);
        }
        *self.pending() = None;
        learn::publish(self, content).map_err(|error| error.to_string())?;
        let version = self.registry().current().map(|(version, _)| version.clone());
        version.ok_or_else(|| "nothing is published".to_owned())
    }

    /// Publishes a model file; by default, fits replace it once they are better.
    ///
    /// # Errors
    /// A sentence for people: why it cannot serve.
    pub(crate) fn push(&self, onnx: Vec<u8>, hold: bool) -> Result<Version, String> {
        let mut content = Content::of_file(onnx, &self.model_limits)?;
        content.card.parent = self.registry().current().map_or(0, |(version, _)| version.generation);
        if hold {
            self.set_held(true);
        }
        *self.pending() = None;
        learn::publish(self, content).map_err(|error| error.to_string())?;
        let version = self.registry().current().map(|(version, _)| version.clone());
        version.ok_or_else(|| "nothing is published".to_owned())
    }

    async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // An error means that the sender is gone: the end as well.
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// Makes a hold outlive a restart.
pub fn remember_held(path: &std::path::Path, held: bool) {
    let result = if held {
        std::fs::write(path, "While this file is here, nothing is published. POST /v1/release removes it.\n")
    } else {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    };
    if let Err(error) = result {
        tracing::error!(%error, path = %path.display(), "the hold will not outlive a restart");
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let fail = |cause| ServeError::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((listener, bound))
}

/// Serves until `end` is done; `ready` is told the addresses once everything can be reached.
///
/// # Errors
/// [`ServeError`] when it cannot start or a server fails.
pub async fn serve(
    options: ServeOptions,
    xgboost: Xgboost,
    ready: impl FnOnce(Ready),
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    if let Some(path) = &options.ecds_file {
        check_folder(path)?;
    }
    // One configuration a protocol: HTTP/2 for the discovery service, HTTP/1.1 for the rest.
    let tls_configs = match &options.tls {
        None => None,
        Some(tls) => Some((server_config(tls, "h2")?, server_config(tls, "http/1.1")?)),
    };
    let (http, http_address) = listen(options.listen).await?;
    let (xds, xds_address) = listen(options.xds_listen).await?;
    let (options, state) = tokio::task::spawn_blocking(move || {
        let state = State::open(&options, xgboost, Clock::system())?;
        Ok::<_, ServeError>((options, Arc::new(state)))
    })
    .await??;

    if let Some(path) = options.ecds_file.clone() {
        let first = state.publications.borrow().clone();
        file::write(&path, &first)?;
        tokio::spawn(file::follow(path, state.publications.subscribe()));
    }
    #[cfg(feature = "kubernetes")]
    if let Some(options) = &options.kubernetes {
        let (publications, stop) = (state.publications.subscribe(), state.stop.subscribe());
        kubernetes::follow(options, &state.template, &publications, &stop, &state.targets, &state.metrics)
            .await?;
    }
    let ecds = Ecds::new(
        state.publications.subscribe(),
        state.stop.subscribe(),
        state.nodes.clone(),
        state.metrics.clone(),
    );
    let ending = state.clone();
    let xds_server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(ExtensionConfigDiscoveryServiceServer::new(ecds));
    let ended = async move { ending.stopped().await };
    let mut xds_server = tokio::spawn(match tls_configs.as_ref().map(|(xds, _)| xds.clone()) {
        None => xds_server.serve_with_incoming_shutdown(TcpListenerStream::new(xds), ended).boxed(),
        Some(config) => {
            let listener = TlsListener::start(xds, config).map_err(ServeError::Http)?;
            xds_server.serve_with_incoming_shutdown(listener.incoming(), ended).boxed()
        }
    });
    let ending = state.clone();
    let ended = async move { ending.stopped().await };
    let router = api::router(state.clone());
    let mut http_server = tokio::spawn(match tls_configs.map(|(_, http)| http) {
        None => axum::serve(http, router).with_graceful_shutdown(ended).into_future().boxed(),
        Some(config) => {
            let listener = TlsListener::start(http, config).map_err(ServeError::Http)?;
            axum::serve(listener, router).with_graceful_shutdown(ended).into_future().boxed()
        }
    });
    let mut learner = tokio::spawn(learn::run(state.clone()));

    ready(Ready { listen: http_address, xds: xds_address });
    let early = tokio::select! {
        () = end => None,
        ended = &mut xds_server => Some(ended?.map_err(ServeError::from)),
        ended = &mut http_server => Some(ended?.map_err(ServeError::Http)),
        ended = &mut learner => Some(ended.map_err(ServeError::from)),
    };
    if let Some(ended) = early {
        return ended;
    }
    tracing::info!("ending");
    state.stop.send_replace(true);
    learner.await?;
    xds_server.await??;
    http_server.await?.map_err(ServeError::Http)
}
