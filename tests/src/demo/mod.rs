//! The demo: one workload, three times, so that the difference between routers shows as numbers.
//!
//! 1. `least_request`: Envoy's own policy, the filter not in the path.
//! 2. `foretoken_prior`: the filter without a model; the trainer listens and learns, and is held.
//! 3. `foretoken_trained`: the trainer is released, its model is pushed into the running Envoy, and once
//!    every worker runs it the same workload is played again; newer models follow while it runs. Where the gate let
//!    no model pass, more traffic like that of the second phase comes between, and is not counted.
//!
//! Each phase has fresh pods (empty caches) and a fresh Envoy (nothing known about the pods); only the
//! trainer lives on, so what the third phase has more than the second is the model. Requests are the same
//! in all phases, by one seed.

mod fleet;
mod phase;
pub mod result;
mod table;
mod tell;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use foretoken_sim::load::Workload;
use foretoken_sim::load::script::{outlines, planned_requests};

use crate::envoy::{self, Envoy, Flavour};
use crate::paths;
use crate::trainer::{self, Trainer};
use fleet::Fleet;
use phase::Router;
use result::{DecisionUs, DemoResult};

pub use table::table;

/// Envoy's worker threads: two, so that sharing between them is part of what is shown.
const WORKERS: u32 = 2;
/// The trainer's last fit may still be running, or be due, when the second phase ends.
const LAST_FIT: Duration = Duration::from_secs(15);
/// How often more traffic is sent when no model has passed the gate.
const MORE_TRAFFIC: u64 = 4;
/// From the trainer's push to every worker running it.
const APPLY: Duration = Duration::from_secs(30);

/// Fewer cannot be split into what is learned from and what the result is checked on.
const LEAST_SAMPLES: u32 = 100;
/// What the trainer waits for before its first fit by default.
const ENOUGH_SAMPLES: u32 = 200;

/// What answers the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Simulated pods, half of them twice as fast as the others.
    Sim,
    /// llama.cpp servers on tiny models.
    Llamacpp,
}

/// What to play.
#[derive(Debug, Clone)]
pub struct Options {
    /// What answers.
    pub engine: Engine,
    /// How many of them.
    pub pods: usize,
    /// Seconds of each phase in which requests are sent.
    pub seconds: f64,
    /// Seed of the workload.
    pub seed: u64,
}

