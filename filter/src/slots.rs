//! Which VM writes where: every VM that ticks sits in a slot, and its ledger and its placements are the values
//! of that slot.
//!
//! One value of shared data says who sits where; it is written only when somebody sits down. Whether a VM still
//! lives is told by the heartbeat in its ledger. A VM that trapped never gets up, so a slot whose ledger has
//! been silent for [`GONE_US`] is free to take. A VM that was merely asleep for so long finds its slot taken at
//! its next tick, and sits down elsewhere.
//!
//! Envoy tries a new configuration in a throw-away VM that never ticks; that one never takes a slot.

use foretoken_core::codec::{Reader, Writer};
use foretoken_core::ledger::LedgerView;

use crate::host::{Host, HostError};
use crate::keys::{Keys, MAX_SLOTS, SlotKeys};

/// A VM whose ledger is older than this has gone.
const GONE_US: u64 = 10_000_000;

/// A VM whose ledger is older than this is not listened to: it may have trapped.
const SILENT_US: u64 = 3_000_000;

/// First byte of the table.
const FORMAT: u8 = 1;

/// One slot of the table. All zero: never taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seat {
    incarnation: u64,
    taken_us: u64,
}

/// What this VM knows of the slots.
#[derive(Debug, Default)]
pub struct Slots {
    own: Option<SlotKeys>,
    peers: Vec<SlotKeys>,
    /// Slots whose VM was seen to live at some time and is silent now.
    silent: Vec<u8>,
    full: bool,
}

/// What a refresh changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// This VM sits in another slot than before.
    pub moved: bool,
    /// Slots whose VM fell silent.
    pub fell_silent: Vec<u8>,
}

fn read_table(bytes: &[u8]) -> Vec<Seat> {
    let mut input = Reader::new(bytes);
    let mut seats = Vec::new();
    if input.u8() == Some(FORMAT) {
        while let (Some(incarnation), Some(taken_us)) = (input.u64(), input.u64()) {
            seats.push(Seat { incarnation, taken_us });
        }
    }
    seats.resize(usize::from(MAX_SLOTS), Seat::default());
    seats
}

fn write_table(seats: &[Seat]) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    for seat in seats {
        out.u64(seat.incarnation);
        out.u64(seat.taken_us);
    }
    out.finish()
}

/// When the VM in a seat was last heard of.
fn heard_us(host: &dyn Host, keys: &SlotKeys, seat: &Seat) -> u64 {
    let heartbeat_us = host
        .shared(&keys.ledger)
        .ok()
        .and_then(|(blob, _)| LedgerView::heartbeat(&blob))
        .filter(|(incarnation, _)| *incarnation == seat.incarnation)
        .map_or(0, |(_, heartbeat_us)| heartbeat_us);
    heartbeat_us.max(seat.taken_us)
}

impl Slots {
    /// Keys of the slot that this VM sits in.
    #[must_use]
    pub fn own(&self) -> Option<&SlotKeys> {
        self.own.as_ref()
    }

    /// Keys of the other slots whose VMs live.
    #[must_use]
    pub fn peers(&self) -> &[SlotKeys] {
        &self.peers
    }

    /// Sits down if this VM does not sit, and looks who else does.
    ///
    /// # Errors
    /// When the host does not give the table; what was known stays.
    pub fn refresh(
        &mut self,
        host: &dyn Host,
        keys: &Keys,
        incarnation: u64,
        now_us: u64,
    ) -> Result<Change, HostError> {
        let (bytes, cas) = host.shared(&keys.slots)?;
        let mut seats = read_table(&bytes);
        let mut change = Change::default();
        let sits = |seats: &[Seat], own: &SlotKeys| {
            seats.get(usize::from(own.slot)).is_some_and(|seat| seat.incarnation == incarnation)
        };
        if self.own.as_ref().is_some_and(|own| !sits(&seats, own)) {
            self.own = None;
            change.moved = true;
        }

        let mut free = None;
        let mut peers = Vec::new();
        let mut silent = Vec::new();
        for (slot, seat) in (0..MAX_SLOTS).zip(&seats) {
            if seat.incarnation == incarnation && self.own.as_ref().is_none_or(|own| own.slot == slot) {
                // Also the seat of a write of ours whose answer was lost.
                free = free.or(Some(slot));
                continue;
            }
            if seat.incarnation == 0 {
                free = free.or(Some(slot));
                continue;
            }
            let slot_keys = keys.slot(slot);
            let silent_us = now_us.saturating_sub(heard_us(host, &slot_keys, seat));
            if silent_us > GONE_US {
                free = free.or(Some(slot));
            }
            if silent_us > SILENT_US {
                silent.push(slot);
            } else {
                peers.push(slot_keys);
            }
        }
        change.fell_silent = silent.iter().copied().filter(|slot| !self.silent.contains(slot)).collect();
        self.peers = peers;
        self.silent = silent;

        if self.own.is_none() {
            self.sit_down(host, keys, &mut seats, free, cas, Seat { incarnation, taken_us: now_us })?;
            change.moved |= self.own.is_some();
        }
        Ok(change)
    }

