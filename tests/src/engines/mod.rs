//! The simulator held against real engines: the same requests, the same policies, is the order the same?
//!
//! `scripts/bench engines` (`foretoken-bench-engines`) starts llama.cpp servers of different speed on this machine,
//! fits the simulator's step time to probes of each ([`probe`], [`law`]), and sends one list of requests ([`traffic`])
//! by several policies to the real pods ([`drive`]) and, in virtual time, to simulated pods of the fitted profiles.
//! Then it compares ([`order`]). Rivals are the bench's own objects in both worlds; foretoken is the real filter in a
//! real Envoy in the one and `foretoken-core` in virtual time in the other, both on the analytic prior: a run is too
//! short for a model.
//!
//! What the simulator has not: llama.cpp keeps whole prompts, one in each slot and others, whose slots were given
//! away, in memory, and no blocks that several requests share; it takes the one that is most alike. Here that is a block
//! cache of the same size. A prompt that comes back from that memory takes llama.cpp a few milliseconds, and short
//! chunks behind a long prompt take longer than the law of the step says. It also fills a step's batch in order of
//! slots, not of arrival.
//!
//! Nothing is asserted here: a machine that is busy with other things would fail any bound.

pub mod drive;
pub mod law;
pub mod order;
pub mod probe;
pub mod traffic;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foretoken_sim::bench::policies::{Made, Models, make};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::rivals::ORACLES;
use foretoken_sim::virtual_time::record::Figures;
use foretoken_sim::virtual_time::scrape::PodMetrics;
use foretoken_sim::virtual_time::workload::Listed;
use foretoken_sim::virtual_time::{Ask, BLOCK_TOKENS, Pick, Policy, Record, Simulation};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::json;

use crate::envoy::{Envoy, Options as EnvoyOptions};
use crate::llama_cpp::{self, LlamaCpp};
use drive::{Router, drive};
use law::{Law, Size, fit};
use order::{Order, Series, compare};
use traffic::Traffic;

/// foretoken in reports: without a model, in both worlds.
pub const FORETOKEN: &str = "foretoken-untrained";
/// The policies that are compared when none are named.
pub const POLICIES: [&str; 6] =
    ["random", "round-robin", "least-request", "gie-default", "sticky", FORETOKEN];
/// Layers of the pods' models: one is twice as slow as the other.
const LAYERS: [u32; 2] = [2, 4];
/// Bytes that a token takes in one layer's cache: 256 values each for key and value, in 16 bits.
const CACHE_BYTES_PER_LAYER: u64 = 1024;
/// llama.cpp's default for tokens in one step.
const BATCH_TOKENS: u32 = 2048;
/// Requests at the start of a run that are not counted: caches fill.
const HEAD: f64 = 0.2;

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// Policies.
    pub policies: Vec<String>,
    /// Seeds, each with requests of its own.
    pub seeds: u64,
    /// Requests of a run.
    pub requests: usize,
    /// Requests a second, as a share of what the pods could serve one at a time with nothing cached.
    pub load: f64,
    /// What each pod serves at once.
    pub slots: u32,
    /// Memory of each pod for prompts whose slots were given away.
    pub prompt_cache_mib: u32,
}

/// Figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Mean of arrival to first token, ms.
    pub ttft_ms: f64,
    /// Mean of arrival to last token, ms.
    pub e2e_ms: f64,
    /// Prompt tokens from caches over prompt tokens.
    pub hit_rate: f64,
    /// Requests that the first pod got, over all.
    pub first_pod_share: f64,
}

/// One policy with one seed in both worlds.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The policy.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// On real engines.
    pub real: Measured,
    /// In virtual time.
    pub simulated: Measured,
    /// Processor time of each real pod over the run's time.
    pub busy: Vec<f64>,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct CrossCheck {
    /// The fitted engines.
    pub engines: Vec<Law>,
    /// Requests a second.
    pub rate: f64,
    /// Load as it was asked for.
    pub load: f64,
    /// Requests of a run.
    pub requests: usize,
    /// All runs.
    pub cells: Vec<Cell>,
    /// By mean TTFT.
    pub by_ttft: Order,
    /// By mean E2E.
    pub by_e2e: Order,
    /// How long it took.
    pub seconds: f64,
}

