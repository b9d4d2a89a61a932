//! Which samples are believed: a batch whose times are out of all proportion is set aside.
//!
//! A sender with a broken clock, a wrong unit or bad intent could teach every router nonsense. Its batches show
//! in one number: how much longer requests took than was predicted for them, against the same number of what is
//! believed. It must not hide single slow requests, which are what the 90th percentile is learned from, nor a
//! pod that slows down by half; so it is the median over a sender's newest samples that counts, and it may
//! move by a factor of [`BOUND`] before the sender's samples are quarantined: stored, counted, not learned from.
//!
//! A whole fleet that really changes that much is believed in the end: when for [`GIVE_IN_MS`] all samples were
//! quarantined, they become the new measure. Predictions follow a pod's learned speed within seconds, so
//! that is not how a slow pod is learned.
//!
//! What it is not: a defence against a sender that has the token and lies by little.

use std::collections::{HashMap, VecDeque};

use foretoken_core::fallback::Rung;
use foretoken_core::sample::Sample;

use crate::score::median;

/// Factor by which a sender's median of actual to predicted may differ from what is believed.
pub const BOUND: f64 = 4.0;

/// How long everything must have been quarantined before it is believed, ms.
pub const GIVE_IN_MS: u64 = 10 * 60 * 1000;

/// Newest believed samples that make the measure, per rung and target.
const MEASURE: usize = 1000;

/// Fewest of them that measure anything.
const MIN_MEASURE: usize = 100;

/// Newest samples of a sender that are judged together.
const SENDER: usize = 64;

/// Fewest of them that are judged.
const MIN_SENDER: usize = 8;

/// Fewest samples of a sender in one batch that are judged by themselves: a lie that begins all at once shows in them
/// before it shows in the newest of all.
const MIN_BATCH: usize = 16;

/// Most senders that are remembered; one is a worker of an Envoy.
const MAX_SENDERS: usize = 4096;

/// Log of actual over predicted, TTFT and TPOT; absent where there is none.
type Residuals = [Option<f64>; 2];

#[derive(Debug, Default)]
struct Ring(VecDeque<f64>);

impl Ring {
    fn push(&mut self, value: f64, capacity: usize) {
        self.0.push_back(value);
        if self.0.len() > capacity {
            self.0.pop_front();
        }
    }

    fn median(&self, least: usize) -> Option<f64> {
        (self.0.len() >= least).then(|| median(&mut self.0.iter().copied().collect::<Vec<f64>>())).flatten()
    }
}

#[derive(Debug, Default)]
struct Sender {
    /// Per target: the residual less the measure of its rung, newest last.
    offsets: [Ring; 2],
}

/// What is believed so far.
#[derive(Debug, Default)]
pub struct Trust {
    /// Per rung (model, prior) and target.
    measure: [[Ring; 2]; 2],
    senders: HashMap<String, Sender>,
    /// Sample time since when nothing has been believed.
    doubted_since_ms: Option<u64>,
}

/// Rungs that predict anything.
fn rung_index(rung: Rung) -> Option<usize> {
    match rung {
        Rung::Model => Some(0),
        Rung::Prior => Some(1),
        Rung::LeastTokens | Rung::Envoy => None,
    }
}

fn residuals(sample: &Sample) -> Residuals {
    let log = |actual: Option<f32>, predicted: f32| {
        let ratio = f64::from(actual?) / f64::from(predicted);
        (ratio.is_finite() && ratio > 0.0).then(|| ratio.ln())
    };
    [log(sample.ttft_ms, sample.predicted_ttft_ms), log(sample.tpot_ms, sample.predicted_tpot_ms)]
}

/// The worker that sent a sample: its id up to the sequence number.
fn sender(sample: &Sample) -> &str {
    sample.id.rsplit_once('-').map_or(sample.id.as_str(), |(sender, _)| sender)
}

fn medians(rings: &[Ring; 2]) -> Residuals {
    rings.each_ref().map(|ring| ring.median(MIN_MEASURE))
}

fn believe(measure: &mut [[Ring; 2]; 2], sample: &Sample) {
    let Some(measures) = rung_index(sample.rung).and_then(|rung| measure.get_mut(rung)) else { return };
    for (ring, residual) in measures.iter_mut().zip(residuals(sample)) {
        if let Some(residual) = residual {
            ring.push(residual, MEASURE);
        }
    }
}

