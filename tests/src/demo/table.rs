//! The demo's result for people.

use std::fmt::Write;

use super::result::{DemoResult, Phase};

type Figure = fn(&Phase) -> Option<f64>;

const ROWS: [(&str, &str, Figure); 11] = [
    ("TTFT mean", "ms", |phase| Some(phase.ttft_ms.mean)),
    ("     p50", "ms", |phase| Some(phase.ttft_ms.p50)),
    ("     p90", "ms", |phase| Some(phase.ttft_ms.p90)),
    ("     p99", "ms", |phase| Some(phase.ttft_ms.p99)),
    ("TPOT mean", "ms", |phase| Some(phase.tpot_ms.mean)),
    ("     p90", "ms", |phase| Some(phase.tpot_ms.p90)),
    ("E2E  mean", "ms", |phase| Some(phase.e2e_ms.mean)),
    ("     p90", "ms", |phase| Some(phase.e2e_ms.p90)),
    ("prompt tokens cached", "%", |phase| Some(phase.cached_share * 100.0)),
    ("TTFT error, median", "%", |phase| phase.ttft_error_median.map(|error| error * 100.0)),
    ("TPOT error, median", "%", |phase| phase.tpot_error_median.map(|error| error * 100.0)),
];

/// The result as a table: a column a phase, and what each saves against the first.
#[must_use]
pub fn table(result: &DemoResult) -> String {
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = String>| {
        let row: String = cells.collect();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", row.trim_end());
    };
    line(
        &mut std::iter::once(format!("{:<26}", ""))
            .chain(result.phases.iter().map(|phase| format!("{:>24}", phase.name))),
    );
    let counts = |name: &str, count: fn(&Phase) -> u64| {
        std::iter::once(format!("{name:<26}"))
            .chain(result.phases.iter().map(move |phase| format!("{:>24}", count(phase))))
            .collect::<Vec<_>>()
    };
    line(&mut counts("requests", |phase| phase.requests).into_iter());
    line(&mut counts("failed", |phase| phase.failed).into_iter());
    for (name, unit, figure) in ROWS {
        let base = result.phases.first().and_then(figure);
        let cells = result.phases.iter().enumerate().map(|(index, phase)| match figure(phase) {
            None => format!("{:>24}", "-"),
            Some(value) => {
                // A share of a time against the first phase; a share of a share would confuse.
                let against = base.filter(|base| index > 0 && unit == "ms" && *base > 0.0);
                let against = against
                    .map(|base| format!("({:+.0} %)", (value / base - 1.0) * 100.0))
                    .unwrap_or_default();
                format!("{:>15}{against:>9}", format!("{value:.1}"))
            }
        });
        line(&mut std::iter::once(format!("{:<26}", format!("{name} [{unit}]"))).chain(cells));
    }
    let _ = write!(
        out,
        "\nModels pushed {}, run by every worker {}. A decision takes {:.0} µs in the median, {:.0} µs at p99.\n\
         Envoy {}, {} workers, {} pods. TPOT excludes the first token. Errors: |measured - predicted| / measured,\n\
         measured by the client, over the last third of a phase.",
        result.models_pushed,
        result.models_applied,
        result.decision_us.p50,
        result.decision_us.p99,
        result.envoy_version,
        result.workers,
        result.pods,
    );
    out
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use super::super::result::{DecisionUs, Quantiles};
    use super::*;

    #[test]
    fn times_are_shown_against_the_first_phase_and_what_is_not_predicted_as_a_dash() {
        let phase = |name: &str, ms: f64, error: Option<f64>| {
            let times = Quantiles { mean: ms, p50: ms, p90: ms, p99: ms };
            Phase {
                name: name.to_owned(),
                requests: 10,
                failed: 0,
                failures: std::collections::BTreeMap::new(),
                cached_share: 0.25,
                ttft_ms: times,
                tpot_ms: times,
                e2e_ms: times,
                ttft_error_median: error,
                tpot_error_median: error,
            }
        };
        let result = DemoResult {
            phases: vec![phase("least_request", 200.0, None), phase("foretoken_prior", 150.0, Some(0.125))],
            models_pushed: 3,
            models_applied: 2,
            decision_us: DecisionUs { p50: 20.0, p99: 80.0 },
            envoy_version: "1.40.0".to_owned(),
            workers: 2,
            pods: 4,
            engine: Engine::Sim,
            seconds: 1.0,
            seed: 1,
        };
        let table = table(&result);
        let row = |name: &str| {
            table.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(row("TTFT mean"), ["TTFT", "mean", "[ms]", "200.0", "150.0", "(-25", "%)"]);
        assert_eq!(row("TTFT error"), ["TTFT", "error,", "median", "[%]", "-", "12.5"]);
    }
}
