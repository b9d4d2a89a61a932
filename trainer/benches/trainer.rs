//! What the trainer must reach by itself, measured: fit, ingest, publish. `scripts/bench trainer` runs it, and beside it
//! what needs pods or an Envoy.
//!
//! Prints one JSON object on stdout and what it is doing on stderr. Figures are of this machine as it is now;
//! the samples are made up, of the size and the number of columns of real ones.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient;
use foretoken_core::sample::Sample;
use foretoken_trainer::dataset::{Example, example};
use foretoken_trainer::export::now_ms;
use foretoken_trainer::fit::{FitOptions, fit};
use foretoken_trainer::metrics::Metrics;
use foretoken_trainer::publish::nodes::Nodes;
use foretoken_trainer::publish::xds::{Ecds, ExtensionConfigDiscoveryServiceServer};
use foretoken_trainer::publish::{TYPE_URL, Template};
use foretoken_trainer::{synthetic, xgb};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};

/// Samples of the fit.
const FIT_SAMPLES: usize = 50_000;

/// Samples of the ingest measurement, and lines in a batch.
const INGEST: (usize, usize) = (200_000, 512);

/// Envoys that are published to, and the bytes of the model as it travels.
const PUBLISH: (usize, usize) = (100, 600_000);

/// Threads of the fit.
const THREADS: u16 = 2;

