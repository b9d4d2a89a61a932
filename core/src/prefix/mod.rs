//! What each pod's KV cache probably holds: chained block hashes of what it was sent and generated, in the order
//! in which its engine evicts.
//!
//! Engines evict the least recently used block first, and of one prompt its tail first. So does this: a prompt's
//! blocks are used from the last to the first, a block is never older than one that follows it, hence a pod
//! holds a prefix of each prompt and the length of the match is found by bisection. Everything that takes room
//! is in the order: prompts, answers, and what others send to the pod (as far as its counters tell), the last two as
//! blocks that nothing matches where their text is not known.
//!
//! A match is not a hit. Each block has a depth, the tokens used after it, and a chance of survival that falls
//! around the pod's cache size; what is expected to survive is what routing counts. Blocks stay known
//! beyond that size, so that a pod that keeps more or less than it says is found out ([`survival`]).
//!
//! * `arena`: nodes and the table. `pod`: one pod's order of use. `recency`: depths.
//! * [`survival`]: from depth to chance, learned from answers; `hits`: and from the engine's counters.
//!
//! Not exact: engines see tokens where this sees bytes.

mod arena;
mod hits;
mod pod;
mod recency;
pub mod survival;
#[cfg(test)]
mod tests;

use hashbrown::HashSet;

use crate::hash::KeyMap;
use crate::num::{f32_of_f64, f32_of_u64, f32_of_usize, f64_of_u64};
use crate::placements::Placement;
use arena::{Arena, Key, NONE, Node};
pub use hits::HitWindow;
use pod::PodCache;
pub use survival::{PrefixMatch, Survival};

/// A chance above this is taken for certain, and one below its complement for none.
const CERTAIN: f32 = 0.99;

/// Room without a hash is entered in nodes of at most this many tokens, so that it is evicted bit by bit.
const NAMELESS_TOKENS: u16 = 1024;

/// …or of more, where that would take more nodes than this at a time.
const NAMELESS_NODES: u32 = 4096;

/// A cache that says it is larger is taken for this: sums stay far from overflow.
const MOST_TOKENS: u64 = 1 << 40;

/// Most blocks over all pods, whatever is configured; one placement may exceed it for a moment.
const MOST_BLOCKS: u32 = arena::MAX_NODES - (1 << 16);

/// Blocks dropped at a time from the pod that holds the most, when the bound over all pods is reached.
const DROP_AT_ONCE: u32 = 64;

/// The index over all pods.
#[derive(Debug)]
pub struct PrefixIndex {
    pods: KeyMap<PodCache>,
    /// Numbers of the pods, in keys.
    numbers: HashSet<u16>,
    arena: Arena,
    max_blocks: u32,
}

/// A pod's cache size, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// KV cache.
    pub kv_tokens: u64,
    /// Host-memory tier behind it; 0 where there is none.
    pub host_tokens: u64,
}

impl PrefixIndex {
    /// An empty index of at most `max_blocks` blocks over all pods (20 bytes each, and 6 to 12 for the table).
    #[must_use]
    pub fn new(max_blocks: u32) -> Self {
        Self {
            pods: KeyMap::default(),
            numbers: HashSet::new(),
            arena: Arena::new(max_blocks),
            max_blocks: max_blocks.min(MOST_BLOCKS),
        }
    }

    /// Changes the bound; what is over it goes.
    pub fn set_max_blocks(&mut self, max_blocks: u32) {
        self.max_blocks = max_blocks.min(MOST_BLOCKS);
        self.arena.resize_table(max_blocks);
        self.keep_bound();
    }

