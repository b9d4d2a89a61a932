//! The gate: whether a fitted model may replace what serves now, half by half.
//!
//! The candidate, the analytic prior and the live model predict the same newest requests, which neither model
//! has learned from. A half (TTFT or TPOT) is refused when it is worse than either by more than a tolerance and
//! by more than chance explains (paired differences, three standard errors): on a small hold-out two equal
//! models differ by several per cent, and a gate that refuses by coin toss keeps a fleet from learning. The same
//! is asked within every stratum of load and of cache hits that has enough requests, because a model can win on
//! the many easy requests what it loses on the few that matter; and the 90th percentile must not cover less
//! truly than before.
//!
//! A half that is refused does not stop the other: what is published is the better of each.

use std::collections::BTreeMap;
use std::time::Instant;

use foretoken_core::features::Row;
use foretoken_core::model::contract::{Quantile, Target};
use foretoken_core::model::{Model, Prediction, packed};
use serde::Serialize;

use crate::dataset::Example;
use crate::export::target_name;
use crate::score::{Score, TargetScore, losses, prior_predictions, score};
use crate::store::training::Stratum;

/// How much worse a candidate may be, as a share of the other's loss.
const TOLERANCE: f64 = 0.05;

/// The same within a stratum, where less is known.
const STRATUM_TOLERANCE: f64 = 0.1;

/// How many standard errors of the paired difference are chance.
const CHANCE: f64 = 3.0;

/// Fewest requests that judge anything.
pub const MIN_JUDGED: usize = 20;

/// Fewest requests of a stratum that judge it.
const MIN_STRATUM: usize = 50;

/// Fewest requests that judge coverage.
const MIN_COVERAGE: usize = 200;

/// Coverage of the 90th percentile that is never refused.
const COVERAGE: (f64, f64) = (0.85, 0.96);

/// Rows that the evaluation of a candidate is timed on: the pods of a large pool.
const TIMED_ROWS: usize = 64;

/// What a model may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the model as it travels, deflated and in base64.
    pub packed_bytes: usize,
    /// Evaluation of one row on this machine, microseconds. In a proxy it takes about half as much again.
    pub row_us: f64,
}

impl Default for Limits {
    fn default() -> Self {
        // Envoy's gRPC client takes messages of 4 MiB by default; a decision over 64 pods stays below a millisecond.
        Self { packed_bytes: 2 << 20, row_us: 10.0 }
    }
}

/// What a model costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// Bytes as it travels.
    pub packed_bytes: usize,
    /// Evaluation of one row, microseconds.
    pub row_us: f64,
}

/// Measures a model, and says what of it is too much; one line each.
#[must_use]
pub fn cost(onnx: &[u8], model: &Model, rows: &[Row], limits: &Limits) -> (Cost, Vec<String>) {
    let packed_bytes = packed::pack(onnx).len();
    let rows: Vec<Row> = rows.iter().copied().cycle().take(TIMED_ROWS).collect();
    let mut out = Vec::new();
    // The best of several: what disturbs a measurement only ever makes it longer.
    let time = |out: &mut Vec<Prediction>| {
        let start = Instant::now();
        model.predict(&rows, out);
        start.elapsed().as_secs_f64() * 1e6 / TIMED_ROWS as f64
    };
    let row_us = (0..9).map(|_| time(&mut out)).fold(f64::INFINITY, f64::min);
    let mut refused = Vec::new();
    if packed_bytes > limits.packed_bytes {
        refused.push(format!(
            "size: {packed_bytes} bytes to send, at most {} are allowed; lower --max-rounds or --max-depth",
            limits.packed_bytes
        ));
    }
    if row_us > limits.row_us {
        refused.push(format!(
            "time: {row_us:.2} us a row, at most {} are allowed; lower --max-rounds",
            limits.row_us
        ));
    }
    (Cost { packed_bytes, row_us }, refused)
}

/// Median errors within a stratum, 0.1 is 10 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StratumScore {
    /// Requests.
    pub n: usize,
    /// Of the candidate, TTFT.
    pub ttft: Option<f64>,
    /// Of the live model, or of the prior without one, TTFT.
    pub ttft_before: Option<f64>,
    /// Of the candidate, TPOT.
    pub tpot: Option<f64>,
    /// Of the live model, or of the prior without one, TPOT.
    pub tpot_before: Option<f64>,
}

