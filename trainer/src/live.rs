//! How good the predictions were that really routed, over the newest samples.
//!
//! Every sample carries what was predicted for it, so this needs no model and no hold-out: it is the error
//! that users had. Per rung, because the prior's and the model's errors mean different things, and by class of
//! load, by pod and by LLM, because an error that is fine on the whole can be large where it matters.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foretoken_core::fallback::Rung;
use foretoken_core::features::{COUNT, Row};
use foretoken_core::sample::Sample;
use serde::Serialize;

use crate::score::median;
use crate::store::training::{LOAD_NAMES, Stratum};

/// Samples over which the headline medians are taken.
const WINDOW: usize = 500;

/// Samples over which those by load, pod and LLM are taken.
const WIDE_WINDOW: usize = 2000;

/// Most pods and most LLMs that are listed, those with most samples first.
const MAX_LISTED: usize = 64;

/// Newest pairs of predicted and actual that the page draws.
const PAIRS: usize = 300;

#[derive(Debug, Clone)]
struct Entry {
    rung: Rung,
    load: u8,
    pod: Arc<str>,
    llm: Arc<str>,
    ttft: (f32, Option<f32>),
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

/// Over all rungs and per rung, and over a wider window by load, pod and LLM.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LiveReport {
    /// All rungs.
    #[serde(flatten)]
    pub all: LiveError,
    /// Per rung, by its name.
    pub by_rung: BTreeMap<&'static str, LiveError>,
    /// Per class of load, by its name.
    pub by_load: BTreeMap<&'static str, LiveError>,
    /// Per pod, by its address.
    pub by_pod: BTreeMap<String, LiveError>,
    /// Per LLM, by its name.
    pub by_llm: BTreeMap<String, LiveError>,
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
        let row: Option<[f32; COUNT]> = sample.features.as_slice().try_into().ok();
        self.entries.push_back(Entry {
            rung: sample.rung,
            load: row.map_or(0, |row| Stratum::of(&Row(row)).load),
            pod: sample.pod.as_str().into(),
            llm: sample.model.as_str().into(),
            ttft: (sample.predicted_ttft_ms, sample.ttft_ms),
            ttft_ape: ape(sample.predicted_ttft_ms, sample.ttft_ms),
            tpot_ape: ape(sample.predicted_tpot_ms, sample.tpot_ms),
        });
        if self.entries.len() > WIDE_WINDOW {
            self.entries.pop_front();
        }
    }

    /// The medians.
    #[must_use]
    pub fn report(&self) -> LiveReport {
        let newest = || self.entries.iter().rev().take(WINDOW);
        let mut by_rung = BTreeMap::new();
        for rung in [Rung::Model, Rung::Prior, Rung::LeastTokens, Rung::Envoy] {
            let error = error(newest().filter(|entry| entry.rung == rung));
            if error.n > 0 {
                by_rung.insert(rung.name(), error);
            }
        }
        let mut by_load = BTreeMap::new();
        for (load, name) in (0..).zip(LOAD_NAMES) {
            let error = error(self.entries.iter().filter(|entry| entry.load == load));
            if error.n > 0 {
                by_load.insert(name, error);
            }
        }
        LiveReport {
            all: error(newest()),
            by_rung,
            by_load,
            by_pod: self.by(|entry| &entry.pod),
            by_llm: self.by(|entry| &entry.llm),
        }
    }

    fn by(&self, key: fn(&Entry) -> &Arc<str>) -> BTreeMap<String, LiveError> {
        let mut groups: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.entries {
            groups.entry(key(entry)).or_default().push(entry);
        }
        let mut groups: Vec<(&str, Vec<&Entry>)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.len()));
        groups.truncate(MAX_LISTED);
        groups.into_iter().map(|(name, entries)| (name.to_owned(), error(entries.into_iter()))).collect()
    }

    /// Predicted and actual TTFT of the newest samples, ms, newest first.
    #[must_use]
    pub fn pairs(&self) -> Vec<(f32, f32)> {
        let pair = |entry: &Entry| Some((entry.ttft.0, entry.ttft.1?));
        self.entries.iter().rev().filter_map(pair).take(PAIRS).collect()
    }
}

fn error<'a>(entries: impl Iterator<Item = &'a Entry>) -> LiveError {
    let entries: Vec<&Entry> = entries.collect();
    let median_of = |of: fn(&Entry) -> Option<f64>| {
        median(&mut entries.iter().filter_map(|entry| of(entry)).collect::<Vec<f64>>())
    };
    LiveError {
        ttft_ape_median: median_of(|entry| entry.ttft_ape),
        tpot_ape_median: median_of(|entry| entry.tpot_ape),
        n: entries.len(),
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

    #[test]
    fn errors_are_told_apart_by_load_pod_and_llm() {
        let mut live = Live::default();
        let mut samples = synthetic::samples(1, 300);
        for (index, sample) in samples.iter_mut().enumerate() {
            let slow = index % 3 == 0;
            sample.pod = if slow { "b:1" } else { "a:1" }.to_owned();
            sample.model = if slow { "large" } else { "small" }.to_owned();
            sample.features[foretoken_core::features::Feature::RunningRequests as usize] = f32::NAN;
            sample.features[foretoken_core::features::Feature::InflightRequests as usize] =
                if slow { 70.0 } else { 2.0 };
            sample.ttft_ms = Some(100.0);
            sample.predicted_ttft_ms = if slow { 150.0 } else { 110.0 };
            live.add(sample);
        }
        let report = live.report();
        for error in [report.by_load["full"], report.by_pod["b:1"], report.by_llm["large"]] {
            assert!(error.n == 100 && (error.ttft_ape_median.unwrap() - 0.5).abs() < 1e-6, "{error:?}");
        }
        for error in [report.by_load["light"], report.by_pod["a:1"], report.by_llm["small"]] {
            assert!(error.n == 200 && (error.ttft_ape_median.unwrap() - 0.1).abs() < 1e-6, "{error:?}");
        }
        assert_eq!(live.pairs()[0], (110.0, 100.0));
    }
}
