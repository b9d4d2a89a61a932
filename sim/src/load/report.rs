//! What a run measured: one record a request, and the summary.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::Outcome;

/// One request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the conversation.
    pub conversation: u32,
    /// Turn in it, from 0.
    pub turn: u32,
    /// Group that shares a prefix.
    pub group: u32,
    /// When it was sent, milliseconds from the start of the run.
    pub sent_ms: f64,
    /// How much later than planned it was sent, because the bound on requests in flight was reached or the
    /// machine was busy.
    pub send_lag_ms: f64,
    /// Base URL it was sent to.
    pub target: String,
    /// Pod that answered, where the response says so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
    /// HTTP status; 0 when there was no response.
    pub status: u16,
    /// Why it failed; absent on success.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<String>,
    /// Start of an error body.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_body: Option<String>,
    /// Send to first token.
    pub ttft_ms: Option<f64>,
    /// (last token - first token) / (output tokens - 1).
    pub tpot_ms: Option<f64>,
    /// Send to last token.
    pub e2e_ms: Option<f64>,
    /// Prompt tokens as reported.
    pub prompt_tokens: Option<u32>,
    /// Cached prompt tokens as reported.
    pub cached_tokens: Option<u32>,
    /// Output tokens.
    pub output_tokens: u32,
    /// The `x-foretoken-explain` response header: JSON where it is JSON, else its text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub explain: Option<serde_json::Value>,
}

impl Record {
    /// Moves what the client saw into a record; the answer's text is not kept.
    pub(super) fn fill(&mut self, outcome: Outcome) {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let gaps = outcome.output_tokens.saturating_sub(1);
        self.status = outcome.status;
        self.failure = outcome.failure;
        self.error_body = outcome.error_body;
        self.pod = outcome.pod;
        self.ttft_ms = outcome.ttft.map(ms);
        self.e2e_ms = outcome.e2e.map(ms);
        self.tpot_ms = (gaps > 0)
            .then(|| Some((outcome.e2e? - outcome.ttft?).as_secs_f64() * 1000.0 / f64::from(gaps)))
            .flatten();
        self.prompt_tokens = outcome.prompt_tokens;
        self.cached_tokens = outcome.cached_tokens;
        self.output_tokens = outcome.output_tokens;
        self.explain = outcome.explain.map(|text| serde_json::from_str(&text).unwrap_or(text.into()));
    }
}

/// Distribution of one time, milliseconds. All zero when nothing was measured (`count` says so).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile, nearest rank.
    pub p90: f64,
    /// 99th percentile, nearest rank.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// Summary of these values; NaN is left out.
    #[must_use]
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let Some(&max) = sorted.last() else { return Self::default() };
        let rank = |share: f64| {
            let at = (share * sorted.len() as f64).ceil() as usize;
            sorted[at.clamp(1, sorted.len()) - 1]
        };
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Self { count: sorted.len() as u64, mean, p50: rank(0.5), p90: rank(0.9), p99: rank(0.99), max }
    }
}

/// What one pod answered.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PodReport {
    /// Successful requests.
    pub requests: u64,
    /// Mean TTFT of them.
    pub ttft_mean_ms: f64,
    /// Cached share of their prompt tokens.
    pub cached_share: f64,
}

/// What a run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The workload.
    pub workload: String,
    /// Its seed.
    pub seed: u64,
    /// First send to last answer, seconds.
    pub duration_s: f64,
    /// Requests that ended, failed ones included.
    pub requests: u64,
    /// Failed ones.
    pub failed: u64,
    /// Failures by reason.
    pub failures: BTreeMap<String, u64>,
    /// Requests sent a second, over the time in which requests were sent.
    pub requests_per_second: f64,
    /// Time to first token of successful requests.
    pub ttft_ms: Summary,
    /// Time per output token after the first, of successful requests.
    pub tpot_ms: Summary,
    /// End to end, of successful requests.
    pub e2e_ms: Summary,
    /// Prompt tokens of successful requests as reported.
    pub prompt_tokens: u64,
    /// Output tokens of successful requests.
    pub output_tokens: u64,
    /// Share of the prompt tokens that came from a cache.
    pub cached_share: f64,
    /// Worst lag of a send behind its plan.
    pub send_lag_max_ms: f64,
    /// By pod, where responses name it.
    pub by_pod: BTreeMap<String, PodReport>,
    /// Every request, in order of sending.
    #[serde(default)]
    pub records: Vec<Record>,
}

