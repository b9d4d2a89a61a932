//! Which prompt went to which pod, told to the other workers of the same Envoy.
//!
//! Routers with private prefix knowledge lose 54-243 % of end-to-end time on prefix workloads; hearing of
//! each other's placements, even late, repairs it. So each worker logs its placements into a ring of
//! segments in shared data. A segment is one value that only its owner writes; readers take the segments
//! that hold what they have not seen. The ledger blob says how far a log is, so that a reader without news
//! makes no call at all. The log is mergeable beyond one Envoy for the same reason: it is only an append.
//!
//! A reader that is too far behind misses placements: its index then knows a little less, nothing more.

use crate::codec::{Reader, Writer};

/// Segments in a worker's ring.
pub const SEGMENTS: u64 = 8;

/// Bytes after which a segment is full. A set of 16 KiB costs well under 1 µs on Envoy 1.40.
const SEGMENT_BYTES: usize = 16 << 10;

/// Blocks of one prompt that are told; the rest of a longer prompt stays private knowledge.
const MAX_BLOCKS: usize = 2000;

/// First byte of a segment.
const FORMAT: u8 = 2;

/// Bytes of a placement without its blocks.
const HEAD_BYTES: usize = 26;

/// How far a log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Placements logged so far.
    pub placements: u64,
    /// Number of the segment that is being written; its place in the ring is this modulo [`SEGMENTS`].
    pub segment: u64,
}

/// One placement: blocks that a pod uses now, and room that it fills otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The pod.
    pub pod_key: u64,
    /// Hash of the block that `blocks` follow; `None` when they begin a prompt. With no blocks the chain that
    /// ends there is used again: an engine lets go of a request's blocks when the answer is complete.
    pub after: Option<u64>,
    /// Tokens in each block.
    pub block_tokens: f32,
    /// Tokens stored that no block stands for.
    pub nameless_tokens: f32,
    /// Chained hashes of the blocks.
    pub blocks: Vec<u64>,
}

/// This worker's log.
#[derive(Debug)]
pub struct PlacementLog {
    incarnation: u64,
    position: LogPosition,
    /// The segment that is being written, its head included.
    segment: Writer,
}

impl PlacementLog {
    /// An empty log of a VM.
    #[must_use]
    pub fn new(incarnation: u64) -> Self {
        Self { incarnation, position: LogPosition::default(), segment: Writer::default() }
    }

    /// How far the log is.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Appends a placement. Returns the place in the ring and the segment's new value, to be stored there.
    pub fn append(&mut self, placement: &Placement) -> (u64, Vec<u8>) {
        let blocks = placement.blocks.get(..MAX_BLOCKS).unwrap_or(&placement.blocks);
        if self.segment.len() + HEAD_BYTES + blocks.len() * 8 > SEGMENT_BYTES && !self.segment.is_empty() {
            self.position.segment += 1;
            self.segment = Writer::default();
        }
        if self.segment.is_empty() {
            self.segment.u8(FORMAT);
            self.segment.u64(self.incarnation);
            self.segment.u64(self.position.segment);
            self.segment.u64(self.position.placements);
        }
        self.segment.u64(placement.pod_key);
        // A chained hash of 0 does not happen; as a mark it stands for a prompt's beginning.
        self.segment.u64(placement.after.unwrap_or(0));
        self.segment.f32(placement.block_tokens);
        self.segment.f32(placement.nameless_tokens);
        self.segment.u16(u16::try_from(blocks.len()).unwrap_or(u16::MAX));
        for block in blocks {
            self.segment.u64(*block);
        }
        self.position.placements += 1;
        (self.position.segment % SEGMENTS, self.segment.bytes().to_vec())
    }
}

/// What a reader has taken of one other worker's log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogReader {
    incarnation: u64,
    seen: u64,
}

impl LogReader {
    /// Takes everything new of a log. `fetch` gets the value at a place of the ring; `take` gets each placement.
    ///
    /// A log of another incarnation is read from its start.
    pub fn catch_up(
        &mut self,
        incarnation: u64,
        position: LogPosition,
        mut fetch: impl FnMut(u64) -> Option<Vec<u8>>,
        mut take: impl FnMut(Placement),
    ) {
        if self.incarnation != incarnation {
            *self = Self { incarnation, seen: 0 };
        }
        if position.placements <= self.seen {
            return;
        }
        let mut segments = Vec::new();
        let oldest = (position.segment + 1).saturating_sub(SEGMENTS);
        for number in (oldest..=position.segment).rev() {
            let Some(bytes) = fetch(number % SEGMENTS) else { break };
            let Some(first) = head(&bytes, incarnation, number) else { break };
            segments.push(bytes);
            if first <= self.seen {
                break;
            }
        }
        for bytes in segments.iter().rev() {
            self.take_segment(bytes, &mut take);
        }
        // What could not be had is given up, else it would be asked for again at every decision.
        self.seen = self.seen.max(position.placements);
    }

