//! Where the index keeps its blocks: an arena of small nodes and the hash table over them.
//!
//! A worker may know a million blocks, so a node is 24 bytes and the table is 4 bytes a bucket: nodes
//! of a bucket are chained through the nodes themselves. The arena grows by chunks, never by copying, so it
//! neither holds twice what it needs nor stalls a worker while it grows.
//!
//! A node does not keep its 64-bit key, only 40 bits of it ([`Key`]): at a million blocks one look-up in a
//! million finds a block that is not there, which costs one prediction a little of its truth.
//!
//! What it is not: an order of eviction; that is [`super::pod`]'s.

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// Nodes of one chunk: 96 KiB.
const CHUNK: u32 = 4096;

/// What a node keeps of the pod and the chained hash it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    fingerprint: u32,
    check: u8,
}

impl Key {
    /// The key of a block on a pod.
    pub(super) fn new(pod_key: u64, hash: u64) -> Self {
        let mixed = (pod_key.rotate_left(32) ^ hash).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let [_, _, _, check, a, b, c, d] = mixed.to_le_bytes();
        Self { fingerprint: u32::from_le_bytes([a, b, c, d]), check }
    }
}

/// One block on one pod, or room that tokens known by no hash take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    fingerprint: u32,
    /// The next node of the bucket; [`NONE`] also for nodes that are in no bucket.
    next: u32,
    /// Neighbours in the pod's order of use.
    pub(super) newer: u32,
    pub(super) older: u32,
    /// The block before this one in its prompt.
    pub(super) parent: u32,
    /// Tokens that it takes in the pod's cache.
    pub(super) tokens: u16,
    /// When it was last used, in the pod's epochs.
    pub(super) epoch: u8,
    check: u8,
}

/// Nodes and the table over them.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Vec<Vec<Node>>,
    free: u32,
    len: u32,
    heads: Vec<u32>,
}

impl Arena {
    /// Room for `max_nodes`; memory for nodes is taken as they come.
    pub(super) fn new(max_nodes: u32) -> Self {
        let mut arena = Self { free: NONE, ..Self::default() };
        arena.resize_table(max_nodes);
        arena
    }

    /// Makes the table fit for `max_nodes`; what is held stays.
    pub(super) fn resize_table(&mut self, max_nodes: u32) {
        let buckets = usize::try_from(max_nodes.clamp(1024, 1 << 30)).unwrap_or(1024).next_power_of_two();
        if buckets == self.heads.len() {
            return;
        }
        let old = core::mem::replace(&mut self.heads, vec![NONE; buckets]);
        for mut at in old {
            while let Some(node) = self.get(at).copied() {
                self.chain(at, node.fingerprint);
                at = node.next;
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
        let mut at = self.heads.get(self.bucket(key.fingerprint)).copied().unwrap_or(NONE);
        while let Some(node) = self.get(at) {
            if node.fingerprint == key.fingerprint && node.check == key.check {
                return Some(at);
            }
            at = node.next;
        }
        None
    }

    /// A new node; without a key it is found by nothing.
    pub(super) fn insert(&mut self, key: Option<Key>, parent: u32, tokens: u16) -> u32 {
        let Key { fingerprint, check } = key.unwrap_or(Key { fingerprint: 0, check: 0 });
        let node =
            Node { fingerprint, next: NONE, newer: NONE, older: NONE, parent, tokens, epoch: 0, check };
        let at = self.place(node);
        self.len += 1;
        if key.is_some() {
            self.chain(at, fingerprint);
        }
        at
    }

    fn place(&mut self, node: Node) -> u32 {
        let freed = self.free;
        if let Some(place) = self.get_mut(freed) {
            let next_free = place.next;
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
        let Some(node) = self.get(at).copied() else { return };
        self.unchain(at, node);
        let free = self.free;
        if let Some(place) = self.get_mut(at) {
            place.next = free;
        }
        self.free = at;
        self.len -= 1;
    }

    fn bucket(&self, fingerprint: u32) -> usize {
        index(fingerprint) & self.heads.len().saturating_sub(1)
    }

    fn chain(&mut self, at: u32, fingerprint: u32) {
        let bucket = self.bucket(fingerprint);
        let Some(head) = self.heads.get_mut(bucket) else { return };
        let next = core::mem::replace(head, at);
        if let Some(node) = self.get_mut(at) {
            node.next = next;
        }
    }

    /// Takes a node out of its bucket; one without a key is in none.
    fn unchain(&mut self, at: u32, node: Node) {
        let bucket = self.bucket(node.fingerprint);
        let mut before = self.heads.get(bucket).copied().unwrap_or(NONE);
        if before == at {
            if let Some(head) = self.heads.get_mut(bucket) {
                *head = node.next;
            }
            return;
        }
        while let Some(other) = self.get_mut(before) {
            if other.next == at {
                other.next = node.next;
                return;
            }
            before = other.next;
        }
    }
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
    fn a_node_takes_24_bytes() {
        assert_eq!(size_of::<Node>(), 24);
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
        let named = arena.insert(Some(Key { fingerprint: 0, check: 0 }), NONE, 9);
        assert_eq!(arena.find(Key { fingerprint: 0, check: 0 }), Some(named));
        arena.remove(nameless);
        assert_eq!(arena.find(Key { fingerprint: 0, check: 0 }), Some(named));
        assert_eq!(arena.len(), 1);
    }

    proptest! {
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
