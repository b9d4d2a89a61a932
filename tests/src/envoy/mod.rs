//! A real Envoy, started with `envoy/local/envoy.yaml`.
//!
//! The very file that users start from is what is tested: only its addresses, the module's path and the
//! filter's settings are replaced ([`bootstrap`]). Listeners take free ports; the admin interface says
//! which.

pub mod bootstrap;
pub mod ecds;
pub mod endpoints;
pub mod stats;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::process::Process;
use crate::{http, paths, wait};
use bootstrap::Bootstrap;
pub use bootstrap::RouteSpec;
use stats::Stats;

pub use crate::paths::Flavour;

/// Compiling the tract flavour takes Envoy several seconds, more on a busy machine.
const START: Duration = Duration::from_secs(90);

/// How Envoy learns of the pods.
#[derive(Debug, Clone)]
pub enum Discovery {
    /// They stand in its configuration.
    Fixed,
    /// From a watched file ([`endpoints::EndpointsFile`]).
    File(PathBuf),
    /// From the name `pods.test`, by this DNS server, with this port.
    Dns {
        /// Where to ask.
        server: SocketAddr,
        /// The pods' port.
        port: u16,
    },
}

/// How an Envoy is to be started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads.
    pub workers: u32,
    /// The pods to route to.
    pub pods: Vec<SocketAddr>,
    /// The trainer's HTTP and xDS addresses; without them Envoy looks for a trainer where there is none.
    pub trainer: Option<(SocketAddr, SocketAddr)>,
    /// A file of pushes to watch, in the trainer's place.
    pub ecds: Option<PathBuf>,
    /// Which build of the filter to load.
    pub flavour: Flavour,
    /// The filter's settings ([`filter_config`] unless a test changes them).
    pub filter: Value,
    /// How Envoy learns of the pods.
    pub discovery: Discovery,
    /// A connection for each request: for engines that close it after an answer without announcing so, as
    /// llama.cpp does after streams. On a pooled connection the next request would meet the close.
    pub one_request_per_connection: bool,
    /// Routes before the one for everything.
    pub routes: Vec<RouteSpec>,
    /// Whether Envoy can hold a request's headers and let its body come.
    pub holds_headers: bool,
}

impl Options {
    /// Two workers, the default flavour, the settings of `envoy/local/foretoken.json`, no trainer.
    ///
    /// # Errors
    /// When the settings cannot be read.
    pub fn new(pods: &[SocketAddr]) -> Result<Self> {
        Ok(Self {
            workers: 2,
            pods: pods.to_vec(),
            trainer: None,
            ecds: None,
            flavour: Flavour::Default,
            filter: filter_config()?,
            discovery: Discovery::Fixed,
            one_request_per_connection: false,
            routes: Vec::new(),
            holds_headers: true,
        })
    }
}

/// The settings in `envoy/local/foretoken.json`.
///
/// # Errors
/// When the file cannot be read.
pub fn filter_config() -> Result<Value> {
    let path = paths::root().join("envoy/local/foretoken.json");
    let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// A running Envoy; dropping it ends it.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: SocketAddr,
    llm: SocketAddr,
    baseline: SocketAddr,
    workers: u32,
}

