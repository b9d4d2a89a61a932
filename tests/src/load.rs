//! Clients that send one request after the other until they are told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::completion::{Completed, complete, mixed_requests};
use crate::wait;

/// More requests than any test waits for.
const MANY: u32 = 1_000_000;

/// A request and what became of it.
#[derive(Debug)]
pub struct Seen {
    /// When it was sent.
    pub sent: Instant,
    /// What came of it.
    pub outcome: Result<Completed>,
}

impl Seen {
    /// The completion, when it came whole.
    ///
    /// # Errors
    /// Says what came instead.
    pub fn whole(&self) -> Result<&Completed> {
        match &self.outcome {
            Ok(completed) if completed.status == 200 && completed.whole => Ok(completed),
            outcome => anyhow::bail!("a request failed: {outcome:?}"),
        }
    }
}

/// Running clients.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    finished: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<Vec<Seen>>>,
}

impl Load {
    /// Starts `clients` of them.
    #[must_use]
    pub fn start(address: SocketAddr, clients: u32) -> Self {
        let (stop, finished) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..clients)
            .map(|client| {
                let (stop, finished) = (Arc::clone(&stop), Arc::clone(&finished));
                tokio::spawn(async move {
                    let mut seen = Vec::new();
                    for at in 0..MANY {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        // One at a time, not a million texts at once.
                        let Some(request) = mixed_requests(1, client * MANY + at).pop() else { break };
                        let sent = Instant::now();
                        seen.push(Seen { sent, outcome: complete(address, &request).await });
                        finished.fetch_add(1, Ordering::SeqCst);
                    }
                    seen
                })
            })
            .collect();
        Self { stop, finished, clients }
    }

    /// Waits for `count` more requests to end.
    ///
    /// # Errors
    /// When they do not within a minute.
    pub async fn more(&self, count: u64) -> Result<()> {
        let target = self.finished.load(Ordering::SeqCst) + count;
        wait::until(&format!("{count} more requests"), Duration::from_secs(60), async || {
            Ok((self.finished.load(Ordering::SeqCst) >= target).then_some(()))
        })
        .await
    }

    /// Stops sending, and returns all requests when the last has ended.
    ///
    /// # Errors
    /// When a client panicked.
    pub async fn stop(self) -> Result<Vec<Seen>> {
        self.stop.store(true, Ordering::SeqCst);
        let mut seen = Vec::new();
        for client in self.clients {
            seen.extend(client.await?);
        }
        Ok(seen)
    }
}
