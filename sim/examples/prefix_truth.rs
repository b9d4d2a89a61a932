//! How well the prefix index knows what pods' caches hold, against simulated engines that really evict.
//!
//! A trace (or a synthetic workload of its shape) is routed by foretoken over pods in virtual time. At each decision the
//! expected surviving tokens stand beside what the engine then finds when it schedules the request; errors are
//! relative to the prompt's length. Beside it a plain LRU of 31,250 blocks of 64 tokens a pod, which is what the Gateway
//! API inference extension assumes where nothing is configured, fed with the same placements.
//!
//!     cargo run --release -p foretoken-sim --example prefix_truth -- [TRACE] [--scale 8] [--speed 1] [--pods 4]
//!         [--kv-tokens 50000] [--mute] [--workers 1] [--seed 1]
//!
//! `--mute` keeps `cached_tokens` from the router, so that only the engine's counters correct it.
//! Prints one JSON line.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::HashMap;
use std::path::Path;

use clap::Parser;
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::virtual_time::workload::Listed;
use foretoken_sim::virtual_time::{
    Ask, BLOCK_TOKENS, Foretoken, ForetokenOptions, Observer, Pick, Record, Simulation, Workload,
};
use foretoken_sim::workloads::formats::read_file;
use foretoken_sim::workloads::synthetic::{Shape, Synthetic};
use foretoken_sim::workloads::trace::{TraceOptions, arrivals};

/// Blocks that the plain LRU has a pod keep.
const LRU_BLOCKS: usize = 31_250;

#[derive(Parser)]
#[command(about = "Measures the prefix index against simulated engines")]
struct Args {
    /// A trace with block ids; a synthetic workload of its shape when absent.
    trace: Option<String>,
    /// Token counts are divided by this.
    #[arg(long, default_value_t = 8)]
    scale: u32,
    /// Time is divided by this.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Pods.
    #[arg(long, default_value_t = 4)]
    pods: usize,
    /// KV cache of a pod, in tokens.
    #[arg(long, default_value_t = 50_000)]
    kv_tokens: u32,
    /// Envoy workers.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Answers do not report cached tokens.
    #[arg(long)]
    mute: bool,
    /// Sets everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The plain index: block hashes by last use, the oldest go.
#[derive(Default)]
struct PlainLru {
    used: HashMap<u64, u64>,
    order: std::collections::BTreeMap<u64, u64>,
    clock: u64,
}

impl PlainLru {
    fn matched_tokens(&self, blocks: &[u64]) -> u32 {
        blocks.iter().take_while(|block| self.used.contains_key(block)).count() as u32 * BLOCK_TOKENS
    }

    fn place(&mut self, blocks: &[u64]) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.used.insert(*block, self.clock) {
                self.order.remove(&before);
            }
            self.order.insert(self.clock, *block);
        }
        while self.used.len() > LRU_BLOCKS {
            let Some((_, block)) = self.order.pop_first() else { return };
            self.used.remove(&block);
        }
    }
}

struct Expected {
    ours: f64,
    lru: f64,
    matched: f64,
}

#[derive(Default)]
struct Watch {
    lru: HashMap<usize, PlainLru>,
    pending: HashMap<u64, Expected>,
    served: Errors,
    all: Errors,
}

#[derive(Default)]
struct Errors {
    count: f64,
    ours: f64,
    lru: f64,
    truth: f64,
    bias: f64,
    matched: f64,
}

impl Errors {
    fn add(&mut self, expected: &Expected, truth: f64, prompt: f64) {
        self.count += 1.0;
        self.ours += (expected.ours - truth).abs() / prompt;
        self.bias += (expected.ours - truth) / prompt;
        self.lru += (expected.lru - truth).abs() / prompt;
        self.truth += truth / prompt;
        self.matched += expected.matched / prompt;
    }

    fn json(&self) -> serde_json::Value {
        let mean = |sum: f64| (sum / self.count.max(1.0) * 1e5).round() / 1e5;
        serde_json::json!({
            "n": self.count, "mae_rel": mean(self.ours), "bias_rel": mean(self.bias),
            "lru_mae_rel": mean(self.lru), "hit_share": mean(self.truth), "matched_share": mean(self.matched),
        })
    }
}

fn pod_of(address: &str) -> usize {
    let mut at = 0;
    for part in address.split(':').next().unwrap().split('.').skip(1) {
        at = at << 8 | part.parse::<usize>().unwrap();
    }
    at
}

impl Observer for Watch {
    fn decided(&mut self, ask: &Ask<'_>, pick: &Pick) {
        let Some(decision) = &pick.decision else { return };
        let blocks = ask.request.prompt_blocks();
        for (rank, choice) in decision.choices.iter().enumerate() {
            let pod = pod_of(&choice.address);
            let expected = Expected {
                ours: f64::from(choice.seen.surviving_tokens),
                lru: f64::from(self.lru.entry(pod).or_default().matched_tokens(blocks)),
                matched: f64::from(choice.seen.matched_tokens),
            };
            let truth = f64::from(ask.pods.cached_tokens(pod, ask.request));
            self.all.add(&expected, truth, f64::from(ask.request.prompt_tokens));
            if rank == 0 {
                self.pending.insert(ask.id, expected);
            }
        }
        let pod = pod_of(&decision.choices[0].address);
        self.lru.entry(pod).or_default().place(blocks);
    }

    fn ended(&mut self, id: u64, record: &Record) {
        if let Some(expected) = self.pending.remove(&id) {
            self.served.add(&expected, f64::from(record.cached_tokens), f64::from(record.prompt_tokens));
        }
    }
}

fn main() {
    let args = Args::parse();
    let mut workload: Box<dyn Workload> = match &args.trace {
        Some(path) => {
            let rows = read_file(Path::new(path)).unwrap_or_else(|error| {
                eprintln!("prefix_truth: {error}");
                std::process::exit(1);
            });
            let options = TraceOptions {
                scale: args.scale,
                speed: args.speed,
                seed: args.seed,
                ..TraceOptions::default()
            };
            Box::new(Listed::new(arrivals(&rows, &options)))
        }
        None => Box::new(Synthetic::new(Shape::MooncakeLike, 10.0 * args.speed, 4000, args.seed)),
    };
    let profile = Profile {
        kv_blocks: args.kv_tokens / BLOCK_TOKENS,
        max_model_len_tokens: args.kv_tokens / BLOCK_TOKENS * BLOCK_TOKENS,
        ..Profile::built_in("h100").unwrap()
    };
    let options = ForetokenOptions {
        shown: 1,
        workers: args.workers,
        mute_cached_tokens: args.mute,
        seed: args.seed,
        ..ForetokenOptions::default()
    };
    let mut policy = Foretoken::new(args.pods, options, None).unwrap();
    let mut watch = Watch::default();
    let simulation =
        Simulation::new(vec![profile; args.pods], &mut policy, workload.as_mut(), &mut watch, args.seed)
            .unwrap();
    let run = simulation.run().unwrap_or_else(|error| {
        eprintln!("prefix_truth: {error}");
        std::process::exit(1);
    });
    let count = run.records.len() as f64;
    let mean = |of: &dyn Fn(&Record) -> f64| run.records.iter().map(of).sum::<f64>() / count;
    println!(
        "{}",
        serde_json::json!({
            "mae_rel": watch.served.json()["mae_rel"],
            "lru_mae_rel": watch.served.json()["lru_mae_rel"],
            "served": watch.served.json(),
            "all_pods": watch.all.json(),
            "ttft_ms_mean": mean(&Record::ttft_ms),
            "e2e_ms_mean": mean(&Record::e2e_ms),
        })
    );
}
