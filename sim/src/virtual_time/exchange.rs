//! What several Envoys hear of each other: every worker's ledger and placement log, a fixed time late.
//!
//! A deployment would send them through a hub. Here each worker's blobs go out at fixed times, twice in the delay,
//! and arrive when it has passed, so what a router knows of the others is one to one and a half delays old. They
//! are the blobs that the workers of one Envoy share through the host, and are merged by the same code.
//!
//! What it is not: a hub. Nothing is lost, and no link is slower than another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A worker's placement log, by place in its ring.
pub type Segments = HashMap<u64, Arc<[u8]>>;

/// A worker whose last word is older is taken to say that it lives; readers give one up after three seconds.
const OLD_US: u64 = 1_000_000;
/// Sending more often would cost time and tell hardly more.
const LEAST_INTERVAL_US: u64 = 10_000;

/// What one worker said at a time.
#[derive(Debug)]
pub struct Snapshot {
    /// When it was sent.
    pub at_us: u64,
    /// Its ledger.
    pub blob: Vec<u8>,
    /// Its placement log.
    pub segments: Segments,
}

/// All that is under way between Envoys.
#[derive(Debug)]
pub struct Exchange {
    delay_us: u64,
    interval_us: u64,
    /// When somebody last asked what is due.
    asked_us: u64,
    /// Per worker, oldest first; the first one has arrived, if any has.
    sent: Vec<VecDeque<Snapshot>>,
}

impl Exchange {
    /// Between this many workers.
    #[must_use]
    pub fn new(workers: usize, delay_ms: u32) -> Self {
        let delay_us = u64::from(delay_ms) * 1000;
        Self {
            delay_us,
            interval_us: (delay_us / 2).max(LEAST_INTERVAL_US),
            asked_us: 0,
            sent: (0..workers).map(|_| VecDeque::new()).collect(),
        }
    }

    /// Times to send at since the last call: the first, and the last where more have passed. Between them nothing
    /// has changed.
    pub fn due(&mut self, now_us: u64) -> [Option<u64>; 2] {
        let first_us = (self.asked_us / self.interval_us + 1) * self.interval_us;
        let last_us = now_us / self.interval_us * self.interval_us;
        self.asked_us = self.asked_us.max(now_us);
        if last_us < first_us {
            return [None, None];
        }
        [Some(first_us), Some(last_us).filter(|last_us| *last_us > first_us)]
    }

    /// Whether the worker's last word is so old that it should say that it lives.
    #[must_use]
    pub fn is_old(&self, worker: usize, at_us: u64) -> bool {
        let last = self.sent.get(worker).and_then(VecDeque::back);
        last.is_none_or(|last| last.at_us + OLD_US <= at_us)
    }

    /// Takes a worker's word on its way.
    pub fn send(&mut self, worker: usize, snapshot: Snapshot) {
        if let Some(sent) = self.sent.get_mut(worker) {
            sent.push_back(snapshot);
        }
    }

    /// The newest word of this worker that has reached the others.
    pub fn arrived(&mut self, worker: usize, now_us: u64) -> Option<&Snapshot> {
        let delay_us = self.delay_us;
        let is_here = |snapshot: &Snapshot| snapshot.at_us + delay_us <= now_us;
        let sent = self.sent.get_mut(worker)?;
        while sent.get(1).is_some_and(is_here) {
            sent.pop_front();
        }
        sent.front().filter(|first| is_here(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(at_us: u64) -> Snapshot {
        Snapshot { at_us, blob: Vec::new(), segments: Segments::new() }
    }

    #[test]
    fn a_word_arrives_when_its_delay_has_passed_and_the_newest_counts() {
        let mut exchange = Exchange::new(2, 100);
        exchange.send(1, word(50_000));
        exchange.send(1, word(100_000));
        let at = |exchange: &mut Exchange, now_us| exchange.arrived(1, now_us).map(|word| word.at_us);
        assert_eq!(at(&mut exchange, 149_999), None);
        assert_eq!(at(&mut exchange, 150_000), Some(50_000));
        assert_eq!(at(&mut exchange, 199_999), Some(50_000));
        assert_eq!(at(&mut exchange, 250_000), Some(100_000));
        assert_eq!(exchange.arrived(0, 250_000).map(|word| word.at_us), None);
    }

    #[test]
    fn what_happened_before_a_lull_is_sent_in_its_time() {
        let mut exchange = Exchange::new(1, 100);
        assert_eq!(exchange.due(49_000), [None, None]);
        assert_eq!(exchange.due(51_000), [Some(50_000), None]);
        assert_eq!(exchange.due(60_000), [None, None]);
        assert_eq!(exchange.due(930_000), [Some(100_000), Some(900_000)]);
        exchange.send(0, word(100_000));
        assert!(!exchange.is_old(0, 900_000) && exchange.is_old(0, 1_100_000));
    }
}
