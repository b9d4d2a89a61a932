//! What happens to the pool in the middle of a run.

use serde::{Deserialize, Serialize};

use crate::virtual_time::{Change, PoolChange};

/// A change of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A quarter of the pods is not there before, and comes with empty caches.
    Added,
    /// An eighth of the pods takes twice the time for every step from then on.
    Slowed,
    /// An eighth of the pods dies. What it was answering is lost; what it had not begun is retried on the pick's
    /// next pod, as Envoy does.
    Killed,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Added, Self::Slowed, Self::Killed];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Slowed => "slowed",
            Self::Killed => "killed",
        }
    }

    /// The changes of a pool of `pods`, at this time.
    #[must_use]
    pub fn changes(self, pods: usize, at_us: u64) -> Vec<PoolChange> {
        let (share, change) = match self {
            Self::Added => (4, Change::Join),
            Self::Slowed => (8, Change::Slow(2.0)),
            Self::Killed => (8, Change::Kill),
        };
        // Never all of them; from the end, so that a mixed pool loses or gains both kinds in turn.
        let count = (pods / share).max(1).min(pods.saturating_sub(1));
        (pods - count..pods).map(|pod| PoolChange { at_us, pod, change }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_pods_changes_and_never_all() {
        let pods =
            |event: Event, of| event.changes(of, 7).iter().map(|change| change.pod).collect::<Vec<_>>();
        assert_eq!(pods(Event::Added, 16), [12, 13, 14, 15]);
        assert_eq!(pods(Event::Killed, 16), [14, 15]);
        assert_eq!(pods(Event::Slowed, 3), [2]);
        assert!(pods(Event::Killed, 1).is_empty());
    }
}
