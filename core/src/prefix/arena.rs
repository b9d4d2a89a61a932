//! Where the index keeps its blocks: an arena of small nodes and the hash table over them.
//!
//! A worker may know a million blocks, so a node is 20 bytes and a place of the table 4. What a look-up costs is
//! cache misses, and most look-ups are for blocks that are not there: so a place of the table holds, beside the number
//! of its node, ten bits of the node's key, and a block that is not there is told by the table alone. Places are probed
//! in a row; taking one out moves the ones behind it up, so there are no marks to clean away in a stall later.
//! The arena grows by chunks, never by copying, so it neither holds twice what it needs nor stalls a worker.
//!
//! A node does not keep its 64-bit hash, only 40 bits of it and its pod's number ([`Key`]): with 16,000 blocks on a
//! pod one look-up in 70 million finds a block that is not there. It is one of the same pod's, so no order of use is
//! ever mixed with another's, and one prediction loses a little of its truth.
//!
//! What it is not: an order of eviction; that is [`super::pod`]'s.

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Nodes of one chunk: 80 KiB.
const CHUNK: u32 = 4096;

/// Bits of a table's place that number a node; the others are the key's topmost.
const NUMBER_BITS: u32 = 22;

/// Most nodes.
pub(super) const MAX_NODES: u32 = (1 << NUMBER_BITS) - 1;

/// A place without a node.
const EMPTY: u32 = u32::MAX;

/// Most pods: a node numbers its pod in the bits that its parent's number leaves.
pub(super) const MAX_PODS: u16 = 1 << (u32::BITS - NUMBER_BITS);

/// What a node keeps of the pod and the chained hash it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    fingerprint: u32,
    check: u8,
    pod: u16,
}

impl Key {
    /// The key of a block on the pod with this number, below [`MAX_PODS`].
    pub(super) fn new(pod: u16, hash: u64) -> Self {
        let mixed = (u64::from(pod).rotate_left(48) ^ hash).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let [_, _, _, check, a, b, c, d] = mixed.to_le_bytes();
        Self { fingerprint: u32::from_le_bytes([a, b, c, d]), check, pod: pod % MAX_PODS }
    }
}

/// One block on one pod, or room that tokens known by no hash take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    fingerprint: u32,
    /// Neighbours in the pod's order of use. Of a free node `newer` is the next free one.
    pub(super) newer: u32,
    pub(super) older: u32,
    /// The block before this one in its prompt ([`Node::parent`]), and above it the pod's number.
    link: u32,
    /// Tokens that it takes in the pod's cache.
    pub(super) tokens: u16,
    /// When it was last used, in the pod's epochs.
    pub(super) epoch: u8,
    check: u8,
}

impl Node {
    /// The block before this one in its prompt; [`NONE`] before the first.
    pub(super) fn parent(&self) -> u32 {
        let at = number(self.link);
        if at == MAX_NODES { NONE } else { at }
    }
}

/// Nodes and the table over them.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Vec<Vec<Node>>,
    free: u32,
    len: u32,
    places: Vec<u32>,
}

impl Arena {
    /// Room for `max_nodes`, at most [`MAX_NODES`]; memory for nodes is taken as they come.
    pub(super) fn new(max_nodes: u32) -> Self {
        let mut arena = Self { free: NONE, ..Self::default() };
        arena.resize_table(max_nodes);
        arena
    }

    /// Makes the table fit for `max_nodes` and for what is held, which stays.
    pub(super) fn resize_table(&mut self, max_nodes: u32) {
        // Between a third and two thirds full: rows of taken places stay short.
        let nodes = max_nodes.max(self.len).clamp(1024, MAX_NODES);
        let places = index(nodes + nodes / 2).next_power_of_two();
        if places == self.places.len() {
            return;
        }
        let old = core::mem::replace(&mut self.places, vec![EMPTY; places]);
        for place in old.into_iter().filter(|place| *place != EMPTY) {
            let at = number(place);
            if let Some(fingerprint) = self.get(at).map(|node| node.fingerprint) {
                self.enter(at, fingerprint);
            }
        }
    }

    /// Nodes held.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn get(&self, at: u32) -> Option<&Node> {
        self.chunks.get(index(at / CHUNK))?.get(index(at % CHUNK))
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Node> {
        self.chunks.get_mut(index(at / CHUNK))?.get_mut(index(at % CHUNK))
    }