/// Plays all phases. Dropping the future ends every process it started.
///
/// # Errors
/// When something is not installed, does not start, or the loop does not close.
pub async fn play(options: &Options) -> Result<DemoResult> {
    let workload = match options.engine {
        Engine::Sim => Workload::preset("demo").context("foretoken-sim has no workload demo")?,
        Engine::Llamacpp => Workload::from_json("llamacpp", include_bytes!("../../workloads/llamacpp.json"))?,
    };
    let dir: PathBuf = paths::run_dir("demo")?;
    // The phase without a model must yield enough to learn from, however short it is.
    let planned = planned_requests(&outlines(&workload, options.seed, options.pods as u32, options.seconds));
    if planned < u64::from(LEAST_SAMPLES) {
        bail!(
            "{} s give {planned} requests, and a model needs {LEAST_SAMPLES} to learn from: raise --seconds or --pods",
            options.seconds
        );
    }
    let learning = trainer::Options {
        publish_interval_s: None,
        window_samples: None,
        min_samples: u32::try_from(planned / 2).unwrap_or(u32::MAX).clamp(LEAST_SAMPLES, ENOUGH_SAMPLES),
        refit_interval_s: 5,
        hold: true,
        flavour: Flavour::Default,
        filter: envoy::filter_config()?,
        listen: None,
    };
    let trainer = Trainer::start("trainer", &learning, &dir).await?;
    tell::line(&format!(
        "{} pods ({}), Envoy with {WORKERS} workers, {} s a phase, workload {}, seed {}; logs in {}",
        options.pods,
        match options.engine {
            Engine::Sim => "simulated, fast and slow in turn",
            Engine::Llamacpp => "llama.cpp, tiny models of 2 and 4 layers in turn",
        },
        options.seconds,
        workload.name,
        options.seed,
        dir.display(),
    ));

    let mut phases = Vec::new();
    let mut applied = Vec::new();
    let mut decision_us = DecisionUs::default();
    let mut envoy_version = String::new();
    for router in [Router::LeastRequest, Router::Prior, Router::Trained] {
        let fleet = Fleet::start(options.engine, options.pods, router.name(), &dir).await?;
        let mut envoy_options = envoy::Options::new(&fleet.addresses())?;
        envoy_options.workers = WORKERS;
        envoy_options.trainer = Some(trainer.addresses());
        envoy_options.one_request_per_connection = options.engine == Engine::Llamacpp;
        let envoy = Envoy::start(router.name(), &envoy_options, &dir).await?;
        envoy.wait_for_pods(fleet.len(), APPLY).await?;
        if router == Router::Trained {
            trainer.release().await?;
            let generation = trainer.wait_for_generation(1, APPLY).await?;
            envoy.wait_for_generation(generation, APPLY).await?;
            let status = trainer.status().await?;
            tell::line(&format!(
                "model pushed: generation {generation}, learned from {} samples, run by every worker",
                status["clean_samples"]
            ));
        }
        let played = phase::play(router, &envoy, &workload, options).await?;
        if router == Router::Trained {
            trainer.hold().await?;
            applied.extend(played.generations.iter().copied());
        }
        let stats = envoy.stats().await?;
        if let (Some(p50), Some(p99)) =
            (stats.quantile("foretoken_decision_us", 0.5), stats.quantile("foretoken_decision_us", 0.99))
        {
            decision_us = DecisionUs { p50, p99 };
        }
        check(router, &stats)?;
        if router == Router::Prior {
            first_model(&trainer, &envoy, &workload, options).await?;
        }
        envoy_version = envoy.version().await?;
        phases.push(played.result);
    }
    let pushed = trainer.figure("published").await?;
    Ok(DemoResult {
        phases,
        models_pushed: pushed,
        models_applied: applied.len() as u64,
        decision_us,
        envoy_version,
        workers: WORKERS,
        pods: options.pods,
        engine: options.engine,
        seconds: options.seconds,
        seed: options.seed,
    })
}

/// Waits until the trainer has published a model, and holds it again.
///
/// The gate takes no model that is worse than the prior anywhere, and of a few hundred requests some kinds are so few
/// that luck decides. Then it takes more of them.
async fn first_model(trainer: &Trainer, envoy: &Envoy, workload: &Workload, options: &Options) -> Result<()> {
    for round in 0.. {
        trainer.release().await?;
        let published = trainer.wait_for_generation(1, LAST_FIT).await;
        trainer.hold().await?;
        match published {
            Ok(_) => break,
            Err(error) if round == MORE_TRAFFIC => {
                return Err(error.context(
                    "no model was good enough to be published; raise --seconds, so that there is more to learn from",
                ));
            }
            Err(_) => {
                tell::line(
                    "no model was better than the prior everywhere: more traffic, to learn from alone",
                );
            }
        }
        let more = Options { seed: options.seed + round + 1, ..options.clone() };
        phase::play(Router::Prior, envoy, workload, &more).await?;
    }
    Ok(())
}

/// A phase in which the filter did not do what the phase is about must not be shown as one in which it did.
fn check(router: Router, stats: &envoy::stats::Stats) -> Result<()> {
    let picks = stats.by_label("foretoken_picks_total", "rung");
    let total: u64 = picks.values().sum();
    let of = |rung: &str| picks.get(rung).copied().unwrap_or(0);
    match router {
        Router::LeastRequest => Ok(()),
        Router::Prior if total > 0 && of("prior") == total => Ok(()),
        Router::Trained if total > 0 && of("model") * 100 >= total * 99 => Ok(()),
        Router::Prior | Router::Trained => {
            bail!(
                "in phase {} requests were not routed as it says: picks {picks:?}, fallbacks {:?}",
                router.name(),
                stats.by_label("foretoken_fallback_total", "reason")
            )
        }
    }
}
