//! The discovery port with TLS and mTLS: the whole service with certificates made here, asked by gRPC clients of both
//! forms of the protocol. Who is let in gets the configuration and acknowledges it; who is not gets nothing.

use std::path::PathBuf;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient;
use foretoken_trainer::publish::{TYPE_URL, Template};
use foretoken_trainer::serve::{Ready, ServeError, ServeOptions, serve};
use foretoken_trainer::tls::TlsOptions;
use foretoken_trainer::xgb;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

const PATIENCE: Duration = Duration::from_secs(20);

/// A CA and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key, PEM. The year is the last of its validity.
    fn sign(&self, until: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 12, 31);
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn identity(&self, until: i32) -> Identity {
        let (certificate, key) = self.sign(until);
        Identity::from_pem(certificate, key)
    }

    fn certificate(&self) -> Certificate {
        Certificate::from_pem(self.0.pem())
    }
}

/// A year that has not ended, and one that has.
const VALID: i32 = 2090;
const EXPIRED: i32 = 2020;

struct Service {
    ready: Ready,
    end: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), ServeError>>,
    _dir: tempfile::TempDir,
}

impl Service {
    async fn start(xgboost: xgb::Xgboost, authority: &Authority, client_ca: Option<&Authority>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, pem: &str| -> PathBuf {
            let path = dir.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path
        };
        let (certificate, key) = authority.sign(VALID);
        let tls = TlsOptions {
            cert: file("trainer.pem", &certificate),
            key: file("trainer.key", &key),
            client_ca: client_ca.map(|ca| file("clients.pem", &ca.0.pem())),
        };
        let filter = br#"{"cluster":"pods","endpoints":{"addresses":["127.0.0.1:8000"]}}"#;
        let template =
            Template::new("foretoken".to_owned(), "vm".to_owned(), "/f.wasm".into(), filter).unwrap();
        let options = ServeOptions {
            publish_interval: Duration::ZERO,
            tls: Some(tls),
            ..ServeOptions::new(template, dir.path().join("data"))
        };
        let (told, ready) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let serving = serve(options, xgboost, |ready| told.send(ready).unwrap(), async {
            let _ = ended.await;
        });
        let task = tokio::spawn(serving);
        Self { ready: ready.await.unwrap(), end, task, _dir: dir }
    }

    /// A client that trusts this authority and shows this identity.
    async fn client(
        &self,
        trusted: &Authority,
        identity: Option<Identity>,
    ) -> Result<ExtensionConfigDiscoveryServiceClient<Channel>, String> {
        let mut tls = ClientTlsConfig::new().ca_certificate(trusted.certificate()).domain_name("localhost");
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        let channel = Channel::from_shared(format!("https://{}", self.ready.xds)).unwrap();
        let connected = channel.tls_config(tls).unwrap().connect().await;
        connected.map(ExtensionConfigDiscoveryServiceClient::new).map_err(|error| format!("{error:?}"))
    }

    /// Both forms of the protocol; the versions that each gives. Each stream is acknowledged and asks until the other side
    /// has nothing more to say.
    async fn both(&self, trusted: &Authority, identity: Option<Identity>) -> [Result<String, String>; 2] {
        [
            tokio::time::timeout(PATIENCE, self.world(trusted, identity.clone())).await.expect("an answer"),
            tokio::time::timeout(PATIENCE, self.delta(trusted, identity)).await.expect("an answer"),
        ]
    }

