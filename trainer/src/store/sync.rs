//! When the disk has it: one thread that syncs for all who wait.
//!
//! Appends go to the page cache and get a ticket, which rises with every record. The thread syncs the file as
//! long as there is something unsynced, and everything that arrives during one sync is covered by the next: a
//! hundred senders at once cost two syncs, not a hundred. A sync that fails leaves unknown what is on disk
//! (the kernel may have dropped the pages), so its tickets are never called synced, and the store begins
//! another segment.
//!
//! What it is not: it does not delay an append. Who wants the promise waits for the ticket; who does not, goes.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How far syncs have come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Every ticket up to this one has been dealt with: synced, unless it is among the failed.
    pub done: u64,
    /// Every ticket up to this one may not be on disk, if it is above `synced_before_failure`.
    pub failed: u64,
    /// Newest ticket that was synced before the newest failure.
    pub synced_before_failure: u64,
}

impl Progress {
    /// Whether a ticket is on disk; `None` when that is not known yet.
    #[must_use]
    pub fn of(self, ticket: u64) -> Option<bool> {
        if ticket > self.done {
            return None;
        }
        Some(ticket > self.failed || ticket <= self.synced_before_failure)
    }
}

#[derive(Debug, Default)]
struct Work {
    /// What is to be synced, and the newest ticket in it.
    dirty: Option<(Arc<File>, u64)>,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Work>,
    wake: Condvar,
    progress: watch::Sender<Progress>,
    /// The last sync failed and the store has not begun another segment yet.
    broken: AtomicBool,
}

fn lock(shared: &Shared) -> MutexGuard<'_, Work> {
    shared.work.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread and what it is told.
#[derive(Debug)]
pub struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts the thread. Two syncs begin at least `interval` apart: a disk that syncs in a millisecond would
    /// otherwise do nothing else.
    #[must_use]
    pub fn start(interval: Duration) -> Self {
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            wake: Condvar::new(),
            progress: watch::Sender::new(Progress::default()),
            broken: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("sync".to_owned());
        let thread = thread.spawn({
            let shared = shared.clone();
            move || run(&shared, interval)
        });
        if let Err(error) = &thread {
            tracing::error!(%error, "no thread to sync samples with");
        }
        Self { shared, thread: thread.ok() }
    }

    /// Says that the file has records up to this ticket.
    pub fn dirty(&self, file: Arc<File>, ticket: u64) {
        lock(&self.shared).dirty = Some((file, ticket));
        self.shared.wake.notify_one();
    }

    /// Records the outcome of a sync that the store made itself, when it closed a segment.
    pub fn closed(&self, ticket: u64, synced: bool) {
        let mut work = lock(&self.shared);
        if work.dirty.as_ref().is_some_and(|(_, dirty)| *dirty <= ticket) {
            work.dirty = None;
        }
        drop(work);
        advance(&self.shared, ticket, synced);
    }

    /// Whether the last sync failed; asks once, then it is for the caller to begin another segment.
    pub fn take_broken(&self) -> bool {
        self.shared.broken.swap(false, Ordering::SeqCst)
    }

    /// To wait for tickets with.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.shared.progress.subscribe()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        lock(&self.shared).stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by itself.
            let _ = thread.join();
        }
    }
}

fn advance(shared: &Shared, ticket: u64, synced: bool) {
    shared.progress.send_modify(|progress| {
        if ticket <= progress.done {
            return;
        }
        if !synced {
            progress.synced_before_failure = if progress.failed == progress.done && progress.done > 0 {
                // Two failures in a row: what lies before both is what was synced.
                progress.synced_before_failure
            } else {
                progress.done
            };
            progress.failed = ticket;
        }
        progress.done = ticket;
    });
}

fn run(shared: &Shared, interval: Duration) {
    let mut next = Instant::now();
    loop {
        let mut work = lock(shared);
        while work.dirty.is_none() && !work.stop {
            work = shared.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        // Who ends the store must not wait for the interval.
        while let Some(rest) = next.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            if work.stop {
                break;
            }
            work = shared.wake.wait_timeout(work, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        let stop = work.stop;
        let dirty = work.dirty.take();
        drop(work);
        if let Some((file, ticket)) = dirty {
            next = Instant::now() + interval;
            let result = file.sync_data();
            if let Err(error) = &result {
                tracing::error!(%error, "cannot sync samples to disk; beginning another segment");
                shared.broken.store(true, Ordering::SeqCst);
            }
            advance(shared, ticket, result.is_ok());
        } else if stop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    async fn wait(progress: &mut watch::Receiver<Progress>, ticket: u64) -> bool {
        let wait = progress.wait_for(|progress| progress.of(ticket).is_some());
        let progress = *tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap().unwrap();
        progress.of(ticket).unwrap()
    }

    #[tokio::test]
    async fn tickets_are_synced_in_groups_and_the_rest_at_the_end() {
        let syncer = Syncer::start(Duration::from_millis(5));
        let mut progress = syncer.progress();
        for ticket in 1..=50 {
            syncer.dirty(file(), ticket);
        }
        assert!(wait(&mut progress, 50).await);
        syncer.dirty(file(), 60);
        drop(syncer);
        assert_eq!(progress.borrow().of(60), Some(true));
        assert_eq!(progress.borrow().of(61), None);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_sync_that_fails_is_not_called_synced_and_is_reported_once() {
        let syncer = Syncer::start(Duration::ZERO);
        let mut progress = syncer.progress();
        syncer.dirty(file(), 3);
        assert!(wait(&mut progress, 3).await);
        // A character device cannot be synced.
        let device = Arc::new(File::options().write(true).open("/dev/full").unwrap());
        syncer.dirty(device.clone(), 5);
        assert!(!wait(&mut progress, 5).await);
        assert!(syncer.take_broken() && !syncer.take_broken());
        syncer.dirty(device, 6);
        assert!(!wait(&mut progress, 6).await);
        syncer.dirty(file(), 9);
        assert!(wait(&mut progress, 9).await);
        let at = |ticket| progress.borrow().of(ticket);
        assert_eq!([at(2), at(3), at(4), at(6), at(7)].map(Option::unwrap), [true, true, false, false, true]);
    }

    #[test]
    fn a_segment_that_is_closed_takes_its_tickets_along() {
        let syncer = Syncer::start(Duration::from_secs(600));
        let progress = syncer.progress();
        syncer.closed(4, true);
        assert_eq!(progress.borrow().of(4), Some(true));
        syncer.closed(6, false);
        assert_eq!((progress.borrow().of(4), progress.borrow().of(5)), (Some(true), Some(false)));
    }
}