    fn take_segment(&mut self, bytes: &[u8], take: &mut impl FnMut(Placement)) {
        let mut input = Reader::new(bytes);
        let mut open = || {
            input.u8()?;
            input.u64()?;
            input.u64()?;
            input.u64()
        };
        let Some(mut number) = open() else { return };
        while let Some(placement) = read_placement(&mut input) {
            if number >= self.seen {
                take(placement);
                self.seen = number + 1;
            }
            number += 1;
        }
    }
}

/// Number of the first placement in a segment, if it is the segment that was asked for.
fn head(bytes: &[u8], incarnation: u64, number: u64) -> Option<u64> {
    let mut input = Reader::new(bytes);
    let matches = input.u8()? == FORMAT && input.u64()? == incarnation && input.u64()? == number;
    let first = input.u64()?;
    matches.then_some(first)
}

fn read_placement(input: &mut Reader<'_>) -> Option<Placement> {
    let pod_key = input.u64()?;
    let after = Some(input.u64()?).filter(|hash| *hash != 0);
    let (block_tokens, nameless_tokens) = (input.f32()?, input.f32()?);
    let count = usize::from(input.u16()?);
    let blocks = (0..count).map(|_| input.u64()).collect::<Option<Vec<_>>>()?;
    Some(Placement { pod_key, after, block_tokens, nameless_tokens, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn placement(pod_key: u64, blocks: Vec<u64>) -> Placement {
        Placement { pod_key, after: None, block_tokens: 64.0, nameless_tokens: 0.0, blocks }
    }

    #[test]
    fn a_reader_takes_each_placement_once_and_in_order() {
        let mut log = PlacementLog::new(5);
        let mut ring = HashMap::new();
        let mut reader = LogReader::default();
        let mut got = Vec::new();
        for round in 0..40_u64 {
            for i in 0..7 {
                let (place, bytes) = log.append(&placement(round * 7 + i, vec![round; 40]));
                ring.insert(place, bytes);
            }
            reader.catch_up(
                5,
                log.position(),
                |place| ring.get(&place).cloned(),
                |placement| got.push(placement.pod_key),
            );
        }
        assert_eq!(got, (0..280).collect::<Vec<_>>());
    }

    #[test]
    fn a_reader_far_behind_takes_what_the_ring_still_holds() {
        let mut log = PlacementLog::new(5);
        let mut ring = HashMap::new();
        for i in 0..500 {
            let (place, bytes) = log.append(&placement(i, vec![0; 100]));
            assert!(bytes.len() < SEGMENT_BYTES + 64);
            ring.insert(place, bytes);
        }
        let mut got = Vec::new();
        LogReader::default().catch_up(
            5,
            log.position(),
            |place| ring.get(&place).cloned(),
            |placement| got.push(placement.pod_key),
        );
        assert_eq!(got.last(), Some(&499));
        assert!(got.len() > 100 && got.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    }

    #[test]
    fn a_worker_that_came_back_is_read_from_its_start() {
        let mut reader = LogReader::default();
        let mut old = PlacementLog::new(1);
        let (_, bytes) = old.append(&placement(1, vec![1]));
        reader.catch_up(1, old.position(), |_| Some(bytes.clone()), |_| {});
        let mut new = PlacementLog::new(2);
        let answer = Placement { after: Some(4), nameless_tokens: 30.0, ..placement(9, vec![]) };
        let (_, bytes) = new.append(&answer);
        let mut got = Vec::new();
        reader.catch_up(2, new.position(), |_| Some(bytes.clone()), |placement| got.push(placement));
        assert_eq!(got, [answer]);
    }

    proptest! {
        #[test]
        fn any_segment_is_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_u64..20) {
            LogReader::default().catch_up(0, LogPosition { placements: at, segment: at }, |_| Some(bytes.clone()), |_| {});
        }
    }
}