impl Envoy {
    /// Starts Envoy and waits until it serves. Its configuration and log are left in `dir`.
    ///
    /// # Errors
    /// When something is not installed, or Envoy refuses the configuration; quotes its log.
    pub async fn start(name: &str, options: &Options, dir: &Path) -> Result<Self> {
        let admin = free_address()?;
        let mut bootstrap = Bootstrap::local()?;
        bootstrap.set_node_id(name)?;
        bootstrap.set_admin(admin)?;
        bootstrap.set_listener("llm", any_port())?;
        bootstrap.set_listener("baseline", any_port())?;
        for cluster in ["pods", "pods_least_request"] {
            bootstrap.set_cluster(cluster, &options.pods)?;
            if options.one_request_per_connection {
                bootstrap.set_one_request_per_connection(cluster)?;
            }
        }
        match &options.discovery {
            Discovery::Fixed => {}
            Discovery::File(path) => bootstrap.set_endpoint_discovery("pods", path)?,
            Discovery::Dns { server, port } => bootstrap.set_dns("pods", "pods.test", *port, *server)?,
        }
        bootstrap.set_cluster("admin", &[admin])?;
        let (samples, xds) = options.trainer.unwrap_or((nobody(), nobody()));
        bootstrap.set_cluster("trainer", &[samples])?;
        bootstrap.set_cluster("trainer_xds", &[xds])?;
        bootstrap.set_module(&paths::module(options.flavour)?)?;
        bootstrap.set_filter_config(&options.filter)?;
        bootstrap.add_routes(&options.routes)?;
        if !options.holds_headers {
            bootstrap.remove_headers_stop_iteration()?;
        }
        if let Some(file) = &options.ecds {
            bootstrap.set_ecds_file(file)?;
        }
        // Histograms reach the admin interface with a flush; tests should not wait the default 5 s for it.
        bootstrap.set_stats_flush("1s")?;
        let config = dir.join(format!("{name}.json"));
        std::fs::write(&config, bootstrap.to_json()?)?;

        let mut command = Command::new(paths::envoy()?);
        command.arg("--config-path").arg(&config);
        command.args(["--concurrency", &options.workers.to_string()]);
        // Several Envoys on one machine: each its own shared memory, none of it for hot restarts.
        command.args(["--use-dynamic-base-id", "--disable-hot-restart", "--log-level", "info"]);
        let mut process = Process::start(name, command, dir)?;

        let listeners = wait::until(&format!("{name} to be ready"), START, async || {
            // An Envoy that has ended will never be ready: the outer error, at once.
            if let Err(error) = process.check() {
                return Ok(Some(Err(error)));
            }
            if http::get(admin, "/ready").await?.status != 200 {
                return Ok(None);
            }
            http::get_json(admin, "/listeners?format=json").await.map(|listeners| Some(Ok(listeners)))
        })
        .await??;
        let address = |listener: &str| listener_address(&listeners, listener);
        Ok(Self {
            admin,
            llm: address("llm")?,
            baseline: address("baseline")?,
            workers: options.workers,
            process,
        })
    }

    /// The listener that foretoken routes.
    #[must_use]
    pub fn llm(&self) -> SocketAddr {
        self.llm
    }

    /// The listener that Envoy's least-request policy routes.
    #[must_use]
    pub fn baseline(&self) -> SocketAddr {
        self.baseline
    }

