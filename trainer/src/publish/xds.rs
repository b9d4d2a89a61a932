//! The extension configuration discovery service (ECDS) over gRPC, for any number of Envoys.
//!
//! Both forms of the protocol, state-of-the-world and delta, because which one an Envoy speaks is its
//! configuration's choice. They differ in their messages only: each is turned into an [`Event`], and one
//! session decides when to answer. On a new stream the current publication is always sent, also to an Envoy
//! that says it has this version: Envoy takes identical content without reloading anything, and the user's own
//! settings may have changed under the same generation.

use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{ControlPlane, Node};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryService;
pub use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::ExtensionConfigDiscoveryServiceServer;
use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::nodes::Nodes;
use super::{Publication, TYPE_URL};
use crate::metrics::Metrics;

/// Answers that may wait for a slow Envoy; only the newest publication is ever sent next.
const QUEUE: usize = 2;

/// The service.
#[derive(Debug, Clone)]
pub struct Ecds {
    publications: watch::Receiver<Arc<Publication>>,
    /// Turns true when the trainer ends: open streams would else keep the server from ending.
    stop: watch::Receiver<bool>,
    nodes: Arc<Nodes>,
    metrics: Arc<Metrics>,
}

impl Ecds {
    /// A service of the current and all later publications.
    #[must_use]
    pub fn new(
        publications: watch::Receiver<Arc<Publication>>,
        stop: watch::Receiver<bool>,
        nodes: Arc<Nodes>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { publications, stop, nodes, metrics }
    }

    fn stream<F: Form>(&self, requests: Streaming<F::Request>) -> ResponseStream<F::Response> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let session = Session { service: self.clone(), node: None, subscribed: false, sent: None, nonce: 0 };
        tokio::spawn(session.run::<F>(requests, sender));
        Box::pin(ReceiverStream::new(receiver))
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What a request means to a session.
#[derive(Debug, PartialEq, Eq)]
struct Event {
    /// Id of the node, when the request carries it (the first of a stream does).
    node: Option<String>,
    type_url: String,
    /// Whether our resource is asked for from now on; `None` leaves it as it is.
    subscribe: Option<bool>,
    /// Nonce of the answer that this request responds to; empty for none.
    nonce: String,
    /// Why that answer was refused.
    error: Option<String>,
}

/// One form of the protocol.
trait Form: 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;
    fn event(request: Self::Request, name: &str) -> Event;
    fn response(publication: &Publication, nonce: String) -> Self::Response;
}

fn node_id(node: Option<Node>) -> Option<String> {
    node.map(|node| node.id.chars().take(256).collect())
}

fn control_plane() -> Option<ControlPlane> {
    Some(ControlPlane { identifier: "foretoken-trainer".to_owned() })
}

/// State of the world: every request lists all names wanted.
enum World {}

impl Form for World {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn event(request: DiscoveryRequest, name: &str) -> Event {
        // No names at all is the wildcard.
        let subscribed =
            request.resource_names.is_empty() || request.resource_names.iter().any(|wanted| wanted == name);
        Event {
            node: node_id(request.node),
            type_url: request.type_url,
            subscribe: Some(subscribed),
            nonce: request.response_nonce,
            error: request.error_detail.map(|status| status.message),
        }
    }

    fn response(publication: &Publication, nonce: String) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: publication.version(),
            resources: vec![publication.resource.clone()],
            type_url: TYPE_URL.to_owned(),
            nonce,
            control_plane: control_plane(),
            ..DiscoveryResponse::default()
        }
    }
}

/// Delta: requests list changes of the names wanted.
enum Delta {}

impl Form for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn event(request: DeltaDiscoveryRequest, name: &str) -> Event {
        let names = |list: &[String]| list.iter().any(|wanted| wanted == name || wanted == "*");
        let subscribe = if names(&request.resource_names_subscribe) {
            Some(true)
        } else if names(&request.resource_names_unsubscribe) {
            Some(false)
        } else {
            None
        };
        Event {
            node: node_id(request.node),
            type_url: request.type_url,
            subscribe,
            nonce: request.response_nonce,
            error: request.error_detail.map(|status| status.message),
        }
    }

    fn response(publication: &Publication, nonce: String) -> DeltaDiscoveryResponse {
        DeltaDiscoveryResponse {
            system_version_info: publication.version(),
            resources: vec![Resource {
                name: publication.extension_name.clone(),
                version: publication.version(),
                resource: Some(publication.resource.clone()),
                ..Resource::default()
            }],
            type_url: TYPE_URL.to_owned(),
            nonce,
            control_plane: control_plane(),
            ..DeltaDiscoveryResponse::default()
        }
    }
}

