//! How good the predictions were that really routed, over the newest samples.
//!
//! Every sample carries what was predicted for it, so this needs no model and no hold-out: it is the error
//! that users had. Per rung, because the prior's and the model's errors mean different things.

use std::collections::{BTreeMap, VecDeque};

use foretoken_core::fallback::Rung;
use foretoken_core::sample::Sample;
use serde::Serialize;

use crate::score::median;

/// Samples over which the medians are taken.
const WINDOW: usize = 500;

#[derive(Debug, Clone, Copy)]
struct Entry {
    rung: Rung,
    ttft_ape: Option<f64>,
    tpot_ape: Option<f64>,
}

/// Errors of the newest predictions.
#[derive(Debug, Default)]
pub struct Live {
    entries: VecDeque<Entry>,
}

/// Medians over a set of samples; absent when none has the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LiveError {
    /// Median absolute percentage error of TTFT, 0.1 is 10 %.
    pub ttft_ape_median: Option<f64>,
    /// The same of TPOT.
    pub tpot_ape_median: Option<f64>,
    /// Samples.
    pub n: usize,
}

/// Over all rungs and per rung.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LiveReport {
    /// All rungs.
    #[serde(flatten)]
    pub all: LiveError,
    /// Per rung, by its name.
    pub by_rung: BTreeMap<&'static str, LiveError>,
}

fn ape(predicted: f32, actual: Option<f32>) -> Option<f64> {
    let actual = f64::from(actual.filter(|actual| *actual > 0.0)?);
    (predicted.is_finite() && predicted > 0.0).then(|| (f64::from(predicted) - actual).abs() / actual)
}

impl Live {
    /// Takes a sample's error; one that is not clean has none.
    pub fn add(&mut self, sample: &Sample) {
        if !sample.is_clean() {
            return;
        }
        self.entries.push_back(Entry {
            rung: sample.rung,
            ttft_ape: ape(sample.predicted_ttft_ms, sample.ttft_ms),
            tpot_ape: ape(sample.predicted_tpot_ms, sample.tpot_ms),
        });
        if self.entries.len() > WINDOW {
            self.entries.pop_front();
        }
    }

    /// The medians.
    #[must_use]
    pub fn report(&self) -> LiveReport {
        let mut by_rung = BTreeMap::new();
        for rung in [Rung::Model, Rung::Prior, Rung::LeastTokens, Rung::Envoy] {
            let error = self.error(|entry| entry.rung == rung);
            if error.n > 0 {
                by_rung.insert(rung.name(), error);
            }
        }
        LiveReport { all: self.error(|_| true), by_rung }
    }

    fn error(&self, which: impl Fn(&Entry) -> bool) -> LiveError {
        let entries: Vec<&Entry> = self.entries.iter().filter(|entry| which(entry)).collect();
        let median_of = |of: fn(&Entry) -> Option<f64>| {
            median(&mut entries.iter().filter_map(|entry| of(entry)).collect::<Vec<f64>>())
        };
        LiveError {
            ttft_ape_median: median_of(|entry| entry.ttft_ape),
            tpot_ape_median: median_of(|entry| entry.tpot_ape),
            n: entries.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    #[test]
    fn medians_are_per_rung_over_clean_samples_only() {
        let mut live = Live::default();
        let mut sample = synthetic::samples(1, 1).pop().unwrap();
        for (rung, predicted, attempts) in
            [(Rung::Model, 110.0, 1), (Rung::Prior, 200.0, 1), (Rung::Model, 900.0, 2)]
        {
            sample.rung = rung;
            sample.ttft_ms = Some(100.0);
            sample.predicted_ttft_ms = predicted;
            sample.tpot_ms = None;
            sample.attempts = attempts;
            live.add(&sample);
        }
        let report = live.report();
        assert_eq!(report.all.n, 2);
        assert!((report.by_rung["model"].ttft_ape_median.unwrap() - 0.1).abs() < 1e-6);
        assert!((report.by_rung["prior"].ttft_ape_median.unwrap() - 1.0).abs() < 1e-6);
        assert_eq!(report.all.tpot_ape_median, None);
    }

    #[test]
    fn only_the_newest_count() {
        let mut live = Live::default();
        for sample in synthetic::samples(1, WINDOW + 100) {
            live.add(&sample);
        }
        assert_eq!(live.report().all.n, WINDOW);
    }
}