    /// The admin interface.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Worker threads it was started with.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The process, for its log or to kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// All counters, gauges and histograms of the filter and of extension discovery.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn stats(&self) -> Result<Stats> {
        let page = http::get_json(
            self.admin,
            "/stats?format=json&filter=wasmcustom%7Cextension_config_discovery%7Cupstream_rq%7Cwasm%5C.",
        )
        .await?;
        Stats::from_json(&page)
    }

    /// Waits until every worker runs this model generation or a newer one.
    ///
    /// # Errors
    /// When they do not within `within`; says which generation each runs.
    pub async fn wait_for_generation(&self, generation: u64, within: Duration) -> Result<()> {
        wait::until(&format!("every worker to run model generation {generation}"), within, async || {
            let running = self.stats().await?.by_label("foretoken_model_generation", "worker");
            // One value for each worker's VM and one for the main thread's; zero is one that has gone.
            let newest = running.values().filter(|seen| **seen >= generation).count();
            let older = running.values().filter(|seen| **seen != 0 && **seen < generation).count();
            if newest <= self.workers as usize || older > 0 {
                bail!("generations by worker: {running:?}");
            }
            Ok(Some(()))
        })
        .await
    }

    /// The model generation that all workers run, when they run the same one.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn generation_of_all_workers(&self) -> Result<Option<u64>> {
        let running = self.stats().await?.by_label("foretoken_model_generation", "worker");
        // Zero is a VM that has gone or has no model.
        let generations: Vec<u64> = running.into_values().filter(|generation| *generation != 0).collect();
        let first = generations.first().copied();
        let same = generations.len() > self.workers as usize
            && generations.iter().all(|other| Some(*other) == first);
        Ok(first.filter(|_| same))
    }

    /// Envoy's version, as its binary says it.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn version(&self) -> Result<String> {
        let info = http::get_json(self.admin, "/server_info").await?;
        // "<commit>/<version>/Clean/RELEASE/<TLS library>".
        let text = info["version"].as_str().unwrap_or_default();
        Ok(text.split('/').nth(1).unwrap_or(text).to_owned())
    }

    /// Waits until the filter has read this many metrics pages of pods.
    ///
    /// # Errors
    /// When it has not within `within`.
    pub async fn wait_for_scrapes(&self, count: u64, within: Duration) -> Result<()> {
        wait::until(&format!("{count} scrapes"), within, async || {
            let stats = self.stats().await?;
            let read = stats.value("foretoken_scrapes_total");
            if read < count {
                bail!("{read} read, {} failed", stats.value("foretoken_scrape_failures_total"));
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until Envoy has refused this many pushes since it started.
    ///
    /// # Errors
    /// When it has not within `within`.
    pub async fn wait_for_refusals(&self, count: u64, within: Duration) -> Result<()> {
        const REFUSED: &str = "extension_config_discovery.http_filter.foretoken.update_rejected";
        wait::until(&format!("{count} refused pushes"), within, async || {
            let refused = self.stats().await?.value(REFUSED);
            if refused < count {
                bail!("{refused} refused");
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until the filter knows this many pods.
    ///
    /// # Errors
    /// When it does not within `within`.
    pub async fn wait_for_pods(&self, count: usize, within: Duration) -> Result<()> {
        wait::until(&format!("the filter to know {count} pods"), within, async || {
            let known = self.stats().await?.value("foretoken_pods");
            if known != count as u64 {
                bail!("it knows {known}");
            }
            Ok(Some(()))
        })
        .await
    }

    /// Connections that each worker has accepted on the foretoken listener.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub async fn connections_by_worker(&self) -> Result<Vec<u64>> {
        const COUNTERS: &str = "/stats?format=json&filter=listener.llm.worker_%5Cd%2B.downstream_cx_total";
        let page = http::get_json(self.admin, COUNTERS).await?;
        let entries = page["stats"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(entries.iter().filter_map(|entry| entry["value"].as_u64()).collect())
    }

    /// Waits until Envoy's health check says this of a pod.
    ///
    /// # Errors
    /// When it does not within `within`.
    pub async fn wait_for_pod_health(&self, pod: SocketAddr, healthy: bool, within: Duration) -> Result<()> {
        wait::until(&format!("{pod} to be healthy: {healthy}"), within, async || {
            let page = http::get_json(self.admin, "/clusters?format=json&filter=%5Epods%24").await?;
            let hosts = page["cluster_statuses"][0]["host_statuses"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let host = hosts
                .iter()
                .find(|host| host["address"]["socket_address"]["port_value"] == pod.port())
                .ok_or_else(|| anyhow!("Envoy does not know {pod}: {page}"))?;
            let failed = host["health_status"]["failed_active_health_check"].as_bool().unwrap_or(false);
            Ok((failed != healthy).then_some(()))
        })
        .await
    }
}

/// Lets the kernel choose.
fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A loopback address where nothing listens: port 1 needs a privileged service that no machine runs today.
fn nobody() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// Envoy's admin port has to be known beforehand, because the filter asks it through a cluster.
fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind(any_port())?.local_addr()?)
}

fn listener_address(listeners: &Value, name: &str) -> Result<SocketAddr> {
    let statuses =
        listeners["listener_statuses"].as_array().ok_or_else(|| anyhow!("no listeners in {listeners}"))?;
    let address = statuses
        .iter()
        .find(|status| status["name"] == name)
        .map(|status| &status["local_address"]["socket_address"])
        .ok_or_else(|| anyhow!("Envoy has no listener {name}: {listeners}"))?;
    let ip = address["address"].as_str().unwrap_or_default();
    let port = address["port_value"].as_u64().unwrap_or_default();
    format!("{ip}:{port}").parse().with_context(|| format!("address of listener {name}: {address}"))
}
