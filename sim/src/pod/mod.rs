//! A live pod: the engine model behind an OpenAI-compatible HTTP server that speaks as vLLM does.
//!
//! Paths: `POST /v1/completions`, `POST /v1/chat/completions` (streamed or not), `GET /v1/models`,
//! `GET /health`, `GET /metrics`. With [`PodOptions::sim_endpoints`] also `POST /sim/fault`
//! (`{"slow": 2.0}`, `{"refuse": true}`, `{"fail_next": {"status": 503, "count": 3}}`, `{"kill": true}`)
//! and `POST /sim/reset`.
//!
//! [`LivePod`] is the handle for tests and the demo; its tasks run on the caller's tokio runtime.
//!
//! Layout: `openai` reads requests, `chunks` writes answers, `answering` ties one request to the engine,
//! `driver` steps the engine on the clock, `board` and `metrics` show its state, `faults` breaks it,
//! `server` and `http` are the port and its paths.
//!
//! What it is not: an inference engine. The words mean nothing; their timing does.

mod answering;
mod board;
mod chunks;
mod driver;
mod faults;
mod http;
mod metrics;
pub(crate) mod openai;
mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::engine::EngineStats;
use crate::engine::profile::{Profile, ProfileError};
use board::Board;
use driver::Command;
use faults::Faults;

pub use openai::DEFAULT_MAX_TOKENS;

/// Name of the model that a pod serves when none is given.
pub const DEFAULT_MODEL: &str = "sim-8b";

/// Response header that carries [`PodOptions::name`].
pub const POD_HEADER: &str = "x-sim-pod";

/// Why a pod did not start, or did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The profile cannot work.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The port is taken, most likely.
    #[error("cannot listen on {ip}:{port}: {source}; choose another port, or 0 for any")]
    Listen {
        /// The address that was asked for.
        ip: Ipv4Addr,
        /// The port that was asked for.
        port: u16,
        /// What the system says.
        source: std::io::Error,
    },
    /// The pod was killed.
    #[error("the pod was killed")]
    Killed,
}

/// What pod to start.
#[derive(Debug, Clone)]
pub struct PodOptions {
    /// Its hardware.
    pub profile: Profile,
    /// Model it serves; others are answered with 404.
    pub model: String,
    /// LoRA adapters of it that are loaded from the start ([`LivePod::load_adapter`] loads more).
    pub adapters: Vec<String>,
    /// Name in the `x-sim-pod` response header; empty takes the address.
    pub name: String,
    /// Loopback address to listen on (127.0.0.1, or another one of 127.0.0.0/8).
    pub ip: Ipv4Addr,
    /// Port on it; 0 for any.
    pub port: u16,
    /// Seed of the step times.
    pub seed: u64,
    /// Whether `POST /sim/fault` and `POST /sim/reset` exist.
    pub sim_endpoints: bool,
}

impl PodOptions {
    /// A pod with this hardware, on any port, without `/sim` endpoints.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            model: DEFAULT_MODEL.to_owned(),
            adapters: Vec::new(),
            name: String::new(),
            ip: Ipv4Addr::LOCALHOST,
            port: 0,
            seed: 0,
            sim_endpoints: false,
        }
    }
}

/// State of a live pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodStats {
    /// The engine at its last step.
    pub engine: EngineStats,
    /// Prompt tokens of requests that got their first token.
    pub prompt_tokens: u64,
    /// Those of them that came from the cache.
    pub cached_tokens: u64,
    /// Requests that got a first token.
    pub first_tokens: u64,
    /// Mean time from a request's arrival at the pod to its first token; NaN before any.
    pub ttft_mean_ms: f64,
    /// Mean gap between two tokens of a request; NaN before any.
    pub itl_mean_ms: f64,
    /// Steps whose end the machine noticed so late that the plan had to be moved: the CPU was starved and
    /// times are not to be trusted.
    pub late_steps: u64,
    /// Worst delay of a step's end against its plan.
    pub worst_lag_ms: f64,
}

