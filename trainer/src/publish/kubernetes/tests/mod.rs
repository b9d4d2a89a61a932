//! Publishing to an API server that behaves like one ([`server`]).

mod server;

use std::collections::BTreeMap;

use foretoken_core::config::Config;
use foretoken_core::model::packed;
use rand::RngCore;
use serde_json::json;

use self::server::{Running, TOKEN, status};
use super::objects::{GENERATION_ANNOTATION, MAX_OBJECT_BYTES, largest_model};
use super::*;
use crate::publish::targets::TargetStatus;
use crate::publish::tests::template;

const URL: &str = "oci://registry/foretoken:1";

/// The tasks under test, what feeds them and what they tell.
struct Publishing {
    publications: watch::Sender<Arc<Publication>>,
    targets: Arc<Targets>,
    metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn options(kubeconfig: PathBuf) -> KubernetesOptions {
    KubernetesOptions {
        kubeconfig: Some(kubeconfig),
        wasm_plugins: vec![name("istio-system/foretoken")],
        envoy_filters: Vec::new(),
        gateway: None,
        interval: Duration::from_millis(1),
        force: false,
        waits: (Duration::from_millis(20), Duration::from_millis(100)),
    }
}

impl Publishing {
    async fn start(options: &KubernetesOptions, model: Option<&[u8]>) -> Self {
        let first = Arc::new(template().publication(u64::from(model.is_some()), model));
        let (publications, stop) = (watch::Sender::new(first), watch::Sender::new(false));
        let (targets, metrics) = (Arc::new(Targets::default()), Arc::new(Metrics::new().unwrap()));
        let (subscribed, stopped) = (publications.subscribe(), stop.subscribe());
        follow(options, &template(), &subscribed, &stopped, &targets, &metrics).await.unwrap();
        Self { publications, targets, metrics, stop }
    }

    fn publish(&self, generation: u64, model: &[u8]) {
        self.publications.send_replace(Arc::new(template().publication(generation, Some(model))));
    }

    /// Waits until what is known of an object is as wanted.
    async fn until(&self, what: &str, wanted: impl Fn(&TargetStatus) -> bool) -> TargetStatus {
        let wait = async {
            loop {
                // The task tells after the server has answered; nothing wakes a reader of the status.
                if let Some(status) = self.targets.list().into_iter().find(|status| wanted(status)) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), wait).await {
            Ok(status) => status,
            Err(_) => panic!("{what}: {:?}", self.targets.list()),
        }
    }

