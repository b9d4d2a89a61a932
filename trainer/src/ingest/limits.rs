//! How much may come in: bytes that are being read at a time, and samples a second.
//!
//! Both say no at once instead of letting a queue grow: a filter keeps what was refused in its own bounded buffer
//! and sends it again after the time that `Retry-After` says.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of bodies that are read and parsed at a time, over all senders. Inflated text and parsed samples come
/// to a few times that.
pub const MAX_INFLIGHT_BYTES: u32 = 64 << 20;

/// A bucket of samples that fills at a fixed rate and may be overdrawn by one batch: how many samples a body
/// has is known only when it has been read.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at_us: u64,
}

/// The limits of one ingest endpoint.
#[derive(Debug)]
pub struct Limits {
    bytes: Arc<Semaphore>,
    samples_per_s: f64,
    bucket: Mutex<Bucket>,
}

impl Limits {
    /// At most this many samples a second, with bursts of two seconds' worth.
    #[must_use]
    pub fn new(samples_per_s: u32) -> Self {
        let samples_per_s = f64::from(samples_per_s.max(1));
        Self {
            bytes: Arc::new(Semaphore::new(MAX_INFLIGHT_BYTES as usize)),
            samples_per_s,
            bucket: Mutex::new(Bucket { tokens: 2.0 * samples_per_s, at_us: 0 }),
        }
    }

    /// Room for a body of as many bytes.
    ///
    /// # Errors
    /// Seconds after which to try again.
    pub fn admit(&self, bytes: u32, now_us: u64) -> Result<OwnedSemaphorePermit, u64> {
        let missing = -self.filled(now_us, 0.0).tokens;
        if missing > 0.0 {
            return Err((missing / self.samples_per_s).ceil().max(1.0) as u64);
        }
        self.bytes.clone().try_acquire_many_owned(bytes.min(MAX_INFLIGHT_BYTES)).map_err(|_| 1)
    }

    /// Books the samples of a body that was read.
    pub fn book(&self, samples: usize, now_us: u64) {
        self.filled(now_us, samples as f64);
    }

    /// Fills the bucket to this time and takes samples out of it.
    fn filled(&self, now_us: u64, spent: f64) -> Bucket {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let passed_s = now_us.saturating_sub(bucket.at_us) as f64 / 1e6;
        let tokens = (bucket.tokens + passed_s * self.samples_per_s).min(2.0 * self.samples_per_s);
        *bucket = Bucket { tokens: tokens - spent, at_us: bucket.at_us.max(now_us) };
        *bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn the_rate_holds_over_time_and_a_batch_may_overdraw_it_once() {
        let limits = Limits::new(1000);
        assert!(limits.admit(10, 0).is_ok());
        limits.book(5000, 0);
        // Two seconds' worth was there: three are missing.
        assert_eq!(limits.admit(10, 0).unwrap_err(), 3);
        assert_eq!(limits.admit(10, 2 * SECOND).unwrap_err(), 1);
        assert!(limits.admit(10, 3 * SECOND).is_ok());
        // A clock that goes back takes nothing and gives nothing.
        limits.book(1000, 3 * SECOND);
        assert!(limits.admit(10, SECOND).is_err());
        let mut taken = 0;
        for step in 0..1000u64 {
            let now_us = 100 * SECOND + step * SECOND / 100;
            if limits.admit(10, now_us).is_ok() {
                limits.book(64, now_us);
                taken += 64;
            }
        }
        assert!((12_000..=12_128).contains(&taken), "{taken}");
    }

    #[test]
    fn bytes_that_are_being_read_are_bounded_and_come_back() {
        let limits = Limits::new(1000);
        let all = limits.admit(MAX_INFLIGHT_BYTES, 0).unwrap();
        assert_eq!(limits.admit(1, 0).unwrap_err(), 1);
        drop(all);
        assert!(limits.admit(u32::MAX, 0).is_ok());
    }
}
