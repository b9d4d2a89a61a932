//! llm-d's predicted-latency routing: mean models of TTFT and TPOT, refitted every 10 s; pods that hold 0.99 (else
//! 0.8) of the prompt kept unless that costs 5 s of TTFT; then 0.8 TTFT and 0.2 TPOT, each min-max normalised over
//! the candidates, and a weighted draw. Source: its predictor's features and its chart's plugin settings.
//!
//! Kinder than the source: no hop, samples arrive at once, tokens are counted rightly, and its cold start is the
//! composite fallback instead of a model of one row. Its 200 trees at rate 0.05 are 100 at 0.1 here, its buffers
//! by stratum are the newest samples, and it refits when samples grew by a tenth.

use std::collections::HashMap;

use super::books::{Books, Rule, min_max};
use super::boost::{Booster, Settings};
use super::queue_kv::SCRAPE_US;
use crate::virtual_time::policy::Ask;
use crate::virtual_time::record::{Ending, Record};
use crate::virtual_time::workload::Slo;

const REFIT_US: u64 = 10_000_000;
const MIN_SAMPLES: usize = 100;
const MAX_SAMPLES: usize = 5000;
const GATES: [f64; 2] = [0.99, 0.8];
const MAX_PENALTY_MS: f64 = 5000.0;
const TTFT_WEIGHT: f64 = 0.8;
const TREES: Settings = Settings { trees: 100, depth: 6, rate: 0.1, min_rows: 5.0, lambda: 0.1, gamma: 0.2 };

/// The predictor and its samples.
#[derive(Debug, Default)]
pub struct Predicted {
    ttft: Option<Booster>,
    tpot: Option<Booster>,
    rows: Vec<(Vec<f64>, f64, Option<f64>)>,
    fresh: usize,
    due_us: u64,
    /// Rows of the candidates of the decision in hand, by pod.
    asked: Vec<(usize, Vec<f64>)>,
    sent: HashMap<u64, Vec<f64>>,
}

/// Columns that the TPOT model sees: queued, KV, input, waiting, running, prefill in flight.
const TPOT_COLUMNS: usize = 6;

fn row(ask: &Ask<'_>, books: &Books, pod: usize) -> Vec<f64> {
    let book = &books.pods[pod];
    let (waiting, kv) = book.scraped.map_or((0.0, 0.0), |s| (f64::from(s.waiting), s.kv_usage()));
    let input = f64::from(ask.request.prompt_tokens);
    let prefix = books.matched_share(ask, pod);
    vec![
        f64::from(u8::from(waiting > 0.0)),
        kv,
        input,
        waiting,
        f64::from(book.requests),
        book.prefill_tokens as f64,
        prefix,
        (1.0 - prefix) * input,
        (4.0 * prefix).floor().min(3.0),
    ]
}

impl Predicted {
    fn refit(&mut self, now_us: u64) {
        let grown = self.fresh * 10 >= self.rows.len();
        if now_us < self.due_us || self.rows.len() < MIN_SAMPLES || !grown {
            return;
        }
        self.due_us = now_us + REFIT_US;
        self.fresh = 0;
        let (rows, ttft): (Vec<Vec<f64>>, Vec<f64>) =
            self.rows.iter().map(|(row, ttft_ms, _)| (row.clone(), *ttft_ms)).unzip();
        self.ttft = Some(Booster::fit(&rows, &ttft, &TREES));
        let (rows, tpot): (Vec<Vec<f64>>, Vec<f64>) = self
            .rows
            .iter()
            .filter_map(|(row, _, tpot_ms)| Some((row[..TPOT_COLUMNS].to_vec(), (*tpot_ms)?)))
            .unzip();
        self.tpot = (rows.len() >= MIN_SAMPLES).then(|| Booster::fit(&rows, &tpot, &TREES));
    }
}

struct Candidate {
    pod: usize,
    prefix: f64,
    ttft_ms: f64,
    tpot_ms: f64,
}

