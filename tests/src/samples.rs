//! In the trainer's place: takes the filter's samples and keeps them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use foretoken_core::sample::Sample;

use crate::wait;

type Kept = Arc<Mutex<Vec<Sample>>>;

/// A running receiver; dropping it ends it.
#[derive(Debug)]
pub struct SampleSink {
    address: SocketAddr,
    kept: Kept,
    server: tokio::task::JoinHandle<()>,
}

impl SampleSink {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let kept = Kept::default();
        let router = Router::new().route("/v1/samples", post(take)).with_state(Arc::clone(&kept));
        let server = tokio::spawn(async move {
            // It ends with the task; an accept error shows as samples that do not come.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, kept, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until `count` have come, and takes them.
    ///
    /// # Errors
    /// When they do not within `within`.
    pub async fn take(&self, count: usize, within: Duration) -> Result<Vec<Sample>> {
        wait::until(&format!("{count} samples"), within, async || {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            Ok((kept.len() >= count).then(|| std::mem::take(&mut *kept)))
        })
        .await
    }
}

impl Drop for SampleSink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn take(State(kept): State<Kept>, body: String) -> StatusCode {
    let read: Result<Vec<Sample>, _> = body.lines().map(serde_json::from_str).collect();
    match read {
        Ok(samples) => {
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend(samples);
            StatusCode::NO_CONTENT
        }
        Err(_) => StatusCode::BAD_REQUEST,
    }
}
