//! A pod that speaks the responses API, Anthropic's messages and embeddings, and sends an event when it is told to.
//!
//! The test that tells it knows what happened before what: a token that was sent after the client had read the one
//! before lies between the two in time, on any machine, however busy. So times can be checked without a margin.
//! Words are its tokens, and it has a prefix cache in blocks, like an engine. It is not a simulation: it has no
//! speed and no queue; for those see [`crate::pods`].

mod events;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ::http::{StatusCode, header};
use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

pub use events::StreamedApi;
use events::{Counts, Event};

/// Tokens in one block of the cache, as in vLLM.
const BLOCK_TOKENS: usize = 16;

/// What the pod knows of a request that is over.
#[derive(Debug, Clone)]
pub struct Served {
    /// When it had come whole.
    pub arrived: Instant,
    /// When each event with generated text was handed on; of an embedding, when the body was.
    pub sent: Vec<Instant>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Those of them that the cache held.
    pub cached_tokens: u32,
    /// Tokens of the whole answer, sent or not.
    pub output_tokens: u32,
    /// Whether all was sent. Otherwise the connection was closed under the answer.
    pub whole: bool,
}

/// A running pod; dropping it ends it.
#[derive(Debug)]
pub struct SteppedPod {
    address: SocketAddr,
    steps: Arc<Semaphore>,
    served: mpsc::UnboundedReceiver<Served>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Pod {
    steps: Arc<Semaphore>,
    served: mpsc::UnboundedSender<Served>,
    /// Token sequences that were computed.
    cache: Arc<Mutex<Vec<Vec<String>>>>,
}

impl SteppedPod {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, served) = mpsc::unbounded_channel();
        let steps = Arc::new(Semaphore::new(0));
        let pod = Pod { steps: Arc::clone(&steps), served: sender, cache: Arc::default() };
        let mut router = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/metrics", get(|| async { METRICS }))
            .route("/v1/models", get(|| async { axum::Json(json!({"data": [{"id": "stepped"}]})) }))
            .route("/v1/embeddings", post(embed));
        for api in [StreamedApi::Responses, StreamedApi::Messages] {
            let handler = move |state, body| answer(api, state, body);
            router = router.route(api.path(), post(handler));
        }
        let router = router.with_state(pod);
        let server = tokio::spawn(async move {
            // It ends with the task; an accept error shows as a request that fails.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, steps, served, server })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets it send the next event with text, or after the last one all that ends the answer.
    pub fn step(&self) {
        self.steps.add_permits(1);
    }

    /// Waits until a request is over, and tells of it.
    ///
    /// # Errors
    /// When the pod has ended.
    pub async fn served(&mut self) -> Result<Served> {
        self.served.recv().await.context("the pod has ended")
    }
}

impl Drop for SteppedPod {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const METRICS: &str = "\
vllm:num_requests_running{engine=\"0\",model_name=\"stepped\"} 0
vllm:num_requests_waiting{engine=\"0\",model_name=\"stepped\"} 0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"stepped\"} 0
";

/// Tells of the request when the server drops its stream: at its end, or when the connection closes.
struct Answering {
    pod: Pod,
    served: Served,
    /// Events in reverse: the next one is the last.
    events: Vec<Event>,
    tokens: Vec<String>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        if self.served.whole {
            let mut cache = self.pod.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.push(std::mem::take(&mut self.tokens));
        }
        // Nobody waits for it when the test is over.
        let _ = self.pod.served.send(self.served.clone());
    }
}

async fn answer(api: StreamedApi, State(pod): State<Pod>, body: Bytes) -> Response {
    let arrived = Instant::now();
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let mut tokens = events::prompt(&request);
    let prompt_tokens = tokens.len();
    let (cached_tokens, number) = {
        let cache = pod.cache.lock().unwrap_or_else(PoisonError::into_inner);
        (cached(&cache, &tokens), cache.len())
    };
    let (reasoning, texts) = events::answer(number);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let text_tokens = words(&texts.concat());
    let counts = Counts {
        prompt: count(prompt_tokens),
        cached: count(cached_tokens),
        output: count(text_tokens.len() + words(&reasoning).len()),
    };
    tokens.push("assistant".to_owned());
    tokens.extend(text_tokens);
    let mut events = api.events(&reasoning, &texts, counts);
    events.reverse();
    let served = Served {
        arrived,
        sent: Vec::new(),
        prompt_tokens: counts.prompt,
        cached_tokens: counts.cached,
        output_tokens: counts.output,
        whole: false,
    };
    let parts = stream::unfold(Answering { pod, served, events, tokens }, |mut answering| async move {
        let event = answering.events.pop()?;
        if event.waits {
            answering.pod.steps.acquire().await.ok()?.forget();
        }
        if event.has_text {
            answering.served.sent.push(Instant::now());
        }
        answering.served.whole = answering.events.is_empty();
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(event.bytes)), answering))
    });
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(parts)).into_response()
}

/// Leading tokens that the cache holds, in whole blocks; the last token is computed in any case.
fn cached(cache: &[Vec<String>], tokens: &[String]) -> usize {
    let common =
        |known: &Vec<String>| known.iter().zip(tokens).take_while(|(one, other)| one == other).count();
    let longest = cache.iter().map(common).max().unwrap_or(0);
    longest.min(tokens.len().saturating_sub(1)) / BLOCK_TOKENS * BLOCK_TOKENS
}

async fn embed(State(pod): State<Pod>, body: Bytes) -> Response {
    let arrived = Instant::now();
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let prompt_tokens = count(request["input"].as_str().unwrap_or_default().split_whitespace().count());
    let body = json!({
        "id": "embd-1", "object": "list", "model": "stepped",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.125]}],
        "usage": {
            "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0,
            "prompt_tokens_details": null,
        },
    });
    let sent = vec![Instant::now()];
    let served = Served { arrived, sent, prompt_tokens, cached_tokens: 0, output_tokens: 0, whole: true };
    // Nobody waits for it when the test is over.
    let _ = pod.served.send(served);
    axum::Json(body).into_response()
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
