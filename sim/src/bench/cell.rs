//! One run of the matrix.

use serde::{Deserialize, Serialize};

use super::event::Event;
use super::judge::{Judge, Verdict};
use super::policies::{Made, Models, PolicyError, make};
use super::pool::Pool;
use super::traffic::Traffic;
use crate::virtual_time::record::Spread;
use crate::virtual_time::{Figures, Observer, Policy, Record, Run, RunError, Simulation};

/// Arrivals that are not counted: caches fill, and models are fitted…
const HEAD: f64 = 0.25;
/// …and the pool runs dry.
const TAIL: f64 = 0.05;
/// Every which decision is judged.
pub const JUDGED: u64 = 20;

/// Why a cell has no figures.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The run.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// What is run.
#[derive(Debug, Clone)]
pub struct CellSpec<'a> {
    /// What is sent.
    pub traffic: &'a Traffic,
    /// Share of the best policy's sustained rate.
    pub load: f64,
    /// That share in requests a second.
    pub rate: f64,
    /// Requests.
    pub requests: usize,
    /// Pods.
    pub pods: usize,
    /// Their hardware.
    pub pool: Pool,
    /// Who routes.
    pub policy: String,
    /// The seed of everything.
    pub seed: u64,
    /// Every which of foretoken's decisions is judged; 0: none.
    pub judged: u64,
    /// What happens to the pool when half of the requests have arrived.
    pub event: Option<Event>,
}

/// Figures of one run. TPOT excludes the first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What was sent.
    pub workload: String,
    /// Share of the best policy's sustained rate.
    pub load: f64,
    /// Requests a second.
    pub rate: f64,
    /// Pods.
    pub pods: usize,
    /// Their hardware.
    pub pool: Pool,
    /// Who routed.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// What happened to the pool when about half of the requests had arrived.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub event: Option<Event>,
    /// Figures of what arrived before and after that.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub around: Option<Around>,
    /// Requests that count.
    pub requests: usize,
    /// Of those, failed or shed.
    pub lost: usize,
    /// Time to first token.
    pub ttft_ms: Spread,
    /// Time per output token.
    pub tpot_ms: Spread,
    /// Arrival to last token.
    pub e2e_ms: Spread,
    /// Prompt tokens from caches over prompt tokens.
    pub hit_rate: f64,
    /// Requests with targets that met them, over those with targets.
    pub slo_attainment: f64,
    /// Requests of the busiest pod over the mean.
    pub busiest_pod: f64,
    /// Share of decisions that a model made.
    pub by_model: f64,
    /// Why the last fit that gave no model gave none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fit_refused: Option<String>,
    /// Predictions against counterfactuals, for foretoken.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<Verdict>,
    /// TTFT at every twentieth of the requests, ms.
    pub ttft_curve_ms: Vec<f64>,
    /// The same of E2E.
    pub e2e_curve_ms: Vec<f64>,
}

/// Before and after a change of the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Around {
    /// Of what arrived before.
    pub before: Figures,
    /// Of what arrived after.
    pub after: Figures,
}

impl CellSpec<'_> {
    fn event_us(&self) -> u64 {
        (self.requests as f64 / self.rate.max(1e-9) / 2.0 * 1e6) as u64
    }

    fn around(&self, records: &[Record]) -> Option<Around> {
        self.event?;
        let at = records.partition_point(|record| record.arrived_us < self.event_us());
        let (head, tail) = (records.len() as f64 * HEAD, records.len() as f64 * (1.0 - TAIL));
        let before = records.get(head as usize..at).unwrap_or_default();
        let after = records.get(at..tail as usize).unwrap_or_default();
        Some(Around { before: Figures::of(before, 0.0, 0.0), after: Figures::of(after, 0.0, 0.0) })
    }
}

/// Runs a policy on traffic.
///
/// # Errors
/// [`CellError`].
pub fn simulate(
    spec: &CellSpec<'_>,
    policy: &mut dyn Policy,
    observer: &mut dyn Observer,
    max_live: usize,
) -> Result<Run, CellError> {
    let mut workload = spec.traffic.requests(spec.rate, spec.requests, spec.seed);
    let profiles = spec.pool.profiles(spec.pods, spec.traffic);
    let run = Simulation::new(profiles, policy, &mut *workload, observer, spec.seed)?
        .with_changes(spec.event.map_or_else(Vec::new, |event| event.changes(spec.pods, spec.event_us())))
        .with_max_live(max_live)
        .run()?;
    Ok(run)
}

/// Runs a cell.
///
/// # Errors
/// [`CellError`].
pub fn run_cell(spec: &CellSpec<'_>, models: &Models) -> Result<Cell, CellError> {
    let mut judge = Judge::default();
    let (run, remarks, fit_refused) = match make(&spec.policy, spec.pods, spec.seed, models, spec.judged)? {
        Made::Foretoken(mut policy) => {
            let run = simulate(spec, &mut *policy, &mut judge, usize::MAX)?;
            (run, policy.remarks(), policy.refusal().map(str::to_owned))
        }
        Made::Other(mut policy) => {
            let run = simulate(spec, &mut *policy, &mut (), usize::MAX)?;
            (run, policy.remarks(), None)
        }
    };
    let remark =
        |name: &str| remarks.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, value)| *value);
    let figures = Figures::of(&run.records, HEAD, TAIL);
    let from = (run.records.len() as f64 * HEAD) as usize;
    let curve = |of: fn(&Record) -> f64| -> Vec<f64> {
        let mut values: Vec<f64> = run.records[from..].iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        (0..20).filter_map(|twentieth| values.get(values.len() * (2 * twentieth + 1) / 40).copied()).collect()
    };
    Ok(Cell {
        workload: spec.traffic.name.clone(),
        load: spec.load,
        rate: spec.rate,
        pods: spec.pods,
        pool: spec.pool,
        policy: spec.policy.clone(),
        seed: spec.seed,
        event: spec.event,
        around: spec.around(&run.records),
        requests: figures.requests,
        lost: figures.lost,
        ttft_ms: figures.ttft_ms,
        tpot_ms: figures.tpot_ms,
        e2e_ms: figures.e2e_ms,
        hit_rate: figures.hit_rate,
        slo_attainment: figures.slo_attainment,
        busiest_pod: figures.busiest_pod,
        by_model: remark("decided_by_model") / remark("decisions").max(1.0),
        fit_refused,
        verdict: Some(judge.verdict()).filter(|verdict| verdict.decisions > 0),
        ttft_curve_ms: curve(Record::ttft_ms),
        e2e_curve_ms: curve(Record::e2e_ms),
    })
}
