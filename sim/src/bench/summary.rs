//! The ratios that are claimed: ours over theirs, medians over seeds, geometric means over cells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::matrix::Rate;
use super::policies::FORETOKEN;
use super::pool::Pool;
use crate::rivals::{ORACLES, RIVALS};

/// Against the plain queue and KV scorer, over churn, multi-turn, Mooncake and Azure code at 80 % load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VsQueueKv {
    /// Mean TTFT, equal pods.
    pub ttft_equal: Option<f64>,
    /// Mean TTFT, mixed pods.
    pub ttft_mixed: Option<f64>,
    /// Mean TPOT, equal pods.
    pub tpot_equal: Option<f64>,
    /// Mean TPOT, mixed pods.
    pub tpot_mixed: Option<f64>,
}

/// Mean E2E on Mooncake and Azure code at 80 % load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VsRival {
    /// Equal pods.
    pub e2e_equal: Option<f64>,
    /// Mixed pods.
    pub e2e_mixed: Option<f64>,
}

/// Against the best rival of each cell: the worst ratio of mean E2E.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VsBestRival {
    /// At loads up to 80 %.
    pub worst_80: Option<f64>,
    /// Above.
    pub worst_95: Option<f64>,
}

/// Against the best oracle of each cell at loads up to 80 %.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VsOracle {
    /// Mean E2E, geometric mean.
    pub e2e_geomean: Option<f64>,
    /// Mean E2E, worst cell.
    pub e2e_worst: Option<f64>,
    /// Mean TTFT against the lowest oracle's, geometric mean.
    pub ttft_geomean: Option<f64>,
    /// p99 TTFT, worst cell.
    pub ttft_p99_worst: Option<f64>,
}

/// A regime in which there is nothing to win.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Even {
    /// Traffic.
    pub workload: String,
    /// Hardware.
    pub pool: Pool,
    /// Our mean E2E over the best rival's, geometric mean over loads up to 80 % and pods.
    pub vs_best_rival: f64,
    /// The best oracle's over the best rival's: what knowing everything would win.
    pub oracle_vs_best_rival: Option<f64>,
}

/// All of it. `None`: the cells for it were not run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Against the plain queue and KV scorer.
    pub vs_queue_kv: VsQueueKv,
    /// Against GIE's default.
    pub vs_gie: VsRival,
    /// Against sticky until saturated.
    pub vs_sticky: VsRival,
    /// Against each cell's best rival.
    pub vs_best_rival: VsBestRival,
    /// Against each cell's best oracle.
    pub vs_oracle: VsOracle,
    /// Sustained rate on churn over the best policy's.
    pub churn_rate_vs_best: Option<f64>,
    /// Sustained rate over the best policy's, worst traffic.
    pub rate_vs_best_worst: Option<f64>,
    /// SLO attainment at the highest load over the best rival's, geometric mean over cells with targets.
    pub goodput_vs_best: Option<f64>,
    /// Change of mean E2E when scrapes come every second instead of every 200 ms, as a fraction; the worst.
    pub scrape_1s_change: Option<f64>,
    /// Median over cells of the median regret, ms.
    pub regret_ms_median: Option<f64>,
    /// Median over cells of the share of pairs of pods that predicted TTFT orders rightly.
    pub ttft_rank_agreement: Option<f64>,
    /// Median over cells of the median error of predicted TTFT.
    pub ttft_error: Option<f64>,
    /// Median over cells of the median error of predicted TPOT.
    pub tpot_error: Option<f64>,
    /// Mean E2E of each ablation over foretoken's, geometric mean over its cells.
    pub ablations: BTreeMap<String, f64>,
    /// Traffic and hardware where ours is not 2 % better than the best rival's at any load up to 80 %, most even
    /// first.
    pub wins_nothing: Vec<Even>,
    /// Mean E2E after a change of the pool over the best rival's, geometric mean over cells.
    pub pool_changes: BTreeMap<String, f64>,
    /// Seconds for a million requests on 256 pods, where that was run.
    pub million_requests_s: Option<f64>,
}

/// A place of the matrix: traffic, load in percent, pods, hardware.
pub type Place = (String, u32, usize, Pool);

/// Medians over seeds, by place and policy.
pub type Medians = BTreeMap<Place, BTreeMap<String, Vec<Cell>>>;

/// Cells by place and policy; not those whose pool changed on the way.
#[must_use]
pub fn by_place(cells: &[Cell]) -> Medians {
    let mut places = Medians::new();
    for cell in cells.iter().filter(|cell| cell.event.is_none()) {
        let place = (cell.workload.clone(), (cell.load * 100.0).round() as u32, cell.pods, cell.pool);
        places.entry(place).or_default().entry(cell.policy.clone()).or_default().push(cell.clone());
    }
    places
}

/// The median over seeds of one figure.
pub fn median(cells: &[Cell], of: impl Fn(&Cell) -> f64) -> f64 {
    middle(cells.iter().map(of).collect()).unwrap_or(f64::NAN)
}

/// The lower median.
pub(super) fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