    fn sit_down(
        &mut self,
        host: &dyn Host,
        keys: &Keys,
        seats: &mut [Seat],
        free: Option<u8>,
        cas: Option<u32>,
        seat: Seat,
    ) -> Result<(), HostError> {
        let Some((slot, place)) = free.and_then(|slot| Some((slot, seats.get_mut(usize::from(slot))?)))
        else {
            if !self.full {
                self.full = true;
                log::warn!(
                    "all {MAX_SLOTS} slots are taken: this worker's requests are unknown to the others; run fewer workers (--concurrency)"
                );
            }
            return Ok(());
        };
        *place = seat;
        match host.set_shared(&keys.slots, &write_table(seats), cas) {
            Ok(()) => {
                // The first write of all has no number to compare: whoever lost that race sees it at the next
                // refresh.
                self.own = Some(keys.slot(slot));
                self.silent.retain(|silent| *silent != slot);
                Ok(())
            }
            Err(error) if error.is_cas_mismatch() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::mock::MockHost;
    use foretoken_core::config::Config;
    use foretoken_core::router::Router;
    use std::sync::Arc;

    struct Vm {
        slots: Slots,
        router: Router,
    }

    impl Vm {
        fn new(incarnation: u64) -> Self {
            let config =
                Config::from_json(br#"{"cluster":"pods","endpoints":{"addresses":["10.0.0.1:80"]}}"#)
                    .unwrap();
            Self { slots: Slots::default(), router: Router::new(Arc::new(config), incarnation) }
        }

        fn tick(&mut self, host: &MockHost, now_us: u64) -> Change {
            let keys = Keys::new("p", "c");
            let change = self.slots.refresh(host, &keys, self.router.incarnation(), now_us).unwrap();
            if let Some(own) = self.slots.own() {
                host.set_shared(&own.ledger, &self.router.export(Vec::new(), now_us), None).unwrap();
            }
            change
        }

        fn slot(&self) -> Option<u8> {
            self.slots.own().map(|own| own.slot)
        }
    }

    #[test]
    fn every_vm_sits_in_its_own_slot_and_sees_the_others() {
        let host = MockHost::default();
        let mut vms: Vec<Vm> = (1..=4).map(Vm::new).collect();
        for now_us in [1_000_000, 1_050_000] {
            for vm in &mut vms {
                vm.tick(&host, now_us);
            }
        }
        assert_eq!(vms.iter().map(Vm::slot).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
        assert!(vms.iter().all(|vm| vm.slots.peers().len() == 3));
    }

    #[test]
    fn a_silent_vm_is_not_listened_to_and_its_slot_is_taken_later() {
        let host = MockHost::default();
        let (mut dead, mut living) = (Vm::new(1), Vm::new(2));
        dead.tick(&host, 1_000_000);
        living.tick(&host, 1_000_000);
        assert_eq!(living.slots.peers().len(), 1);
        assert_eq!(living.tick(&host, 1_000_000 + SILENT_US + 1).fell_silent, [0]);
        assert!(living.slots.peers().is_empty());
        assert!(living.tick(&host, 1_000_000 + SILENT_US + 2).fell_silent.is_empty());

        let mut early = Vm::new(3);
        early.tick(&host, 1_000_000 + GONE_US);
        assert_eq!(early.slot(), Some(2));
        let mut late = Vm::new(4);
        late.tick(&host, 1_000_001 + GONE_US);
        assert_eq!(late.slot(), Some(0));
    }

    #[test]
    fn a_vm_that_was_asleep_finds_its_slot_taken_and_sits_down_elsewhere() {
        let host = MockHost::default();
        let (mut asleep, mut new) = (Vm::new(1), Vm::new(2));
        asleep.tick(&host, 1_000_000);
        new.tick(&host, 2_000_000 + GONE_US);
        assert_eq!(new.slot(), Some(0));
        assert!(asleep.tick(&host, 2_000_001 + GONE_US).moved);
        assert_eq!(asleep.slot(), Some(1));
    }

    #[test]
    fn a_lost_race_is_tried_again() {
        let host = MockHost::default();
        let (mut first, mut second) = (Vm::new(1), Vm::new(2));
        first.tick(&host, 1_000_000);
        host.fail_once("proxy_set_shared_data", HostError::CAS_MISMATCH);
        let keys = Keys::new("p", "c");
        second.slots.refresh(&host, &keys, 2, 1_000_000).unwrap();
        assert_eq!(second.slot(), None);
        second.tick(&host, 1_050_000);
        assert_eq!(second.slot(), Some(1));
    }

    #[test]
    fn when_all_slots_are_taken_a_vm_goes_without() {
        let host = MockHost::default();
        for incarnation in 1..=u64::from(MAX_SLOTS) {
            Vm::new(incarnation).tick(&host, 1_000_000);
        }
        let mut vm = Vm::new(999);
        vm.tick(&host, 1_000_000);
        assert_eq!(vm.slot(), None);
        assert_eq!(vm.slots.peers().len(), usize::from(MAX_SLOTS));
    }
}