    fn count(&self, result: &str) -> u64 {
        self.metrics.kubernetes_applies.with_label_values(&[result]).get()
    }
}

fn model_of(stored: &Value) -> (u64, Vec<u8>) {
    let config = Config::from_json(stored["spec"]["pluginConfig"].to_string().as_bytes()).unwrap();
    let model = config.model.unwrap();
    (model.generation, packed::unpack(&model.onnx_deflate_base64).unwrap())
}

#[tokio::test]
async fn every_plugin_gets_the_newest_model_and_keeps_what_is_not_ours() {
    let mut server = Running::start().await;
    for namespace in ["istio-system", "other"] {
        server.put("wasmplugins", namespace, "foretoken", json!({"url": URL, "phase": "AUTHN"}), "kubectl");
    }
    let mut options = options(server.kubeconfig(TOKEN));
    options.wasm_plugins.push(name("other/foretoken"));
    let publishing = Publishing::start(&options, None).await;
    let mut first = [server.applied().await, server.applied().await];
    first.sort();
    assert_eq!(first, ["wasmplugins/istio-system/foretoken", "wasmplugins/other/foretoken"]);
    publishing.publish(7, b"bytes of a model");
    server.applied().await;
    server.applied().await;
    for namespace in ["istio-system", "other"] {
        let stored = server.stored("wasmplugins", namespace, "foretoken").unwrap();
        assert_eq!(model_of(&stored.object), (7, b"bytes of a model".to_vec()));
        assert_eq!(
            (&stored.object["spec"]["url"], &stored.object["spec"]["phase"]),
            (&json!(URL), &json!("AUTHN"))
        );
        assert_eq!(stored.object["metadata"]["annotations"][GENERATION_ANNOTATION], "7");
        assert_eq!(stored.owners[".spec.url"], "kubectl");
        assert_eq!(stored.owners[".spec.pluginConfig.cluster"], FIELD_MANAGER);
        let told = publishing
            .until("applied", |status| status.namespace == namespace && status.applied_generation == Some(7))
            .await;
        assert_eq!(
            (told.object_generation, told.applied, told.last_error),
            (Some(stored.generation), 2, None)
        );
    }
    assert_eq!(publishing.count("applied"), 4);
}

#[tokio::test]
async fn a_restart_applies_the_same_which_changes_nothing_and_so_reaches_no_proxy() {
    let mut server = Running::start().await;
    server.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    let options = options(server.kubeconfig(TOKEN));
    let mut versions = Vec::new();
    for _ in 0..2 {
        let publishing = Publishing::start(&options, Some(b"a model")).await;
        server.applied().await;
        versions.push(server.stored("wasmplugins", "istio-system", "foretoken").unwrap().resource_version);
        publishing.stop.send_replace(true);
    }
    assert_eq!(versions[0], versions[1]);
}

#[tokio::test]
async fn a_conflict_names_the_other_manager_and_ends_when_it_lets_go_or_by_force() {
    let mut server = Running::start().await;
    let theirs = json!({"url": URL, "pluginConfig": {"cluster": "theirs"}});
    server.put("wasmplugins", "istio-system", "foretoken", theirs.clone(), "kubectl");
    let mut options = options(server.kubeconfig(TOKEN));
    let publishing = Publishing::start(&options, None).await;
    assert_eq!(server.next().await.1, 409);
    let told = publishing.until("a conflict", |status| status.last_error.is_some()).await;
    let error = told.last_error.unwrap();
    assert!(error.contains("\"kubectl\"") && error.contains(".spec.pluginConfig.cluster"), "{error}");
    assert!(publishing.count("conflict") >= 1);
    server.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    server.applied().await;
    publishing.until("no error any more", |status| status.last_error.is_none()).await;
    publishing.stop.send_replace(true);

    server.put("wasmplugins", "istio-system", "foretoken", theirs, "kubectl");
    options.force = true;
    let forced = Publishing::start(&options, None).await;
    server.applied().await;
    let stored = server.stored("wasmplugins", "istio-system", "foretoken").unwrap();
    assert_eq!(stored.owners[".spec.pluginConfig.cluster"], FIELD_MANAGER);
    assert_eq!(forced.count("conflict"), 0);
}

#[tokio::test]
async fn a_busy_or_failing_server_is_asked_again_and_only_the_newest_is_sent() {
    let mut server = Running::start().await;
    server.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    let wait = json!({"retryAfterSeconds": 1});
    server.fail([
        (500, status(500, "InternalError", "the leader changed", json!({}))),
        (429, status(429, "TooManyRequests", "too many requests", wait)),
    ]);
    let publishing = Publishing::start(&options(server.kubeconfig(TOKEN)), Some(b"one")).await;
    assert_eq!(server.next().await.1, 500);
    assert_eq!(server.next().await.1, 429);
    let throttled = std::time::Instant::now();
    publishing.publish(2, b"two");
    publishing.publish(3, b"three");
    assert_eq!(server.next().await.1, 200);
    assert!(throttled.elapsed() >= Duration::from_millis(900), "the server's own wait is kept");
    let stored = server.stored("wasmplugins", "istio-system", "foretoken").unwrap();
    assert_eq!(model_of(&stored.object), (3, b"three".to_vec()));
    let told = publishing.until("applied", |status| status.applied_generation == Some(3)).await;
    assert_eq!((told.applied, told.failed), (1, 2));
    assert_eq!((publishing.count("server_error"), publishing.count("throttled")), (1, 1));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_found_when_it_comes() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Its certificates must be known before it listens again.
    let first = Running::on(listener);
    let kubeconfig = first.kubeconfig(TOKEN);
    // Nobody listens here: this port was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = std::fs::read_to_string(&kubeconfig).unwrap().replace(&address.to_string(), &free.to_string());
    std::fs::write(&kubeconfig, text).unwrap();
    first.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    let publishing = Publishing::start(&options(kubeconfig), Some(b"one")).await;
    publishing.until("no connection", |status| status.failed >= 2).await;
    assert!(publishing.count("connection") >= 2);
    let error = publishing.targets.list().remove(0).last_error.unwrap();
    assert!(error.contains("no answer of the API server") && error.contains("refused"), "{error}");
    // It comes: what connects there is passed on.
    let there = tokio::net::TcpListener::bind(free).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = there.accept().await {
            tokio::spawn(async move {
                let mut to = tokio::net::TcpStream::connect(address).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    publishing.until("applied", |status| status.applied_generation == Some(1)).await;
}

#[tokio::test]
async fn what_people_must_mend_is_said_by_name() {
    let server = Running::start().await;
    let said = |publishing: Publishing, word: &'static str| async move {
        let told = publishing
            .until(word, |status| status.last_error.as_ref().is_some_and(|error| error.contains(word)))
            .await;
        publishing.stop.send_replace(true);
        told.last_error.unwrap()
    };
    let good = options(server.kubeconfig(TOKEN));
    let publishing = Publishing::start(&good, None).await;
    let error = said(publishing, "not found").await;
    assert!(error.contains("create it first"), "{error}");
    // A right for other names only.
    let mut other = good.clone();
    other.wasm_plugins = vec![name("istio-system/somebody-elses")];
    let error = said(Publishing::start(&other, None).await, "forbidden").await;
    assert!(error.contains("rbac.yaml"), "{error}");
    let error =
        said(Publishing::start(&options(server.kubeconfig("wrong")), None).await, "Unauthorized").await;
    assert!(error.contains("401"), "{error}");
    server.put("wasmplugins", "istio-system", "foretoken", json!({}), "kubectl");
    let error = said(Publishing::start(&good, None).await, "spec.url").await;
    assert!(error.contains("422"), "{error}");
    server.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    server.fail([(413, status(413, "RequestEntityTooLarge", "limit is 3145728", json!({})))]);
    let error = said(Publishing::start(&good, None).await, "3145728").await;
    assert!(error.contains("too large"), "{error}");
}

/// Bytes that do not get smaller by deflating.
fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    rand::rng().fill_bytes(&mut noise);
    noise
}

#[tokio::test]
async fn what_etcd_would_refuse_is_never_sent_and_what_fits_is_taken() {
    let mut server = Running::start().await;
    server.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    let publishing = Publishing::start(&options(server.kubeconfig(TOKEN)), Some(&noise(1_300_000))).await;
    let told = publishing.until("too large", |status| status.failed == 1).await;
    let error = told.last_error.unwrap();
    assert!(error.contains("--max-rounds") && error.contains(&MAX_OBJECT_BYTES.to_string()), "{error}");
    assert_eq!(publishing.count("too_large"), 1);
    // As large as the gate lets through with a plugin: the server takes it.
    let largest = largest_model(&template());
    let model = noise(largest / 4 * 3 - 4096);
    let packed_bytes = packed::pack(&model).len();
    assert!(packed_bytes <= largest && packed_bytes > largest - 8192, "{packed_bytes} of {largest}");
    publishing.publish(2, &model);
    assert_eq!(server.next().await, ("wasmplugins/istio-system/foretoken".to_owned(), 200));
    assert_eq!(
        model_of(&server.stored("wasmplugins", "istio-system", "foretoken").unwrap().object),
        (2, model)
    );
}

#[tokio::test]
async fn a_plugin_changes_once_an_interval_and_then_to_the_newest() {
    let mut server = Running::start().await;
    server.put("wasmplugins", "istio-system", "foretoken", json!({"url": URL}), "kubectl");
    let mut options = options(server.kubeconfig(TOKEN));
    options.interval = Duration::from_millis(1500);
    let publishing = Publishing::start(&options, Some(b"1")).await;
    server.applied().await;
    let first = std::time::Instant::now();
    for generation in 2..=9 {
        publishing.publish(generation, &[u8::try_from(generation).unwrap()]);
    }
    server.applied().await;
    assert!(first.elapsed() > Duration::from_millis(1000), "{:?}", first.elapsed());
    let stored = server.stored("wasmplugins", "istio-system", "foretoken").unwrap();
    assert_eq!(model_of(&stored.object), (9, vec![9]));
    assert_eq!(publishing.until("applied", |status| status.applied == 2).await.failed, 0);
}

fn gateway() -> Gateway {
    let selector = BTreeMap::from([("istio".to_owned(), "ingressgateway".to_owned())]);
    Gateway { host: "foretoken-trainer.istio-system.svc.cluster.local".to_owned(), port: 9101, selector }
}

#[tokio::test]
async fn an_envoy_filter_is_made_and_is_the_committed_one() {
    let mut server = Running::start().await;
    let mut options = options(server.kubeconfig(TOKEN));
    options.wasm_plugins.clear();
    options.envoy_filters = vec![name("istio-system/foretoken")];
    options.gateway = Some(gateway());
    let publishing = Publishing::start(&options, None).await;
    assert_eq!(server.next().await, ("envoyfilters/istio-system/foretoken".to_owned(), 200));
    let told = publishing.until("applied", |status| status.applied == 1).await;
    assert_eq!((told.kind, told.object_generation), ("EnvoyFilter", Some(1)));
    let stored = server.stored("envoyfilters", "istio-system", "foretoken").unwrap();

    let filter = br#"{"cluster":"outbound|8000||pods.default.svc.cluster.local","endpoints":{"dns":"pods-headless.default.svc.cluster.local:8000"}}"#;
    let template = Template::new("foretoken".into(), "foretoken".into(), "m.wasm".into(), filter).unwrap();
    let made = envoy_filter(&options.envoy_filters[0], &gateway(), &template);
    let committed: Value =
        serde_saphyr::from_str(include_str!("../../../../../envoy/kubernetes/envoyfilter.yaml")).unwrap();
    assert_eq!(made, committed, "write this as envoy/kubernetes/envoyfilter.yaml:\n{made:#}");
    // Ours are in this order just before the router, and only the pods' cluster depends on the configuration.
    let patches = stored.object["spec"]["configPatches"].as_array().unwrap();
    let names: Vec<_> = patches.iter().map(|patch| patch["patch"]["value"]["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            Some("foretoken_trainer_xds"),
            Some("foretoken"),
            Some("envoy.filters.http.header_to_metadata"),
            None
        ]
    );
}

#[test]
fn a_stateful_session_needs_no_change_of_the_pods_cluster() {
    let filter = br#"{"cluster":"p","endpoints":{"admin_cluster":"a"},"pick":{"form":"stateful_session","count":1,"header":"x-pick"}}"#;
    let template = Template::new("foretoken".into(), "v".into(), "m.wasm".into(), filter).unwrap();
    let made = envoy_filter(&name("a/b"), &gateway(), &template);
    let patches = made["spec"]["configPatches"].as_array().unwrap();
    assert_eq!(patches.len(), 3);
    let session = &patches[2]["patch"]["value"]["typed_config"]["session_state"]["typed_config"];
    assert_eq!(session["name"], "x-pick");
}

#[test]
fn a_name_is_a_namespace_and_a_name_and_no_path() {
    assert_eq!(name("istio-system/foretoken").to_string(), "istio-system/foretoken");
    for wrong in ["foretoken", "a/b/c", "A/b", "a/", "/b", "a/../b", "a/b%2f"] {
        assert!(wrong.parse::<Name>().is_err(), "{wrong}");
    }
}
