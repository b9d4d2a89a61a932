//! One pod's blocks in the order of their use, as its engine evicts them.

use super::arena::{Arena, NONE};
use super::recency::{EPOCHS_PER_CAPACITY, Recency};

/// Blocks stay known up to this many times the pod's cache: what a pod keeps is learned from matches beyond
/// what it says.
const REACH: f32 = 1.5;

/// One pod's cache as the index sees it.
#[derive(Debug)]
pub(super) struct PodCache {
    /// Its number in keys.
    pub(super) number: u16,
    newest: u32,
    oldest: u32,
    pub(super) blocks: u32,
    pub(super) recency: Recency,
    /// KV cache and host tier, in tokens.
    pub(super) capacity_tokens: u64,
    pub(super) host_tokens: u64,
}

impl PodCache {
    pub(super) fn new(number: u16, capacity_tokens: u64) -> Self {
        Self {
            number,
            newest: NONE,
            oldest: NONE,
            blocks: 0,
            recency: Recency::default(),
            capacity_tokens,
            host_tokens: 0,
        }
    }

    /// Takes a new node in as the most recently used.
    pub(super) fn add(&mut self, arena: &mut Arena, at: u32) {
        self.blocks += 1;
        self.link_newest(arena, at);
    }

    /// Makes a node the most recently used.
    pub(super) fn touch(&mut self, arena: &mut Arena, at: u32) {
        self.unlink(arena, at);
        self.link_newest(arena, at);
    }

    /// Drops the least recently used node. False when there is none.
    pub(super) fn evict_oldest(&mut self, arena: &mut Arena) -> bool {
        let at = self.oldest;
        if arena.get(at).is_none() {
            return false;
        }
        self.unlink(arena, at);
        arena.remove(at);
        self.blocks = self.blocks.saturating_sub(1);
        true
    }

    /// Drops what is beyond the reach.
    pub(super) fn shrink(&mut self, arena: &mut Arena) {
        let all = crate::num::f64_of_u64(self.capacity_tokens + self.host_tokens);
        let reach = crate::num::u64_of_f64(all * f64::from(REACH));
        while self.recency.held() > reach && self.evict_oldest(arena) {}
    }

    fn unlink(&mut self, arena: &mut Arena, at: u32) {
        let Some(node) = arena.get(at).copied() else { return };
        self.recency.remove(node.epoch, node.tokens);
        match arena.get_mut(node.newer) {
            Some(newer) => newer.older = node.older,
            None => self.newest = node.older,
        }
        match arena.get_mut(node.older) {
            Some(older) => older.newer = node.newer,
            None => self.oldest = node.newer,
        }
    }

    fn link_newest(&mut self, arena: &mut Arena, at: u32) {
        let epoch_tokens = (self.capacity_tokens + self.host_tokens) / u64::from(EPOCHS_PER_CAPACITY);
        if self.recency.is_out_of_marks() {
            self.mark_anew(arena);
        }
        self.recency.turn(epoch_tokens);
        let former = self.newest;
        if let Some(node) = arena.get_mut(at) {
            node.newer = NONE;
            node.older = former;
            node.epoch = self.recency.add(node.tokens);
        }
        match arena.get_mut(former) {
            Some(node) => node.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// Gives all blocks fresh marks of their epochs: once in some hundred epochs.
    fn mark_anew(&mut self, arena: &mut Arena) {
        let mut at = self.oldest;
        for _ in 0..self.blocks {
            let Some(node) = arena.get_mut(at) else { break };
            node.epoch = self.recency.fresh_mark(node.epoch);
            at = node.newer;
        }
        self.recency.marked_anew();
    }
}
