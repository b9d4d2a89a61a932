//! The pods of a run, and the truth about them that no router has.

use super::workload::Request;
use crate::engine::Engine;
use crate::engine::profile::Profile;
use crate::engine::prompt::TokenBlocks;

/// What happens to a pod on the way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// It joins, with an empty cache.
    Join,
    /// It leaves the pool; what it holds fails.
    Kill,
    /// Its steps take this many times as long from now on.
    Slow(f64),
}

/// A change of the pool and its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolChange {
    /// When, microseconds from the start.
    pub at_us: u64,
    /// Index of the pod.
    pub pod: usize,
    /// What.
    pub change: Change,
}

#[derive(Debug)]
pub(super) struct Pod {
    pub(super) engine: Engine,
    pub(super) up: bool,
    /// When its running step ends.
    pub(super) step_ends_us: Option<u64>,
    /// Counts its lives: a step of an earlier life ends nothing.
    pub(super) life: u32,
}

/// All pods.
#[derive(Debug)]
pub struct Pods {
    pub(super) pods: Vec<Pod>,
}

impl Pods {
    /// Idle pods with empty caches, all in the pool. Where a policy routes to other pods than these (real ones),
    /// they tell it how many there are and how large.
    #[must_use]
    pub fn new(profiles: Vec<Profile>, seed: u64) -> Self {
        let pods = profiles
            .into_iter()
            .zip(0_u64..)
            .map(|(profile, at)| Pod {
                engine: Engine::new(profile, seed.wrapping_mul(1_000_003).wrapping_add(at)),
                up: true,
                step_ends_us: None,
                life: 0,
            })
            .collect();
        Self { pods }
    }

    /// Number of pods, the dead included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether the pod is in the pool.
    #[must_use]
    pub fn is_up(&self, pod: usize) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.up)
    }

    /// Indices of the pods in the pool.
    pub fn up(&self) -> impl Iterator<Item = usize> {
        self.pods.iter().enumerate().filter(|(_, pod)| pod.up).map(|(at, _)| at)
    }

    /// The pod's engine: its whole truth.
    ///
    /// # Panics
    /// When there is no such pod.
    #[must_use]
    pub fn engine(&self, pod: usize) -> &Engine {
        &self.pods[pod].engine
    }

    /// When the pod's running step ends; `None` when it idles.
    #[must_use]
    pub fn step_ends_us(&self, pod: usize) -> Option<u64> {
        self.pods.get(pod).and_then(|pod| pod.step_ends_us)
    }

    /// Leading prompt tokens of the request that the pod's cache holds right now. What it will find once it is
    /// scheduled may be less (evicted meanwhile) or more (computed meanwhile by another): the record of the
    /// request tells for the pod that served it.
    #[must_use]
    pub fn cached_tokens(&self, pod: usize, request: &Request) -> u32 {
        self.pods.get(pod).map_or(0, |pod| pod.engine.cached_tokens(&prompt_of(request)))
    }
}

/// The request's prompt as the engine takes it.
pub(super) fn prompt_of(request: &Request) -> TokenBlocks {
    TokenBlocks::foretold(request.prompt_tokens, super::BLOCK_TOKENS, request.blocks.clone())
}
