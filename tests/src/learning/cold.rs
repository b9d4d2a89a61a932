//! A deployment of which nothing is known: how good predictions are once the trainer has 300 samples, and once it has
//! 5,000. Load goes from nearly idle to queues that grow, pods come and go.

use std::path::Path;

use anyhow::{Context, Result};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::lessons::paced::{LEVELS, Paced, comings_and_goings, pod_rate};
use foretoken_sim::virtual_time::{ForetokenOptions, Simulation};
use foretoken_sim::workloads::Shape;
use foretoken_trainer::serve::stepped::Stepped;
use foretoken_trainer::xgb::Xgboost;
use serde::Serialize;

use super::figures::{Errors, Seen};
use super::taught::Taught;
use super::{profile, serve_options};

/// Pods of a run, those that join late included.
const PODS: usize = 8;

/// Requests of a run.
const REQUESTS: usize = 8000;

/// Samples that the trainer has when requests of the two figures are routed: from, to.
const YOUNG: (u64, u64) = (300, 600);
const GROWN: (u64, u64) = (5000, 6500);

/// Requests without a first token at the pod, from which its queue counts as one.
const QUEUE: f32 = 4.0;

/// What is run: a name, the hardware that pods have in turn, the traffic.
const RUNS: [(&str, &[&str], Shape); 4] = [
    ("chat on small cards", &["fast"], Shape::ChatLike),
    ("code on small cards of two kinds", &["slow", "fast"], Shape::CodeLike),
    ("conversations on large cards", &["a100"], Shape::MooncakeLike),
    ("documents among chat on large cards of two kinds", &["h100", "a100"], Shape::DocumentBurst),
];

/// One run.
#[derive(Debug, Serialize)]
pub struct Run {
    /// What.
    pub name: &'static str,
    /// Requests that failed.
    pub failed: u64,
    /// Models published.
    pub models: usize,
    /// Samples that each learned from, and when it routed, s.
    pub pushes: Vec<(usize, f64)>,
    /// Before the first fit: the analytic prior, or the model to start with.
    pub prior: Errors,
    /// With 300 samples.
    pub n300: Errors,
    /// With 5,000.
    pub n5000: Errors,
    /// With 1,000 and more, all.
    pub all: Errors,
    /// The same at pods with a queue.
    pub queued: Errors,
    #[serde(skip)]
    seen: Vec<Seen>,
}

/// Errors over all runs.
#[derive(Debug, Serialize)]
pub struct Cold {
    /// TTFT with 300 samples: the median over the requests of all runs.
    pub n300_mdape: f64,
    /// TTFT with 5,000 samples.
    pub n5000_mdape: f64,
    /// The same of the worst run.
    pub worst_n300_mdape: f64,
    /// The same of the worst run.
    pub worst_n5000_mdape: f64,
    /// With 1,000 samples and more.
    pub all: Errors,
    /// The same at pods with a queue.
    pub queued: Errors,
    /// Each run.
    pub runs: Vec<Run>,
}

fn between(seen: &[Seen], (from, to): (u64, u64)) -> impl Iterator<Item = &Seen> {
    seen.iter().filter(move |one| (from..to).contains(&one.known))
}

/// Runs all of them, or only those with this text in their name; with `start`, an ONNX file, not from the prior but from
/// that model, pushed before the first request.
///
/// # Errors
/// When something cannot be run.
pub fn cold(
    xgboost: &Xgboost,
    dir: &Path,
    seed: u64,
    only: Option<&str>,
    start: Option<&[u8]>,
) -> Result<Cold> {
    let mut runs = Vec::new();
    for (name, hardware, shape) in RUNS {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        eprintln!("cold: {name}");
        let dir = dir.join(name.replace(' ', "-"));
        runs.push(run(xgboost, &dir, name, hardware, shape, seed, start).with_context(|| name)?);
    }
    let all = |part: (u64, u64)| Errors::of(runs.iter().flat_map(|run| between(&run.seen, part)));
    let worst = |of: fn(&Run) -> f64| runs.iter().map(of).fold(0.0, f64::max);
    let late = || runs.iter().flat_map(|run| between(&run.seen, (1000, u64::MAX)));
    Ok(Cold {
        n300_mdape: all(YOUNG).ttft_mdape,
        n5000_mdape: all(GROWN).ttft_mdape,
        worst_n300_mdape: worst(|run| run.n300.ttft_mdape),
        worst_n5000_mdape: worst(|run| run.n5000.ttft_mdape),
        all: Errors::of(late()),
        queued: Errors::of(late().filter(|one| one.queued >= QUEUE)),
        runs,
    })
}

fn run(
    xgboost: &Xgboost,
    dir: &Path,
    name: &'static str,
    hardware: &[&str],
    shape: Shape,
    seed: u64,
    start: Option<&[u8]>,
) -> Result<Run> {
    std::fs::create_dir_all(dir)?;
    let profiles: Vec<Profile> =
        hardware.iter().cycle().take(PODS).map(|name| profile(name)).collect::<Result<_>>()?;
    let rates: Vec<f64> = profiles.iter().map(|profile| pod_rate(shape, profile, seed)).collect();
    // Some are always missing.
    let full_rate = rates.iter().sum::<f64>() * (PODS - 2) as f64 / PODS as f64;
    let mean_level = LEVELS.iter().sum::<f64>() / LEVELS.len() as f64;
    let length_s = REQUESTS as f64 / (full_rate * mean_level);
    let options = ForetokenOptions { workers: 2, seed, ..ForetokenOptions::default() };
    let trainer = Stepped::open(&serve_options(&dir.join("data"))?, xgboost.clone())?;
    if let Some(onnx) = start {
        trainer.push(onnx.to_vec()).map_err(anyhow::Error::msg)?;
    }
    let mut taught = Taught::new(PODS, options, trainer)?;
    let mut workload = Paced::new(shape, full_rate, &LEVELS, REQUESTS, seed);
    Simulation::new(profiles, &mut taught, &mut workload, &mut (), seed)?
        .with_changes(comings_and_goings(PODS, length_s))
        .run()?;
    taught.finish()?;
    let seen = std::mem::take(&mut taught.seen);
    let late = || between(&seen, (1000, u64::MAX));
    Ok(Run {
        name,
        failed: taught.failed,
        models: taught.pushes.len(),
        pushes: taught.pushes.iter().map(|push| (push.samples, push.at_s)).collect(),
        prior: Errors::of(seen.iter().filter(|one| one.generation <= u64::from(start.is_some()))),
        n300: Errors::of(between(&seen, YOUNG)),
        n5000: Errors::of(between(&seen, GROWN)),
        all: Errors::of(late()),
        queued: Errors::of(late().filter(|one| one.queued >= QUEUE)),
        seen,
    })
}