/// What the gate found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Why halves are refused, one line each; empty when both may be published.
    pub refused: Vec<String>,
    /// Whether the TTFT half may be published.
    pub ttft_passed: bool,
    /// Whether the TPOT half may be published.
    pub tpot_passed: bool,
    /// Scores of the candidate.
    pub candidate: Score,
    /// Scores of the prior.
    pub prior: Score,
    /// Scores of the live model, when there is one.
    pub live: Option<Score>,
    /// Scores by stratum of load and of cache hits.
    pub strata: BTreeMap<String, StratumScore>,
}

impl Verdict {
    /// Whether the whole candidate may be published.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.ttft_passed && self.tpot_passed
    }
}

/// Judges a candidate on examples that it has not learned from.
#[must_use]
pub fn judge(candidate: &Model, live: Option<&Model>, examples: &[Example]) -> Verdict {
    let ours = predict(candidate, examples);
    let prior = prior_predictions(examples);
    let live = live.map(|live| predict(live, examples));
    let both = &[Quantile::P50, Quantile::P90];
    // The prior has no 90th percentile, so it is compared on the median alone.
    let (before, quantiles, than): (_, &[Quantile], _) = match &live {
        Some(live) => (live, both, "the live model"),
        None => (&prior, &[Quantile::P50], "the prior"),
    };
    let (scores, before_scores) = (score(examples, &ours), score(examples, before));
    let strata = strata(examples);

    let mut refused = Vec::new();
    let mut passed = |target: Target, ours_score: Option<TargetScore>, before_score: Option<TargetScore>| {
        let all: Vec<usize> = (0..examples.len()).collect();
        let against = |theirs, quantiles: &[Quantile]| {
            let quantiles = quantiles.to_vec();
            Comparison { target, examples, ours: &ours, theirs, quantiles }
        };
        let (to_prior, to_before) = (against(&prior, &[Quantile::P50]), against(before, quantiles));
        let mut lines: Vec<String> = Vec::new();
        lines.extend(to_prior.worse(&all, TOLERANCE, "the prior", ""));
        if live.is_some() {
            lines.extend(to_before.worse(&all, TOLERANCE, than, ""));
        }
        for (name, members) in strata.iter().filter(|(_, members)| members.len() >= MIN_STRATUM) {
            let place = format!(" ({name})");
            lines.extend(to_before.worse(members, STRATUM_TOLERANCE, than, &place));
        }
        if let (true, Some(ours), Some(before)) = (live.is_some(), ours_score, before_score) {
            lines.extend(coverage_worse(target, ours, before));
        }
        let passed = lines.is_empty();
        refused.extend(lines);
        passed
    };
    let ttft_passed = passed(Target::Ttft, scores.ttft, before_scores.ttft);
    let tpot_passed = passed(Target::Tpot, scores.tpot, before_scores.tpot);
    Verdict {
        refused,
        ttft_passed,
        tpot_passed,
        candidate: scores,
        prior: score(examples, &prior),
        live: live.as_ref().map(|live| score(examples, live)),
        strata: strata
            .iter()
            .map(|(name, members)| (name.clone(), stratum_score(examples, members, &ours, before)))
            .collect(),
    }
}

/// Why a model is worse than another on examples, one line a target; empty when it is not. Both quantiles count.
#[must_use]
pub fn worse_than(
    model: &Model,
    other: &Model,
    name: &str,
    examples: &[Example],
    tolerance: f64,
) -> Vec<String> {
    let (ours, theirs) = (predict(model, examples), predict(other, examples));
    let all: Vec<usize> = (0..examples.len()).collect();
    [Target::Ttft, Target::Tpot]
        .into_iter()
        .filter_map(|target| {
            let quantiles = vec![Quantile::P50, Quantile::P90];
            let comparison = Comparison { target, examples, ours: &ours, theirs: &theirs, quantiles };
            comparison.worse(&all, tolerance, name, "")
        })
        .collect()
}

