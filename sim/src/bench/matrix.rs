//! All cells, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::capacity::sustained_rate;
use super::cell::{Cell, CellError, CellSpec, JUDGED, run_cell};
use super::large;
use super::plan::{Block, blocks};
use super::policies::{FORETOKEN, Models};
use super::pool::Pool;
use super::summary::{Summary, middle};
use super::traffic::Traffic;
use crate::rivals::{ORACLES, RIVALS};

/// Policies among which the best sustained rate is looked for.
const SCALE: [&str; 4] = ["gie-default", "sticky", "radix", FORETOKEN];

/// What is run.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Traffic.
    pub traffic: Vec<Traffic>,
    /// Shares of the best policy's sustained rate.
    pub loads: Vec<f64>,
    /// Sizes of the pool.
    pub pods: Vec<usize>,
    /// Hardware.
    pub pools: Vec<Pool>,
    /// Who routes.
    pub policies: Vec<String>,
    /// foretoken's ablations; run at the middle load only.
    pub ablations: Vec<String>,
    /// Cells beside all these combinations.
    pub blocks: Vec<Block>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Requests of a cell, as a share of what the traffic asks for.
    pub requests: f64,
    /// A fixed rate a pod instead of shares of the sustained one.
    pub rate_per_pod: Option<f64>,
    /// Pods and requests of the large run; without it, none.
    pub large: Option<(usize, usize)>,
    /// Sustained rates that are known already; else they are searched for.
    pub rates: Option<Vec<Rate>>,
    /// Runs at once.
    pub threads: usize,
}

/// A sustained rate that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Traffic.
    pub workload: String,
    /// Pods.
    pub pods: usize,
    /// Hardware.
    pub pool: Pool,
    /// Who routed.
    pub policy: String,
    /// Requests a second.
    pub rate: f64,
}

/// What a thread takes on.
enum Job<'a> {
    Cell(CellSpec<'a>),
    Large { pods: usize, requests: usize },
}

/// All figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this program.
    pub version: String,
    /// Every run.
    pub cells: Vec<Cell>,
    /// Sustained rates.
    pub rates: Vec<Rate>,
    /// The ratios that are claimed.
    pub summary: Summary,
    /// How long it took, s.
    pub wall_s: f64,
}

impl Matrix {
    /// The whole one (`quick`: a corner of it that takes minutes), of this traffic.
    #[must_use]
    pub fn new(traffic: Vec<Traffic>, quick: bool) -> Self {
        let all = std::iter::once(FORETOKEN).chain(RIVALS).chain(ORACLES).map(str::to_owned);
        Self {
            traffic,
            loads: if quick { vec![0.8] } else { vec![0.5, 0.8, 0.95] },
            pods: vec![4],
            pools: vec![Pool::Equal, Pool::Mixed],
            policies: all.collect(),
            ablations: if quick { vec!["foretoken-untrained".to_owned()] } else { Vec::new() },
            blocks: if quick { Vec::new() } else { blocks() },
            seeds: if quick { vec![1] } else { vec![1, 2, 3] },
            requests: if quick { 0.5 } else { 1.0 },
            rate_per_pod: None,
            large: (!quick).then_some((large::PODS, large::REQUESTS)),
            rates: None,
            threads: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
        }
    }

