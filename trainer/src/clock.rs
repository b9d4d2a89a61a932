//! The service's clock: the machine's, or one that a simulation moves.
//!
//! When to fit, to publish and to go back is a matter of time. Behind this clock the same loop serves Envoys and is
//! stepped through virtual hours by a bench. What work takes (a fit, the evaluation of a row) is always measured
//! with the machine's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's.
    System {
        /// When the service started.
        started: Instant,
    },
    /// Microseconds that somebody sets; they stand for the time since the start and since the Unix epoch alike.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock, started now.
    #[must_use]
    pub fn system() -> Self {
        Self::System { started: Instant::now() }
    }

    /// A clock at 0 that only [`Clock::set_us`] moves.
    #[must_use]
    pub fn manual() -> Self {
        Self::Manual(Arc::default())
    }

    /// Moves a manual clock to this time, never back; the machine's clock goes by itself.
    pub fn set_us(&self, now_us: u64) {
        if let Self::Manual(at_us) = self {
            at_us.fetch_max(now_us, Ordering::SeqCst);
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match self {
            Self::System { started } => started.elapsed(),
            Self::Manual(at_us) => Duration::from_micros(at_us.load(Ordering::SeqCst)),
        }
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        match self {
            Self::System { .. } => crate::export::now_ms(),
            Self::Manual(at_us) => at_us.load(Ordering::SeqCst) / 1000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_goes_where_it_is_set_and_never_back() {
        let clock = Clock::manual();
        let mover = clock.clone();
        mover.set_us(2_500_000);
        mover.set_us(1_000_000);
        assert_eq!((clock.elapsed(), clock.now_ms()), (Duration::from_millis(2500), 2500));
    }
}
