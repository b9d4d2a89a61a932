//! What each pod's KV cache probably holds, by block hashes of the prompts it was sent.
//!
//! Per pod one LRU of blocks, bounded by the pod's KV capacity, as the engines themselves evict: least
//! recently used first, and of one chain its tail first. A prompt's blocks are touched from the last to the
//! first, so a block is never older than a block that follows it in any chain; hence a pod holds a prefix
//! of each prompt and the length of the match is found by bisection, a few look-ups for each pod.
//! Generated tokens take room too: they enter as blocks that nothing matches.
//!
//! Not exact: engines see tokens where this sees bytes, and other routers' traffic is not in it.

use hashbrown::{HashMap, HashTable, hash_table::Entry};

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    hash: u64,
    newer: u32,
    older: u32,
}

/// One pod's blocks in the order of their use.
#[derive(Debug)]
struct PodCache {
    table: HashTable<u32>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    generated: u64,
}

impl Default for PodCache {
    fn default() -> Self {
        Self {
            table: HashTable::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            generated: 0,
        }
    }
}

fn slot(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

impl PodCache {
    fn len(&self) -> usize {
        self.table.len()
    }

    fn find(&self, hash: u64) -> Option<u32> {
        self.table.find(hash, |at| self.nodes.get(slot(*at)).is_some_and(|node| node.hash == hash)).copied()
    }

    fn unlink(&mut self, at: u32) {
        let Some(Node { newer, older, .. }) = self.nodes.get(slot(at)).copied() else { return };
        match self.nodes.get_mut(slot(newer)) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(slot(older)) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let former = self.newest;
        if let Some(node) = self.nodes.get_mut(slot(at)) {
            node.newer = NONE;
            node.older = former;
        }
        match self.nodes.get_mut(slot(former)) {
            Some(node) => node.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// Makes a block the most recently used; returns whether it is new.
    fn touch(&mut self, hash: u64) -> bool {
        if let Some(at) = self.find(hash) {
            self.unlink(at);
            self.link_newest(at);
            return false;
        }
        let node = Node { hash, newer: NONE, older: NONE };
        let at = if let Some(at) = self.free.pop() {
            if let Some(place) = self.nodes.get_mut(slot(at)) {
                *place = node;
            }
            at
        } else {
            let at = crate::num::u32_of_usize(self.nodes.len());
            self.nodes.push(node);
            at
        };
        let nodes = &self.nodes;
        self.table.insert_unique(hash, at, |at| nodes.get(slot(*at)).map_or(0, |node| node.hash));
        self.link_newest(at);
        true
    }

    fn evict_oldest(&mut self) -> bool {
        let at = self.oldest;
        let Some(hash) = self.nodes.get(slot(at)).map(|node| node.hash) else { return false };
        self.unlink(at);
        let nodes = &self.nodes;
        let matches = |other: &u32| *other == at;
        if let Entry::Occupied(entry) =
            self.table.entry(hash, matches, |at| nodes.get(slot(*at)).map_or(0, |node| node.hash))
        {
            entry.remove();
        }
        self.free.push(at);
        true
    }
}

/// The index over all pods.
#[derive(Debug)]
pub struct PrefixIndex {
    pods: HashMap<u64, PodCache>,
    blocks: usize,
    max_blocks: usize,
}

impl PrefixIndex {
    /// An empty index of at most `max_blocks` blocks over all pods.
    #[must_use]
    pub fn new(max_blocks: usize) -> Self {
        Self { pods: HashMap::new(), blocks: 0, max_blocks }
    }

    /// Changes the bound; what is over it goes as pods are touched.
    pub fn set_max_blocks(&mut self, max_blocks: usize) {
        self.max_blocks = max_blocks;
    }

    /// Blocks held over all pods.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Leading blocks of this prompt that the pod holds.
    #[must_use]
    pub fn matched(&self, pod_key: u64, blocks: &[u64]) -> usize {
        let Some(pod) = self.pods.get(&pod_key) else { return 0 };
        blocks.partition_point(|hash| pod.find(*hash).is_some())
    }

    /// The pod was sent this prompt and holds it now, as far as `capacity_blocks` allows.
    pub fn place(&mut self, pod_key: u64, blocks: &[u64], capacity_blocks: usize) {
        let pod = self.pods.entry(pod_key).or_default();
        for hash in blocks.iter().rev() {
            self.blocks += usize::from(pod.touch(*hash));
        }
        self.shrink(pod_key, capacity_blocks);
    }

    /// The pod generated this many blocks' worth of tokens.
    pub fn generated(&mut self, pod_key: u64, count: u16, capacity_blocks: usize) {
        let pod = self.pods.entry(pod_key).or_default();
        for _ in 0..count {
            pod.generated += 1;
            let unique = crate::hash::chain(pod_key, &pod.generated.to_le_bytes());
            self.blocks += usize::from(pod.touch(unique));
        }
        self.shrink(pod_key, capacity_blocks);
    }

    fn shrink(&mut self, pod_key: u64, capacity_blocks: usize) {
        let Some(pod) = self.pods.get_mut(&pod_key) else { return };
        while (pod.len() > capacity_blocks || self.blocks > self.max_blocks) && pod.evict_oldest() {
            self.blocks -= 1;
        }
    }

    /// Forgets a pod: it left, or restarted.
    pub fn forget(&mut self, pod_key: u64) {
        if let Some(pod) = self.pods.remove(&pod_key) {
            self.blocks -= pod.len();
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chain(seed: u64, length: u64) -> Vec<u64> {
        let mut state = seed;
        (0..length)
            .map(|i| {
                state = crate::hash::chain(state, &i.to_le_bytes());
                state
            })
            .collect()
    }

    #[test]
    fn a_prompt_matches_as_far_as_it_was_sent_to_that_pod() {
        let mut index = PrefixIndex::new(1000);
        let long = chain(1, 20);
        index.place(7, &long[..12], 100);
        assert_eq!(index.matched(7, &long), 12);
        assert_eq!(index.matched(8, &long), 0);
        index.forget(7);
        assert_eq!((index.matched(7, &long), index.len()), (0, 0));
    }

    #[test]
    fn the_tail_of_the_least_recently_used_prompt_goes_first() {
        let mut index = PrefixIndex::new(1000);
        let (old, new) = (chain(1, 10), chain(2, 10));
        index.place(7, &old, 15);
        index.place(7, &new, 15);
        assert_eq!(index.matched(7, &new), 10);
        assert_eq!(index.matched(7, &old), 5);
        index.place(7, &old[..5], 15);
        index.generated(7, 8, 15);
        assert_eq!(index.matched(7, &old), 5, "just used");
        assert_eq!(index.matched(7, &new), 2, "made room for what was generated");
    }

    #[test]
    fn the_bound_over_all_pods_holds() {
        let mut index = PrefixIndex::new(50);
        for pod in 0..20 {
            index.place(pod, &chain(pod, 10), 1000);
        }
        assert!(index.len() <= 50);
    }

    proptest! {
        #[test]
        fn the_match_is_the_leading_run_whatever_was_placed(
            steps in proptest::collection::vec((0_u64..3, 0_u64..5, 1_usize..30, 0_u16..6), 1..60),
            capacity in 1_usize..60,
        ) {
            let mut index = PrefixIndex::new(100);
            let chains: Vec<Vec<u64>> = (0..5).map(|seed| {
                // Chains share their first ten blocks in pairs.
                let mut blocks = chain(seed / 2, 10);
                blocks.extend(chain(100 + seed, 20));
                blocks
            }).collect();
            for (pod, which, length, generated) in steps {
                let blocks = &chains[usize::try_from(which).unwrap()];
                index.place(pod, &blocks[..length], capacity);
                index.generated(pod, generated, capacity);
                let held: usize = index.pods.values().map(PodCache::len).sum();
                prop_assert_eq!(held, index.len());
                prop_assert!(index.len() <= 100);
                for (key, pod) in &index.pods {
                    prop_assert!(pod.len() <= capacity);
                    for blocks in &chains {
                        let run = blocks.iter().take_while(|hash| pod.find(**hash).is_some()).count();
                        prop_assert_eq!(run, index.matched(*key, blocks));
                    }
                }
            }
        }
    }
}
