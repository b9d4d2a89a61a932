//! What `GET /v1/status` answers.

use serde::Serialize;

use super::State;
use crate::fit::Rounds;
use crate::gate::Verdict;
use crate::live::LiveReport;
use crate::parity::ParityReport;
use crate::publish::nodes::NodeStatus;

/// How a fit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FitResult {
    /// The model was published.
    Published,
    /// The model would be published but for the hold.
    Held,
    /// The gate refused it.
    Refused,
    /// There is no model.
    Failed,
}

impl FitResult {
    /// The label value in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Held => "held",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// The newest fit.
#[derive(Debug, Clone, Serialize)]
pub struct LastFit {
    /// When it ended, ms since the Unix epoch.
    pub at_ms: u64,
    /// How long it took, the proof included, ms.
    pub duration_ms: u64,
    /// Clean samples that it had.
    pub samples: usize,
    /// How it ended.
    pub result: FitResult,
    /// Why it was not published; one line each.
    pub reasons: Vec<String>,
    /// Id of the model, when there is one.
    pub model_id: Option<String>,
    /// Scores on the newest samples: of the model, of the prior, of the model that was live.
    pub scores: Option<Verdict>,
    /// Rounds per target.
    pub rounds: Option<Rounds>,
    /// What the parity proof compared, bit by bit.
    pub parity: Option<ParityReport>,
    /// Size of the ONNX file.
    pub onnx_bytes: Option<usize>,
}

/// All fits since the start.
#[derive(Debug, Clone, Default)]
pub struct FitStatus {
    /// Fits that ended.
    pub fits: u64,
    /// Models published.
    pub published: u64,
    /// The newest.
    pub last: Option<LastFit>,
}

/// A model that passed the gate while nothing was to be published.
#[derive(Debug)]
pub struct Pending {
    /// The ONNX file.
    pub onnx: Vec<u8>,
    /// Its id.
    pub model_id: String,
    /// Newest sample that it learned from.
    pub trained_through_ms: u64,
    /// Its scores.
    pub scores: serde_json::Value,
}

/// The Envoys.
#[derive(Debug, Serialize)]
pub struct XdsStatus {
    /// One entry per node id.
    pub clients: Vec<NodeStatus>,
}

/// The whole status.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Whether nothing is published.
    pub held: bool,
    /// Whether a model waits for the release.
    pub pending: bool,
    /// Samples accepted, those read from disk at the start included.
    pub samples: u64,
    /// Samples among them that a model may learn from.
    pub clean_samples: u64,
    /// Lines rejected since the start.
    pub rejected: u64,
    /// Samples dropped since the start because their id was known.
    pub duplicates: u64,
    /// Clean samples in memory.
    pub window_samples: usize,
    /// Generation that is published; 0 before the first model.
    pub generation: u64,
    /// Id of the model that is published.
    pub model_id: Option<String>,
    /// Fits since the start.
    pub fits: u64,
    /// Models published since the start.
    pub published: u64,
    /// The Envoys.
    pub xds: XdsStatus,
    /// The newest fit.
    pub last_fit: Option<LastFit>,
    /// Errors of the predictions that routed the newest samples.
    pub live: LiveReport,
}

impl Status {
    /// The status now.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let ((samples, clean_samples, _), window_samples, live) = {
            let store = state.store();
            (store.counts(), store.window_len(), store.live().report())
        };
        let model_id = state.registry().current().map(|(version, _)| version.model_id.clone());
        let FitStatus { fits, published, last } = state.fits().clone();
        Self {
            held: state.held(),
            pending: state.pending().is_some(),
            samples,
            clean_samples,
            rejected: state.rejected.load(std::sync::atomic::Ordering::Relaxed),
            duplicates: state.duplicates.load(std::sync::atomic::Ordering::Relaxed),
            window_samples,
            generation: state.publications.borrow().generation,
            model_id,
            fits,
            published,
            xds: XdsStatus { clients: state.nodes.list() },
            last_fit: last,
            live,
        }
    }
}
