//! Switches that make a pod misbehave the way real ones do.
//!
//! * kill: every connection breaks and the port stops listening, as when the process dies;
//! * refuse: new connections are refused, those that exist go on;
//! * fail: the next N inference requests are answered with an error status;
//! * slow: every step takes longer by a factor, as on a throttled or shared card.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// What the pod's port does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// Listens.
    Open,
    /// Does not listen; existing connections go on.
    Refusing,
    /// Does not listen, all connections are cut, and nothing comes back.
    Dead,
}

/// The switches of one pod.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) door: watch::Sender<Door>,
    slow_factor_bits: AtomicU64,
    /// Status and how many more requests get it.
    failing: Mutex<(u16, u32)>,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self {
            door: watch::Sender::new(Door::Open),
            slow_factor_bits: AtomicU64::new(1f64.to_bits()),
            failing: Mutex::new((503, 0)),
        }
    }

    pub(super) fn kill(&self) {
        self.door.send_replace(Door::Dead);
    }

    pub(super) fn refuse(&self, refuse: bool) {
        self.door.send_if_modified(|door| {
            let next = if refuse { Door::Refusing } else { Door::Open };
            let changes = *door != Door::Dead && *door != next;
            if changes {
                *door = next;
            }
            changes
        });
    }

    pub(super) fn set_slow(&self, factor: f64) {
        self.slow_factor_bits.store(factor.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn slow_factor(&self) -> f64 {
        f64::from_bits(self.slow_factor_bits.load(Ordering::Relaxed))
    }

    pub(super) fn fail_next(&self, status: u16, count: u32) {
        *self.failing.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = (status, count);
    }

    /// The status that this request has to fail with, if any.
    pub(super) fn take_failure(&self) -> Option<u16> {
        let mut failing = self.failing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (status, left) = &mut *failing;
        *left = left.checked_sub(1)?;
        Some(*status)
    }

    /// Resolves when the pod was killed.
    pub(super) async fn killed(&self) {
        // The sender lives as long as `self`, so the wait ends only with the door's death.
        let _ = self.door.subscribe().wait_for(|door| *door == Door::Dead).await;
    }
}