    /// The node with this key.
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        let mut bucket = self.home(key.fingerprint);
        // The table is never full, so there is an empty place to end at.
        while let Some(place) = self.places.get(bucket).copied().filter(|place| *place != EMPTY) {
            let at = number(place);
            if tag(place) == tag(key.fingerprint)
                && self.get(at).is_some_and(|node| {
                    node.fingerprint == key.fingerprint
                        && node.check == key.check
                        && tag(node.link) == u32::from(key.pod)
                })
            {
                return Some(at);
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// A new node; without a key it is found by nothing. [`NONE`] when there are [`MAX_NODES`].
    pub(super) fn insert(&mut self, key: Option<Key>, parent: u32, tokens: u16) -> u32 {
        if self.len >= MAX_NODES || index(self.len) + 1 >= self.places.len() {
            return NONE;
        }
        let Key { fingerprint, check, pod } = key.unwrap_or(Key { fingerprint: 0, check: 0, pod: 0 });
        let link = u32::from(pod) << NUMBER_BITS | parent.min(MAX_NODES);
        let at = self.place(Node { fingerprint, newer: NONE, older: NONE, link, tokens, epoch: 0, check });
        self.len += 1;
        if key.is_some() {
            self.enter(at, fingerprint);
        }
        at
    }

    fn place(&mut self, node: Node) -> u32 {
        let freed = self.free;
        if let Some(place) = self.get_mut(freed) {
            let next_free = place.newer;
            *place = node;
            self.free = next_free;
            return freed;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() >= index(CHUNK)) {
            self.chunks.push(Vec::with_capacity(index(CHUNK)));
        }
        let before = crate::num::u32_of_usize(self.chunks.len().saturating_sub(1)).saturating_mul(CHUNK);
        let Some(chunk) = self.chunks.last_mut() else { return NONE };
        chunk.push(node);
        before + crate::num::u32_of_usize(chunk.len() - 1)
    }

    /// Frees a node. It must be in no order of use any more.
    pub(super) fn remove(&mut self, at: u32) {
        let Some(fingerprint) = self.get(at).map(|node| node.fingerprint) else { return };
        self.leave(at, fingerprint);
        let free = self.free;
        if let Some(place) = self.get_mut(at) {
            place.newer = free;
        }
        self.free = at;
        self.len -= 1;
    }

    fn home(&self, fingerprint: u32) -> usize {
        index(fingerprint) & self.places.len().wrapping_sub(1)
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & self.places.len().wrapping_sub(1)
    }

    fn enter(&mut self, at: u32, fingerprint: u32) {
        let mut bucket = self.home(fingerprint);
        while self.places.get(bucket).is_some_and(|place| *place != EMPTY) {
            bucket = self.after(bucket);
        }
        if let Some(place) = self.places.get_mut(bucket) {
            *place = tag(fingerprint) << NUMBER_BITS | at;
        }
    }

    /// Takes a node out of the table; one without a key is not in it.
    fn leave(&mut self, at: u32, fingerprint: u32) {
        let mut hole = self.home(fingerprint);
        loop {
            match self.places.get(hole).copied() {
                None | Some(EMPTY) => return,
                Some(place) if number(place) == at => break,
                Some(_) => hole = self.after(hole),
            }
        }
        // Whoever stands behind the hole and could have stood in it moves up, until a place is empty.
        let mask = self.places.len().wrapping_sub(1);
        let mut bucket = self.after(hole);
        while let Some(place) = self.places.get(bucket).copied().filter(|place| *place != EMPTY) {
            let home = self.get(number(place)).map_or(bucket, |node| self.home(node.fingerprint));
            let from_home = bucket.wrapping_sub(home) & mask;
            let from_hole = bucket.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                if let Some(to) = self.places.get_mut(hole) {
                    *to = place;
                }
                hole = bucket;
            }
            bucket = self.after(bucket);
        }
        if let Some(place) = self.places.get_mut(hole) {
            *place = EMPTY;
        }
    }
}

/// The number of the node at a place.
fn number(place: u32) -> u32 {
    place & MAX_NODES
}

/// The topmost bits of a place, or of a fingerprint.
fn tag(bits: u32) -> u32 {
    bits >> NUMBER_BITS
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_node_takes_20_bytes() {
        assert_eq!(size_of::<Node>(), 20);
    }

    #[test]
    fn the_same_block_on_two_pods_is_two_nodes() {
        assert_ne!(Key::new(1, 5), Key::new(2, 5));
        assert_ne!(Key::new(1, 5), Key::new(1, 6));
    }

    #[test]
    fn nodes_without_a_key_are_never_found_and_can_be_removed() {
        let mut arena = Arena::new(1024);
        let nameless = arena.insert(None, NONE, 9);
        let key = Key { fingerprint: 0, check: 0, pod: 0 };
        let named = arena.insert(Some(key), NONE, 9);
        assert_eq!(arena.find(key), Some(named));
        assert_eq!(arena.find(Key { pod: 1, ..key }), None, "the same bits on another pod");
        arena.remove(nameless);
        assert_eq!(arena.find(key), Some(named));
        assert_eq!(arena.len(), 1);
    }

    #[test]
    fn a_row_of_taken_places_closes_behind_whoever_leaves_it() {
        // Few places: most keys stand in rows, some across the table's end.
        let mut arena = Arena { free: NONE, places: vec![EMPTY; 16], ..Arena::default() };
        let keys: Vec<Key> =
            (0..14).map(|at| Key { fingerprint: (at % 3) + 13, check: at as u8, pod: 3 }).collect();
        let nodes: Vec<u32> = keys.iter().map(|key| arena.insert(Some(*key), NONE, 1)).collect();
        for gone in 0..keys.len() {
            arena.remove(nodes[gone]);
            for (at, key) in keys.iter().enumerate() {
                assert_eq!(arena.find(*key), (at > gone).then_some(nodes[at]), "{at} after {gone}");
            }
        }
        assert!(arena.places.iter().all(|place| *place == EMPTY));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_holds_what_a_map_would(steps in proptest::collection::vec((any::<bool>(), 0_u64..60), 0..400)) {
            let mut arena = Arena::new(1);
            let mut map: HashMap<u64, u32> = HashMap::new();
            for (insert, hash) in steps {
                let key = Key::new(7, hash);
                match (insert, map.get(&hash).copied()) {
                    (true, None) => { map.insert(hash, arena.insert(Some(key), NONE, 1)); }
                    (false, Some(at)) => { arena.remove(at); map.remove(&hash); }
                    _ => {}
                }
                if map.len() == 30 {
                    arena.resize_table(4096);
                }
                prop_assert_eq!(arena.len() as usize, map.len());
                for hash in 0..60 {
                    prop_assert_eq!(arena.find(Key::new(7, hash)), map.get(&hash).copied());
                }
            }
        }
    }
}
