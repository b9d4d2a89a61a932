//! The bench on a corner of the matrix, and its arithmetic.

use super::matrix::Rate;
use super::policies::Models;
use super::pool::Pool;
use super::summary::Summary;
use super::*;
use crate::virtual_time::record::Spread;

fn cell(workload: &str, load: f64, policy: &str, seed: u64, e2e_ms: f64) -> Cell {
    let spread = |mean: f64| Spread { mean, p50: mean, p90: mean, p99: mean };
    Cell {
        workload: workload.to_owned(),
        load,
        rate: 1.0,
        pods: 4,
        pool: Pool::Equal,
        policy: policy.to_owned(),
        seed,
        event: None,
        around: None,
        requests: 10,
        lost: 0,
        ttft_ms: spread(e2e_ms / 10.0),
        tpot_ms: spread(e2e_ms / 100.0),
        e2e_ms: spread(e2e_ms),
        hit_rate: 0.5,
        slo_attainment: 1.0,
        busiest_pod: 1.0,
        by_model: 1.0,
        fit_refused: None,
        verdict: None,
        ttft_curve_ms: vec![1.0, 2.0],
        e2e_curve_ms: vec![1.0, 2.0],
    }
}

#[test]
fn ratios_are_of_medians_over_seeds_and_of_each_cells_best() {
    let mut cells = Vec::new();
    for (workload, ours, gie, sticky, oracle) in
        [("mooncake", 80.0, 100.0, 90.0, 80.0), ("azure-code-like", 50.0, 100.0, 200.0, 40.0)]
    {
        for seed in 1..=3 {
            // One seed is far off and must not count.
            let off = if seed == 3 { 10.0 } else { 1.0 };
            cells.push(cell(workload, 0.8, "foretoken", seed, ours * off));
            cells.push(cell(workload, 0.8, "gie-default", seed, gie));
            cells.push(cell(workload, 0.8, "sticky", seed, sticky));
            cells.push(cell(workload, 0.8, "oracle-full", seed, oracle));
            cells.push(cell(workload, 0.8, "foretoken-untrained", seed, ours * 2.0));
        }
    }
    let rate = |policy: &str, rate| Rate {
        workload: "churn".to_owned(),
        pods: 4,
        pool: Pool::Equal,
        policy: policy.to_owned(),
        rate,
    };
    let summary = Summary::of(&cells, &[rate("foretoken", 9.0), rate("gie-default", 10.0)]);
    let close = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9;
    assert!(close(summary.vs_gie.e2e_equal, (0.8_f64 * 0.5).sqrt()), "{summary:?}");
    assert!(close(summary.vs_best_rival.worst_80, 80.0 / 90.0));
    assert!(
        close(summary.vs_oracle.e2e_geomean, 1.25_f64.sqrt()) && close(summary.vs_oracle.e2e_worst, 1.25)
    );
    assert!(close(summary.churn_rate_vs_best, 0.9));
    assert!((summary.ablations["foretoken-untrained"] - 2.0).abs() < 1e-9);
    assert_eq!((summary.vs_gie.e2e_mixed, summary.vs_best_rival.worst_95), (None, None));
}

#[test]
fn a_corner_of_the_matrix_runs_the_same_twice_and_makes_a_page() {
    let mut traffic = traffic::all(None).unwrap();
    traffic.retain(|one| one.name == "mooncake-like");
    let matrix = Matrix {
        policies: ["foretoken-untrained", "gie-default", "oracle-full"].map(str::to_owned).to_vec(),
        ablations: Vec::new(),
        blocks: Vec::new(),
        pools: vec![Pool::Mixed],
        pods: vec![2],
        rate_per_pod: Some(8.0),
        requests: 0.2,
        ..Matrix::new(traffic, true)
    };
    let report = matrix.run(&Models::default(), &|_, _| {}).unwrap();
    assert_eq!(report.cells.len(), 3);
    assert_eq!(report.cells, matrix.run(&Models::default(), &|_, _| {}).unwrap().cells);
    let ours = &report.cells[0];
    assert!(ours.verdict.unwrap().decisions > 5 && ours.lost == 0 && ours.by_model == 0.0);
    assert!(ours.hit_rate > 0.05 && ours.ttft_ms.p50 <= ours.ttft_ms.p99);
    let page = html::page(&report);
    assert!(page.contains("gie-default") && page.ends_with("</html>\n"));
    assert!(!page.contains("http"), "the page fetches nothing");
}

