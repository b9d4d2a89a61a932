//! At which pods this Envoy has requests in flight, by the ledgers of all its workers.
//!
//! The VM that polls is mostly the main thread's, which carries no streams and keeps no ledger worth reading; so
//! it looks into the others'. A ledger that has not changed is not unpacked again.

use foretoken_core::ledger::{LedgerView, Phase};
use hashbrown::{HashMap, HashSet};

use crate::keys::SlotKeys;

/// A ledger whose heartbeat is older belongs to a VM that is gone, and its requests with it.
const SILENT_US: u64 = 3_000_000;

#[derive(Debug, Default)]
struct Seen {
    version: (u64, u64),
    heartbeat_us: u64,
    pods: Vec<u64>,
}

/// What was read of each worker's ledger.
#[derive(Debug, Default)]
pub struct Busy {
    slots: HashMap<u8, Seen>,
}

impl Busy {
    /// The pods with requests in flight; `read` gives a slot's ledger.
    pub fn pods<'a>(
        &mut self,
        slots: impl Iterator<Item = &'a SlotKeys> + Clone,
        read: impl Fn(&str) -> Option<Vec<u8>>,
        now_us: u64,
    ) -> HashSet<u64> {
        self.slots.retain(|slot, _| slots.clone().any(|keys| keys.slot == *slot));
        let mut busy = HashSet::new();
        for keys in slots {
            let seen = self.slots.entry(keys.slot).or_default();
            if let Some(blob) = read(&keys.ledger)
                && let Some(version) = LedgerView::peek(&blob)
                && version != seen.version
                && let Some(view) = LedgerView::read(&blob)
            {
                seen.version = version;
                seen.heartbeat_us = view.heartbeat_us;
                seen.pods.clear();
                seen.pods.extend(
                    view.entries
                        .iter()
                        .filter(|entry| entry.phase != Phase::Ended)
                        .map(|entry| entry.pod_key),
                );
            }
            if seen.heartbeat_us.saturating_add(SILENT_US) >= now_us {
                busy.extend(seen.pods.iter().copied());
            }
        }
        busy
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use foretoken_core::codec::Writer;
    use foretoken_core::ledger::{Entry, Ledger};
    use foretoken_core::placements::LogPosition;

    use super::*;
    use crate::keys::Keys;

    fn entry(pod_key: u64) -> Entry {
        Entry {
            pod_key,
            sent_us: 1,
            ended_us: 0,
            phase: Phase::Prefill,
            prefill_tokens: 1.0,
            prompt_tokens: 1.0,
            output_tokens: 0.0,
            expected_output_tokens: 1.0,
        }
    }

    fn blob(ledger: &mut Ledger, incarnation: u64, now_us: u64) -> Vec<u8> {
        let mut out = Writer::default();
        ledger.write(&mut out, incarnation, LogPosition { placements: 0, segment: 0 }, now_us);
        out.finish()
    }

    #[test]
    fn pods_in_flight_at_any_worker_are_busy_until_they_end_or_the_worker_falls_silent() {
        let keys = Keys::new("foretoken", "pods");
        let slots = [keys.slot(0), keys.slot(1)];
        let (mut one, mut two) = (Ledger::default(), Ledger::default());
        let ticket = one.admit(entry(7)).unwrap();
        two.admit(entry(8)).unwrap();
        let mut blobs = [blob(&mut one, 11, 1_000_000), blob(&mut two, 22, 1_000_000)];
        let mut busy = Busy::default();
        let read = |blobs: &[Vec<u8>; 2], key: &str| Some(blobs[usize::from(key == slots[1].ledger)].clone());
        let pods = |busy: &mut Busy, blobs: &[Vec<u8>; 2], now_us| {
            let mut pods: Vec<u64> =
                busy.pods(slots.iter(), |key| read(blobs, key), now_us).into_iter().collect();
            pods.sort_unstable();
            pods
        };
        assert_eq!(pods(&mut busy, &blobs, 1_100_000), [7, 8]);
        one.end(ticket, 1_200_000);
        blobs[0] = blob(&mut one, 11, 1_200_000);
        assert_eq!(pods(&mut busy, &blobs, 1_300_000), [8]);
        assert_eq!(pods(&mut busy, &blobs, 4_000_001), Vec::<u64>::new(), "the second worker fell silent");
        let reads = Cell::new(0);
        let none = busy.pods(
            slots[..1].iter(),
            |_| {
                reads.set(reads.get() + 1);
                None
            },
            1_300_000,
        );
        assert!(none.is_empty() && reads.get() == 1 && busy.slots.len() == 1);
    }
}
