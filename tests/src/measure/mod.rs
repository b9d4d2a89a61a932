//! The filter's times against a client's, request by request; and one worker against two.
//!
//! Both are figures of `scripts/bench state` (`foretoken-bench-state`) and, in a looser form, tests.
//!
//! * [`client`]: a client that stamps bytes when they arrive.
//! * [`burst`]: a pod that writes several events at a time.

pub mod burst;
pub mod client;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use foretoken_core::sample::{Ending, Sample};
use foretoken_sim::load::{RunOptions, Workload, run};
use foretoken_sim::pod::{DEFAULT_MODEL, LivePod};
use serde::Serialize;

use crate::envoy::{Envoy, Options};
use crate::pods;
use crate::samples::SampleSink;
use burst::BurstPod;
use client::{Exchange, Times};

/// Clients at a time: few, so that none waits for a processor when its bytes come.
const CLIENTS: usize = 2;
/// Output lengths that requests cycle through; with the prompt's length they name a request.
const OUTPUT_TOKENS: std::ops::Range<usize> = 8..33;
/// A time that is off by less than this, or by less than the share, counts as the same.
const NEAR_MS: f64 = 2.0;
const NEAR_SHARE: f64 = 0.02;

/// What answers the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Simulated pods: an event a token.
    Single,
    /// Pods that write several events at a time.
    Coalesced,
}

/// How far the filter's times are from the client's.
#[derive(Debug, Clone, Serialize)]
pub struct Agreement {
    /// Requests compared.
    pub requests: usize,
    /// 99th percentile of |filter - client| of TTFT.
    pub ttft_abs_ms_p99: f64,
    /// Median of the same.
    pub ttft_abs_ms_p50: f64,
    /// 99th percentile of |filter - client| / client of TPOT.
    pub tpot_rel_p99: f64,
    /// Median of the same.
    pub tpot_rel_p50: f64,
    /// Share of the requests whose TTFT is within 2 ms or 2 %.
    pub ttft_near: f64,
    /// Share of the requests whose TPOT is.
    pub tpot_near: f64,
}

/// Sends `requests` streamed requests through Envoy and compares.
///
/// # Errors
/// When something does not start, a request fails, or a sample is missing.
pub async fn agreement(requests: usize, answers: Answers, dir: &Path) -> Result<Agreement> {
    let (live, bursts) = match answers {
        Answers::Single => (pods::start(&["fast", "fast"]).await?, Vec::new()),
        Answers::Coalesced => (Vec::new(), vec![BurstPod::start(3).await?, BurstPod::start(4).await?]),
    };
    let mut addresses: Vec<SocketAddr> = live.iter().map(LivePod::addr).collect();
    addresses.extend(bursts.iter().map(BurstPod::address));
    let sink = SampleSink::start().await?;
    let mut options = Options::new(&addresses)?;
    options.trainer = Some((sink.address(), sink.address()));
    options.filter["samples"]["flush_ms"] = 50.into();
    let envoy = Envoy::start("measure", &options, dir).await?;
    envoy.wait_for_pods(addresses.len(), Duration::from_secs(20)).await?;

    let seen = send(envoy.llm(), requests).await?;
    let samples = sink.take(requests, Duration::from_secs(20)).await?;
    compare(&seen, &samples)
}

/// Prompts and output lengths of which no two are alike.
fn exchanges(requests: usize) -> Vec<Exchange> {
    (0..requests)
        .map(|at| Exchange {
            model: DEFAULT_MODEL.to_owned(),
            prompt: format!("{}{at}", "word ".repeat(20 + at / OUTPUT_TOKENS.len())),
            max_tokens: OUTPUT_TOKENS.start + at % OUTPUT_TOKENS.len(),
        })
        .collect()
}

async fn send(address: SocketAddr, requests: usize) -> Result<Vec<Times>> {
    let mut shares: Vec<Vec<Exchange>> = vec![Vec::new(); CLIENTS];
    for (at, exchange) in exchanges(requests).into_iter().enumerate() {
        shares[at % CLIENTS].push(exchange);
    }
    let threads: Vec<_> = shares
        .into_iter()
        .map(|share| {
            // Threads of their own: a task would be stamped when the runtime gets to it.
            tokio::task::spawn_blocking(move || -> Result<Vec<Times>> {
                share.iter().map(|exchange| client::exchange(address, exchange)).collect()
            })
        })
        .collect();
    let mut all = Vec::new();
    for thread in threads {
        all.extend(thread.await??);
    }
    Ok(all)
}

