//! The whole service over its real ports: samples in over HTTP, models out over gRPC, across a restart.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{Node, TypedExtensionConfig};
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient;
use envoy_types::pb::google::protobuf::StringValue;
use flate2::{Compression, write::GzEncoder};
use foretoken_core::config::Config;
use foretoken_core::features::Row;
use foretoken_core::model::Model;
use foretoken_core::sample::Sample;
use foretoken_trainer::fit::FitOptions;
use foretoken_trainer::gate::Limits;
use foretoken_trainer::publish::{TYPE_URL, Template};
use foretoken_trainer::serve::{Ready, ServeError, ServeOptions, serve};
use foretoken_trainer::{synthetic, xgb};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use serde_json::Value;
use std::io::Write;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

const TOKEN: &str = "secret";

/// Longest wait for anything. A fit takes about a second in a debug build, but its thread is nice, and the next
/// one waits four times as long as the last one took: on a busy machine that adds up.
const PATIENCE: Duration = Duration::from_secs(600);

struct Service {
    ready: Ready,
    end: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), ServeError>>,
}

impl Service {
    async fn start(dir: &Path, xgboost: xgb::Xgboost, hold: bool) -> Self {
        let filter = format!(
            r#"{{"cluster":"pods","endpoints":{{"addresses":["127.0.0.1:8000"]}},"samples":{{"token":"{TOKEN}"}}}}"#
        );
        let template = Template::new(
            "foretoken".to_owned(),
            "vm".to_owned(),
            "/foretoken.wasm".into(),
            filter.as_bytes(),
        );
        let options = ServeOptions {
            ecds_file: Some(dir.join("ecds.json")),
            min_samples: 300,
            refit_interval: Duration::from_millis(200),
            token: TOKEN.to_owned(),
            hold,
            max_samples_per_s: 50_000,
            fit: FitOptions { max_rounds: 30, ..FitOptions::default() },
            publish_interval: Duration::ZERO,
            // A debug build takes many times as long as a release build.
            model_limits: Limits { row_us: 10_000.0, ..Limits::default() },
            ..ServeOptions::new(template.unwrap(), dir.join("data"))
        };
        let (told, ready) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let serving = serve(options, xgboost, |ready| told.send(ready).unwrap(), async {
            let _ = ended.await;
        });
        let task = tokio::spawn(serving);
        Self { ready: ready.await.unwrap(), end, task }
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        token: &str,
        gzip: bool,
        body: Vec<u8>,
    ) -> (StatusCode, String) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.ready.listen))
            .header("authorization", format!("Bearer {token}"));
        if gzip {
            request = request.header("content-encoding", "gzip");
        }
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn post(&self, samples: &[Sample]) -> Value {
        let (status, body) = self.send("POST", "/v1/samples", TOKEN, false, lines(samples)).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn command(&self, path: &str) {
        let (status, body) = self.send("POST", path, TOKEN, false, Vec::new()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }

    async fn status(&self) -> Value {
        let (_, body) = self.send("GET", "/v1/status", "", false, Vec::new()).await;
        serde_json::from_str(&body).unwrap()
    }

    async fn wait(&self, what: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let status = self.status().await;
                if wished(&status) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(status) => status,
            Err(_) => panic!("{what}: {:#}", self.status().await),
        }
    }
}

/// The same as if they had just been: the store forgets what is old.
fn recent(mut samples: Vec<Sample>) -> Vec<Sample> {
    let newest_ms = samples.last().unwrap().at_ms;
    let by_ms = foretoken_trainer::export::now_ms() - newest_ms;
    for sample in &mut samples {
        sample.at_ms += by_ms;
    }
    samples
}

fn lines(samples: &[Sample]) -> Vec<u8> {
    let mut body = Vec::new();
    for sample in samples {
        serde_json::to_writer(&mut body, sample).unwrap();
        body.push(b'\n');
    }
    body
}