    /// Blocks held over all pods.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.arena.len()).unwrap_or(usize::MAX)
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arena.len() == 0
    }

    /// Leading blocks of this prompt that the pod of this number was sent and that are still known. `guess` is where to look first:
    /// the answer for another pod.
    fn find(&self, pod: u16, blocks: &[u64], guess: usize) -> (usize, u32) {
        let at = |index: usize| {
            index
                .checked_sub(1)
                .and_then(|index| blocks.get(index))
                .and_then(|hash| self.arena.find(Key::new(pod, *hash)))
        };
        // `low` blocks are there, `high` + 1 are not.
        let (mut low, mut high, mut node) = (0, blocks.len(), NONE);
        let mut probe = guess.max(1);
        let mut stride = 1;
        while low < high {
            probe = probe.clamp(low + 1, high);
            if let Some(found) = at(probe) {
                (low, node) = (probe, found);
                probe += stride;
            } else if low == 0 && stride == 1 {
                // A pod that has less than the last one most often has nothing.
                high = probe - 1;
                probe = 1;
            } else {
                high = probe - 1;
                probe = high.saturating_sub(stride - 1);
            }
            stride *= 2;
            // Once both ends are near, strides overshoot: halve what is left.
            if low > 0 && stride > high.saturating_sub(low) {
                probe = low + (high - low).div_ceil(2);
            }
        }
        (low, node)
    }

    /// What of a prompt the pod holds. `block_tokens` is the prompt tokens in one block.
    ///
    /// `guess` is the number of leading blocks to look for first and becomes the number found.
    #[must_use]
    pub fn look(
        &self,
        pod_key: u64,
        blocks: &[u64],
        block_tokens: f32,
        survival: &Survival,
        guess: &mut usize,
    ) -> PrefixMatch {
        let Some(pod) = self.pods.get(&pod_key) else { return PrefixMatch::default() };
        let (count, deepest) = self.find(pod.number, blocks, *guess);
        *guess = count.max(1);
        if count == 0 {
            return PrefixMatch::default();
        }
        let capacity = f64_of_u64(pod.capacity_tokens.max(1));
        let tiers = f32_of_f64(f64_of_u64(pod.capacity_tokens + pod.host_tokens) / capacity);
        let depth = |epoch: u8| f32_of_f64(f64_of_u64(pod.recency.depth(epoch)) / capacity);

        // From the last block to the first: depths only fall, so the walk ends at the first block that is certain.
        let (mut kv_blocks, mut any_blocks, mut gradient) = (0.0, 0.0, 0.0);
        let mut probability = 0.0;
        let (mut at, mut left) = (deepest, count);
        let mut last: Option<(u8, f32, f32)> = None;
        while left > 0 {
            let Some(node) = self.arena.get(at) else { break };
            let (kv, any) = match last {
                Some((epoch, kv, any)) if epoch == node.epoch => (kv, any),
                _ => {
                    let depth = depth(node.epoch);
                    let kv = survival.chance(depth, 1.0);
                    let any = if tiers > 1.0 { survival.chance(depth, tiers) } else { kv };
                    (kv, any)
                }
            };
            last = Some((node.epoch, kv, any));
            if left == count {
                probability = kv;
            }
            if kv > CERTAIN {
                kv_blocks += f32_of_usize(left);
                any_blocks += f32_of_usize(left);
                break;
            }
            kv_blocks += if kv < 1.0 - CERTAIN { 0.0 } else { kv };
            any_blocks += if any < 1.0 - CERTAIN { 0.0 } else { any };
            gradient += Survival::gradient(any);
            at = node.parent();
            left -= 1;
        }
        let matched = f32_of_usize(count);
        PrefixMatch {
            matched_tokens: matched * block_tokens,
            surviving_tokens: kv_blocks * survival.trust * block_tokens,
            host_tokens: (any_blocks - kv_blocks) * survival.trust * block_tokens,
            probability: probability * survival.trust,
            capacity_gradient: gradient * survival.trust / matched,
        }
    }

    /// Tokens that the pod's cache takes before it evicts anything.
    #[must_use]
    pub fn room_tokens(&self, pod_key: u64) -> f32 {
        let room = |pod: &PodCache| pod.capacity_tokens.saturating_sub(pod.recency.held());
        self.pods.get(&pod_key).map_or(0.0, |pod| f32_of_u64(room(pod)))
    }

    /// The size of a pod's cache, as it reports it or as is assumed.
    pub fn set_capacity(&mut self, pod_key: u64, capacity: Capacity) {
        if !self.pods.contains_key(&pod_key) {
            // No more pods than the table of pods holds, so there is a number.
            let Some(number) = (0..arena::MAX_PODS).find(|number| !self.numbers.contains(number)) else {
                return;
            };
            self.numbers.insert(number);
            self.pods.insert(pod_key, PodCache::new(number, 0));
        }
        let Some(pod) = self.pods.get_mut(&pod_key) else { return };
        pod.capacity_tokens = capacity.kv_tokens.min(MOST_TOKENS);
        pod.host_tokens = capacity.host_tokens.min(MOST_TOKENS);
        pod.shrink(&mut self.arena);
    }

    /// The pod uses these blocks now: it was sent a prompt, or has answered it. Unknown pods are ignored
    /// ([`Self::set_capacity`] makes them known).
    ///
    /// `after` is the hash of the block that they follow in their chain; `None` when they are its first.
    pub fn place(&mut self, pod_key: u64, after: Option<u64>, blocks: &[u64], block_tokens: f32) {
        let Some(number) = self.pods.get(&pod_key).map(|pod| pod.number) else { return };
        let (known, mut at) = self.find(number, blocks, blocks.len());
        let Some(pod) = self.pods.get_mut(&pod_key) else { return };
        if known == 0 {
            at = match after {
                None => NONE,
                // A chain whose head is gone matches nothing.
                Some(hash) => match self.arena.find(Key::new(number, hash)) {
                    Some(parent) => parent,
                    None => return,
                },
            };
        }
        let tokens = u16::try_from(crate::num::u32_of_f32(block_tokens)).unwrap_or(u16::MAX).max(1);
        let mut linked = at;
        let mut fresh = 0;
        for hash in blocks.get(known..).unwrap_or_default() {
            let inserted = self.arena.insert(Some(Key::new(number, *hash)), at, tokens);
            if inserted == NONE {
                break;
            }
            at = inserted;
            fresh += 1;
        }
        // From the last to the first: new ones join, known ones move to the front.
        for _ in 0..fresh {
            pod.add(&mut self.arena, at);
            at = self.arena.get(at).map_or(NONE, Node::parent);
        }
        for _ in 0..pod.blocks {
            let Some(parent) = self.arena.get(linked).map(Node::parent) else { break };
            pod.touch(&mut self.arena, linked);
            linked = parent;
        }
        pod.shrink(&mut self.arena);
        self.keep_bound();
    }

    /// Enters a placement, this worker's or another's.
    pub fn take(&mut self, placement: &Placement) {
        if !placement.blocks.is_empty() || placement.after.is_some() {
            self.place(placement.pod_key, placement.after, &placement.blocks, placement.block_tokens);
        }
        self.allocate(placement.pod_key, placement.nameless_tokens);
    }

    /// The pod stored this many tokens that no hash is known of.
    pub fn allocate(&mut self, pod_key: u64, tokens: f32) {
        let Some(pod) = self.pods.get_mut(&pod_key).filter(|_| tokens > 0.0) else { return };
        // More than the cache twice over leaves nothing of it either way.
        let most = f32_of_u64(pod.capacity_tokens + pod.host_tokens) * 2.0;
        let mut left = crate::num::u32_of_f32(tokens.min(most));
        let part = u16::try_from(left / NAMELESS_NODES).unwrap_or(u16::MAX).max(NAMELESS_TOKENS);
        for _ in 0..=NAMELESS_NODES {
            let part = u16::try_from(left).unwrap_or(u16::MAX).min(part);
            if part == 0 {
                break;
            }
            left -= u32::from(part);
            let at = self.arena.insert(None, NONE, part);
            if at == NONE {
                break;
            }
            pod.add(&mut self.arena, at);
        }
        pod.shrink(&mut self.arena);
        self.keep_bound();
    }

    fn keep_bound(&mut self) {
        while self.arena.len() > self.max_blocks {
            let Some(largest) = self.pods.values_mut().max_by_key(|pod| pod.blocks) else { return };
            for _ in 0..DROP_AT_ONCE {
                if !largest.evict_oldest(&mut self.arena) {
                    return;
                }
            }
        }
    }

    /// Forgets what a pod holds: it restarted.
    pub fn forget(&mut self, pod_key: u64) {
        if let Some(mut pod) = self.pods.remove(&pod_key) {
            self.numbers.remove(&pod.number);
            while pod.evict_oldest(&mut self.arena) {}
        }
    }

    /// Forgets every pod that `keep` does not name.
    pub fn retain_pods(&mut self, keep: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self.pods.keys().copied().filter(|key| !keep(*key)).collect();
        for key in gone {
            self.forget(key);
        }
    }
}
