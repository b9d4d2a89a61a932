//! The block KV cache of one pod: chained hashes, reference counts, reuse, LRU eviction.
//!
//! As in vLLM, a block whose content is known carries the hash of everything up to and including it. A
//! block that no sequence holds stays reusable in one queue of free blocks; taking a free block takes
//! the front of that queue and forgets its content. Released blocks join the back, last block of the
//! sequence first, so the tail of a prefix is always evicted before its head. Blocks without a hash hold
//! nothing worth keeping and join the front.
//!
//! Behind it, optionally, host memory: what is evicted is kept there, least recently evicted or loaded first
//! to go.
//!
//! What it is not: a model of fragmentation or of a transfer's bandwidth being shared; blocks are all alike.

use std::collections::VecDeque;

use hashbrown::HashMap;

/// Index of a block.
pub type BlockId = u32;

const NONE: u32 = u32::MAX;

/// State of one block.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Chained hash of the content, once it is known.
    hash: Option<u64>,
    /// Sequences that hold the block; 0 means it is in the free queue.
    holders: u32,
    /// Neighbours in the free queue.
    previous: u32,
    next: u32,
}

/// Content that host memory keeps.
#[derive(Debug, Default)]
struct HostTier {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    clock: u64,
}

impl HostTier {
    fn keep(&mut self, hash: u64) {
        if self.capacity == 0 {
            return;
        }
        self.clock += 1;
        self.stamps.insert(hash, self.clock);
        self.order.push_back((hash, self.clock));
        // Entries that were renewed are behind as well; their older selves are skipped.
        while self.stamps.len() > self.capacity || self.order.len() > 4 * self.capacity.max(16) {
            let Some((oldest, stamp)) = self.order.pop_front() else { return };
            if self.stamps.get(&oldest) == Some(&stamp) {
                if self.stamps.len() > self.capacity {
                    self.stamps.remove(&oldest);
                } else {
                    self.order.push_back((oldest, stamp));
                }
            }
        }
    }
}

/// The blocks of one pod.
#[derive(Debug)]
pub struct KvCache {
    slots: Vec<Slot>,
    /// Which block holds the content with this hash.
    by_hash: HashMap<u64, BlockId>,
    /// Front (evicted next) and back of the free queue.
    front: u32,
    back: u32,
    free: u32,
    evicted: u64,
    host: HostTier,
}

