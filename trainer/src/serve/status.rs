//! What `GET /v1/status` answers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::State;
use crate::fit::Rounds;
use crate::gate::{Cost, Verdict};
use crate::live::LiveReport;
use crate::parity::ParityReport;
use crate::publish::nodes::NodeStatus;
use crate::publish::targets::TargetStatus;
use crate::store::Counts;
use crate::store::training::Filling;
use crate::watch::Drift;

/// How a fit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FitResult {
    /// The model was published.
    Published,
    /// The model would be published but for the hold.
    Held,
    /// The model will be published when the publish interval has passed.
    Waiting,
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
            Self::Waiting => "waiting",
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
    /// What it costs to send and to evaluate.
    pub cost: Option<Cost>,
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

/// Times that the trainer went back to an older version by itself.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rollbacks {
    /// How often, since the start.
    pub count: u64,
    /// The last time, ms since the Unix epoch.
    pub last_ms: Option<u64>,
    /// Why, the last time.
    pub reasons: Vec<String>,
}

/// The Envoys.
#[derive(Debug, Serialize)]
pub struct XdsStatus {
    /// One entry per node id.
    pub clients: Vec<NodeStatus>,
}

/// The sample store.
#[derive(Debug, Serialize)]
pub struct StoreStatus {
    /// Bytes of all segments.
    pub bytes: u64,
    /// Samples that were not believed.
    pub quarantined: u64,
    /// Samples that teach nothing, by reason.
    pub unclean: BTreeMap<&'static str, u64>,
    /// Records cut off by a crash.
    pub torn: u64,
    /// Records with a wrong checksum.
    pub damaged: u64,
    /// Records of earlier starts that would not be accepted now, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// How the training set is filled.
    pub training: Filling,
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
    /// What else became of samples: not believed, teaching nothing by reason, lost on disk.
    pub store: StoreStatus,
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
    /// Objects in Kubernetes that carry the publication or point at it.
    pub kubernetes: Vec<TargetStatus>,
    /// The newest fit.
    pub last_fit: Option<LastFit>,
    /// What has changed since the published model was fitted.
    pub drift: Drift,
    /// Times that the trainer went back to an older version by itself.
    pub rollbacks: Rollbacks,
    /// Errors of the predictions that routed the newest samples.
    pub live: LiveReport,
}

impl Status {
    /// The status now.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let (counts, bytes, training, window_samples, live) = {
            let store = state.store();
            let (bytes, training) = (store.bytes(), store.filling());
            (store.counts().clone(), bytes, training, store.window_len(), store.live().report())
        };
        let Counts { samples, clean, quarantined, unclean, torn, damaged, refused } = counts;
        let model_id = state.registry().current().map(|(version, _)| version.model_id.clone());
        let FitStatus { fits, published, last } = state.fits().clone();
        Self {
            held: state.held(),
            pending: state.pending().is_some(),
            samples,
            clean_samples: clean,
            store: StoreStatus { bytes, quarantined, unclean, torn, damaged, refused, training },
            rejected: state.rejected.load(std::sync::atomic::Ordering::Relaxed),
            duplicates: state.duplicates.load(std::sync::atomic::Ordering::Relaxed),
            window_samples,
            generation: state.publications.borrow().generation,
            model_id,
            fits,
            published,
            xds: XdsStatus { clients: state.nodes.list() },
            kubernetes: state.targets.list(),
            last_fit: last,
            drift: state.drift().clone(),
            rollbacks: state.rollbacks(),
            live,
        }
    }
}
