//! What came of each request, and the figures over many.

use serde::{Deserialize, Serialize};

use super::workload::Slo;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It got all its tokens.
    Complete,
    /// Its pod died, or no pod was there.
    Failed,
    /// The router refused it.
    Shed,
}

/// One request's story. Times are microseconds from the start of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// Its number, in order of arrival.
    pub number: u64,
    /// The workload's tag.
    pub tag: u64,
    /// The pod that served it last.
    pub pod: usize,
    /// Arrival.
    pub arrived_us: u64,
    /// First token.
    pub first_us: u64,
    /// Last token.
    pub last_us: u64,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that the engine found in its cache at admission.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Pods tried.
    pub attempts: u32,
    /// How it ended.
    pub ending: Ending,
    /// Its targets.
    #[serde(skip)]
    pub slo: Option<Slo>,
}

impl Record {
    /// Arrival to first token.
    #[must_use]
    pub fn ttft_ms(&self) -> f64 {
        self.first_us.saturating_sub(self.arrived_us) as f64 / 1000.0
    }

    /// (Last token - first token) / (output tokens - 1); `None` below two tokens.
    #[must_use]
    pub fn tpot_ms(&self) -> Option<f64> {
        (self.output_tokens >= 2).then(|| {
            self.last_us.saturating_sub(self.first_us) as f64 / 1000.0 / f64::from(self.output_tokens - 1)
        })
    }

    /// Arrival to last token.
    #[must_use]
    pub fn e2e_ms(&self) -> f64 {
        self.last_us.saturating_sub(self.arrived_us) as f64 / 1000.0
    }

    /// Whether it met its targets; `None` when it has none.
    #[must_use]
    pub fn met_slo(&self) -> Option<bool> {
        self.slo.map(|slo| {
            self.ending == Ending::Complete
                && self.ttft_ms() <= slo.ttft_ms
                && self.tpot_ms().is_none_or(|tpot_ms| tpot_ms <= slo.tpot_ms)
        })
    }
}

/// Mean and quantiles of one quantity, in its own unit. All 0 when there are no values.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Spread {
    /// Over these values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable_by(f64::total_cmp);
        // Nearest rank.
        let at =
            |share: f64| values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1];
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
        }
    }
}

/// Figures of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Requests that count here.
    pub requests: usize,
    /// Of those, the ones that failed or were shed.
    pub lost: usize,
    /// Time to first token.
    pub ttft_ms: Spread,
    /// Time per output token, the first excluded.
    pub tpot_ms: Spread,
    /// Arrival to last token.
    pub e2e_ms: Spread,
    /// Prompt tokens found in caches over prompt tokens.
    pub hit_rate: f64,
    /// Share of requests with targets that met them; 1 when none has targets.
    pub slo_attainment: f64,
    /// Requests of the busiest pod over the mean.
    pub busiest_pod: f64,
}

impl Figures {
    /// Over the records in order of arrival, without the first `head` and last `tail` shares: a pool that starts
    /// empty and one that runs dry both flatter everybody.
    #[must_use]
    pub fn of(records: &[Record], head: f64, tail: f64) -> Self {
        let count = records.len() as f64;
        let from = ((count * head) as usize).min(records.len());
        let to = records.len().saturating_sub((count * tail) as usize).max(from);
        let counted = &records[from..to];
        let whole: Vec<&Record> = counted.iter().filter(|record| record.ending == Ending::Complete).collect();
        let prompt_tokens: u64 = whole.iter().map(|record| u64::from(record.prompt_tokens)).sum();
        let cached_tokens: u64 = whole.iter().map(|record| u64::from(record.cached_tokens)).sum();
        let met: Vec<bool> = counted.iter().filter_map(Record::met_slo).collect();
        let mut per_pod = vec![0_usize; counted.iter().map(|record| record.pod + 1).max().unwrap_or(0)];
        for record in counted {
            per_pod[record.pod] += 1;
        }
        let share = |part: f64, of: f64, none: f64| if of > 0.0 { part / of } else { none };
        Self {
            requests: counted.len(),
            lost: counted.len() - whole.len(),
            ttft_ms: Spread::of(whole.iter().map(|record| record.ttft_ms()).collect()),
            tpot_ms: Spread::of(whole.iter().filter_map(|record| record.tpot_ms()).collect()),
            e2e_ms: Spread::of(whole.iter().map(|record| record.e2e_ms()).collect()),
            hit_rate: share(cached_tokens as f64, prompt_tokens as f64, 0.0),
            slo_attainment: share(met.iter().filter(|met| **met).count() as f64, met.len() as f64, 1.0),
            busiest_pod: share(
                per_pod.iter().copied().max().unwrap_or(0) as f64 * per_pod.len() as f64,
                counted.len() as f64,
                0.0,
            ),
        }
    }
}
