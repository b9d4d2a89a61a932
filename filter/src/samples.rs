//! Outcomes on their way to the trainer: a bounded buffer, and what of it is due.
//!
//! A trainer that is down costs nothing but old samples: what cannot be sent goes back to the front and waits
//! longer each time; when the buffer is full the oldest goes, and is counted. A batch that the trainer refuses
//! as such (a 4xx that waiting does not cure) is tried once more and given up.

use std::collections::VecDeque;

use foretoken_core::config::SamplesConfig;

/// Batches on their way at a time.
const MAX_INFLIGHT: usize = 2;

/// A batch ends here, however many samples wait.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Wait after a failure; doubled with each further one.
const BACKOFF_US: u64 = 1_000_000;
const MAX_BACKOFF_US: u64 = 16_000_000;

/// Times that a batch may be refused.
const MAX_REFUSALS: u32 = 2;

#[derive(Debug)]
struct Line {
    json: String,
    waits_since_us: u64,
    refusals: u32,
}

/// Lines on their way; given back to [`Samples::answered`].
#[derive(Debug)]
pub struct Batch(Vec<Line>);

impl Batch {
    /// The request's body: one line a sample.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.0.iter().map(|line| line.json.len() + 1).sum());
        for line in &self.0 {
            body.extend_from_slice(line.json.as_bytes());
            body.push(b'\n');
        }
        body
    }
}

/// How many samples an answer settled.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Taken by the trainer.
    pub sent: usize,
    /// Given up.
    pub dropped: usize,
}

/// The buffer.
#[derive(Debug, Default)]
pub struct Samples {
    waiting: VecDeque<Line>,
    inflight: usize,
    failures: u32,
    not_before_us: u64,
    complained: bool,
}

/// Whether sending the same again later may help.
fn may_help_later(status: u16) -> bool {
    !(400..500).contains(&status) || matches!(status, 401 | 403 | 404 | 408 | 425 | 429)
}

impl Samples {
    /// Takes a sample. Returns how many older ones had to go for it.
    pub fn push(&mut self, json: String, config: &SamplesConfig, now_us: u64) -> usize {
        self.waiting.push_back(Line { json, waits_since_us: now_us, refusals: 0 });
        self.trim(config)
    }

    fn trim(&mut self, config: &SamplesConfig) -> usize {
        let most = usize::try_from(config.buffer).unwrap_or(usize::MAX);
        let over = self.waiting.len().saturating_sub(most);
        self.waiting.drain(..over);
        over
    }

    /// The next batch, if one is due. It counts as on its way until [`Samples::answered`].
    pub fn due(&mut self, config: &SamplesConfig, now_us: u64) -> Option<Batch> {
        let oldest = self.waiting.front()?;
        let waited_us = now_us.saturating_sub(oldest.waits_since_us);
        let full = self.waiting.len() >= usize::try_from(config.batch).unwrap_or(usize::MAX);
        let due = full || waited_us >= u64::from(config.flush_ms) * 1000;
        if !due || self.inflight >= MAX_INFLIGHT || now_us < self.not_before_us {
            return None;
        }
        let mut lines = Vec::new();
        let mut bytes = 0;
        while let Some(line) = self.waiting.pop_front() {
            bytes += line.json.len() + 1;
            lines.push(line);
            if bytes >= MAX_BATCH_BYTES {
                break;
            }
        }
        self.inflight += 1;
        Some(Batch(lines))
    }