/// What a pod's tasks share.
#[derive(Debug)]
struct Shared {
    options: PodOptions,
    commands: mpsc::UnboundedSender<Command>,
    faults: Faults,
    board: Mutex<Board>,
    /// Adapters loaded now. They are answered for as the model is: their cost is not modelled.
    adapters: Mutex<Vec<String>>,
    requests: AtomicU64,
    /// Start, seconds since the Unix epoch.
    created_s: f64,
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adapters(&self) -> MutexGuard<'_, Vec<String>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of a response, different on every pod.
    fn response_id(&self, request: u64) -> u64 {
        let seed = foretoken_core::hash::pod_key(&self.options.name);
        foretoken_core::hash::chain(seed, &request.to_le_bytes())
    }
}

fn unix_seconds() -> u64 {
    unix_time().as_secs()
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A running pod. Dropping the handle kills it.
#[derive(Debug)]
pub struct LivePod {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl LivePod {
    /// Starts a pod on the current tokio runtime; it accepts connections when this returns.
    ///
    /// # Errors
    /// [`PodError`] when the profile cannot work or the port is taken.
    pub async fn start(mut options: PodOptions) -> Result<Self, PodError> {
        options.profile.check()?;
        let (ip, port) = (options.ip, options.port);
        let listen = |source| PodError::Listen { ip, port, source };
        let listener = TcpListener::bind((ip, port)).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        if options.name.is_empty() {
            options.name = address.to_string();
        }
        let (commands, received) = mpsc::unbounded_channel();
        let adapters = Mutex::new(options.adapters.clone());
        let shared = Arc::new(Shared {
            options,
            commands,
            faults: Faults::new(),
            board: Mutex::new(Board::new()),
            adapters,
            requests: AtomicU64::new(0),
            created_s: unix_time().as_secs_f64(),
        });
        let router = http::router(&shared);
        tokio::spawn(driver::drive(shared.clone(), received));
        tokio::spawn(server::serve(shared.clone(), listener, address, router));
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://ip:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its hardware.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.shared.options.profile
    }

    /// Cuts every connection and stops listening, as when the process dies. It does not come back; start
    /// another pod on the same port.
    pub fn kill(&self) {
        self.shared.faults.kill();
    }

    /// Refuses new connections (true) or listens again (false). Existing connections go on.
    pub fn refuse(&self, refuse: bool) {
        self.shared.faults.refuse(refuse);
    }

    /// Loads a LoRA adapter: the pod lists it and answers requests that name it.
    pub fn load_adapter(&self, name: &str) {
        self.shared.adapters().push(name.to_owned());
    }

    /// Answers the next `count` inference requests with `status`.
    pub fn fail_next(&self, status: u16, count: u32) {
        self.shared.faults.fail_next(status, count);
    }

    /// Multiplies the time of every step from the next one on; 1 is the profile's speed.
    pub fn set_slow(&self, factor: f64) {
        self.shared.faults.set_slow(factor);
    }

    /// Forgets the cache, all requests (their connections break) and all counters.
    ///
    /// # Errors
    /// [`PodError::Killed`] when the pod is dead.
    pub async fn reset(&self) -> Result<(), PodError> {
        let (done, finished) = oneshot::channel();
        self.shared.commands.send(Command::Reset(done)).map_err(|_| PodError::Killed)?;
        finished.await.map_err(|_| PodError::Killed)
    }

    /// State and counters at the engine's last step.
    #[must_use]
    pub fn stats(&self) -> PodStats {
        let board = self.shared.board();
        let mean_ms = |histogram: &board::Histogram| {
            histogram.sum * 1000.0 / histogram.counts.iter().sum::<u64>() as f64
        };
        PodStats {
            engine: board.engine,
            prompt_tokens: board.prompt_tokens,
            cached_tokens: board.cached_tokens,
            first_tokens: board.ttft.counts.iter().sum(),
            ttft_mean_ms: mean_ms(&board.ttft),
            itl_mean_ms: mean_ms(&board.itl),
            late_steps: board.late_steps,
            worst_lag_ms: board.worst_lag.as_secs_f64() * 1000.0,
        }
    }
}

impl Drop for LivePod {
    fn drop(&mut self) {
        self.kill();
    }
}
