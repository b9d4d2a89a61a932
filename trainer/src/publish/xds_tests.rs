//! A client of each form against the server over a real connection.

use super::*;
use crate::publish::Publications;
use crate::publish::tests::{filter_config, template};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient;
use envoy_types::pb::google::rpc;
use std::time::Duration;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;

struct Served {
    client: ExtensionConfigDiscoveryServiceClient<Channel>,
    publications: Publications,
    stop: watch::Sender<bool>,
    nodes: Arc<Nodes>,
    server: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

async fn serve() -> Served {
    let (publications, receiver) = watch::channel(Arc::new(template().publication(0, None)));
    let (stop, stopped) = watch::channel(false);
    let nodes = Arc::new(Nodes::default());
    let service = Ecds::new(receiver, stopped.clone(), nodes.clone(), Arc::new(Metrics::new().unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut ending = stopped;
    let server = tonic::transport::Server::builder()
        .add_service(ExtensionConfigDiscoveryServiceServer::new(service))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move {
            let _ = ending.wait_for(|stop| *stop).await;
        });
    let server = tokio::spawn(server);
    let client = ExtensionConfigDiscoveryServiceClient::connect(format!("http://{address}")).await.unwrap();
    Served { client, publications, stop, nodes, server }
}

fn request(node: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(Node { id: node.to_owned(), ..Node::default() }),
        resource_names: vec!["foretoken".to_owned()],
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    }
}

fn reply(response: &DiscoveryResponse, error: Option<&str>) -> DiscoveryRequest {
    DiscoveryRequest {
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        error_detail: error.map(|message| rpc::Status {
            code: 13,
            message: message.to_owned(),
            ..rpc::Status::default()
        }),
        ..request("")
    }
}

/// A state-of-the-world stream.
struct World {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl World {
    async fn open(served: &mut Served, node: &str) -> Self {
        let (requests, receiver) = mpsc::channel(8);
        requests.send(request(node)).await.unwrap();
        let responses =
            served.client.stream_extension_configs(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { requests, responses }
    }

    async fn next(&mut self) -> DiscoveryResponse {
        tokio::time::timeout(Duration::from_secs(20), self.responses.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    }

    async fn send(&self, request: DiscoveryRequest) {
        self.requests.send(request).await.unwrap();
    }
}

fn publish(served: &Served, generation: u64) {
    served.publications.send_replace(Arc::new(template().publication(generation, Some(b"model"))));
}

/// The status of a node once it is as wished.
async fn status(served: &Served, node: &str, wished: impl Fn(&crate::publish::nodes::NodeStatus) -> bool) {
    let found = async {
        loop {
            if served.nodes.list().iter().any(|status| status.node == node && wished(status)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), found).await;
    assert!(waited.is_ok(), "{:?}", served.nodes.list());
}

#[tokio::test]
async fn an_envoy_gets_the_configuration_at_once_and_every_model_after_and_its_answers_are_kept() {
    let mut served = serve().await;
    let mut envoy = World::open(&mut served, "envoy-1").await;
    let first = envoy.next().await;
    assert_eq!((first.version_info.as_str(), first.type_url.as_str()), ("0", TYPE_URL));
    assert_eq!(filter_config(&first.resources[0]).model, None);
    envoy.send(reply(&first, None)).await;
    status(&served, "envoy-1", |status| status.acked_generation == Some(0)).await;

    publish(&served, 1);
    let second = envoy.next().await;
    assert_eq!(second.version_info, "1");
    assert_eq!(filter_config(&second.resources[0]).model.unwrap().generation, 1);
    envoy.send(reply(&second, None)).await;
    status(&served, "envoy-1", |status| status.acked_generation == Some(1)).await;

    publish(&served, 2);
    let third = envoy.next().await;
    let refusal = DiscoveryRequest {
        // A refusal names the version that goes on serving.
        version_info: "1".to_owned(),
        ..reply(&third, Some("Unable to create Wasm plugin foretoken"))
    };
    envoy.send(refusal).await;
    status(&served, "envoy-1", |status| {
        status.nacks == 1
            && status.acked_generation == Some(1)
            && status.last_error.as_deref() == Some("Unable to create Wasm plugin foretoken")
    })
    .await;

    // A refusal is not answered with the same again: the next message is the next model.
    publish(&served, 3);
    assert_eq!(envoy.next().await.version_info, "3");
}

#[tokio::test]
async fn a_late_joiner_gets_the_newest_model_and_envoys_do_not_mix() {
    let mut served = serve().await;
    let mut early = World::open(&mut served, "early").await;
    assert_eq!(early.next().await.version_info, "0");
    publish(&served, 5);
    let pushed = early.next().await;
    early.send(reply(&pushed, None)).await;
    let mut late = World::open(&mut served, "late").await;
    let current = late.next().await;
    assert_eq!(current.version_info, "5");
    late.send(reply(&current, Some("no"))).await;
    status(&served, "early", |status| status.acked_generation == Some(5) && status.nacks == 0).await;
    status(&served, "late", |status| status.acked_generation.is_none() && status.nacks == 1).await;
    drop(late);
    status(&served, "late", |status| status.streams == 0).await;
    status(&served, "early", |status| status.streams == 1).await;
}

#[tokio::test]
async fn an_answer_to_an_older_push_is_not_taken_for_the_newer_one() {
    let mut served = serve().await;
    let mut envoy = World::open(&mut served, "slow").await;
    let first = envoy.next().await;
    publish(&served, 1);
    let second = envoy.next().await;
    envoy.send(reply(&first, Some("stale"))).await;
    envoy.send(reply(&second, None)).await;
    status(&served, "slow", |status| status.acked_generation == Some(1) && status.nacks == 0).await;
}

#[tokio::test]
async fn another_resource_name_gets_nothing_and_another_type_an_error() {
    let mut served = serve().await;
    let (requests, receiver) = mpsc::channel(8);
    requests
        .send(DiscoveryRequest { resource_names: vec!["other".to_owned()], ..request("n") })
        .await
        .unwrap();
    let mut responses =
        served.client.stream_extension_configs(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    status(&served, "n", |status| status.streams == 1).await;
    publish(&served, 1);
    // Asked for later on the same stream, it is sent: that is the first message.
    requests.send(request("n")).await.unwrap();
    assert_eq!(responses.message().await.unwrap().unwrap().version_info, "1");
    requests
        .send(DiscoveryRequest { type_url: "type.googleapis.com/x".to_owned(), ..request("n") })
        .await
        .unwrap();
    assert_eq!(responses.message().await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn a_delta_client_is_served_as_well() {
    let mut served = serve().await;
    let (requests, receiver) = mpsc::channel(8);
    let subscribe = DeltaDiscoveryRequest {
        node: Some(Node { id: "delta".to_owned(), ..Node::default() }),
        type_url: TYPE_URL.to_owned(),
        resource_names_subscribe: vec!["foretoken".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(subscribe).await.unwrap();
    let mut responses =
        served.client.delta_extension_configs(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let first = responses.message().await.unwrap().unwrap();
    assert_eq!((first.resources[0].name.as_str(), first.resources[0].version.as_str()), ("foretoken", "0"));
    let ack = DeltaDiscoveryRequest {
        type_url: TYPE_URL.to_owned(),
        response_nonce: first.nonce,
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(ack).await.unwrap();
    status(&served, "delta", |status| status.acked_generation == Some(0)).await;
    publish(&served, 4);
    let second = responses.message().await.unwrap().unwrap();
    let config = filter_config(second.resources[0].resource.as_ref().unwrap());
    assert_eq!(config.model.unwrap().generation, 4);
}

#[tokio::test]
async fn open_streams_do_not_keep_the_server_from_ending() {
    let mut served = serve().await;
    let mut envoy = World::open(&mut served, "n").await;
    envoy.next().await;
    served.stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(20), served.server).await.unwrap().unwrap().unwrap();
    assert!(envoy.responses.message().await.map_or(true, |message| message.is_none()));
}

#[tokio::test]
async fn a_fetch_answers_with_the_current_publication() {
    let mut served = serve().await;
    publish(&served, 9);
    let response = served.client.fetch_extension_configs(request("n")).await.unwrap().into_inner();
    assert_eq!(response.version_info, "9");
}