fn main() {
    xgb::wait_without_spinning();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, otherwise: usize| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let fit_samples = value("--fit-samples", FIT_SAMPLES);
    let Some(xgboost) = xgb::for_tests() else { std::process::exit(1) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // The fit first: the peak of memory must be its own.
    let mut result = json!({ "fit": measure_fit(&xgboost, fit_samples) });
    result["ingest_per_s"] = json!(runtime.block_on(measure_ingest()));
    result["publish_100_s"] = json!(runtime.block_on(measure_publish()));
    println!("{result}");
}

fn measure_fit(xgboost: &xgb::Xgboost, count: usize) -> Value {
    eprintln!("fit: {count} samples, {THREADS} threads");
    let examples: Vec<Example> = synthetic::samples(7, count).iter().filter_map(example).collect();
    let before = peak_mib();
    let options = FitOptions { threads: THREADS, ..FitOptions::default() };
    let start = Instant::now();
    let fitted = fit(xgboost, &examples, None, None, &options, &mut || true).unwrap();
    let assembled = fitted.assemble(xgboost, &examples).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    json!({
        "samples": count,
        "seconds": seconds,
        "rss_mib": peak_mib(),
        "rss_before_mib": before,
        "onnx_bytes": assembled.onnx.len(),
        "rounds": fitted.rounds(),
        "scores": fitted.scores.model,
    })
}

/// Peak of this process's resident memory, MiB.
fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

/// CPU seconds that a process has used.
fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // utime and stime, in clock ticks of 10 ms on every Linux that there is.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// A running `foretoken-trainer serve`.
struct Service {
    child: Child,
    listen: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Service {
    fn start(dir: &Path, more: &[&str]) -> Self {
        let filter = dir.join("filter.json");
        std::fs::write(&filter, r#"{"cluster":"pods","endpoints":{"addresses":["127.0.0.1:8000"]}}"#)
            .unwrap();
        let library = std::env::var_os(xgb::LIBRARY_VARIABLE).map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(xgb::LIBRARY_IN_REPOSITORY),
            PathBuf::from,
        );
        let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken-trainer"))
            .args(["serve", "--listen", "127.0.0.1:0", "--xds-listen", "127.0.0.1:0", "--module", "f.wasm"])
            .args(["--max-samples-per-s", "10000000", "--publish-interval-s", "0"])
            .arg("--filter-config")
            .arg(filter)
            .arg("--data-dir")
            .arg(dir.join("data"))
            .arg("--xgboost-lib")
            .arg(library)
            .args(more)
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect("the trainer did not start");
        let listen = ready["listen"].as_str().unwrap().parse().unwrap();
        Self { child, listen, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn post(&self, body: Vec<u8>) -> Option<Value> {
        let request = Request::post(format!("http://{}/v1/samples", self.listen)).body(Full::from(body));
        let response = self.client.request(request.unwrap()).await.ok()?;
        serde_json::from_slice(&response.into_body().collect().await.ok()?.to_bytes()).ok()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Samples as if they were measured now.
fn recent(seed: u64, count: usize) -> Vec<Sample> {
    let mut samples = synthetic::samples(seed, count);
    let now_ms = now_ms();
    for (index, sample) in samples.iter_mut().enumerate() {
        sample.at_ms = now_ms - (count - index) as u64;
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

/// Samples that the service takes per second of CPU time, over its real port, synced to disk.
async fn measure_ingest() -> f64 {
    let (count, batch) = INGEST;
    eprintln!("ingest: {count} samples in batches of {batch}");
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--min-samples", "1000000", "--window-samples", "1000000"]);
    let bodies: Vec<Vec<u8>> = recent(1, count).chunks(batch).map(lines).collect();
    let before = cpu_s(service.child.id());
    let start = Instant::now();
    let mut synced = 0;
    // Two senders, so that a wait for the disk is not idle.
    for pair in bodies.chunks(2) {
        let answers =
            futures_util::future::join_all(pair.iter().map(|body| service.post(body.clone()))).await;
        synced +=
            answers.iter().map(|answer| answer.as_ref().unwrap()["synced"].as_u64().unwrap()).sum::<u64>();
    }
    let (cpu, wall) = (cpu_s(service.child.id()) - before, start.elapsed().as_secs_f64());
    assert_eq!(synced, count as u64);
    eprintln!("ingest: {:.0}/s of wall time, {cpu:.1} s of CPU", count as f64 / wall);
    service.kill();
    count as f64 / cpu
}

/// Seconds from a publication to the acknowledgement of the last of all Envoys.
async fn measure_publish() -> f64 {
    let (envoys, bytes) = PUBLISH;
    eprintln!("publish: {bytes} bytes to {envoys} clients");
    let filter = br#"{"cluster":"pods","endpoints":{"addresses":["127.0.0.1:8000"]}}"#;
    let template = Template::new("foretoken".into(), "vm".into(), "f.wasm".into(), filter).unwrap();
    let (publications, receiver) = watch::channel(Arc::new(template.publication(0, None)));
    let (_stop, stopped) = watch::channel(false);
    let nodes = Arc::new(Nodes::default());
    let ecds = Ecds::new(receiver, stopped, nodes.clone(), Arc::new(Metrics::new().unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(ExtensionConfigDiscoveryServiceServer::new(ecds))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    for index in 0..envoys {
        let mut client =
            ExtensionConfigDiscoveryServiceClient::connect(format!("http://{address}")).await.unwrap();
        let (requests, receiver) = mpsc::channel(8);
        let first = DiscoveryRequest {
            node: Some(Node { id: format!("envoy-{index}"), ..Node::default() }),
            resource_names: vec!["foretoken".to_owned()],
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        requests.send(first).await.unwrap();
        let mut responses =
            client.stream_extension_configs(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        tokio::spawn(async move {
            while let Ok(Some(response)) = responses.message().await {
                let ack = DiscoveryRequest {
                    version_info: response.version_info,
                    response_nonce: response.nonce,
                    resource_names: vec!["foretoken".to_owned()],
                    type_url: TYPE_URL.to_owned(),
                    ..DiscoveryRequest::default()
                };
                requests.send(ack).await.unwrap();
            }
        });
    }
    let acked = |generation: u64| {
        nodes.list().iter().filter(|node| node.acked_generation == Some(generation)).count() == envoys
    };
    while !acked(0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Random bytes do not deflate: base64 makes four of three.
    let mut model = vec![0u8; bytes * 3 / 4];
    StdRng::seed_from_u64(1).fill(&mut model[..]);
    let start = Instant::now();
    publications.send_replace(Arc::new(template.publication(1, Some(&model))));
    while !acked(1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    start.elapsed().as_secs_f64()
}
