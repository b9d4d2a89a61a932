//! A trainer that is killed again and again, at random points of ingest, fits and publications, while a real Envoy
//! serves with what it has published.
//!
//! Asked of each restart: does the store open, is every sample there that was acknowledged as synced, has the
//! generation gone back. Asked of the whole: did any client of Envoy notice.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use foretoken_core::sample::Sample;
use foretoken_trainer::export::now_ms;
use foretoken_trainer::synthetic;
use serde::Serialize;

use crate::envoy::{Envoy, Options};
use crate::load::Load;
use crate::trainer::{self, Trainer};
use crate::{http, pods};

/// Samples in a batch, and batches prepared for a run.
const BATCH: usize = 64;
const BATCHES: usize = 150;

/// Samples that a fit learns from at most.
const WINDOW: u32 = 2000;

/// A kill comes within this after a start.
const LIVES: Duration = Duration::from_millis(2500);

/// Clients of Envoy.
const CLIENTS: u32 = 3;

/// What came of it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Crashes {
    /// Kills.
    pub runs: usize,
    /// Acknowledged and synced samples that were not there after a restart.
    pub lost: u64,
    /// Samples that had been acknowledged as synced.
    pub promised: u64,
    /// Restarts after which the generation was lower than before.
    pub generation_went_back: u64,
    /// Fits that had ended before a kill, by what the trainer could still say.
    pub fits: u64,
    /// Models that were published, as the last start found them.
    pub published: u64,
    /// Models that Envoy applied over all runs.
    pub generations: u64,
    /// Requests that Envoy served meanwhile.
    pub requests: u64,
    /// Of those, not answered whole.
    pub failed: u64,
    /// Longest time from a start until the trainer was ready, s.
    pub slowest_start_s: f64,
}

/// Pseudo-random numbers for the times of kills: a linear congruential generator, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// Two free ports that the trainer comes back to.
fn free_ports() -> Result<(SocketAddr, SocketAddr)> {
    let (one, two) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    Ok((one.local_addr()?, two.local_addr()?))
}

fn batches(seed: u64) -> Vec<String> {
    let samples = synthetic::samples(seed, BATCH * BATCHES);
    let now_ms = now_ms();
    let line = |(index, mut sample): (usize, Sample)| {
        sample.at_ms = now_ms - (BATCH * BATCHES - index) as u64;
        serde_json::to_string(&sample).map(|line| line + "\n")
    };
    let lines: Vec<String> = samples.into_iter().enumerate().filter_map(|one| line(one).ok()).collect();
    lines.chunks(BATCH).map(<[String]>::concat).collect()
}

/// A batch's answer, when it was taken.
async fn post(address: SocketAddr, batch: &str) -> Result<serde_json::Value> {
    http::send(::http::Method::POST, address, "/v1/samples", &[], batch.to_owned()).await?.json()
}

/// Kills the trainer `runs` times.
///
/// # Errors
/// When the trainer does not come back, or something else cannot be run.
pub async fn crashes(runs: usize, seed: u64, dir: &Path) -> Result<Crashes> {
    let mut random = Random(seed);
    let ports = free_ports()?;
    let settings = trainer::Options {
        min_samples: 200,
        refit_interval_s: 1,
        publish_interval_s: Some(0),
        // Fits that end within a life, so that kills fall into publications, too.
        window_samples: Some(WINDOW),
        listen: Some(ports),
        ..trainer::Options::new()?
    };
    let pods = pods::start(&["fast", "slow"]).await?;
    let mut figures = Crashes { runs, ..Crashes::default() };
    let (mut generation, mut load, mut envoy) = (0, None::<Load>, None::<Envoy>);
    let mut promised: Vec<(String, u64)> = Vec::new();
    for run in 0..=runs {
        let begun = Instant::now();
        let mut trainer =
            Trainer::start("trainer", &settings, dir).await.with_context(|| format!("run {run}"))?;
        figures.slowest_start_s = figures.slowest_start_s.max(begun.elapsed().as_secs_f64());
        let (address, _) = trainer.addresses();
        // Every batch that was promised is sent again: what is known is a duplicate.
        for (batch, count) in promised.drain(..) {
            let known = post(address, &batch).await?["duplicates"].as_u64().unwrap_or(0);
            figures.lost += count - known.min(count);
            figures.promised += count;
        }
        let now = trainer.figure("generation").await?;
        figures.generation_went_back += u64::from(now < generation);
        if run == runs {
            figures.published = now;
            break;
        }
        if envoy.is_none() {
            let mut options = Options::new(&pods::addresses(&pods))?;
            options.trainer = Some(trainer.addresses());
            let started = Envoy::start("crash", &options, dir).await?;
            started.wait_for_pods(2, Duration::from_secs(20)).await?;
            load = Some(Load::start(started.llm(), CLIENTS));
            envoy = Some(started);
        }
        let lives = Duration::from_millis(20 + random.below(LIVES.as_millis() as u64));
        let begun = Instant::now();
        for batch in batches(seed.wrapping_mul(100_000) + run as u64 + 1) {
            let rest = lives.saturating_sub(begun.elapsed());
            // The kill falls into the middle of a request as a rule.
            match tokio::time::timeout(rest, post(address, &batch)).await {
                Ok(Ok(answer)) => {
                    let synced = answer["synced"].as_u64().unwrap_or(0);
                    if synced == BATCH as u64 {
                        promised.push((batch, synced));
                    }
                }
                Ok(Err(_)) => {}
                Err(_) => break,
            }
        }
        if let Ok(Ok(status)) = tokio::time::timeout(Duration::from_millis(100), trainer.status()).await {
            figures.fits += status["fits"].as_u64().unwrap_or(0);
            generation = generation.max(status["generation"].as_u64().unwrap_or(0));
        }
        trainer.process().kill();
        if (run + 1) % 10 == 0 {
            eprintln!(
                "crash: {} of {runs} runs, {} of {} samples lost",
                run + 1,
                figures.lost,
                figures.promised
            );
        }
    }
    if let (Some(load), Some(envoy)) = (load, envoy) {
        figures.generations = envoy.stats().await?.value("foretoken_models_applied_total");
        let seen = load.stop().await?;
        figures.requests = seen.len() as u64;
        figures.failed = seen.iter().filter(|one| one.whole().is_err()).count() as u64;
    }
    Ok(figures)
}
