//! `serve`: the service.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use foretoken_trainer::gate::Limits;
use foretoken_trainer::publish::Template;
use foretoken_trainer::serve::{
    FULL_REFIT_S, MIN_SAMPLES, PUBLISH_INTERVAL_S, REFIT_INTERVAL_S, Ready, ServeOptions, serve,
};
use foretoken_trainer::store::Bounds;
use foretoken_trainer::tls::TlsOptions;
use tokio::signal::unix::{SignalKind, signal};

use super::{FitArgs, Library};

/// Take samples, fit models from them, publish the good ones to Envoy.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer serve --filter-config envoy/local/foretoken.json --module .foretoken/wasm/foretoken.wasm --data-dir data\n  foretoken-trainer serve --filter-config f.json --module f.wasm --data-dir data --ecds-file /etc/envoy/ecds.json --hold\n\nWhen everything can be reached, one JSON line with the addresses is printed. A model is published when it is as\ngood on the newest samples as the one that serves and as the formula, and when XGBoost, the kernel and tract give\nthe same bits for it. POST /v1/hold and /v1/release stop and resume publishing."
)]
pub(super) struct Serve {
    /// Where samples, status and metrics are served; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    /// Where Envoys ask for the configuration over gRPC; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9101")]
    xds_listen: SocketAddr,
    /// Also write every publication to this file, for Envoys that watch it.
    #[arg(long, value_name = "PATH")]
    ecds_file: Option<PathBuf>,
    /// The filter's configuration without a model, which is published with each.
    #[arg(long, value_name = "FILE")]
    filter_config: PathBuf,
    /// The filter's wasm module, as Envoy sees it.
    #[arg(long, value_name = "PATH")]
    module: PathBuf,
    /// Name under which Envoy asks for the configuration.
    #[arg(long, default_value = "foretoken")]
    extension_name: String,
    /// Id of the wasm VM; filters that share it share what they know.
    #[arg(long, default_value = "foretoken")]
    vm_id: String,
    /// Where samples and models are kept.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Clean samples that the first fit needs.
    #[arg(long, default_value_t = MIN_SAMPLES, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    min_samples: u32,
    /// Shortest time between two fits, seconds. A fit never takes more than a fifth of the time, whatever this is.
    #[arg(long, default_value_t = REFIT_INTERVAL_S, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    refit_interval_s: u32,
    /// Longest time between two fits from nothing, seconds; those between go on from the live model. Drift brings
    /// one at once.
    #[arg(long, default_value_t = FULL_REFIT_S, value_parser = clap::value_parser!(u32).range(1..=604_800))]
    full_refit_s: u32,
    /// Shortest time between two publications, seconds.
    #[arg(long, default_value_t = PUBLISH_INTERVAL_S, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    publish_interval_s: u32,
    /// Largest model that is published, KiB as it travels (deflated, in base64).
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    max_model_kib: u32,
    /// Longest evaluation of one row that is published, microseconds on this machine.
    #[arg(long, default_value_t = 10.0)]
    max_row_us: f64,
    /// Token that samples and commands must carry; the filter configuration's `samples.token` unless given.
    #[arg(long, env = "FORETOKEN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Certificate chain for both ports, PEM; plain text without.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA that clients must have a certificate of, PEM (mTLS).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    #[cfg(feature = "kubernetes")]
    #[command(flatten)]
    kubernetes: super::kubernetes::KubernetesArgs,
    /// Start held: take samples and fit, publish nothing until released.
    #[arg(long)]
    hold: bool,
    /// Most bytes of samples on disk, MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    store_mib: u32,
    /// Days after which samples on disk are removed and no longer learned from.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u32).range(1..=3650))]
    store_days: u32,
    /// Shortest time between two syncs of samples to disk, ms; a batch is answered after the sync that covers it.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    sync_interval_ms: u32,
    /// Samples taken a second, over all senders; beyond it the answer is 429.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    max_samples_per_s: u32,
    /// Clean samples that a fit learns from: half of them the newest, half kept even over load, cache hits, length
    /// and speed of pods.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    window_samples: u32,
    #[command(flatten)]
    fit: FitArgs,
    #[command(flatten)]
    library: Library,
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        let xgboost = self.library.load()?;
        let options = self.options()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            // Registered before the ready line: who has read it may end us.
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let end = async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            serve(options, xgboost, print_ready, end).await.map_err(anyhow::Error::from)
        })
    }

    fn options(self) -> Result<ServeOptions> {
        let filter = fs::read(&self.filter_config).with_context(|| {
            format!("cannot read the filter configuration {}", self.filter_config.display())
        })?;
        // Envoy has another working directory.
        let module = std::path::absolute(&self.module)?;
        if !module.exists() {
            tracing::warn!(module = %module.display(), "not on this machine; Envoy must have it there");
        }
        let template = Template::new(self.extension_name, self.vm_id, module, &filter)
            .with_context(|| self.filter_config.display().to_string())?;
        let token = self.token.unwrap_or_else(|| template.token().to_owned());
        if token != template.token() {
            bail!(
                "--token differs from `samples.token` of the filter configuration: every sample would be refused; make them the same or leave --token out"
            );
        }
        if self.window_samples < self.min_samples {
            bail!("--window-samples is below --min-samples: no fit could ever start; raise it");
        }
        let packed_bytes = self.max_model_kib as usize * 1024;
        #[cfg(feature = "kubernetes")]
        let mut packed_bytes = packed_bytes;
        #[cfg(feature = "kubernetes")]
        let kubernetes = self.kubernetes.options(&template, self.tls_cert.is_some(), &mut packed_bytes)?;
        let tls = self.tls_cert.zip(self.tls_key);
        let tls = tls.map(|(cert, key)| TlsOptions { cert, key, client_ca: self.tls_client_ca });
        Ok(ServeOptions {
            listen: self.listen,
            xds_listen: self.xds_listen,
            ecds_file: self.ecds_file,
            template,
            data_dir: self.data_dir,
            min_samples: self.min_samples as usize,
            refit_interval: Duration::from_secs(self.refit_interval_s.into()),
            token,
            hold: self.hold,
            bounds: Bounds {
                max_bytes: u64::from(self.store_mib) << 20,
                max_age_ms: u64::from(self.store_days) * 24 * 3600 * 1000,
                window: self.window_samples as usize,
                sync_interval: Duration::from_millis(self.sync_interval_ms.into()),
            },
            max_samples_per_s: self.max_samples_per_s,
            fit: self.fit.options(),
            full_refit_interval: Duration::from_secs(self.full_refit_s.into()),
            publish_interval: Duration::from_secs(self.publish_interval_s.into()),
            model_limits: Limits { packed_bytes, row_us: self.max_row_us },
            tls,
            #[cfg(feature = "kubernetes")]
            kubernetes,
        })
    }
}

fn print_ready(ready: Ready) {
    println!("{}", serde_json::json!(ready));
}
