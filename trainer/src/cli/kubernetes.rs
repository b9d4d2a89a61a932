//! Options of `serve` for publishing through the Kubernetes API.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use foretoken_trainer::publish::Template;
use foretoken_trainer::publish::kubernetes::objects::{Gateway, largest_model};
use foretoken_trainer::publish::kubernetes::{KubernetesOptions, Name, WAITS};

/// Least room for a model that makes sense: a few small trees.
const LEAST_MODEL_BYTES: usize = 16 << 10;

/// Where in Kubernetes to publish.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct KubernetesArgs {
    /// Istio WasmPlugin that gets every publication as its pluginConfig; may be given again. It must exist.
    #[arg(long = "wasm-plugin", value_name = "NAMESPACE/NAME")]
    wasm_plugins: Vec<Name>,
    /// Istio EnvoyFilter that is made and kept: it makes gateways ask this trainer for the filter's configuration; may
    /// be given again.
    #[arg(long = "envoy-filter", value_name = "NAMESPACE/NAME", requires = "xds_address")]
    envoy_filters: Vec<Name>,
    /// Where gateways reach --xds-listen, for --envoy-filter.
    #[arg(long, value_name = "HOST:PORT")]
    xds_address: Option<String>,
    /// Label of the gateways' pods that --envoy-filter is for; may be given again. All of the namespace without.
    #[arg(long = "gateway-label", value_name = "KEY=VALUE", requires = "envoy_filters")]
    gateway_labels: Vec<String>,
    /// Kubeconfig file; KUBECONFIG, then the pod's service account unless given.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Shortest time between two changes of a WasmPlugin, seconds: each goes to every proxy of the mesh.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    kubernetes_interval_s: u32,
    /// Take over fields that another field manager owns, instead of reporting the conflict.
    #[arg(long)]
    kubernetes_force: bool,
}

impl KubernetesArgs {
    /// What to publish where; lowers the largest model to what fits into a plugin.
    pub(super) fn options(
        &self,
        template: &Template,
        tls: bool,
        packed_bytes: &mut usize,
    ) -> Result<Option<KubernetesOptions>> {
        if self.wasm_plugins.is_empty() && self.envoy_filters.is_empty() {
            return Ok(None);
        }
        if !self.wasm_plugins.is_empty() {
            let largest = largest_model(template);
            if largest < LEAST_MODEL_BYTES {
                bail!(
                    "the filter configuration leaves no room for a model in a WasmPlugin: etcd takes 1.5 MiB"
                );
            }
            if *packed_bytes > largest {
                tracing::info!(bytes = largest, "models are bounded by what fits into a WasmPlugin");
                *packed_bytes = largest;
            }
        }
        if tls && !self.envoy_filters.is_empty() {
            bail!(
                "--envoy-filter writes a filter that asks in plain text, but --tls-cert makes this trainer speak TLS: apply an EnvoyFilter of your own (envoy/kubernetes/envoyfilter.yaml with a transport_socket) and leave --envoy-filter out"
            );
        }
        Ok(Some(KubernetesOptions {
            kubeconfig: self.kubeconfig.clone(),
            wasm_plugins: self.wasm_plugins.clone(),
            envoy_filters: self.envoy_filters.clone(),
            gateway: self.gateway()?,
            interval: Duration::from_secs(self.kubernetes_interval_s.into()),
            force: self.kubernetes_force,
            waits: WAITS,
        }))
    }

    fn gateway(&self) -> Result<Option<Gateway>> {
        let Some(address) = &self.xds_address else { return Ok(None) };
        let (host, port) = address
            .rsplit_once(':')
            .with_context(|| format!("--xds-address {address}: expected HOST:PORT"))?;
        let port = port.parse().with_context(|| format!("--xds-address {address}: {port:?} is no port"))?;
        let label = |label: &String| {
            let (key, value) = label
                .split_once('=')
                .with_context(|| format!("--gateway-label {label}: expected KEY=VALUE"))?;
            Ok((key.to_owned(), value.to_owned()))
        };
        let selector = self.gateway_labels.iter().map(label).collect::<Result<_>>()?;
        Ok(Some(Gateway { host: host.to_owned(), port, selector }))
    }
}