fn geomean(ratios: &[f64]) -> Option<f64> {
    let logs: Vec<f64> =
        ratios.iter().filter(|ratio| **ratio > 0.0 && ratio.is_finite()).map(|r| r.ln()).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

fn worst(ratios: &[f64]) -> Option<f64> {
    ratios.iter().copied().filter(|ratio| ratio.is_finite()).max_by(f64::total_cmp)
}

const E2E: fn(&Cell) -> f64 = |cell| cell.e2e_ms.mean;
const TTFT: fn(&Cell) -> f64 = |cell| cell.ttft_ms.mean;
const TPOT: fn(&Cell) -> f64 = |cell| cell.tpot_ms.mean;
const TTFT_P99: fn(&Cell) -> f64 = |cell| cell.ttft_ms.p99;
const SLO: fn(&Cell) -> f64 = |cell| cell.slo_attainment;

fn is_any(workload: &str, names: &[&str]) -> bool {
    names.iter().any(|name| workload == *name || workload.strip_suffix("-like") == Some(name))
}

struct Places<'a>(&'a Medians);

impl Places<'_> {
    /// Ours over another's, in every place that `wanted` names.
    fn against(&self, other: &str, of: fn(&Cell) -> f64, wanted: impl Fn(&Place) -> bool) -> Vec<f64> {
        self.0
            .iter()
            .filter(|(place, _)| wanted(place))
            .filter_map(|(_, policies)| {
                Some(median(policies.get(FORETOKEN)?, of) / median(policies.get(other)?, of))
            })
            .collect()
    }

    /// Ours over the least of `others`.
    fn against_best(
        &self,
        others: &[&str],
        of: fn(&Cell) -> f64,
        wanted: impl Fn(&Place) -> bool,
    ) -> Vec<f64> {
        self.0
            .iter()
            .filter(|(place, _)| wanted(place))
            .filter_map(|(_, policies)| {
                let best =
                    others.iter().filter_map(|name| policies.get(*name)).map(|cells| median(cells, of));
                let best = best.min_by(f64::total_cmp)?;
                Some(median(policies.get(FORETOKEN)?, of) / best)
            })
            .collect()
    }
}

impl Summary {
    /// Of these cells and rates.
    #[must_use]
    pub fn of(cells: &[Cell], rates: &[Rate]) -> Self {
        let medians = by_place(cells);
        let places = Places(&medians);
        let at_80 = |names: &'static [&'static str], pool: Pool| {
            move |place: &Place| is_any(&place.0, names) && place.1 == 80 && place.3 == pool
        };
        let four: &'static [&'static str] = &["churn", "multi-turn", "mooncake", "azure-code"];
        let two: &'static [&'static str] = &["mooncake", "azure-code"];
        let queue_kv = |of, pool| geomean(&places.against("queue-kv", of, at_80(four, pool)));
        let rival = |name: &str| VsRival {
            e2e_equal: geomean(&places.against(name, E2E, at_80(two, Pool::Equal))),
            e2e_mixed: geomean(&places.against(name, E2E, at_80(two, Pool::Mixed))),
        };
        let (low, high) = (|place: &Place| place.1 <= 80, |place: &Place| place.1 > 80);
        let oracle_e2e = places.against_best(&ORACLES, E2E, low);
        let verdicts: Vec<_> =
            cells.iter().filter(|cell| cell.policy == FORETOKEN).filter_map(|cell| cell.verdict).collect();
        let of_verdicts = |of: fn(&super::judge::Verdict) -> f64| middle(verdicts.iter().map(of).collect());
        let with_targets: Vec<f64> = medians
            .iter()
            .filter(|(place, _)| {
                place.0 == "slo-mix" && place.1 == medians.keys().map(|p| p.1).max().unwrap_or(0)
            })
            .filter_map(|(_, policies)| {
                let best =
                    RIVALS.iter().filter_map(|name| policies.get(*name)).map(|cells| median(cells, SLO));
                Some(median(policies.get(FORETOKEN)?, SLO) / best.max_by(f64::total_cmp)?)
            })
            .collect();
        let mut ablations: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for policies in medians.values() {
            let Some(ours) = policies.get(FORETOKEN) else { continue };
            for (name, cells) in policies.iter().filter(|(name, _)| name.starts_with("foretoken-")) {
                ablations.entry(name.clone()).or_default().push(median(cells, E2E) / median(ours, E2E));
            }
        }
        let slow_scrapes: Vec<f64> = medians
            .values()
            .filter_map(|policies| {
                let (ours, slow) = (policies.get(FORETOKEN)?, policies.get("foretoken-scrape-1s")?);
                Some((median(slow, E2E) / median(ours, E2E) - 1.0).abs())
            })
            .collect();
        let rate_ratios = rate_ratios(rates);
        Self {
            vs_queue_kv: VsQueueKv {
                ttft_equal: queue_kv(TTFT, Pool::Equal),
                ttft_mixed: queue_kv(TTFT, Pool::Mixed),
                tpot_equal: queue_kv(TPOT, Pool::Equal),
                tpot_mixed: queue_kv(TPOT, Pool::Mixed),
            },
            vs_gie: rival("gie-default"),
            vs_sticky: rival("sticky"),
            vs_best_rival: VsBestRival {
                worst_80: worst(&places.against_best(&RIVALS, E2E, low)),
                worst_95: worst(&places.against_best(&RIVALS, E2E, high)),
            },
            vs_oracle: VsOracle {
                e2e_geomean: geomean(&oracle_e2e),
                e2e_worst: worst(&oracle_e2e),
                ttft_geomean: geomean(&places.against_best(&ORACLES, TTFT, low)),
                ttft_p99_worst: worst(&places.against_best(&ORACLES, TTFT_P99, low)),
            },
            churn_rate_vs_best: worst_low(&rate_ratios, |workload| workload == "churn"),
            rate_vs_best_worst: worst_low(&rate_ratios, |_| true),
            goodput_vs_best: geomean(&with_targets),
            scrape_1s_change: worst(&slow_scrapes),
            regret_ms_median: of_verdicts(|verdict| verdict.regret_ms.p50),
            ttft_rank_agreement: of_verdicts(|verdict| verdict.ttft_rank_agreement),
            ttft_error: of_verdicts(|verdict| verdict.ttft_error),
            tpot_error: of_verdicts(|verdict| verdict.tpot_error),
            ablations: ablations.into_iter().filter_map(|(name, all)| Some((name, geomean(&all)?))).collect(),
            wins_nothing: wins_nothing(&medians),
            pool_changes: pool_changes(cells),
            million_requests_s: None,
        }
    }
}