/// Keeps the pods that hold the prompt, unless the wait there is too long.
fn gate(candidates: &mut Vec<Candidate>, affinity: f64) {
    let least =
        |of: &mut dyn Iterator<Item = &Candidate>| of.map(|one| one.ttft_ms).fold(f64::INFINITY, f64::min);
    let holders = least(&mut candidates.iter().filter(|one| one.prefix >= affinity));
    if holders.is_finite() && holders <= least(&mut candidates.iter()) + MAX_PENALTY_MS {
        candidates.retain(|one| one.prefix >= affinity);
    }
}

/// A draw by headroom: with targets among the pods that meet both the tightest fit is likeliest; without, or
/// when none does, the least latency.
fn draw(mut candidates: Vec<Candidate>, slo: Option<Slo>, share: f64) -> usize {
    let meets =
        |one: &Candidate| slo.is_some_and(|slo| one.ttft_ms <= slo.ttft_ms && one.tpot_ms <= slo.tpot_ms);
    let pack = candidates.iter().any(meets);
    if pack {
        candidates.retain(meets);
    }
    let range = |of: fn(&Candidate) -> f64| {
        candidates.iter().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (ttft, tpot) = (range(|one| one.ttft_ms), range(|one| one.tpot_ms));
    let weights: Vec<f64> = candidates
        .iter()
        .map(|one| {
            let quick = TTFT_WEIGHT * min_max(one.ttft_ms, ttft.0, ttft.1)
                + (1.0 - TTFT_WEIGHT) * min_max(one.tpot_ms, tpot.0, tpot.1);
            // Quantised to 1..100, so that nobody is out of the draw.
            (if pack { 1.0 - quick } else { quick } * 99.0).round() + 1.0
        })
        .collect();
    let mut left = share * weights.iter().sum::<f64>();
    for (one, weight) in candidates.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return one.pod;
        }
    }
    candidates.last().map_or(0, |one| one.pod)
}

impl Rule for Predicted {
    fn name(&self) -> &'static str {
        "llmd-predicted"
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        Some(SCRAPE_US)
    }

    fn index_blocks(&self, pod_blocks: usize) -> Option<usize> {
        Some(pod_blocks)
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        self.refit(ask.now_us);
        self.asked = books.up().map(|pod| (pod, row(ask, books, pod))).collect();
        let (Some(ttft), Some(tpot)) = (&self.ttft, &self.tpot) else {
            let (least, greatest) = super::queue_kv::queue_range(books);
            let rows = &self.asked;
            return books.highest(|book, pod| {
                let prefix = rows.iter().find(|(at, _)| *at == pod).map_or(0.0, |(_, row)| row[6]);
                let (queue, kv) = book.scraped.map_or((0.0, 0.0), |s| (f64::from(s.waiting), s.kv_usage()));
                min_max(queue, least, greatest) + (1.0 - kv) + prefix
            });
        };
        let mut candidates: Vec<Candidate> = self
            .asked
            .iter()
            .map(|(pod, row)| Candidate {
                pod: *pod,
                prefix: row[6],
                ttft_ms: ttft.predict(row),
                tpot_ms: tpot.predict(&row[..TPOT_COLUMNS]),
            })
            .collect();
        GATES.iter().for_each(|affinity| gate(&mut candidates, *affinity));
        draw(candidates, ask.request.slo, books.draw())
    }

    fn sent(&mut self, ask: &Ask<'_>, pod: usize, _books: &Books) {
        if let Some((_, row)) = self.asked.iter().find(|(at, _)| *at == pod) {
            self.sent.insert(ask.id, row.clone());
        }
    }

    fn ended(&mut self, id: u64, record: &Record, _now_us: u64) {
        let Some(row) = self.sent.remove(&id) else { return };
        if record.ending != Ending::Complete {
            return;
        }
        if self.rows.len() >= 2 * MAX_SAMPLES {
            self.rows.drain(..MAX_SAMPLES);
        }
        self.rows.push((row, record.ttft_ms(), record.tpot_ms()));
        self.fresh += 1;
    }
}
