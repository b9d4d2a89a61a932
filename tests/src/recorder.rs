//! A pod that keeps what reaches it: for tests about which bytes and headers pass through Envoy.
//!
//! It answers every request with one short stream in vLLM's form, with a load report where the request asks for
//! one, and `/health` and `/metrics` as an idle engine does. It has no queue and no latency worth the name; for those see [`crate::pods`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ::http::{HeaderMap, HeaderValue, Method, Uri, header};
use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const ANSWER: &str = "\
data: {\"id\":\"r\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"one\",\"finish_reason\":null}]}

data: {\"id\":\"r\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" two\",\"finish_reason\":\"length\"}]}

data: [DONE]

";

const LOAD_REPORT: &str =
    "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0";

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
    /// Body bytes.
    pub body: Bytes,
}

/// A recording pod; dropping it closes it.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Recorder {
    /// Starts an idle one on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self> {
        Self::start_with_kv_usage(0.0).await
    }

    /// Starts one whose metrics say that this share of its KV cache is in use.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start_with_kv_usage(kv_usage: f32) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let received = Arc::new(Mutex::new(Vec::new()));
        let router = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/metrics", get(move || async move { metrics(kv_usage) }))
            .fallback(record)
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&received));
        let server = tokio::spawn(async move {
            // It ends with the task; an accept error shows as a request that fails.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, received, server })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All requests that have arrived, those of the filter's poller and health checks left out, and forgets them.
    #[must_use]
    pub fn take(&self) -> Vec<Received> {
        self.received.lock().map(|mut received| std::mem::take(&mut *received)).unwrap_or_default()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn metrics(kv_usage: f32) -> String {
    [("num_requests_running", 0.0), ("num_requests_waiting", 0.0), ("kv_cache_usage_perc", kv_usage)]
        .map(|(name, value)| {
            format!(
                "# TYPE vllm:{name} gauge\nvllm:{name}{{engine=\"0\",model_name=\"recorder\"}} {value:?}\n"
            )
        })
        .concat()
}

async fn record(
    State(received): State<Arc<Mutex<Vec<Received>>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let asks_for_load = headers.contains_key("endpoint-load-metrics-format");
    // The filter asks for the list of models when it is due, whatever a test does at that moment. Envoy numbers only what
    // came in through a listener.
    let is_poll = uri.path() == "/v1/models" && !headers.contains_key("x-request-id");
    if !is_poll && let Ok(mut received) = received.lock() {
        received.push(Received { method, path: uri.to_string(), headers, body });
    }
    let mut response = ([(header::CONTENT_TYPE, "text/event-stream")], ANSWER).into_response();
    if asks_for_load {
        response.headers_mut().insert("endpoint-load-metrics", HeaderValue::from_static(LOAD_REPORT));
    }
    response
}
