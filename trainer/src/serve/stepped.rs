//! The service without ports and threads, stepped by its caller: the same store, the same doubts, fits, gate, watch
//! and publications, on a clock that the caller moves.
//!
//! For benches that play hours of traffic in seconds. A fit runs inside [`Stepped::step`]; how long it took by the
//! machine's clock is told, and it is the caller's business to let as much time pass before the model is there.
//!
//! What it is not: a second service. Nothing is decided here.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use foretoken_core::sample::Sample;

use super::learn::{self, Plan};
use super::status::Status;
use super::{ServeError, ServeOptions, State};
use crate::clock::Clock;
use crate::registry::Version;
use crate::store::Appended;
use crate::xgb::Xgboost;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// How long the fit took, if there was one.
    pub fit: Option<Duration>,
    /// The generation that is published now; 0 for none.
    pub generation: u64,
}

/// A service that is stepped.
#[derive(Debug)]
pub struct Stepped {
    state: Arc<State>,
    plan: Plan,
}

impl Stepped {
    /// Opens the data folder. Addresses and certificates of the options are not used.
    ///
    /// # Errors
    /// [`ServeError`] when the folder cannot be opened.
    pub fn open(options: &ServeOptions, xgboost: Xgboost) -> Result<Self, ServeError> {
        let state = Arc::new(State::open(options, xgboost, Clock::manual())?);
        Ok(Self { state, plan: Plan::default() })
    }

    /// Moves the clock, never back. Samples' times are on it.
    pub fn set_time_us(&self, now_us: u64) {
        self.state.clock.set_us(now_us);
    }

    /// Takes a batch, as ingest does with one that it has read.
    ///
    /// # Errors
    /// [`ServeError::Store`] when the disk refuses.
    pub fn ingest(&self, batch: Vec<Sample>) -> Result<Appended, ServeError> {
        let lines: Vec<(Sample, Vec<u8>)> = batch
            .into_iter()
            .map(|sample| {
                // A sample has nothing that JSON cannot say.
                let line = serde_json::to_vec(&sample).unwrap_or_default();
                (sample, line)
            })
            .collect();
        let appended = self.state.store().append(&lines, self.state.clock.now_ms());
        appended.map_err(|error| ServeError::Store(error.cause))
    }

    /// Publishes a model file, as `foretoken-trainer push` does.
    ///
    /// # Errors
    /// A sentence for people: why it cannot serve.
    pub fn push(&self, onnx: Vec<u8>) -> Result<Version, String> {
        self.state.push(onnx, false)
    }

    /// Does what is due: publishes what waits, looks at the live model, fits.
    pub fn step(&mut self) -> Step {
        learn::publish_pending(&self.state);
        if self.plan.is_watch_due(&self.state) {
            learn::watch(&self.state);
        }
        let mut fit = None;
        if self.plan.is_fit_due(&self.state) {
            let (started, clean) = (self.state.clock.elapsed(), self.state.store().counts().clean);
            let clock = Instant::now();
            let full =
                learn::attempt(&self.state, self.plan.is_full_due(&self.state), &AtomicBool::new(false));
            let took = clock.elapsed();
            self.plan.fitted(started, clean, took, full);
            fit = Some(took);
        }
        Step { fit, generation: self.generation() }
    }

    fn generation(&self) -> u64 {
        self.state.registry().current().map_or(0, |(version, _)| version.generation)
    }

    /// The card and the ONNX file of what is published.
    #[must_use]
    pub fn published(&self) -> Option<(Version, Vec<u8>)> {
        self.state.registry().current().map(|(version, onnx)| (version.clone(), onnx.to_vec()))
    }

    /// What `GET /v1/status` would answer.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.state)
    }
}
