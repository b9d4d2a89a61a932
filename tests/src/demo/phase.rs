//! One phase: the workload through one of the two listeners, measured by the client.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use foretoken_sim::load::{Record, Report, RunOptions, Workload, run};

use super::result::{Phase, Quantiles};
use super::{Options, tell};
use crate::envoy::Envoy;

/// How often the workers are asked which model they run.
const WATCH: Duration = Duration::from_millis(500);

/// Who picks the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Router {
    LeastRequest,
    Prior,
    Trained,
}

impl Router {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LeastRequest => "least_request",
            Self::Prior => "foretoken_prior",
            Self::Trained => "foretoken_trained",
        }
    }
}

pub(super) struct Played {
    pub(super) result: Phase,
    /// Model generations that all workers ran at some time in the phase.
    pub(super) generations: BTreeSet<u64>,
}

pub(super) async fn play(
    router: Router,
    envoy: &Envoy,
    workload: &Workload,
    options: &Options,
) -> Result<Played> {
    let target = if router == Router::LeastRequest { envoy.baseline() } else { envoy.llm() };
    let mut load = RunOptions::new(format!("http://{target}"));
    load.seed = options.seed;
    load.seconds = options.seconds;
    load.pods = u32::try_from(options.pods).unwrap_or(u32::MAX);
    load.headers = vec!["x-foretoken-explain: 1".to_owned()];

    let bar = tell::Bar::new(router.name(), options.seconds);
    let mut generations = BTreeSet::new();
    let report = {
        let playing = run(workload, &load, |progress| bar.show(progress));
        tokio::pin!(playing);
        let mut watch = tokio::time::interval(WATCH);
        loop {
            tokio::select! {
                report = &mut playing => break report?,
                _ = watch.tick() => generations.extend(envoy.generation_of_all_workers().await?),
            }
        }
    };
    generations.extend(envoy.generation_of_all_workers().await?);
    bar.finish(&report);
    Ok(Played { result: summarise(router, &report, options.seconds), generations })
}

fn summarise(router: Router, report: &Report, seconds: f64) -> Phase {
    // Early in a phase the router still gets to know the pods; the last third shows what it has learned.
    let late: Vec<&Record> = report
        .records
        .iter()
        .filter(|record| record.failure.is_none() && record.sent_ms >= seconds * 1000.0 * 2.0 / 3.0)
        .collect();
    Phase {
        name: router.name().to_owned(),
        requests: report.requests,
        failed: report.failed,
        failures: report.failures.clone(),
        cached_share: report.cached_share,
        ttft_ms: Quantiles::from(&report.ttft_ms),
        tpot_ms: Quantiles::from(&report.tpot_ms),
        e2e_ms: Quantiles::from(&report.e2e_ms),
        ttft_error_median: error_median(&late, "ttft_ms", |record| record.ttft_ms),
        tpot_error_median: error_median(&late, "tpot_ms", |record| record.tpot_ms),
    }
}

/// Median of |measured - predicted| / measured, by the client's clock and the explain header's median.
/// `None` where nothing was predicted.
fn error_median(records: &[&Record], field: &str, measured: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
    let mut errors: Vec<f64> = records
        .iter()
        .filter_map(|record| {
            let predicted = record.explain.as_ref()?[field][0].as_f64()?;
            let measured = measured(record).filter(|measured| *measured > 0.0)?;
            Some((measured - predicted).abs() / measured)
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied()
}