fn compare(seen: &[Times], samples: &[Sample]) -> Result<Agreement> {
    let mut by_lengths: HashMap<(u32, u32), &Sample> = HashMap::new();
    for sample in samples {
        ensure!(sample.ending == Ending::Complete && sample.status == 200, "a request failed: {sample:?}");
        let prompt = sample.prompt_tokens.context("a sample without usage")?;
        let other = by_lengths.insert((prompt, sample.output_tokens), sample);
        ensure!(other.is_none(), "two samples of {prompt} and {} tokens", sample.output_tokens);
    }
    let (mut ttft_abs_ms, mut tpot_rel, mut ttft_near, mut tpot_near) =
        (Vec::new(), Vec::new(), 0_u32, 0_u32);
    for times in seen {
        let Some(sample) = by_lengths.get(&(times.prompt_tokens, times.output_tokens)) else {
            bail!("no sample of {times:?}");
        };
        let ttft_ms = f64::from(sample.ttft_ms.context("a sample without TTFT")?);
        let tpot_ms = f64::from(sample.tpot_ms.context("a sample without TPOT")?);
        let (ttft_off, tpot_off) = ((ttft_ms - times.ttft_ms).abs(), (tpot_ms - times.tpot_ms).abs());
        let is_near = |off: f64, truth: f64| u32::from(off <= NEAR_MS || off <= NEAR_SHARE * truth);
        ttft_near += is_near(ttft_off, times.ttft_ms);
        tpot_near += is_near(tpot_off, times.tpot_ms);
        ttft_abs_ms.push(ttft_off);
        tpot_rel.push(tpot_off / times.tpot_ms);
    }
    let requests = seen.len();
    let share = |near: u32| f64::from(near) / requests.max(1) as f64;
    Ok(Agreement {
        requests,
        ttft_abs_ms_p99: quantile(&mut ttft_abs_ms, 0.99),
        ttft_abs_ms_p50: quantile(&mut ttft_abs_ms, 0.5),
        tpot_rel_p99: quantile(&mut tpot_rel, 0.99),
        tpot_rel_p50: quantile(&mut tpot_rel, 0.5),
        ttft_near: share(ttft_near),
        tpot_near: share(tpot_near),
    })
}

/// Nearest rank.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).ceil() as usize;
    values.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Mean end-to-end times of one load by the number of Envoy's worker threads.
#[derive(Debug, Clone, Serialize)]
pub struct Workers {
    /// Requests of each setting.
    pub requests: u64,
    /// Mean E2E with one worker.
    pub one_e2e_ms: f64,
    /// Mean E2E with two.
    pub two_e2e_ms: f64,
    /// Each pair of runs: seed, one worker, two workers.
    pub runs: Vec<(u64, f64, f64)>,
}

/// Plays the demo's workload with one worker and with two, `rounds` times with different seeds, each time on
/// fresh pods and a fresh Envoy.
///
/// # Errors
/// When something does not start or a request fails.
pub async fn workers(seconds: f64, rounds: u64, dir: &Path) -> Result<Workers> {
    let workload = Workload::preset("demo").context("foretoken-sim has no workload demo")?;
    let mut result = Workers { requests: 0, one_e2e_ms: 0.0, two_e2e_ms: 0.0, runs: Vec::new() };
    for seed in 1..=rounds {
        let mut means = [0.0; 2];
        // The order alternates, so that a machine that becomes slower favours neither.
        for at in if seed % 2 == 0 { [1, 0] } else { [0, 1] } {
            let pods = pods::start(&["fast", "slow", "fast", "slow"]).await?;
            let mut options = Options::new(&pods::addresses(&pods))?;
            options.workers = at as u32 + 1;
            let name = format!("workers-{}-{seed}", at + 1);
            let envoy = Envoy::start(&name, &options, dir).await?;
            envoy.wait_for_pods(pods.len(), Duration::from_secs(20)).await?;
            let mut load = RunOptions::new(format!("http://{}", envoy.llm()));
            load.seed = seed;
            load.seconds = seconds;
            load.pods = pods.len() as u32;
            let report = run(&workload, &load, |_| {}).await?;
            ensure!(report.failed == 0, "{name}: requests failed: {:?}", report.failures);
            means[at] = report.e2e_ms.mean;
            result.requests = result.requests.max(report.requests * rounds);
        }
        result.runs.push((seed, means[0], means[1]));
        result.one_e2e_ms += means[0] / rounds as f64;
        result.two_e2e_ms += means[1] / rounds as f64;
    }
    Ok(result)
}