/// Runs the whole comparison; `tell` hears how far it is.
///
/// # Errors
/// When something is not installed, does not start, or does not answer.
pub async fn cross_check(options: &Options, dir: &Path, tell: impl Fn(&str)) -> Result<CrossCheck> {
    let begun = Instant::now();
    options.policies.iter().try_for_each(|policy| check(policy))?;
    let traffics: Vec<Traffic> =
        (1..=options.seeds).map(|seed| Traffic::new(options.requests, seed)).collect();
    let kept = |traffic: &Traffic| traffic.mean(|one| f64::from(one.prompt_tokens + one.output_tokens));
    let kept_tokens = traffics.iter().map(kept).sum::<f64>() / traffics.len().max(1) as f64;
    let longest = traffics.iter().flat_map(|traffic| &traffic.asked).map(|one| &one.arrival.request);
    let longest = longest.map(|one| one.prompt_tokens + one.output_tokens).max().unwrap_or(1);
    let size = |layers: u32| {
        let cache_bytes = u64::from(options.prompt_cache_mib) << 20;
        let cached_tokens = cache_bytes / (CACHE_BYTES_PER_LAYER * u64::from(layers));
        let kept_tokens = (kept_tokens * f64::from(options.slots)) as u32
            + u32::try_from(cached_tokens).unwrap_or(u32::MAX / 2);
        let kept_tokens = kept_tokens.max(longest.next_multiple_of(BLOCK_TOKENS));
        Size { slots: options.slots, batch_tokens: BATCH_TOKENS, kept_tokens }
    };

    tell("probing the engines");
    let probed = {
        let engines = start("probe", options, dir).await?;
        let probes = engines.iter().map(|engine| probe::probe(engine.address(), options.slots));
        try_join_all(probes).await?
    };
    let mut engines = Vec::new();
    for (layers, probed) in LAYERS.iter().zip(&probed) {
        engines.push(fit(&format!("llama.cpp-{layers}-layers"), probed, size(*layers))?);
    }
    let profiles: Vec<Profile> = engines.iter().map(|law| law.profile.clone()).collect();
    let rate = options.load * capacity(&engines, &traffics);
    let mut cells = Vec::new();
    // Seeds outside: what the machine does for a while meets all policies alike.
    for (traffic, seed) in traffics.into_iter().zip(1..) {
        let traffic = traffic.at_rate(rate);
        for policy in &options.policies {
            tell(&format!("seed {seed}: {policy}"));
            let (records, busy) = real(policy, seed, &profiles, &traffic, options, dir).await?;
            let outside_ms: Vec<f64> = engines.iter().map(|law| law.outside_ms).collect();
            cells.push(Cell {
                policy: policy.clone(),
                seed,
                real: measured(&records, &[0.0; LAYERS.len()]),
                simulated: measured(&simulated(policy, seed, &profiles, &traffic)?, &outside_ms),
                busy,
            });
        }
    }
    let order = |of: fn(&Measured) -> f64| {
        let series = |world: fn(&Cell) -> &Measured| -> Vec<Series> {
            let of_policy = |policy: &String| Series {
                name: policy.clone(),
                values: cells
                    .iter()
                    .filter(|cell| cell.policy == *policy)
                    .map(|cell| of(world(cell)))
                    .collect(),
            };
            options.policies.iter().map(of_policy).collect()
        };
        compare(&series(|cell| &cell.real), &series(|cell| &cell.simulated))
    };
    let (by_ttft, by_e2e) = (order(|measured| measured.ttft_ms), order(|measured| measured.e2e_ms));
    Ok(CrossCheck {
        engines,
        rate,
        load: options.load,
        requests: options.requests,
        cells,
        by_ttft,
        by_e2e,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Refuses policies that cannot be compared.
fn check(policy: &str) -> Result<()> {
    let clairvoyant = ORACLES.contains(&policy) || policy == "kv-cost";
    ensure!(
        !clairvoyant,
        "policy `{policy}` reads the truth about simulated pods, which real ones do not tell"
    );
    make(policy, LAYERS.len(), 1, &Models::default(), 0)?;
    Ok(())
}

/// Fresh engines: no run finds another one's caches warm.
async fn start(name: &str, options: &Options, dir: &Path) -> Result<Vec<LlamaCpp>> {
    let mut engines = Vec::new();
    for (index, layers) in LAYERS.into_iter().enumerate() {
        let Options { slots, prompt_cache_mib, .. } = *options;
        let engine = llama_cpp::Options { layers, threads: 1, slots, prompt_cache_mib };
        engines.push(LlamaCpp::start(&format!("{name}-pod-{index}"), engine, dir).await?);
    }
    Ok(engines)
}

/// Requests a second that the engines could serve one at a time with nothing cached.
fn capacity(engines: &[Law], traffics: &[Traffic]) -> f64 {
    let alone_ms = |law: &Law| {
        let profile = &law.profile;
        let of_traffic = |traffic: &Traffic| {
            traffic.mean(|request| {
                let (prompt, output) = (f64::from(request.prompt_tokens), f64::from(request.output_tokens));
                let step_ms = profile.floor_ms
                    + profile.decode_ms_per_seq
                    + profile.decode_ms_per_context_token * (prompt + output / 2.0);
                profile.floor_ms
                    + profile.prefill_ms_per_token * prompt
                    + profile.attention_ms_per_token2 * prompt * prompt / 2.0
                    + step_ms * (output - 1.0)
            })
        };
        traffics.iter().map(of_traffic).sum::<f64>() / traffics.len().max(1) as f64
    };
    engines.iter().map(|law| 1000.0 / alone_ms(law)).sum()
}

/// What the filter is told of these engines, which their pages do not say; in virtual time the same.
fn filter_settings(profiles: &[Profile]) -> serde_json::Value {
    let kept_tokens = profiles.iter().map(Profile::kv_capacity_tokens).min().unwrap_or(1);
    // A token is a byte here, so blocks of as many bytes as the simulator's have tokens.
    json!({"block_bytes": BLOCK_TOKENS, "default_capacity_tokens": kept_tokens})
}

fn models(profiles: &[Profile]) -> Models {
    Models { config: json!({"prefix": filter_settings(profiles)}), ..Models::default() }
}

async fn real(
    policy: &str,
    seed: u64,
    profiles: &[Profile],
    traffic: &Traffic,
    options: &Options,
    dir: &Path,
) -> Result<(Vec<Record>, Vec<f64>)> {
    let name = format!("{policy}-{seed}");
    let engines = start(&name, options, dir).await?;
    let pods: Vec<SocketAddr> = engines.iter().map(LlamaCpp::address).collect();
    // The first request of a process pays for memory that later ones have.
    let asker = probe::Asker::new(&[])?;
    for (pod, source) in pods.iter().zip(1..) {
        asker.ask(*pod, &traffic::text((1 << 61) + source, 256), 4, || {}).await?;
    }
    let envoy = if policy == FORETOKEN {
        let mut settings = EnvoyOptions::new(&pods)?;
        settings.workers = 1;
        settings.one_request_per_connection = true;
        settings.filter["prefix"] = filter_settings(profiles);
        let envoy = Envoy::start(&name, &settings, dir).await?;
        envoy.wait_for_pods(pods.len(), Duration::from_secs(20)).await?;
        envoy.wait_for_scrapes(2 * pods.len() as u64, Duration::from_secs(20)).await?;
        Some(envoy)
    } else {
        None
    };
    let cpu_before = cpu_s(&engines)?;
    let begun = Instant::now();
    let records = match &envoy {
        Some(envoy) => drive(Router::Envoy(envoy.llm()), &pods, profiles, traffic).await?,
        None => match make(policy, pods.len(), seed, &models(profiles), 0)? {
            Made::Other(mut made) => drive(Router::Policy(&mut *made), &pods, profiles, traffic).await?,
            Made::Foretoken(mut made) => drive(Router::Policy(&mut *made), &pods, profiles, traffic).await?,
        },
    };
    let elapsed_s = begun.elapsed().as_secs_f64();
    let busy =
        cpu_s(&engines)?.into_iter().zip(cpu_before).map(|(after, before)| (after - before) / elapsed_s);
    Ok((records, busy.collect()))
}

fn simulated(policy: &str, seed: u64, profiles: &[Profile], traffic: &Traffic) -> Result<Vec<Record>> {
    let mut workload = Listed::new(traffic.asked.iter().map(|one| one.arrival.clone()).collect());
    let mut run = |policy: &mut dyn Policy| {
        Simulation::new(profiles.to_vec(), policy, &mut workload, &mut (), seed)?.run()
    };
    let run = match make(policy, profiles.len(), seed, &models(profiles), 0)? {
        Made::Other(mut made) => run(&mut Unheld(&mut *made))?,
        Made::Foretoken(mut made) => run(&mut *made)?,
    };
    Ok(run.records)
}

/// A policy that is not told how much of a pod's cache is held, as llama.cpp's page does not say it.
struct Unheld<'a>(&'a mut dyn Policy);

impl Policy for Unheld<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        self.0.scrape_interval_us()
    }

    fn scraped(&mut self, pod: usize, metrics: &PodMetrics, now_us: u64) {
        self.0.scraped(pod, &PodMetrics { held_blocks: 0, ..*metrics }, now_us);
    }

    fn pool_changed(&mut self, up: &[bool], now_us: u64) {
        self.0.pool_changed(up, now_us);
    }

    fn pick(&mut self, ask: &Ask<'_>) -> Pick {
        self.0.pick(ask)
    }

    fn sent(&mut self, ask: &Ask<'_>, pod: usize, attempts: u32) {
        self.0.sent(ask, pod, attempts);
    }

    fn token(&mut self, token: &foretoken_sim::virtual_time::policy::Token, now_us: u64) {
        self.0.token(token, now_us);
    }

    fn ended(&mut self, id: u64, record: &Record, now_us: u64) {
        self.0.ended(id, record, now_us);
    }
}

/// Means over the requests that count; `outside_ms` by pod is added to what the simulator says.
fn measured(records: &[Record], outside_ms: &[f64]) -> Measured {
    let figures = Figures::of(records, HEAD, 0.0);
    let from = (records.len() as f64 * HEAD) as usize;
    let counted = records.get(from..).unwrap_or_default();
    let count = counted.len().max(1) as f64;
    let outside = counted.iter().filter_map(|record| outside_ms.get(record.pod)).sum::<f64>() / count;
    Measured {
        ttft_ms: figures.ttft_ms.mean + outside,
        e2e_ms: figures.e2e_ms.mean + outside,
        hit_rate: figures.hit_rate,
        first_pod_share: counted.iter().filter(|record| record.pod == 0).count() as f64 / count,
    }
}

/// Processor time of the engines so far, all threads, seconds.
fn cpu_s(engines: &[LlamaCpp]) -> Result<Vec<f64>> {
    let of = |engine: &LlamaCpp| -> Result<f64> {
        let mut sum_ns = 0.0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", engine.id()))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let ns = text.split_whitespace().next().context("schedstat is empty")?;
            sum_ns += ns.parse::<f64>()?;
        }
        Ok(sum_ns / 1e9)
    };
    engines.iter().map(of).collect()
}