/// What counts as nothing.
const NOTHING: f64 = 0.98;

fn wins_nothing(medians: &Medians) -> Vec<Even> {
    // Ours and the best oracle's over the best rival's.
    type Ratios = Vec<(f64, Option<f64>)>;
    let mut regimes: BTreeMap<(&String, Pool), Ratios> = BTreeMap::new();
    for (place, policies) in medians.iter().filter(|(place, _)| place.1 <= 80) {
        let least = |names: &[&str]| {
            names.iter().filter_map(|name| Some(median(policies.get(*name)?, E2E))).min_by(f64::total_cmp)
        };
        if let (Some(ours), Some(best)) = (least(&[FORETOKEN]), least(&RIVALS)) {
            let oracle = least(&ORACLES).map(|oracle| oracle / best);
            regimes.entry((&place.0, place.3)).or_default().push((ours / best, oracle));
        }
    }
    let mut even: Vec<Even> = regimes
        .into_iter()
        .filter(|(_, ratios)| ratios.iter().all(|(ratio, _)| *ratio > NOTHING))
        .filter_map(|((workload, pool), ratios)| {
            let oracles: Vec<f64> = ratios.iter().filter_map(|(_, oracle)| *oracle).collect();
            Some(Even {
                workload: workload.clone(),
                pool,
                vs_best_rival: geomean(&ratios.iter().map(|(ratio, _)| *ratio).collect::<Vec<_>>())?,
                oracle_vs_best_rival: geomean(&oracles),
            })
        })
        .collect();
    even.sort_by(|a, b| (a.vs_best_rival - 1.0).abs().total_cmp(&(b.vs_best_rival - 1.0).abs()));
    even
}

/// By change: ours after it over the best rival's.
fn pool_changes(cells: &[Cell]) -> BTreeMap<String, f64> {
    let mut after: BTreeMap<_, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for cell in cells {
        if let (Some(event), Some(around)) = (cell.event, &cell.around) {
            let place = (event.name(), &cell.workload, cell.pods, cell.pool);
            after.entry(place).or_default().entry(&cell.policy).or_default().push(around.after.e2e_ms.mean);
        }
    }
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for ((event, ..), policies) in after {
        let e2e_ms = |name: &str| policies.get(name).and_then(|values| middle(values.clone()));
        let best = RIVALS.iter().filter_map(|name| e2e_ms(name)).min_by(f64::total_cmp);
        if let (Some(ours), Some(best)) = (e2e_ms(FORETOKEN), best) {
            ratios.entry(event.to_owned()).or_default().push(ours / best);
        }
    }
    ratios.into_iter().filter_map(|(event, all)| Some((event, geomean(&all)?))).collect()
}

/// foretoken's sustained rate over the best of all, by traffic, pods and hardware.
fn rate_ratios(rates: &[Rate]) -> Vec<(String, f64)> {
    let ours = rates.iter().filter(|rate| rate.policy == FORETOKEN);
    ours.map(|our| {
        let same =
            |rate: &&Rate| (&rate.workload, rate.pods, rate.pool) == (&our.workload, our.pods, our.pool);
        let best = rates.iter().filter(same).map(|rate| rate.rate).fold(0.0, f64::max);
        (our.workload.clone(), our.rate / best)
    })
    .collect()
}

fn worst_low(ratios: &[(String, f64)], wanted: impl Fn(&str) -> bool) -> Option<f64> {
    ratios
        .iter()
        .filter(|(workload, ratio)| wanted(workload) && ratio.is_finite())
        .map(|(_, ratio)| *ratio)
        .min_by(f64::total_cmp)
}
