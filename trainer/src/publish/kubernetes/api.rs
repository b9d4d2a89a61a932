//! The API server: one request, and what its answer means.
//!
//! What it is not: it waits for nothing and tries nothing twice; that is [`super`].

use std::path::Path;
use std::time::Duration;

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind, Status};
use kube::{Client, Config};
use serde_json::Value;
use thiserror::Error;
use tokio_rustls::rustls::crypto;

use super::{FIELD_MANAGER, Kind, Name, TooLarge};

/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Most fields in dispute that are named.
const MAX_CAUSES: usize = 3;

/// Why an object was not applied.
#[derive(Debug, Error)]
pub enum Failure {
    /// No configuration of a cluster that can be used.
    #[error(
        "no Kubernetes cluster: {0}; run in a pod with a service account, set KUBECONFIG or give --kubeconfig"
    )]
    Cluster(String),
    /// Others own fields that are to be applied.
    #[error(
        "a conflict: {0}; leave spec.pluginConfig out of what that manager applies, or give --kubernetes-force"
    )]
    Conflict(String),
    /// The server has too much to do.
    #[error("the API server throttles (429): {message}")]
    Throttled {
        /// What it said.
        message: String,
        /// When to come again, if it said so.
        after: Option<Duration>,
    },
    /// The server failed.
    #[error("the API server failed ({code}): {message}")]
    Server {
        /// Status.
        code: u16,
        /// What it said.
        message: String,
        /// When to come again, if it said so.
        after: Option<Duration>,
    },
    /// No answer.
    #[error("no answer of the API server: {0}")]
    Connection(String),
    /// No right to do it.
    #[error(
        "the API server refuses us ({code}): {message}; envoy/kubernetes/rbac.yaml has the rights that are needed"
    )]
    Forbidden {
        /// Status.
        code: u16,
        /// What it said.
        message: String,
    },
    /// The object is not as the server's schema wants it.
    #[error(
        "the API server does not take the object ({code}): {message}; is it Istio's kind of that version?"
    )]
    Invalid {
        /// Status.
        code: u16,
        /// What it said.
        message: String,
    },
    /// There is no such object, or no such kind.
    #[error(
        "there is no such object: {0}; create it first (envoy/kubernetes/wasmplugin.yaml), and install Istio before"
    )]
    Missing(String),
    /// Too large for the server.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// Too large, by the server's own word.
    #[error(
        "the object is too large for the API server ({0}): fit fewer or shallower trees, or use --envoy-filter"
    )]
    TooLargeThere(String),
}

impl Failure {
    /// The label value in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cluster(_) | Self::Connection(_) => "connection",
            Self::Conflict(_) => "conflict",
            Self::Throttled { .. } => "throttled",
            Self::Server { .. } => "server_error",
            Self::Forbidden { .. } => "forbidden",
            Self::Invalid { .. } => "invalid",
            Self::Missing(_) => "missing",
            Self::TooLarge(_) | Self::TooLargeThere(_) => "too_large",
        }
    }

    /// When the server wants to be asked again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after, .. } | Self::Server { after, .. } => *after,
            _ => None,
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => of_status(*status),
            error => {
                // The outermost error says only that there is one.
                let mut text = error.to_string();
                let mut inner = std::error::Error::source(&error);
                while let Some(cause) = inner {
                    text = format!("{text}: {cause}");
                    inner = cause.source();
                }
                Self::Connection(text)
            }
        }
    }
}

fn of_status(status: Status) -> Failure {
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    let (code, message) = (status.code, status.message);
    // etcd's refusal comes as an error of the server's.
    let too_large = ["request is too large", "entity too large", "limit exceeded"]
        .iter()
        .any(|words| message.to_ascii_lowercase().contains(words));
    match code {
        413 => Failure::TooLargeThere(message),
        400..=599 if too_large => Failure::TooLargeThere(message),
        409 => {
            let causes = status.details.map(|details| details.causes).unwrap_or_default();
            let named: Vec<String> = causes
                .iter()
                .take(MAX_CAUSES)
                .map(|cause| format!("{} {}", cause.field, cause.message))
                .collect();
            Failure::Conflict(if named.is_empty() { message } else { named.join(", ") })
        }
        429 => Failure::Throttled { message, after },
        401 | 403 => Failure::Forbidden { code, message },
        404 => Failure::Missing(message),
        500.. => Failure::Server { code, message, after },
        code => Failure::Invalid { code, message },
    }
}

/// A cluster's API server.
#[derive(Clone)]
pub struct Server {
    client: Client,
    force: bool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Server {
    /// Reads the configuration; nothing is asked yet.
    ///
    /// # Errors
    /// [`Failure::Cluster`].
    pub async fn connect(kubeconfig: Option<&Path>, force: bool) -> Result<Self, Failure> {
        let fail = |error: &dyn std::fmt::Display| Failure::Cluster(error.to_string());
        // The client takes the process's provider; an error says that there is one.
        let _ = crypto::ring::default_provider().install_default();
        let mut config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| fail(&error))?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| fail(&error))?
            }
            None => Config::infer().await.map_err(|error| fail(&error))?,
        };
        // Waits are counted and told of here, so the client must not wait by itself.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| fail(&error))?;
        Ok(Self { client, force })
    }

    /// Applies an object; its own generation when the server tells it. Unless `create`, it must be there: a plugin of
    /// ours alone would have no module.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn apply(
        &self,
        kind: Kind,
        name: &Name,
        object: &Value,
        create: bool,
    ) -> Result<Option<i64>, Failure> {
        let (group, version) = kind.api_version().split_once('/').unwrap_or_default();
        let gvk = GroupVersionKind::gvk(group, version, kind.name());
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let mut parameters = PatchParams::apply(FIELD_MANAGER);
        parameters.force = self.force;
        let request = async {
            if !create {
                api.get_metadata(&name.name).await?;
            }
            api.patch(&name.name, &parameters, &Patch::Apply(object)).await
        };
        match tokio::time::timeout(TIMEOUT, request).await {
            Ok(answer) => Ok(answer?.metadata.generation),
            Err(_) => Err(Failure::Connection(format!("none within {} s", TIMEOUT.as_secs()))),
        }
    }
}
