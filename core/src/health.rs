//! Passive health: a pod that fails several requests in a row is left alone for a while.
//!
//! Envoy knows of failing connections and of its own checks. A pod that answers quickly with errors it may not
//! know, and to the load such a pod looks idle: without this it would get ever more. So each worker counts,
//! per pod, failures without a good answer between them; with the other workers' counts they make an
//! *ejection*. Its back-off doubles from one ejection to the next. When it is over, one request at a time tries
//! the pod, until one of them gets a token or a good answer.
//!
//! What is kept is written by one worker alone and merged by readers, like all of the ledger: the newest
//! ejection counts, and one good answer to a request that was sent after it ends it, whoever saw either.
//!
//! This is not Envoy's outlier detection, which cannot see what `override_host` picks around it, and not the
//! list of members: a pod that has left is forgotten with its ejections.

use crate::codec::{Reader, Writer};
use crate::config::HealthConfig;

/// Back-offs double at most this often; `health.eject_max_ms` is reached long before.
const MAX_DOUBLINGS: u32 = 20;

/// What one worker has seen of a pod's failures. All zero: nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodHealth {
    /// Failures since the last good answer that this worker knew of.
    failures: u32,
    last_failure_us: u64,
    last_good_us: u64,
    /// When the request was sent that got the newest good answer.
    good_sent_us: u64,
    ejection: Ejection,
}

/// One ejection. All zero: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ejection {
    at_us: u64,
    until_us: u64,
    /// Which in a row it is.
    number: u32,
}

/// The newest ejection over all workers, and what is known since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    ejection: Ejection,
    good_sent_us: u64,
}

impl Standing {
    /// Takes what one more worker has seen.
    pub fn merge(&mut self, seen: &PodHealth) {
        self.good_sent_us = self.good_sent_us.max(seen.good_sent_us);
        if seen.ejection.at_us > self.ejection.at_us {
            self.ejection = seen.ejection;
        }
    }

    /// Whether the pod is left alone at `now_us`. `trying` says for a time whether a request that was sent no
    /// earlier is at the pod and has no token yet: while one tries the pod, no other does.
    #[must_use]
    pub fn is_ejected(&self, now_us: u64, trying: impl FnOnce(u64) -> bool) -> bool {
        self.is_open() && (now_us < self.ejection.until_us || trying(self.ejection.until_us))
    }

    /// Ejected, and no good answer to anything sent since.
    fn is_open(&self) -> bool {
        self.ejection.at_us > 0 && self.good_sent_us <= self.ejection.at_us
    }
}

impl PodHealth {
    /// The pod answered a request well that was sent at `sent_us`.
    pub fn note_good(&mut self, sent_us: u64, now_us: u64) {
        self.failures = 0;
        self.last_good_us = self.last_good_us.max(now_us);
        self.good_sent_us = self.good_sent_us.max(sent_us);
    }

    /// The pod failed a request that it should have answered: no connection, a reset, a 5xx. Returns whether
    /// that ejects it. `peers` is what the other workers have seen of the pod.
    pub fn note_failure<'a>(
        &mut self,
        peers: impl Iterator<Item = &'a Self> + Clone,
        sent_us: u64,
        now_us: u64,
        config: &HealthConfig,
    ) -> bool {
        let good_us = peers.clone().fold(self.last_good_us, |good_us, peer| good_us.max(peer.last_good_us));
        if self.last_failure_us < good_us {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.last_failure_us = self.last_failure_us.max(now_us);

        let mut standing = Standing::default();
        standing.merge(self);
        peers.clone().for_each(|peer| standing.merge(peer));
        let last = standing.ejection;
        let fails = if standing.is_open() {
            // What was on its way when the pod was ejected says nothing new, nor does what is sent there for want
            // of any other pod. A failure of what was sent after the back-off does: the trial went wrong.
            sent_us >= last.until_us
        } else {
            let current = peers.filter(|peer| peer.last_failure_us > good_us);
            let in_a_row = current.fold(self.failures, |sum, peer| sum.saturating_add(peer.failures));
            config.consecutive_failures > 0 && in_a_row >= config.consecutive_failures
        };
        if fails {
            let max_us = u64::from(config.eject_max_ms) * 1000;
            // A pod that has been out of trouble for the longest back-off starts over with the shortest.
            let in_a_row = last.at_us > 0 && now_us.saturating_sub(last.until_us) <= max_us;
            let number = if in_a_row { last.number.saturating_add(1) } else { 1 };
            let base_us = u64::from(config.eject_base_ms) * 1000;
            let backoff_us = (base_us << (number - 1).min(MAX_DOUBLINGS)).min(max_us.max(base_us));
            self.ejection = Ejection { at_us: now_us.max(1), until_us: now_us + backoff_us, number };
        }
        fails
    }

    /// Packs it.
    pub fn write(&self, out: &mut Writer) {
        out.u32(self.failures);
        out.u64(self.last_failure_us);
        out.u64(self.last_good_us);
        out.u64(self.good_sent_us);
        out.u64(self.ejection.at_us);
        out.u64(self.ejection.until_us);
        out.u32(self.ejection.number);
    }

    /// Unpacks it.
    #[must_use]
    pub fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            failures: input.u32()?,
            last_failure_us: input.u64()?,
            last_good_us: input.u64()?,
            good_sent_us: input.u64()?,
            ejection: Ejection { at_us: input.u64()?, until_us: input.u64()?, number: input.u32()? },
        })
    }
}

#[cfg(test)]
mod tests;
