//! One VM's router: what it knows, and the life of a request through it.
//!
//! `decide` → `dispatch` → (`served_by`, `first_token`, `progress`)* → `end`. The caller (the filter, the
//! simulator) moves bytes and time; nothing here calls out. State of the other workers comes in by
//! [`Router::import_peer`], the table of pods by [`Router::set_fleet`]; own state goes out by
//! [`Router::export`] and as the values that [`Router::dispatch`] and [`Router::end`] return.
//!
//! * `pods`: what the table of pods and the other workers' placements mean for the prefix index.
//! * `candidates`: which pods may serve, and their rows. [`decide`]: predictions, costs, order. `typical`: how fast pods are, and what an unknown one is taken for.
//! * [`ablation`]: what can be left out, for benches.
//! * [`outcome`]: dispatch and everything that follows.

pub mod ablation;
mod candidates;
pub mod decide;
pub mod outcome;
mod pods;
#[cfg(test)]
mod pods_tests;
#[cfg(test)]
mod slo_tests;
#[cfg(test)]
mod tests;
mod typical;
#[cfg(test)]
mod workers_tests;

use hashbrown::HashMap;
use std::sync::Arc;

pub use ablation::Ablation;
pub use decide::{Choice, Decision};
pub use outcome::{Dispatch, Outcome, SegmentWrite};

use crate::codec::Writer;
use crate::config::Config;
use crate::coverage::Coverage;
use crate::features::Row;
use crate::fleet::Fleet;
use crate::hash::{KeyMap, pod_key};
use crate::ledger::{Ledger, LedgerView};
use crate::load::{LoadTable, PodLoad};
use crate::model::{Model, Prediction};
use crate::placements::{LogReader, PlacementLog};
use crate::prefix::PrefixIndex;
use crate::request::tokens::TokenEstimator;
use crate::reuse::Reuse;
use crate::telemetry::LoadReport;
use candidates::Candidate;
use pods::PodMemory;
use typical::Speeds;

/// A ledger whose heartbeat is older belongs to a VM that is gone.
const PEER_STALE_US: u64 = 3_000_000;

/// Workers whose ledgers are read. Envoy runs one a core.
const MAX_PEERS: usize = 256;

#[derive(Debug, Default)]
struct Peer {
    view: LedgerView,
    log: LogReader,
}

/// Buffers of a decision, kept to allocate once.
#[derive(Debug, Default)]
struct Scratch {
    table: LoadTable,
    speeds: Speeds,
    loads: Vec<PodLoad>,
    candidates: Vec<Candidate>,
    rows: Vec<Row>,
    predictions: Vec<Prediction>,
    chosen_rows: Vec<Row>,
    chosen_predictions: Vec<Prediction>,
}

/// One VM's router.
#[derive(Debug)]
pub struct Router {
    config: Arc<Config>,
    incarnation: u64,
    random: u64,
    requests: u64,
    ejections: usize,
    ledger: Ledger,
    peers: HashMap<u32, Peer>,
    fleet: Fleet,
    pods: KeyMap<PodMemory>,
    prefix: PrefixIndex,
    log: PlacementLog,
    tokens: TokenEstimator,
    model: Option<Arc<Model>>,
    reuse: Reuse,
    generation: u64,
    lists_all: bool,
    ablation: Ablation,
    coverage: Coverage,
    scratch: Scratch,
}

impl Router {
    /// A router without pods and without a model. `incarnation` is random per VM and not 0.
    #[must_use]
    pub fn new(config: Arc<Config>, incarnation: u64) -> Self {
        let max_blocks = config.prefix.max_blocks;
        Self {
            config,
            incarnation,
            random: incarnation | 1,
            requests: 0,
            ejections: 0,
            ledger: Ledger::default(),
            peers: HashMap::new(),
            fleet: Fleet::default(),
            pods: KeyMap::default(),
            prefix: PrefixIndex::new(max_blocks),
            log: PlacementLog::new(incarnation),
            tokens: TokenEstimator::default(),
            model: None,
            reuse: Reuse::default(),
            generation: 0,
            lists_all: false,
            ablation: Ablation::default(),
            coverage: Coverage::default(),
            scratch: Scratch::default(),
        }
    }

    /// Takes a new configuration; everything learned stays.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.prefix.set_max_blocks(config.prefix.max_blocks);
        self.config = config;
        self.size_caches();
    }

    /// Whether decisions list every candidate from now on, not just the best `pick.count`: for whoever judges
    /// predictions between pods.
    pub fn set_lists_all(&mut self, lists_all: bool) {
        self.lists_all = lists_all;
    }

    /// Leaves parts of this router out from now on, for benches.
    pub fn set_ablation(&mut self, ablation: Ablation) {
        self.ablation = ablation;
        self.size_caches();
    }

    /// Routes by this model from now on.
    pub fn set_model(&mut self, model: Option<Arc<Model>>, generation: u64) {
        self.model = model;
        self.generation = generation;
    }

    /// Generation of the model in use; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Random per VM.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The candidate pods.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Requests in flight through this VM.
    #[must_use]
    pub fn inflight(&self) -> usize {
        self.ledger.inflight()
    }

    /// Blocks that the prefix index knows, over all pods.
    #[must_use]
    pub fn known_blocks(&self) -> usize {
        self.prefix.len()
    }

    /// Pods that this VM has ejected since the last call.
    pub fn take_ejections(&mut self) -> usize {
        core::mem::take(&mut self.ejections)
    }

    /// Takes what a response of the pod at this `ip:port` said of its load: this VM routes by it until a newer
    /// page comes.
    pub fn note_load_report(&mut self, address: &str, report: &LoadReport, now_us: u64) {
        self.fleet.note_load_report(pod_key(address), report, now_us);
    }

    /// Takes another worker's ledger, and through `fetch` the segments of its placement log that are news.
    ///
    /// Returns whether the blob was one of this format. Own blobs are ignored.
    pub fn import_peer(&mut self, slot: u32, blob: &[u8], fetch: impl FnMut(u64) -> Option<Vec<u8>>) -> bool {
        let Some((incarnation, version)) = LedgerView::peek(blob) else { return false };
        if incarnation == self.incarnation {
            return true;
        }
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&slot) {
            return false;
        }
        let peer = self.peers.entry(slot).or_default();
        if peer.view.incarnation == incarnation && peer.view.version == version {
            return true;
        }
        let Some(view) = LedgerView::read(blob) else { return false };
        peer.view = view;
        let (log, position) = (&mut peer.log, peer.view.log);
        let prefix = &mut self.prefix;
        log.catch_up(incarnation, position, fetch, |placement| prefix.take(&placement));
        true
    }

    /// Packs this VM's ledger into `buffer` for the other workers.
    #[must_use]
    pub fn export(&mut self, buffer: Vec<u8>, now_us: u64) -> Vec<u8> {
        let mut out = Writer::reuse(buffer);
        self.ledger.write(&mut out, self.incarnation, self.log.position(), now_us);
        out.finish()
    }

    fn live_peers(peers: &HashMap<u32, Peer>, now_us: u64) -> impl Iterator<Item = &LedgerView> + Clone {
        peers.values().map(|peer| &peer.view).filter(move |view| {
            view.incarnation != 0 && view.heartbeat_us.saturating_add(PEER_STALE_US) >= now_us
        })
    }

    /// The next of a xorshift sequence: enough to spread ties.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