impl Trust {
    /// Judges the new samples of one batch: true for each that is believed.
    pub fn judge(&mut self, batch: &[&Sample]) -> Vec<bool> {
        if self.senders.len() >= MAX_SENDERS {
            // Rare and harmless: everybody is judged afresh.
            self.senders.clear();
        }
        let judged = |sample: &&Sample| sample.is_clean() && rung_index(sample.rung).is_some();
        let measured: Vec<Residuals> = self.measure.iter().map(medians).collect();
        let mut in_batch: HashMap<&str, [Vec<f64>; 2]> = HashMap::new();
        for sample in batch.iter().copied().filter(judged) {
            let Some(measures) = rung_index(sample.rung).and_then(|rung| measured.get(rung)) else {
                continue;
            };
            let entry = self.senders.entry(sender(sample).to_owned()).or_default();
            let batch = in_batch.entry(sender(sample)).or_default();
            for (((ring, batch), measure), residual) in
                entry.offsets.iter_mut().zip(batch).zip(measures).zip(residuals(sample))
            {
                if let (Some(residual), Some(measure)) = (residual, measure) {
                    ring.push(residual - measure, SENDER);
                    batch.push(residual - measure);
                }
            }
        }
        let mut verdicts: HashMap<&str, bool> = HashMap::new();
        for sample in batch {
            verdicts.entry(sender(sample)).or_insert_with_key(|name| {
                let offsets = self.senders.get(*name).into_iter().flat_map(|sender| &sender.offsets);
                let batch = in_batch.get_mut(name).into_iter().flatten();
                let batch = batch.filter(|offsets| offsets.len() >= MIN_BATCH);
                let newest = offsets.filter_map(|ring| ring.median(MIN_SENDER));
                let batch = batch.filter_map(|offsets| median(offsets));
                !newest.chain(batch).any(|offset| offset.abs() > BOUND.ln())
            });
        }
        let believed = |sample: &Sample| verdicts.get(sender(sample)).copied().unwrap_or(true);
        let doubted = batch.iter().copied().find(|sample| judged(sample) && !believed(sample));
        if let Some(sample) = doubted {
            let since_ms = *self.doubted_since_ms.get_or_insert(sample.at_ms);
            if sample.at_ms.saturating_sub(since_ms) >= GIVE_IN_MS {
                tracing::warn!(
                    "for {} minutes no sample was believed: what they say is the new measure",
                    GIVE_IN_MS / 60_000
                );
                *self = Self::default();
                return self.judge(batch);
            }
        }
        for sample in batch.iter().copied().filter(|sample| judged(sample) && believed(sample)) {
            believe(&mut self.measure, sample);
            self.doubted_since_ms = None;
        }
        batch.iter().map(|sample| believed(sample)).collect()
    }

    /// Takes a sample that was believed before, as read back from disk.
    pub fn believe(&mut self, sample: &Sample) {
        if sample.is_clean() {
            believe(&mut self.measure, sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    fn samples(seed: u64, count: usize) -> Vec<Sample> {
        synthetic::samples(seed, count)
    }

    fn times(mut samples: Vec<Sample>, factor: f32) -> Vec<Sample> {
        for sample in &mut samples {
            sample.ttft_ms = sample.ttft_ms.map(|value| value * factor);
            sample.tpot_ms = sample.tpot_ms.map(|value| value * factor);
            sample.e2e_ms = sample.e2e_ms.map(|value| value * factor);
        }
        samples
    }

    fn believed(trust: &mut Trust, samples: &[Sample], batch: usize) -> usize {
        samples
            .chunks(batch)
            .flat_map(|batch| trust.judge(&batch.iter().collect::<Vec<_>>()))
            .filter(|believed| *believed)
            .count()
    }

    #[test]
    fn a_batch_of_ten_times_the_times_is_not_believed_and_others_go_on() {
        let mut trust = Trust::default();
        assert_eq!(believed(&mut trust, &samples(1, 400), 64), 400);
        assert_eq!(believed(&mut trust, &times(samples(2, 640), 10.0), 64), 0);
        assert_eq!(believed(&mut trust, &times(samples(3, 64), 0.1), 64), 0);
        assert_eq!(believed(&mut trust, &samples(4, 64), 64), 64);
    }

    #[test]
    fn one_that_trickles_is_found_after_a_handful() {
        let mut trust = Trust::default();
        believed(&mut trust, &samples(1, 400), 64);
        let passed = believed(&mut trust, &times(samples(2, 300), 10.0), 1);
        assert_eq!(passed, MIN_SENDER - 1);
        // And one that was honest before, once most of its newest are not.
        let passed = believed(&mut trust, &times(samples(1, 300), 10.0), 1);
        assert!(passed <= SENDER / 2 + 1, "{passed}");
    }

    #[test]
    fn twice_as_slow_and_single_very_slow_requests_are_believed() {
        let mut trust = Trust::default();
        believed(&mut trust, &samples(1, 400), 64);
        assert_eq!(believed(&mut trust, &times(samples(1, 640), 2.0), 64), 640);
        let mut some = samples(5, 640);
        for sample in some.iter_mut().step_by(5) {
            sample.ttft_ms = sample.ttft_ms.map(|ttft_ms| 40.0 * ttft_ms);
        }
        assert_eq!(believed(&mut trust, &some, 64), 640);
    }

    #[test]
    fn a_fleet_that_stays_changed_is_believed_in_the_end() {
        let mut trust = Trust::default();
        believed(&mut trust, &samples(1, 400), 64);
        let count = GIVE_IN_MS as usize / 100;
        let passed = believed(&mut trust, &times(samples(2, count + 640), 10.0), 64);
        assert!((500..=640 + 64).contains(&passed), "{passed}");
    }
}