/// What the page is told first.
async fn first_event(service: &Service) -> Value {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let uri = format!("http://{}/v1/events", service.ready.listen).parse().unwrap();
    let mut body = client.get(uri).await.unwrap().into_body();
    let mut text = Vec::new();
    while !text.ends_with(b"\n\n") {
        text.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    serde_json::from_slice(text.strip_prefix(b"data: ").unwrap()).unwrap()
}

/// An Envoy as the trainer sees it.
struct Envoy {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: tonic::Streaming<DiscoveryResponse>,
}

impl Envoy {
    async fn connect(xds: SocketAddr, id: &str) -> Self {
        let mut client =
            ExtensionConfigDiscoveryServiceClient::connect(format!("http://{xds}")).await.unwrap();
        let (requests, receiver) = mpsc::channel(8);
        let first = DiscoveryRequest {
            node: Some(Node { id: id.to_owned(), ..Node::default() }),
            resource_names: vec!["foretoken".to_owned()],
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        requests.send(first).await.unwrap();
        let responses =
            client.stream_extension_configs(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { requests, responses }
    }

    /// Takes the next publication, acknowledges it, and returns its version and the filter's configuration.
    async fn next(&mut self) -> (String, Config) {
        let response =
            tokio::time::timeout(PATIENCE, self.responses.message()).await.unwrap().unwrap().unwrap();
        let ack = DiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            resource_names: vec!["foretoken".to_owned()],
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        self.requests.send(ack).await.unwrap();
        let config = TypedExtensionConfig::decode(response.resources[0].value.as_slice()).unwrap();
        let wasm = Wasm::decode(config.typed_config.unwrap().value.as_slice()).unwrap();
        let text =
            StringValue::decode(wasm.config.unwrap().configuration.unwrap().value.as_slice()).unwrap().value;
        (response.version_info, Config::from_json(text.as_bytes()).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_become_models_that_envoys_get_and_a_restart_goes_on_where_it_was() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let dir = tempfile::tempdir().unwrap();
    let samples = recent(synthetic::samples(21, 1400));
    let service = Service::start(dir.path(), xgboost.clone(), true).await;
    let mut envoy = Envoy::connect(service.ready.xds, "envoy-1").await;
    let (version, config) = envoy.next().await;
    assert_eq!((version.as_str(), &config.model), ("0", &None));

    // Held: it learns and publishes nothing.
    let answer = service.post(&samples[..200]).await;
    assert_eq!((&answer["accepted"], &answer["rejected"]), (&200.into(), &0.into()));
    assert_eq!(answer["synced"], 200);
    assert_eq!(service.status().await["fits"], 0);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&lines(&samples[150..600])).unwrap();
    let (code, answer) = service.send("POST", "/v1/samples", TOKEN, true, gzip.finish().unwrap()).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((code, &answer["accepted"], &answer["duplicates"]), (StatusCode::OK, &400.into(), &50.into()));
    let status = service.wait("a held fit", |status| status["pending"] == true).await;
    assert_eq!(
        (&status["generation"], &status["last_fit"]["result"]),
        (&0.into(), &"held".into()),
        "{status:#}"
    );
    assert_eq!((&status["samples"], &status["clean_samples"]), (&600.into(), &600.into()));

    // Released: the model that waited is published, proven and usable.
    service.command("/v1/release").await;
    let (version, config) = envoy.next().await;
    assert_eq!(version, "1");
    let published = config.model.unwrap();
    assert_eq!(published.generation, 1);
    let model = Model::from_packed(&published.onnx_deflate_base64).unwrap();
    let row = Row(samples[700].features.as_slice().try_into().unwrap());
    let mut predicted = Vec::new();
    model.predict(&[row], &mut predicted);
    let actual = samples[700].ttft_ms.unwrap();
    assert!((predicted[0].ttft_ms_p50 - actual).abs() / actual < 0.6, "{predicted:?} for {actual}");
    let status = service
        .wait("an acknowledgement", |status| status["xds"]["clients"][0]["acked_generation"] == 1)
        .await;
    assert_eq!(
        (&status["model_id"], &status["held"]),
        (&model.card().model_id.clone().into(), &false.into())
    );

    // More samples, another model; the file has it too.
    service.post(&samples[600..1000]).await;
    let (version, config) = envoy.next().await;
    assert_eq!(version, "2");
    let second = config.model.unwrap();
    // The Envoy hears of a model before the fit is done with its notes.
    let judged = |status: &Value| status["last_fit"]["scores"]["live"]["ttft"]["ape_median"].is_number();
    let status = service.wait("the second fit's notes", judged).await;
    assert_eq!((&status["published"], &status["live"]["by_rung"]["prior"]["n"]), (&2.into(), &500.into()));
    let (_, html) = service.send("GET", "/", "", false, Vec::new()).await;
    assert!(html.starts_with("<!doctype html>"), "{html}");
    let event = first_event(&service).await;
    assert_eq!((&event["status"]["generation"], event["pairs"].as_array().unwrap().len()), (&2.into(), 300));
    let (_, page) = service.send("GET", "/metrics", "", false, Vec::new()).await;
    assert!(page.contains("foretoken_trainer_generation 2"), "{page}");
    assert!(page.contains("foretoken_trainer_samples_total{result=\"duplicate\"} 50"), "{page}");
    let file = dir.path().join("ecds.json");
    let in_file = async {
        while !std::fs::read_to_string(&file).unwrap().contains(&second.onnx_deflate_base64) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, in_file).await.unwrap();
    service.end().await;

    // After a restart the same model is served under the same generation, and the next one is higher.
    let service = Service::start(dir.path(), xgboost, false).await;
    let status = service.status().await;
    assert_eq!((&status["generation"], &status["clean_samples"]), (&2.into(), &1000.into()));
    let mut envoy = Envoy::connect(service.ready.xds, "envoy-1").await;
    let (version, config) = envoy.next().await;
    assert_eq!((version.as_str(), config.model), ("2", Some(second)));
    service.post(&samples[1000..]).await;
    assert_eq!(envoy.next().await.0, "3");
    service.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_token_changes_nothing_and_bad_lines_are_named() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), xgboost, false).await;
    for path in ["/v1/samples", "/v1/hold", "/v1/release"] {
        let (code, body) = service.send("POST", path, "wrong", false, lines(&synthetic::samples(1, 1))).await;
        assert_eq!(code, StatusCode::UNAUTHORIZED);
        assert!(body.contains("Bearer"), "{body}");
    }
    assert_eq!(service.status().await["samples"], 0);

    let mut body = lines(&synthetic::samples(1, 2));
    body.extend_from_slice(b"{\"id\":\"x\"}\n");
    let (code, answer) = service.send("POST", "/v1/samples", TOKEN, false, body).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((code, &answer["accepted"], &answer["rejected"]), (StatusCode::OK, &2.into(), &1.into()));
    assert_eq!(
        (&answer["reasons"][0]["line"], &answer["reasons"][0]["reason"]),
        (&3.into(), &"not_a_sample".into())
    );
    let (code, _) = service.send("POST", "/v1/samples", TOKEN, false, b"nonsense".to_vec()).await;
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY);
    let (code, _) = service.send("POST", "/v1/samples", TOKEN, true, b"nonsense".to_vec()).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    let (code, _) = service.send("POST", "/v1/samples", TOKEN, false, vec![b'\n'; 9 << 20]).await;
    assert_eq!(code, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(service.send("GET", "/healthz", "", false, Vec::new()).await.0, StatusCode::OK);

    service.command("/v1/hold").await;
    assert_eq!(service.status().await["held"], true);
    let (_, page) = service.send("GET", "/metrics", "", false, Vec::new()).await;
    assert!(page.contains("foretoken_trainer_rejected_total{reason=\"not_a_sample\"} 2"), "{page}");
    assert!(page.contains("foretoken_trainer_unauthorized_total 3"), "{page}");
    service.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_version_comes_back_on_demand_under_a_new_generation_and_stays() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let dir = tempfile::tempdir().unwrap();
    let samples = recent(synthetic::samples(22, 1500));
    let service = Service::start(dir.path(), xgboost.clone(), false).await;
    let mut envoys = [
        Envoy::connect(service.ready.xds, "envoy-1").await,
        Envoy::connect(service.ready.xds, "envoy-2").await,
    ];
    let mut published = Vec::new();
    for (generation, range) in [("0", 0..0), ("1", 0..500), ("2", 500..1000)] {
        if !range.is_empty() {
            service.post(&samples[range]).await;
        }
        for envoy in &mut envoys {
            let (version, config) = envoy.next().await;
            assert_eq!(version, generation);
            published.push(config.model);
        }
    }
    let (code, refused) = service.send("POST", "/v1/rollback", "wrong", false, Vec::new()).await;
    assert_eq!(code, StatusCode::UNAUTHORIZED, "{refused}");
    let (code, body) = service.send("POST", "/v1/rollback", TOKEN, false, Vec::new()).await;
    assert_eq!(code, StatusCode::OK, "{body}");
    for envoy in &mut envoys {
        let (version, config) = envoy.next().await;
        assert_eq!(version, "3");
        let first = published[2].as_ref().unwrap();
        assert_eq!(config.model.unwrap().onnx_deflate_base64, first.onnx_deflate_base64);
    }
    // It would be pointless if the next fit replaced it.
    service.post(&samples[1000..]).await;
    let status = service.wait("a held fit", |status| status["pending"] == true).await;
    assert_eq!((&status["held"], &status["generation"]), (&true.into(), &3.into()));
    let (code, body) = service.send("POST", "/v1/rollback", TOKEN, false, Vec::new()).await;
    assert_eq!(code, StatusCode::CONFLICT, "{body}");
    service.end().await;

    // The hold outlives a restart.
    let service = Service::start(dir.path(), xgboost, false).await;
    let (code, body) =
        service.send("POST", "/v1/promote?generation=2&hold=false", TOKEN, false, Vec::new()).await;
    assert_eq!(code, StatusCode::OK, "{body}");
    assert_eq!(service.status().await["held"], true);
    let mut late = Envoy::connect(service.ready.xds, "envoy-3").await;
    let (version, config) = late.next().await;
    assert_eq!(version, "4");
    assert_eq!(config.model.unwrap().onnx_deflate_base64, published[4].as_ref().unwrap().onnx_deflate_base64);
    let (_, versions) = service.send("GET", "/v1/versions", "", false, Vec::new()).await;
    let versions: Value = serde_json::from_str(&versions).unwrap();
    let of = |key: &str| -> Vec<Value> {
        versions.as_array().unwrap().iter().map(|version| version[key].clone()).collect()
    };
    assert_eq!(of("origin"), ["fitted", "fitted", "rolled_back", "promoted"]);
    assert_eq!(of("content_of"), [1, 2, 1, 2]);
    assert_eq!(of("parent"), [0, 1, 0, 1]);
    assert!(versions[1]["halves"]["ttft"]["importances"][0][1].as_f64().unwrap() > 0.0);
    let (code, _) = service.send("GET", "/v1/versions/9", "", false, Vec::new()).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    service.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisoned_batch_is_never_published() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let dir = tempfile::tempdir().unwrap();
    let honest = recent(synthetic::samples(23, 2200));
    let mut poison = recent(synthetic::samples(24, 1000));
    for sample in &mut poison {
        sample.ttft_ms = sample.ttft_ms.map(|ttft_ms| 10.0 * ttft_ms);
        sample.tpot_ms = sample.tpot_ms.map(|tpot_ms| 10.0 * tpot_ms);
        sample.e2e_ms = sample.e2e_ms.map(|e2e_ms| 10.0 * e2e_ms);
    }
    let service = Service::start(dir.path(), xgboost, false).await;
    let mut envoy = Envoy::connect(service.ready.xds, "envoy-1").await;
    assert_eq!(envoy.next().await.0, "0");
    service.post(&honest[..1000]).await;
    assert_eq!(envoy.next().await.0, "1");
    let answer = service.post(&poison).await;
    assert_eq!((&answer["accepted"], &answer["quarantined"]), (&1000.into(), &1000.into()));
    // Honest samples after it bring the next model, which knows nothing of the poison.
    service.post(&honest[1000..]).await;
    let (_, config) = envoy.next().await;
    let model = Model::from_packed(&config.model.unwrap().onnx_deflate_base64).unwrap();
    let rows: Vec<Row> =
        honest.iter().map(|sample| Row(sample.features.as_slice().try_into().unwrap())).collect();
    let mut predicted = Vec::new();
    model.predict(&rows, &mut predicted);
    let mut ratios: Vec<f32> = honest
        .iter()
        .zip(&predicted)
        .map(|(sample, predicted)| predicted.ttft_ms_p50 / sample.ttft_ms.unwrap())
        .collect();
    ratios.sort_by(f32::total_cmp);
    let median = ratios[ratios.len() / 2];
    assert!((0.8..1.25).contains(&median), "{median}");
    service.end().await;
}