fn predict(model: &Model, examples: &[Example]) -> Vec<Prediction> {
    let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
    let mut out = Vec::new();
    model.predict(&rows, &mut out);
    out
}

/// The examples of each class of load and of cache hits.
fn strata(examples: &[Example]) -> BTreeMap<String, Vec<usize>> {
    let mut strata: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, example) in examples.iter().enumerate() {
        let stratum = Stratum::of(&example.row);
        for name in [format!("load {}", stratum.load_name()), format!("cache {}", stratum.cache_name())] {
            strata.entry(name).or_default().push(index);
        }
    }
    strata
}

fn stratum_score(
    examples: &[Example],
    members: &[usize],
    ours: &[Prediction],
    before: &[Prediction],
) -> StratumScore {
    fn pick<T: Clone>(of: &[T], members: &[usize]) -> Vec<T> {
        members.iter().filter_map(|&index| of.get(index).cloned()).collect()
    }
    let examples = pick(examples, members);
    let of = |predictions: &[Prediction]| score(&examples, &pick(predictions, members));
    let (ours, before) = (of(ours), of(before));
    let ape = |score: Option<TargetScore>| score.map(|score| score.ape_median);
    StratumScore {
        n: members.len(),
        ttft: ape(ours.ttft),
        ttft_before: ape(before.ttft),
        tpot: ape(ours.tpot),
        tpot_before: ape(before.tpot),
    }
}

fn coverage_worse(target: Target, ours: TargetScore, before: TargetScore) -> Option<String> {
    let off = |score: TargetScore| (score.coverage_p90 - 0.9).abs();
    let fine = ours.n < MIN_COVERAGE
        || (COVERAGE.0..=COVERAGE.1).contains(&ours.coverage_p90)
        || off(ours) <= off(before) + 0.02;
    (!fine).then(|| {
        format!(
            "{}: the 90th percentile covers {:.1} %, that of the live model {:.1} %, on {} requests",
            target_name(target),
            100.0 * ours.coverage_p90,
            100.0 * before.coverage_p90,
            ours.n
        )
    })
}

/// Two predictors on the same examples.
struct Comparison<'a> {
    target: Target,
    examples: &'a [Example],
    ours: &'a [Prediction],
    theirs: &'a [Prediction],
    quantiles: Vec<Quantile>,
}

impl Comparison<'_> {
    /// A line when ours is worse than theirs, on the members, by more than tolerance and chance.
    fn worse(&self, members: &[usize], tolerance: f64, than: &str, place: &str) -> Option<String> {
        let sum = |predictions: &[Prediction]| {
            let mut sums = vec![0.0; self.examples.len()];
            for &quantile in &self.quantiles {
                for (sum, loss) in
                    sums.iter_mut().zip(losses(self.examples, predictions, self.target, quantile))
                {
                    *sum += loss.unwrap_or(f64::NAN);
                }
            }
            sums
        };
        let (ours, theirs) = (sum(self.ours), sum(self.theirs));
        // Examples without this target are NaN on both sides and drop out.
        let pairs: Vec<(f64, f64)> = members
            .iter()
            .filter_map(|&index| Some((*ours.get(index)?, *theirs.get(index)?)))
            .filter(|(_, theirs)| !theirs.is_nan())
            .collect();
        let n = pairs.len() as f64;
        if pairs.len() < MIN_JUDGED {
            return None;
        }
        let mean = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).sum::<f64>() / n;
        let (our_loss, their_loss) = (mean(|pair| pair.0), mean(|pair| pair.1));
        let difference = our_loss - their_loss;
        let variance =
            pairs.iter().map(|(ours, theirs)| (ours - theirs - difference).powi(2)).sum::<f64>() / (n - 1.0);
        let chance = CHANCE * (variance / n).sqrt();
        // Written so that a loss that is not a number is refused.
        let fine = difference <= tolerance * their_loss || difference <= chance;
        (!fine).then(|| {
            format!(
                "{}{place}: loss {our_loss:.4} against {their_loss:.4} of {than} on {} requests",
                target_name(self.target),
                pairs.len()
            )
        })
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
pub(crate) mod tests;