    /// The trainer's answer to a batch; status 0 when there was none.
    pub fn answered(&mut self, batch: Batch, status: u16, config: &SamplesConfig, now_us: u64) -> Settled {
        self.inflight = self.inflight.saturating_sub(1);
        if (200..300).contains(&status) {
            self.failures = 0;
            self.not_before_us = 0;
            if core::mem::replace(&mut self.complained, false) {
                log::info!("samples are taken again");
            }
            return Settled { sent: batch.0.len(), dropped: 0 };
        }
        if !core::mem::replace(&mut self.complained, true) {
            log::warn!(
                "samples are not taken by cluster {:?} (status {status}): check `samples` and the trainer. Routing goes on; this is said once until it works again",
                config.cluster
            );
        }
        let backoff_us = BACKOFF_US << self.failures.min(4);
        self.not_before_us = now_us + backoff_us.min(MAX_BACKOFF_US);
        self.failures = self.failures.saturating_add(1);
        let mut settled = Settled::default();
        for mut line in batch.0.into_iter().rev() {
            line.refusals += u32::from(!may_help_later(status));
            if line.refusals >= MAX_REFUSALS {
                settled.dropped += 1;
            } else {
                self.waiting.push_front(line);
            }
        }
        settled.dropped += self.trim(config);
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SamplesConfig {
        SamplesConfig {
            cluster: "trainer".to_owned(),
            batch: 3,
            flush_ms: 100,
            buffer: 5,
            ..SamplesConfig::default()
        }
    }

    fn filled(count: usize, now_us: u64) -> Samples {
        let mut samples = Samples::default();
        for at in 0..count {
            assert_eq!(samples.push(format!("{{\"id\":{at}}}"), &config(), now_us), 0);
        }
        samples
    }

    fn text(batch: &Batch) -> String {
        String::from_utf8(batch.body()).unwrap()
    }

    #[test]
    fn a_batch_is_due_by_number_or_by_age() {
        let mut samples = filled(2, 0);
        assert!(samples.due(&config(), 99_000).is_none());
        assert_eq!(text(&samples.due(&config(), 100_000).unwrap()), "{\"id\":0}\n{\"id\":1}\n");
        assert!(filled(3, 0).due(&config(), 0).is_some());
        assert!(Samples::default().due(&config(), 1_000_000).is_none());
    }

    #[test]
    fn at_most_two_batches_are_on_their_way() {
        let mut samples = filled(3, 0);
        let first = samples.due(&config(), 0).unwrap();
        for _ in 0..3 {
            samples.push("{}".to_owned(), &config(), 0);
        }
        assert!(samples.due(&config(), 0).is_some());
        for _ in 0..3 {
            samples.push("{}".to_owned(), &config(), 0);
        }
        assert!(samples.due(&config(), 0).is_none());
        assert_eq!(samples.answered(first, 200, &config(), 0), Settled { sent: 3, dropped: 0 });
        assert!(samples.due(&config(), 0).is_some());
    }

    #[test]
    fn while_the_trainer_is_down_the_oldest_go_and_the_rest_arrive_later() {
        let mut samples = filled(3, 0);
        let batch = samples.due(&config(), 0).unwrap();
        for at in 3..6 {
            assert_eq!(samples.push(format!("{{\"id\":{at}}}"), &config(), 0), 0);
        }
        assert_eq!(samples.answered(batch, 503, &config(), 0), Settled { sent: 0, dropped: 1 });
        assert!(samples.due(&config(), BACKOFF_US - 1).is_none());
        let batch = samples.due(&config(), BACKOFF_US).unwrap();
        assert_eq!(text(&batch), "{\"id\":1}\n{\"id\":2}\n{\"id\":3}\n{\"id\":4}\n{\"id\":5}\n");
        assert_eq!(samples.answered(batch, 0, &config(), BACKOFF_US).dropped, 0);
        assert!(samples.due(&config(), 3 * BACKOFF_US - 1).is_none(), "the wait doubles");
        let batch = samples.due(&config(), 3 * BACKOFF_US).unwrap();
        assert_eq!(samples.answered(batch, 204, &config(), 0).sent, 5);
    }

    #[test]
    fn a_batch_that_is_refused_twice_is_given_up() {
        let mut samples = filled(3, 0);
        let batch = samples.due(&config(), 0).unwrap();
        assert_eq!(samples.answered(batch, 422, &config(), 0).dropped, 0);
        let batch = samples.due(&config(), 60_000_000).unwrap();
        assert_eq!(samples.answered(batch, 422, &config(), 0).dropped, 3);
        assert!(samples.due(&config(), 120_000_000).is_none());
    }

    #[test]
    fn a_batch_ends_at_its_byte_bound() {
        let wide = SamplesConfig { buffer: 100, ..config() };
        let mut samples = Samples::default();
        for _ in 0..30 {
            samples.push("x".repeat(100_000), &wide, 0);
        }
        let bytes = samples.due(&wide, 0).unwrap().body().len();
        assert!((MAX_BATCH_BYTES..MAX_BATCH_BYTES + 100_001).contains(&bytes), "{bytes}");
    }
}