    /// Runs everything. `tick` hears of each finished run, with how many there are.
    ///
    /// # Errors
    /// The first [`CellError`]; what runs is finished before.
    pub fn run(&self, models: &Models, tick: &(dyn Fn(usize, usize) + Sync)) -> Result<Report, CellError> {
        let start = Instant::now();
        let rates = match (&self.rates, self.rate_per_pod) {
            (Some(known), _) => known.clone(),
            (None, Some(_)) => Vec::new(),
            (None, None) => self.search(models, tick)?,
        };
        let specs = self.specs(&rates);
        // The large run takes minutes, so it begins first.
        let large = self.large.map(|(pods, requests)| Job::Large { pods, requests });
        let jobs: Vec<Job<'_>> = large.into_iter().chain(specs.into_iter().map(Job::Cell)).collect();
        let work = |job: &Job<'_>| -> Result<(Cell, Option<f64>), CellError> {
            match job {
                Job::Cell(spec) => Ok((run_cell(spec, models)?, None)),
                Job::Large { pods, requests } => {
                    let (cell, wall_s) = large::run(models, *pods, *requests)?;
                    Ok((cell, Some(wall_s)))
                }
            }
        };
        let done = parallel(self.threads, &jobs, tick, work)?;
        let large_s = done.iter().find_map(|(_, wall_s)| *wall_s);
        let cells: Vec<Cell> = done.into_iter().map(|(cell, _)| cell).collect();
        let summary = Summary { million_requests_s: large_s, ..Summary::of(&cells, &rates) };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Report { version, cells, rates, summary, wall_s: start.elapsed().as_secs_f64() })
    }

    fn search(&self, models: &Models, tick: &(dyn Fn(usize, usize) + Sync)) -> Result<Vec<Rate>, CellError> {
        let mut wanted = Vec::new();
        for traffic in &self.traffic {
            for &pods in &self.pods {
                for &pool in &self.pools {
                    let known = |name: &&str| self.policies.iter().any(|policy| policy == name);
                    wanted.extend(
                        SCALE.iter().filter(|name| known(name)).map(|name| (traffic, pods, pool, *name)),
                    );
                }
            }
        }
        parallel(self.threads, &wanted, tick, |&(traffic, pods, pool, policy)| {
            let requests = count(traffic, pods, self.requests);
            // Models are of the rate they were fitted at; the search for it goes by the prior.
            let name = if policy == FORETOKEN { "foretoken-untrained" } else { policy };
            let of_seed = |seed: &u64| sustained_rate(traffic, pods, pool, name, models, requests, *seed);
            let found: Vec<f64> = self.seeds.iter().map(of_seed).collect::<Result<_, _>>()?;
            let rate = middle(found).unwrap_or(0.0);
            Ok(Rate { workload: traffic.name.clone(), pods, pool, policy: policy.to_owned(), rate })
        })
    }

    /// Requests a second that the best policy sustains; of a size that was not searched it is taken to grow with
    /// the pods.
    fn best(&self, rates: &[Rate], traffic: &Traffic, pods: usize, pool: Pool) -> f64 {
        if let Some(rate) = self.rate_per_pod {
            return rate * pods as f64;
        }
        let of = || rates.iter().filter(|rate| rate.workload == traffic.name && rate.pool == pool);
        let sizes = of().map(|rate| rate.pods);
        let Some(nearest) =
            sizes.filter(|size| *size <= pods).max().or_else(|| of().map(|rate| rate.pods).min())
        else {
            return 0.0;
        };
        let best = of().filter(|rate| rate.pods == nearest).map(|rate| rate.rate).fold(0.0, f64::max);
        best * pods as f64 / nearest as f64
    }

    fn specs(&self, rates: &[Rate]) -> Vec<CellSpec<'_>> {
        let middle = self.loads.get(self.loads.len() / 2).copied().unwrap_or(1.0);
        let mut specs = Vec::new();
        for traffic in &self.traffic {
            let spec =
                |pods: usize, pool: Pool, load: f64, policy: &String, seed: u64, share: f64| CellSpec {
                    traffic,
                    load,
                    rate: self.best(rates, traffic, pods, pool) * load,
                    requests: count(traffic, pods, share),
                    pods,
                    pool,
                    policy: policy.clone(),
                    seed,
                    judged: JUDGED,
                    event: None,
                };
            for &pods in &self.pods {
                for &pool in &self.pools {
                    let of = |load, seed| {
                        move |policy: &String| spec(pods, pool, load, policy, seed, self.requests)
                    };
                    for &seed in &self.seeds {
                        for &load in &self.loads {
                            specs.extend(self.policies.iter().map(of(load, seed)));
                        }
                        specs.extend(self.ablations.iter().map(of(middle, seed)));
                    }
                }
            }
            let named = |block: &&Block| block.traffic.iter().any(|name| traffic.name.starts_with(name));
            for block in self.blocks.iter().filter(named) {
                for &pool in &block.pools {
                    for &seed in &block.seeds {
                        specs.extend(block.policies.iter().map(|policy| CellSpec {
                            event: block.event,
                            ..spec(block.pods, pool, block.load, policy, seed, block.requests)
                        }));
                    }
                }
            }
        }
        // A policy that nobody sustains has no load.
        specs.retain(|spec| spec.rate > 0.0);
        specs
    }
}

fn count(traffic: &Traffic, pods: usize, share: f64) -> usize {
    // Conversations' contexts fill caches slowly; a cell of few requests measures a cold pool.
    ((traffic.requests_per_pod * pods) as f64 * share).max(200.0) as usize
}

/// Runs `work` on every item; results in the items' order.
fn parallel<I: Sync, O: Send, E: Send>(
    threads: usize,
    items: &[I],
    tick: &(dyn Fn(usize, usize) + Sync),
    work: impl Fn(&I) -> Result<O, E> + Sync,
) -> Result<Vec<O>, E> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, O)>> = Mutex::new(Vec::new());
    let failed: Mutex<Option<E>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    match work(item) {
                        Ok(result) => lock(&results).push((at, result)),
                        Err(error) => {
                            lock(&failed).get_or_insert(error);
                            next.store(items.len(), Ordering::Relaxed);
                        }
                    }
                    tick(done.fetch_add(1, Ordering::Relaxed) + 1, items.len());
                }
            });
        }
    });
    if let Some(error) = lock(&failed).take() {
        return Err(error);
    }
    let mut results = std::mem::take(&mut *lock(&results));
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// The lock, also after a thread that held it panicked: what it guards is whole between statements.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