/// Waits for the trainer's end.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: the end as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// One stream of one Envoy.
struct Session {
    service: Ecds,
    node: Option<String>,
    subscribed: bool,
    /// The answer that was sent last and not yet responded to: its nonce and generation.
    sent: Option<(String, u64)>,
    nonce: u64,
}

impl Session {
    async fn run<F: Form>(
        mut self,
        mut requests: Streaming<F::Request>,
        sender: mpsc::Sender<Result<F::Response, Status>>,
    ) {
        let mut publications = self.service.publications.clone();
        let mut stop = self.service.stop.clone();
        loop {
            let answer = tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(request)) => {
                        let name = publications.borrow().extension_name.clone();
                        match self.take(F::event(request, &name)) {
                            Ok(answer) => answer,
                            Err(status) => {
                                // The receiver may be gone already; the stream ends either way.
                                let _ = sender.send(Err(status)).await;
                                break;
                            }
                        }
                    }
                    Some(Err(_)) | None => break,
                },
                changed = publications.changed() => match changed {
                    Ok(()) => self.subscribed,
                    Err(_) => break,
                },
                () = stopped(&mut stop) => break,
            };
            if answer {
                let publication = publications.borrow_and_update().clone();
                self.nonce += 1;
                let nonce = self.nonce.to_string();
                self.sent = Some((nonce.clone(), publication.generation));
                if sender.send(Ok(F::response(&publication, nonce))).await.is_err() {
                    break;
                }
            }
        }
        if let Some(node) = &self.node {
            self.service.nodes.disconnected(node);
        }
    }

    /// Takes a request; true when the current publication is to be sent.
    fn take(&mut self, event: Event) -> Result<bool, Status> {
        if !event.type_url.is_empty() && event.type_url != TYPE_URL {
            return Err(Status::invalid_argument(format!(
                "only {TYPE_URL} is served here, not {}",
                event.type_url
            )));
        }
        if self.node.is_none() {
            let node = event.node.filter(|id| !id.is_empty()).unwrap_or_else(|| "(no node id)".to_owned());
            self.service.nodes.connected(&node);
            self.node = Some(node);
        }
        if let Some((_, generation)) =
            self.sent.take_if(|(nonce, _)| !event.nonce.is_empty() && *nonce == event.nonce)
        {
            self.answered(generation, event.error.as_deref());
        }
        let was = self.subscribed;
        self.subscribed = event.subscribe.unwrap_or(was);
        // Delta: a name that is subscribed again was dropped by the client, so it is sent again.
        let again = event.nonce.is_empty() && event.subscribe == Some(true);
        Ok(self.subscribed && (!was || again))
    }

    fn answered(&self, generation: u64, error: Option<&str>) {
        let Some(node) = &self.node else { return };
        match error {
            None => {
                self.service.nodes.acked(node, generation);
                self.service.metrics.acks.inc();
                tracing::info!(%node, generation, "accepted");
            }
            Some(error) => {
                self.service.nodes.nacked(node, error);
                self.service.metrics.nacks.inc();
                tracing::warn!(%node, generation, %error, "refused");
            }
        }
    }
}

#[tonic::async_trait]
impl ExtensionConfigDiscoveryService for Ecds {
    type StreamExtensionConfigsStream = ResponseStream<DiscoveryResponse>;

    async fn stream_extension_configs(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamExtensionConfigsStream>, Status> {
        Ok(Response::new(self.stream::<World>(request.into_inner())))
    }

    type DeltaExtensionConfigsStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn delta_extension_configs(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaExtensionConfigsStream>, Status> {
        Ok(Response::new(self.stream::<Delta>(request.into_inner())))
    }

    async fn fetch_extension_configs(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        let publication = self.publications.borrow().clone();
        Ok(Response::new(World::response(&publication, String::new())))
    }
}

#[cfg(test)]
#[path = "xds_tests.rs"]
mod tests;