impl KvCache {
    /// An empty cache of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let mut cache = Self {
            slots: Vec::with_capacity(blocks as usize),
            by_hash: HashMap::new(),
            front: NONE,
            back: NONE,
            free: 0,
            evicted: 0,
            host: HostTier::default(),
        };
        for block in 0..blocks {
            cache.slots.push(Slot { hash: None, holders: 0, previous: NONE, next: NONE });
            cache.push_back(block);
        }
        cache
    }

    /// The same with `blocks` of host memory behind it.
    #[must_use]
    pub fn with_host(mut self, blocks: u32) -> Self {
        self.host.capacity = blocks as usize;
        self
    }

    /// Number of leading `hashes` that host memory keeps.
    #[must_use]
    pub fn host_hits(&self, hashes: &[u64]) -> u32 {
        hashes.iter().take_while(|hash| self.host.stamps.contains_key(*hash)).count() as u32
    }

    /// These were loaded, so host memory keeps them longer; the tail goes first here too.
    pub fn touch_host(&mut self, hashes: &[u64]) {
        hashes.iter().rev().for_each(|hash| self.host.keep(*hash));
    }

    /// Blocks that no sequence holds, with or without content.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.free
    }

    /// Blocks that some sequence holds.
    #[must_use]
    pub fn held_blocks(&self) -> u32 {
        self.slots.len() as u32 - self.free
    }

    /// Blocks with known content that were given away for new content.
    #[must_use]
    pub fn evicted_blocks(&self) -> u64 {
        self.evicted
    }

    /// Number of leading `hashes` whose blocks are here, and how many of those are free blocks.
    #[must_use]
    pub fn leading_hits(&self, hashes: &[u64]) -> (u32, u32) {
        let mut hits = 0;
        let mut free_hits = 0;
        for hash in hashes {
            let Some(&block) = self.by_hash.get(hash) else { break };
            hits += 1;
            free_hits += u32::from(self.slots[block as usize].holders == 0);
        }
        (hits, free_hits)
    }

    /// As [`Self::leading_hits`], in fewer look-ups. The tail of a prefix goes before its head, so what is here of
    /// a chain is nearly always its head alone; where it is not, the count may be off.
    #[must_use]
    pub fn leading_hits_by_bisection(&self, hashes: &[u64]) -> u32 {
        hashes.partition_point(|hash| self.by_hash.contains_key(hash)) as u32
    }

    /// Free blocks without content.
    #[must_use]
    pub fn empty_blocks(&self) -> u32 {
        let held_and_known = self.by_hash.len() as u32;
        (self.slots.len() as u32).saturating_sub(held_and_known).min(self.free)
    }

    /// Holds the blocks with these hashes and appends them to `held`. They must all be here
    /// ([`Self::leading_hits`]); the first that is not ends the walk.
    pub fn hold_hits(&mut self, hashes: &[u64], held: &mut Vec<BlockId>) {
        for hash in hashes {
            let Some(&block) = self.by_hash.get(hash) else { return };
            if self.slots[block as usize].holders == 0 {
                self.unlink(block);
            }
            self.slots[block as usize].holders += 1;
            held.push(block);
        }
    }

    /// Holds `count` blocks for new content and appends them to `held`; false, and nothing is held, when
    /// there are fewer free ones.
    pub fn hold_new(&mut self, count: u32, held: &mut Vec<BlockId>) -> bool {
        if count > self.free {
            return false;
        }
        for _ in 0..count {
            let block = self.front;
            self.unlink(block);
            let slot = &mut self.slots[block as usize];
            slot.holders = 1;
            if let Some(hash) = slot.hash.take() {
                self.by_hash.remove(&hash);
                self.host.keep(hash);
                self.evicted += 1;
            }
            held.push(block);
        }
        true
    }

    /// Makes a held block's content known. When another block already has that content this one stays
    /// nameless, and is the first to be given away once it is free.
    pub fn publish(&mut self, block: BlockId, hash: u64) {
        if self.slots[block as usize].hash.is_none() && !self.by_hash.contains_key(&hash) {
            self.slots[block as usize].hash = Some(hash);
            self.by_hash.insert(hash, block);
        }
    }

    /// Gives up one hold on each block of a sequence, in the sequence's order.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().rev() {
            let slot = &mut self.slots[block as usize];
            debug_assert!(slot.holders > 0, "block {block} released more often than held");
            slot.holders -= 1;
            if slot.holders == 0 {
                if slot.hash.is_some() {
                    self.push_back(block);
                } else {
                    self.push_front(block);
                }
            }
        }
    }

    fn unlink(&mut self, block: BlockId) {
        let Slot { previous, next, .. } = self.slots[block as usize];
        match self.slots.get_mut(previous as usize) {
            Some(slot) => slot.next = next,
            None => self.front = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(slot) => slot.previous = previous,
            None => self.back = previous,
        }
        self.free -= 1;
    }

    fn push_back(&mut self, block: BlockId) {
        self.slots[block as usize].previous = self.back;
        self.slots[block as usize].next = NONE;
        match self.slots.get_mut(self.back as usize) {
            Some(slot) => slot.next = block,
            None => self.front = block,
        }
        self.back = block;
        self.free += 1;
    }

    fn push_front(&mut self, block: BlockId) {
        self.slots[block as usize].next = self.front;
        self.slots[block as usize].previous = NONE;
        match self.slots.get_mut(self.front as usize) {
            Some(slot) => slot.previous = block,
            None => self.back = block,
        }
        self.front = block;
        self.free += 1;
    }

    /// Walks all structures and says what does not fit together. For tests.
    #[cfg(test)]
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut seen = 0;
        let mut at = self.front;
        let mut previous = NONE;
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.holders != 0 || slot.previous != previous {
                return Err(format!("free queue broken at block {at}: {slot:?}"));
            }
            seen += 1;
            if seen > self.slots.len() {
                return Err("free queue has a cycle".to_owned());
            }
            previous = at;
            at = slot.next;
        }
        let unheld = self.slots.iter().filter(|slot| slot.holders == 0).count();
        if seen != unheld || seen != self.free as usize {
            return Err(format!("{seen} blocks in the free queue, {unheld} unheld, {} counted", self.free));
        }
        for (hash, &block) in &self.by_hash {
            if self.slots[block as usize].hash != Some(*hash) {
                return Err(format!("hash {hash} points at block {block} that holds something else"));
            }
        }
        let named = self.slots.iter().filter(|slot| slot.hash.is_some()).count();
        if named != self.by_hash.len() {
            return Err(format!("{named} named blocks, {} hashes", self.by_hash.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(cache: &mut KvCache, hashes: &[u64]) -> Vec<BlockId> {
        let mut held = Vec::new();
        let (hits, _) = cache.leading_hits(hashes);
        cache.hold_hits(&hashes[..hits as usize], &mut held);
        assert!(cache.hold_new(hashes.len() as u32 - hits, &mut held));
        for (block, hash) in held.iter().zip(hashes) {
            cache.publish(*block, *hash);
        }
        held
    }

    #[test]
    fn a_released_prefix_is_found_again_and_its_tail_is_evicted_first() {
        let mut cache = KvCache::new(6);
        let held = fill(&mut cache, &[1, 2, 3, 4]);
        cache.release(&held);
        assert_eq!(cache.leading_hits(&[1, 2, 3, 4]), (4, 4));
        // Two blocks were never used; the third new one costs the tail.
        let other = fill(&mut cache, &[10, 11, 12]);
        assert_eq!(cache.leading_hits(&[1, 2, 3, 4]), (3, 3));
        assert_eq!(cache.evicted_blocks(), 1);
        cache.release(&other);
        cache.audit().unwrap();
    }

    #[test]
    fn the_least_recently_released_prefix_goes_first() {
        let mut cache = KvCache::new(4);
        let (first, second) = (fill(&mut cache, &[1, 2]), fill(&mut cache, &[8, 9]));
        cache.release(&first);
        cache.release(&second);
        let again = fill(&mut cache, &[1, 2]);
        cache.release(&again);
        let third = fill(&mut cache, &[20, 21]);
        assert_eq!(cache.leading_hits(&[1, 2]).0, 2);
        assert_eq!(cache.leading_hits(&[8, 9]).0, 0);
        cache.release(&third);
    }

    #[test]
    fn a_shared_block_is_free_only_when_the_last_holder_lets_go() {
        let mut cache = KvCache::new(3);
        let first = fill(&mut cache, &[1, 2]);
        let second = fill(&mut cache, &[1, 2, 3]);
        assert_eq!(cache.free_blocks(), 0);
        cache.release(&first);
        assert_eq!(cache.free_blocks(), 0);
        assert!(!cache.hold_new(1, &mut Vec::new()));
        cache.release(&second);
        assert_eq!(cache.free_blocks(), 3);
    }

    #[test]
    fn content_that_is_already_known_does_not_get_a_second_name() {
        let mut cache = KvCache::new(2);
        let mut held = Vec::new();
        assert!(cache.hold_new(2, &mut held));
        cache.publish(held[0], 5);
        cache.publish(held[1], 5);
        cache.audit().unwrap();
        cache.release(&held);
        // The nameless twin is given away first, the named one survives.
        assert!(cache.hold_new(1, &mut Vec::new()));
        assert_eq!(cache.leading_hits(&[5]).0, 1);
    }

    proptest! {
        #[test]
        fn blocks_are_conserved_whatever_the_order_of_holds_and_releases(
            ops in proptest::collection::vec((0u64..6, 1usize..6, any::<bool>()), 1..120),
        ) {
            let mut cache = KvCache::new(16);
            let mut sequences: Vec<Vec<BlockId>> = Vec::new();
            for (family, len, release) in ops {
                if release && !sequences.is_empty() {
                    let blocks = sequences.remove(family as usize % sequences.len());
                    cache.release(&blocks);
                } else {
                    let hashes: Vec<u64> = (0..len as u64).map(|depth| family * 100 + depth).collect();
                    let (hits, free_hits) = cache.leading_hits(&hashes);
                    let new = len as u32 - hits;
                    if new + free_hits <= cache.free_blocks() {
                        let mut held = Vec::new();
                        cache.hold_hits(&hashes[..hits as usize], &mut held);
                        prop_assert!(cache.hold_new(new, &mut held));
                        for (block, hash) in held.iter().zip(&hashes) {
                            cache.publish(*block, *hash);
                        }
                        sequences.push(held);
                    }
                }
                cache.audit().map_err(TestCaseError::fail)?;
                let mut distinct: Vec<BlockId> = sequences.concat();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(cache.held_blocks() as usize, distinct.len());
            }
            for blocks in &sequences {
                cache.release(blocks);
            }
            prop_assert_eq!(cache.free_blocks(), 16);
        }
    }
}
