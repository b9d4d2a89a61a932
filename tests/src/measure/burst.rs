//! A pod that writes several events at a time, as engines do that step faster than they flush.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;

/// Time to the first events, and between two writes.
const FIRST: Duration = Duration::from_millis(30);
const GAP: Duration = Duration::from_millis(15);

/// A running pod; dropping it ends it.
#[derive(Debug)]
pub struct BurstPod {
    address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Deserialize)]
struct Asked {
    prompt: String,
    max_tokens: usize,
}

impl BurstPod {
    /// Starts one that writes `events` at a time.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(events: usize) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/v1/completions", post(answer))
            .route("/health", get(|| async { "" }))
            .with_state(events);
        let server = tokio::spawn(async move {
            // It ends with the task; an accept error shows as a request that fails.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, server })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for BurstPod {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(events): State<usize>, body: Bytes) -> Response {
    let asked: Asked = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => return (http::StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let prompt_tokens = asked.prompt.split_whitespace().count();
    let parts = stream::unfold(0, move |sent| async move {
        if sent >= asked.max_tokens {
            return None;
        }
        tokio::time::sleep(if sent == 0 { FIRST } else { GAP }).await;
        let now = events.min(asked.max_tokens - sent);
        let mut part = String::new();
        for _ in 0..now {
            let event = json!({"object": "text_completion", "choices": [{"index": 0, "text": " word"}]});
            part += &format!("data: {event}\n\n");
        }
        if sent + now == asked.max_tokens {
            let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": asked.max_tokens});
            part += &format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage}));
        }
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(part)), sent + now))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(parts)).into_response()
}