impl Report {
    /// Summarises records. Anyone may take a part of a run's records and summarise that.
    #[must_use]
    pub fn of(workload: &str, seed: u64, mut records: Vec<Record>) -> Self {
        records.sort_by(|a, b| a.sent_ms.total_cmp(&b.sent_ms));
        let good = || records.iter().filter(|record| record.failure.is_none());
        let mut failures = BTreeMap::new();
        for reason in records.iter().filter_map(|record| record.failure.clone()) {
            *failures.entry(reason).or_insert(0) += 1;
        }
        let first = records.first().map_or(0.0, |record| record.sent_ms);
        let last_sent = records.last().map_or(0.0, |record| record.sent_ms);
        let ended =
            records.iter().map(|record| record.sent_ms + record.e2e_ms.unwrap_or(0.0)).fold(first, f64::max);
        let pods: Vec<&str> = good().filter_map(|record| record.pod.as_deref()).collect();
        let by_pod = pods
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .map(|pod| {
                let of_pod = || good().filter(|record| record.pod.as_deref() == Some(pod));
                let report = PodReport {
                    requests: of_pod().count() as u64,
                    ttft_mean_ms: Summary::of(of_pod().filter_map(|record| record.ttft_ms)).mean,
                    cached_share: cached_share(of_pod()),
                };
                (pod.to_owned(), report)
            })
            .collect();
        Self {
            workload: workload.to_owned(),
            seed,
            duration_s: (ended - first) / 1000.0,
            requests: records.len() as u64,
            failed: failures.values().sum(),
            failures,
            requests_per_second: records.len().saturating_sub(1) as f64 * 1000.0
                / (last_sent - first).max(1.0),
            ttft_ms: Summary::of(good().filter_map(|record| record.ttft_ms)),
            tpot_ms: Summary::of(good().filter_map(|record| record.tpot_ms)),
            e2e_ms: Summary::of(good().filter_map(|record| record.e2e_ms)),
            prompt_tokens: good().filter_map(|record| record.prompt_tokens).map(u64::from).sum(),
            output_tokens: good().map(|record| u64::from(record.output_tokens)).sum(),
            cached_share: cached_share(good()),
            send_lag_max_ms: records.iter().map(|record| record.send_lag_ms).fold(0.0, f64::max),
            by_pod,
            records,
        }
    }

    /// The summary over requests sent within `from_ms..to_ms` of the run.
    #[must_use]
    pub fn between(&self, from_ms: f64, to_ms: f64) -> Self {
        let within = |record: &&Record| (from_ms..to_ms).contains(&record.sent_ms);
        Self::of(&self.workload, self.seed, self.records.iter().filter(within).cloned().collect())
    }
}

fn cached_share<'a>(records: impl Iterator<Item = &'a Record>) -> f64 {
    let (mut cached, mut prompt) = (0u64, 0u64);
    for record in records {
        if let (Some(of_cache), Some(tokens)) = (record.cached_tokens, record.prompt_tokens) {
            cached += u64::from(of_cache);
            prompt += u64::from(tokens);
        }
    }
    if prompt == 0 { 0.0 } else { cached as f64 / prompt as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sent_ms: f64, ttft_ms: f64, failure: Option<&str>) -> Record {
        Record {
            conversation: 0,
            turn: 0,
            group: 0,
            sent_ms,
            send_lag_ms: 0.0,
            target: String::new(),
            pod: Some("a".to_owned()),
            status: 200,
            failure: failure.map(str::to_owned),
            error_body: None,
            ttft_ms: Some(ttft_ms),
            tpot_ms: Some(1.0),
            e2e_ms: Some(ttft_ms + 10.0),
            prompt_tokens: Some(100),
            cached_tokens: Some(25),
            output_tokens: 11,
            explain: None,
        }
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let summary = Summary::of((1..=100).rev().map(f64::from).chain([f64::NAN]));
        assert_eq!((summary.count, summary.mean), (100, 50.5));
        assert_eq!((summary.p50, summary.p90, summary.p99, summary.max), (50.0, 90.0, 99.0, 100.0));
        assert_eq!(Summary::of([7.0].into_iter()).p99, 7.0);
        assert_eq!(Summary::of(std::iter::empty()), Summary::default());
    }

    #[test]
    fn failures_count_by_reason_and_stay_out_of_the_times() {
        let records =
            vec![record(0.0, 10.0, None), record(500.0, 999.0, Some("connect")), record(1000.0, 30.0, None)];
        let report = Report::of("w", 1, records);
        assert_eq!((report.requests, report.failed, report.failures["connect"]), (3, 1, 1));
        assert_eq!(report.ttft_ms.mean, 20.0);
        assert_eq!(report.requests_per_second, 2.0);
        assert_eq!(report.cached_share, 0.25);
        assert_eq!(report.by_pod["a"].requests, 2);
        assert_eq!(report.between(400.0, 2000.0).requests, 2);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
