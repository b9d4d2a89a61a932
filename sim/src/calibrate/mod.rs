//! Fits the step time's coefficients to published measurements, and says how well they fit.
//!
//! Two public tables: *splitwise* (prompt and token times of a model by prompt size and batch, nothing else
//! running) and *silicon* (TTFT and TPOT of serving engines at a fixed number of concurrent requests). Both
//! are linear in the coefficients:
//!
//! ```text
//! splitwise  prompt_ms = floor + a·B·P + b·B·P²/2
//!            token_ms  = floor + c·B + d·B·(P + T/2)
//! silicon    tpot_ms   = floor + C·(c + d·(I + O/2)) + C/O·(a·I + b·I²/2)
//!            ttft_ms   = tpot_ms + a·I + b·I²/2 + s·C·I
//! ```
//!
//! with batch B, prompt P, output T, concurrency C, input I, output O: in a steady closed loop each step carries
//! the prefill of C/O requests, and a new request waits for the step in hand and its own prefill. Such a benchmark
//! starts its C requests together, so its mean TTFT also holds their wait for one another: s·C·I, with s a share of
//! a that depends on how long the benchmark ran and is no property of the engine. So the fit is
//! least squares of relative errors under non-negative coefficients ([`nnls`]).
//!
//! What it is not: a proof that one set of coefficients serves all batch sizes. The errors say how far it does.

pub mod nnls;
pub mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use nnls::{UNKNOWNS, solve};
use tables::{SiliconRow, SplitwiseRow};

/// The step time's coefficients, by the names of [`crate::engine::profile::Profile`].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Coefficients {
    /// Of every step.
    pub floor_ms: f64,
    /// Of each prompt token.
    pub prefill_ms_per_token: f64,
    /// Of each pair of a prompt token and one before it.
    pub attention_ms_per_token2: f64,
    /// Of each decoding sequence.
    pub decode_ms_per_seq: f64,
    /// Of each of its context tokens.
    pub decode_ms_per_context_token: f64,
    /// Of each prompt token of the requests that a benchmark starts together: not a profile's.
    pub start_ms_per_token: f64,
}

impl Coefficients {
    fn of(values: [f64; UNKNOWNS]) -> Self {
        let [
            floor_ms,
            prefill_ms_per_token,
            attention_ms_per_token2,
            decode_ms_per_seq,
            decode_ms_per_context_token,
            start_ms_per_token,
        ] = values;
        Self {
            floor_ms,
            prefill_ms_per_token,
            attention_ms_per_token2,
            decode_ms_per_seq,
            decode_ms_per_context_token,
            start_ms_per_token,
        }
    }

    fn dot(&self, terms: &[f64; UNKNOWNS]) -> f64 {
        self.floor_ms * terms[0]
            + self.prefill_ms_per_token * terms[1]
            + self.attention_ms_per_token2 * terms[2]
            + self.decode_ms_per_seq * terms[3]
            + self.decode_ms_per_context_token * terms[4]
            + self.start_ms_per_token * terms[5]
    }
}

/// One measurement: what it multiplies, and what was measured.
#[derive(Debug, Clone, Copy)]
struct Point {
    terms: [f64; UNKNOWNS],
    measured_ms: f64,
    /// 0: prompt or TTFT; 1: token or TPOT.
    kind: usize,
}

/// How well a group of measurements is met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// The group: table, model, hardware.
    pub group: String,
    /// Measurements.
    pub points: usize,
    /// The fit.
    pub coefficients: Coefficients,
    /// Median absolute relative error of prompt times or TTFT.
    pub first_error: f64,
    /// Median absolute relative error of token times or TPOT.
    pub token_error: f64,
    /// The same of both, each point predicted by a fit to the others (ten parts).
    pub left_out_error: f64,
}

/// Groups with fewer measurements are not fitted: six coefficients fit anything.
const MIN_POINTS: usize = 12;