    async fn world(&self, trusted: &Authority, identity: Option<Identity>) -> Result<String, String> {
        let mut client = self.client(trusted, identity).await?;
        let (sender, receiver) = mpsc::channel(4);
        let request = DiscoveryRequest {
            node: Some(Node { id: "world".to_owned(), ..Node::default() }),
            resource_names: vec!["foretoken".to_owned()],
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        sender.send(request.clone()).await.unwrap();
        let text = |status: tonic::Status| format!("{status:?}");
        let mut responses =
            client.stream_extension_configs(ReceiverStream::new(receiver)).await.map_err(text)?.into_inner();
        let first = responses.message().await.map_err(text)?.ok_or("the stream ended")?;
        assert_eq!((first.resources.len(), first.type_url.as_str()), (1, TYPE_URL));
        let acknowledged = DiscoveryRequest {
            version_info: first.version_info.clone(),
            response_nonce: first.nonce.clone(),
            ..request
        };
        sender.send(acknowledged).await.unwrap();
        // The server ends the stream once it has read all that we sent.
        drop(sender);
        while responses.message().await.map_err(text)?.is_some() {}
        Ok(first.version_info)
    }

    async fn delta(&self, trusted: &Authority, identity: Option<Identity>) -> Result<String, String> {
        let mut client = self.client(trusted, identity).await?;
        let (sender, receiver) = mpsc::channel(4);
        let request = DeltaDiscoveryRequest {
            node: Some(Node { id: "delta".to_owned(), ..Node::default() }),
            type_url: TYPE_URL.to_owned(),
            resource_names_subscribe: vec!["foretoken".to_owned()],
            ..DeltaDiscoveryRequest::default()
        };
        sender.send(request).await.unwrap();
        let text = |status: tonic::Status| format!("{status:?}");
        let mut responses =
            client.delta_extension_configs(ReceiverStream::new(receiver)).await.map_err(text)?.into_inner();
        let first = responses.message().await.map_err(text)?.ok_or("the stream ended")?;
        assert_eq!(first.resources[0].name, "foretoken");
        let acknowledged = DeltaDiscoveryRequest {
            type_url: TYPE_URL.to_owned(),
            response_nonce: first.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        sender.send(acknowledged).await.unwrap();
        drop(sender);
        while responses.message().await.map_err(text)?.is_some() {}
        Ok(first.resources[0].version.clone())
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
    }
}

fn all_refused(answers: &[Result<String, String>; 2], who: &str) {
    for (form, answer) in ["state of the world", "delta"].iter().zip(answers) {
        let error = answer.as_ref().expect_err(&format!("{who}, {form}"));
        assert!(
            error.to_ascii_lowercase().contains("cert") || error.contains("transport"),
            "{who}, {form}: {error}"
        );
    }
}

#[tokio::test]
async fn with_mutual_tls_only_who_has_a_certificate_of_the_ca_is_served() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let (trainers, clients, stranger) =
        (Authority::new("trainers"), Authority::new("clients"), Authority::new("stranger"));
    let service = Service::start(xgboost, &trainers, Some(&clients)).await;
    let good = service.both(&trainers, Some(clients.identity(VALID))).await;
    assert_eq!(good, [Ok("0".to_owned()), Ok("0".to_owned())]);
    all_refused(&service.both(&trainers, None).await, "no certificate");
    all_refused(
        &service.both(&trainers, Some(stranger.identity(VALID))).await,
        "a certificate of another CA",
    );
    all_refused(&service.both(&trainers, Some(clients.identity(EXPIRED))).await, "an expired certificate");
    // The other way round: a client that does not know the trainer's CA sends nothing.
    let answers = service.both(&stranger, Some(clients.identity(VALID))).await;
    all_refused(&answers, "a client with another CA");
    assert!(answers[0].as_ref().unwrap_err().contains("UnknownIssuer"), "{answers:?}");
    // All that was refused did no harm to those that are served.
    let good = service.both(&trainers, Some(clients.identity(VALID))).await;
    assert_eq!(good, [Ok("0".to_owned()), Ok("0".to_owned())]);
    service.end().await;
}

#[tokio::test]
async fn with_tls_alone_clients_need_no_certificate_but_plain_text_is_refused() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let (trainers, stranger) = (Authority::new("trainers"), Authority::new("stranger"));
    let service = Service::start(xgboost, &trainers, None).await;
    assert_eq!(service.both(&trainers, None).await, [Ok("0".to_owned()), Ok("0".to_owned())]);
    all_refused(&service.both(&stranger, None).await, "a client with another CA");
    let plain = Channel::from_shared(format!("http://{}", service.ready.xds)).unwrap().connect().await;
    let refused = match plain {
        Err(_) => true,
        Ok(channel) => {
            let (sender, receiver) = mpsc::channel(4);
            sender.send(DiscoveryRequest::default()).await.unwrap();
            let mut client = ExtensionConfigDiscoveryServiceClient::new(channel);
            tokio::time::timeout(PATIENCE, client.stream_extension_configs(ReceiverStream::new(receiver)))
                .await
                .expect("an answer")
                .is_err()
        }
    };
    assert!(refused);
    service.end().await;
}