#[test]
fn the_search_finds_a_rate_that_holds_and_is_nearly_the_highest() {
    let mut traffic = traffic::all(None).unwrap();
    traffic.retain(|one| one.name == "azure-conv-like");
    let rate =
        capacity::sustained_rate(&traffic[0], 1, Pool::Equal, "round-robin", &Models::default(), 400, 1)
            .unwrap();
    let slow =
        capacity::sustained_rate(&traffic[0], 2, Pool::Mixed, "round-robin", &Models::default(), 400, 1)
            .unwrap();
    assert!(rate > 2.0 && rate < 10.0, "{rate}");
    assert!(slow > 0.6 * rate && slow < 2.0 * rate, "{slow} {rate}");
}

#[test]
fn every_ablation_that_is_listed_can_be_run() {
    for (name, _) in policies::ABLATIONS {
        assert!(
            matches!(policies::make(name, 3, 1, &Models::default(), 0), Ok(policies::Made::Foretoken(_))),
            "{name}"
        );
    }
    for odd in ["foretoken-0-envoys", "foretoken-4-envoys-soon", "foretoken-900-envoys", "foretoken-no-idea"]
    {
        assert!(policies::make(odd, 3, 1, &Models::default(), 0).is_err(), "{odd}");
    }
}

#[test]
fn a_pool_that_changes_on_the_way_is_measured_before_and_after() {
    let mut traffic = traffic::all(None).unwrap();
    traffic.retain(|one| one.name == "mooncake-like");
    let block = |event| plan::Block {
        traffic: vec!["mooncake"],
        pods: 4,
        pools: vec![Pool::Equal],
        load: 0.6,
        policies: ["foretoken", "least-request"].map(str::to_owned).to_vec(),
        seeds: vec![1],
        requests: 0.15,
        event: Some(event),
    };
    let matrix = Matrix {
        policies: Vec::new(),
        ablations: Vec::new(),
        blocks: event::Event::ALL.map(block).to_vec(),
        rate_per_pod: Some(8.0),
        ..Matrix::new(traffic, true)
    };
    let report = matrix.run(&Models::default(), &|_, _| {}).unwrap();
    assert_eq!((report.cells.len(), report.summary.pool_changes.len()), (6, 3));
    assert_eq!(report.summary.vs_best_rival.worst_80, None, "they are in no ratio of whole pools");
    for cell in &report.cells {
        let around = cell.around.as_ref().unwrap();
        assert!(around.before.requests > 50 && around.after.requests > 200, "{cell:?}");
        let e2e = around.after.e2e_ms.mean / around.before.e2e_ms.mean;
        match cell.event.unwrap() {
            event::Event::Added => assert!(e2e < 1.0 && cell.lost == 0, "{cell:?}"),
            event::Event::Slowed => assert!(e2e > 1.0 && cell.lost == 0, "{cell:?}"),
            // Only what the dead pod had begun to answer is lost.
            event::Event::Killed => assert!(e2e > 1.0 && cell.lost > 0 && cell.lost < 60, "{cell:?}"),
        }
    }
    let page = html::page(&report);
    assert!(page.contains("Pools that change") && page.contains("killed"));
}

#[test]
fn a_regime_where_nobody_wins_is_named() {
    let mut cells = Vec::new();
    for (workload, ours, oracle) in [("azure-conv", 99.5, 99.0), ("churn", 80.0, 75.0)] {
        cells.push(cell(workload, 0.8, "foretoken", 1, ours));
        cells.push(cell(workload, 0.8, "radix", 1, 100.0));
        cells.push(cell(workload, 0.8, "oracle-full", 1, oracle));
    }
    let even = Summary::of(&cells, &[]).wins_nothing;
    assert_eq!(even.len(), 1);
    assert_eq!((even[0].workload.as_str(), even[0].oracle_vs_best_rival), ("azure-conv", Some(0.99)));
}
