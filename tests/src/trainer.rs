//! The trainer as a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::envoy::Flavour;
use crate::process::Process;
use crate::{http, paths, wait};

/// Loading libxgboost and opening the store.
const START: Duration = Duration::from_secs(30);

/// How a trainer is to be started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Samples that the first fit needs.
    pub min_samples: u32,
    /// Seconds between two fits.
    pub refit_interval_s: u32,
    /// Shortest time between two publications, seconds; its default where there is none.
    pub publish_interval_s: Option<u32>,
    /// Samples that a fit learns from at most; its default where there is none.
    pub window_samples: Option<u32>,
    /// Whether it starts held: it ingests and fits, and publishes nothing.
    pub hold: bool,
    /// Which build of the filter it tells Envoy to load.
    pub flavour: Flavour,
    /// The filter's settings that it publishes.
    pub filter: Value,
    /// Addresses to listen on (HTTP, xDS), to come back where an earlier one was; free ports otherwise.
    pub listen: Option<(SocketAddr, SocketAddr)>,
}

impl Options {
    /// Fits early and often, publishes, with the settings of `envoy/local/foretoken.json`.
    ///
    /// # Errors
    /// When the settings cannot be read.
    pub fn new() -> Result<Self> {
        Ok(Self {
            min_samples: 200,
            refit_interval_s: 2,
            publish_interval_s: None,
            window_samples: None,
            hold: false,
            flavour: Flavour::Default,
            filter: crate::envoy::filter_config()?,
            listen: None,
        })
    }
}

#[derive(Debug, Deserialize)]
struct Ready {
    listen: SocketAddr,
    xds: SocketAddr,
}

/// A running trainer; dropping it ends it.
#[derive(Debug)]
pub struct Trainer {
    process: Process,
    ready: Ready,
}

impl Trainer {
    /// Starts a trainer and waits for its ready line. Its data and log are left in `dir`.
    ///
    /// # Errors
    /// When something is not installed, or it does not start; quotes its log.
    pub async fn start(name: &str, options: &Options, dir: &Path) -> Result<Self> {
        let filter: PathBuf = dir.join(format!("{name}-filter.json"));
        std::fs::write(&filter, options.filter.to_string())?;
        let (listen, xds) = match options.listen {
            Some((listen, xds)) => (listen.to_string(), xds.to_string()),
            None => ("127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()),
        };
        let mut command = Command::new(paths::trainer()?);
        command.args(["serve", "--listen", &listen, "--xds-listen", &xds]);
        command.arg("--filter-config").arg(&filter);
        command.arg("--module").arg(paths::module(options.flavour)?);
        command.args(["--extension-name", "foretoken", "--vm-id", "foretoken"]);
        command.arg("--data-dir").arg(dir.join(format!("{name}-data")));
        command.args(["--min-samples", &options.min_samples.to_string()]);
        command.args(["--refit-interval-s", &options.refit_interval_s.to_string()]);
        for (option, value) in [
            ("--publish-interval-s", options.publish_interval_s),
            ("--window-samples", options.window_samples),
        ] {
            if let Some(value) = value {
                command.args([option, &value.to_string()]);
            }
        }
        command.arg("--xgboost-lib").arg(paths::xgboost()?);
        if options.hold {
            command.arg("--hold");
        }
        let mut process = Process::start(name, command, dir)?;
        let line = process.line(START).await?;
        let ready = serde_json::from_str(&line).with_context(|| format!("{name} said: {line}"))?;
        Ok(Self { process, ready })
    }

    /// Its HTTP and xDS addresses.
    #[must_use]
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.ready.listen, self.ready.xds)
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn status(&self) -> Result<Value> {
        http::get_json(self.ready.listen, "/v1/status").await
    }

    /// One figure of the status, zero when absent.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn figure(&self, name: &str) -> Result<u64> {
        Ok(self.status().await?[name].as_u64().unwrap_or(0))
    }

    /// From now on it publishes what it fits.
    ///
    /// # Errors
    /// When it refuses or does not answer.
    pub async fn release(&self) -> Result<()> {
        self.command("/v1/release").await
    }

    /// From now on it publishes nothing.
    ///
    /// # Errors
    /// When it refuses or does not answer.
    pub async fn hold(&self) -> Result<()> {
        self.command("/v1/hold").await
    }

    /// Waits until it has published at least this generation, and returns the one it has.
    ///
    /// # Errors
    /// When it has not within `within`.
    pub async fn wait_for_generation(&self, generation: u64, within: Duration) -> Result<u64> {
        wait::until(&format!("the trainer to publish generation {generation}"), within, async || {
            let status = self.status().await?;
            match status["generation"].as_u64() {
                Some(published) if published >= generation => Ok(Some(published)),
                _ => bail!("status: {status}"),
            }
        })
        .await
    }

    /// Waits until a figure of the status has reached a value.
    ///
    /// # Errors
    /// When it has not within `within`.
    pub async fn wait_for(&self, name: &str, at_least: u64, within: Duration) -> Result<u64> {
        wait::until(&format!("the trainer's {name} to reach {at_least}"), within, async || {
            let status = self.status().await?;
            match status[name].as_u64() {
                Some(value) if value >= at_least => Ok(Some(value)),
                _ => bail!("status: {status}"),
            }
        })
        .await
    }

    /// The process, for its log or to kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    async fn command(&self, path: &str) -> Result<()> {
        let answer = http::send(::http::Method::POST, self.ready.listen, path, &[], "").await?;
        if !answer.status.is_success() {
            bail!("the trainer refused {path}: {}: {}", answer.status, answer.text());
        }
        Ok(())
    }
}