fn fit_points(points: &[Point]) -> Coefficients {
    let rows: Vec<([f64; UNKNOWNS], f64)> =
        points.iter().map(|point| (point.terms.map(|term| term / point.measured_ms), 1.0)).collect();
    Coefficients::of(solve(&rows))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn errors(points: &[Point], coefficients: &Coefficients, wanted: impl Fn(&Point) -> bool) -> Vec<f64> {
    points
        .iter()
        .filter(|point| wanted(point))
        .map(|point| (coefficients.dot(&point.terms) / point.measured_ms - 1.0).abs())
        .collect()
}

/// Median absolute relative error of prompt and token times under these coefficients.
fn judge(points: &[Point], coefficients: &Coefficients) -> (f64, f64) {
    let of = |kind: usize| median(errors(points, coefficients, |point| point.kind == kind));
    (of(0), of(1))
}

fn fit_group(group: String, points: &[Point]) -> Option<Fit> {
    if points.len() < MIN_POINTS {
        return None;
    }
    let coefficients = fit_points(points);
    let (first_error, token_error) = judge(points, &coefficients);
    let mut left_out = Vec::with_capacity(points.len());
    for part in 0..10 {
        let (out, others): (Vec<_>, Vec<_>) = points.iter().enumerate().partition(|(at, _)| at % 10 == part);
        let others: Vec<Point> = others.into_iter().map(|(_, point)| *point).collect();
        let out: Vec<Point> = out.into_iter().map(|(_, point)| *point).collect();
        left_out.extend(errors(&out, &fit_points(&others), |_| true));
    }
    Some(Fit {
        group,
        points: points.len(),
        coefficients,
        first_error,
        token_error,
        left_out_error: median(left_out),
    })
}

fn splitwise_points(rows: &[SplitwiseRow]) -> BTreeMap<String, Vec<Point>> {
    type Settings<'a> = BTreeMap<(u32, u32, u32), Vec<&'a SplitwiseRow>>;
    let mut groups: BTreeMap<String, Settings<'_>> = BTreeMap::new();
    for row in rows {
        let group = format!("splitwise {} {} tp{}", row.model, row.hardware, row.tensor_parallel);
        let setting = (row.prompt_size, row.batch_size, row.token_size);
        groups.entry(group).or_default().entry(setting).or_default().push(row);
    }
    let mut points = BTreeMap::new();
    for (group, settings) in groups {
        let all: &mut Vec<Point> = points.entry(group).or_default();
        for ((prompt, batch, tokens), rows) in settings {
            let (p, b, t) = (f64::from(prompt), f64::from(batch), f64::from(tokens));
            // Repeats of one setting are one measurement.
            let of = |value: fn(&SplitwiseRow) -> f64| median(rows.iter().map(|row| value(row)).collect());
            all.push(Point {
                terms: [1.0, b * p, b * p * p / 2.0, 0.0, 0.0, 0.0],
                measured_ms: of(|row| row.prompt_time_ms),
                kind: 0,
            });
            all.push(Point {
                terms: [1.0, 0.0, 0.0, b, b * (p + t / 2.0), 0.0],
                measured_ms: of(|row| row.token_time_ms),
                kind: 1,
            });
        }
    }
    points
}

fn silicon_points(rows: &[SiliconRow]) -> BTreeMap<String, Vec<Point>> {
    let mut seen = std::collections::HashSet::new();
    let mut points: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for row in rows {
        // The table has exact duplicates.
        if !seen.insert(format!("{row:?}")) {
            continue;
        }
        let group = format!(
            "silicon {} {} {} {} tp{} pp{} dp{}",
            row.backend, row.model, row.system, row.precision, row.tp, row.pp, row.attention_dp
        );
        // Ranks of data parallelism each take their share.
        let c = f64::from(row.concurrency) / f64::from(row.attention_dp.max(1));
        let (i, o) = (f64::from(row.isl), f64::from(row.osl.max(1)));
        let own = [0.0, i, i * i / 2.0, 0.0, 0.0, c * i];
        let step = [1.0, c / o * i, c / o * i * i / 2.0, c, c * (i + o / 2.0), 0.0];
        let first = std::array::from_fn(|at| step[at] + own[at]);
        let all = points.entry(group).or_default();
        all.push(Point { terms: first, measured_ms: row.ttft_ms, kind: 0 });
        all.push(Point { terms: step, measured_ms: row.tpot_ms, kind: 1 });
    }
    points
}

fn usable(points: &mut BTreeMap<String, Vec<Point>>) {
    for group in points.values_mut() {
        group.retain(|point| point.measured_ms.is_finite() && point.measured_ms > 0.0);
    }
}

/// Fits every group of the splitwise table.
#[must_use]
pub fn fit_splitwise(rows: &[SplitwiseRow]) -> Vec<Fit> {
    let mut points = splitwise_points(rows);
    usable(&mut points);
    points.into_iter().filter_map(|(group, points)| fit_group(group, &points)).collect()
}

/// Fits every group of the silicon table.
#[must_use]
pub fn fit_silicon(rows: &[SiliconRow]) -> Vec<Fit> {
    let mut points = silicon_points(rows);
    usable(&mut points);
    points.into_iter().filter_map(|(group, points)| fit_group(group, &points)).collect()
}

/// How a built-in profile meets a group of the splitwise table: errors of prompt and token times.
#[must_use]
pub fn judge_splitwise(
    rows: &[SplitwiseRow],
    group: &str,
    coefficients: &Coefficients,
) -> Option<(f64, f64)> {
    let mut points = splitwise_points(rows);
    usable(&mut points);
    points.get(group).map(|points| judge(points, coefficients))
}
