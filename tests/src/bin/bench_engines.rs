//! Holds the simulator against real engines; `scripts/bench engines` calls it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use foretoken_tests::engines::order::Order;
use foretoken_tests::engines::{self, CrossCheck, Measured, Options};
use foretoken_tests::paths;

/// Sends the same requests by the same policies to real llama.cpp servers and to simulated pods whose profile is
/// fitted to probes of them, and says whether the policies come in the same order.
#[derive(Debug, Parser)]
#[command(
    name = "foretoken-bench-engines",
    after_help = "Nothing else should run meanwhile: on a busy machine give it, as root, a scheduling group of its own:\n  setsid -w sh -c 'echo -19 >/proc/self/autogroup; exec nice -n -19 scripts/bench engines'\n\nExit status: 0 done, 1 failed, 2 wrong usage."
)]
struct Args {
    /// Writes all figures as one JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A policy of `foretoken-sim bench --list`; may be given several times. Without it six of them.
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// Seeds, each with requests of its own.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Requests of each run.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    requests: u32,
    /// Requests a second, as a share of what the pods could serve one at a time with nothing cached.
    #[arg(long, default_value_t = 0.7)]
    load: f64,
    /// Requests that each pod serves at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,
    /// Memory of each pod for prompts whose slots were given away (llama.cpp's own default is 8192).
    #[arg(long, default_value_t = 256)]
    prompt_cache_mib: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    foretoken_tests::to_exit_code("foretoken-bench-engines", bench(&args)).await
}

async fn bench(args: &Args) -> Result<()> {
    let mut policies = args.policies.clone();
    if policies.is_empty() {
        policies = engines::POLICIES.map(str::to_owned).to_vec();
    }
    let options = Options {
        policies,
        seeds: args.seeds,
        requests: args.requests as usize,
        load: args.load,
        slots: args.slots,
        prompt_cache_mib: args.prompt_cache_mib,
    };
    let dir = paths::run_dir("bench-engines")?;
    let check = engines::cross_check(&options, &dir, |text| eprintln!("engines: {text}")).await?;
    show(&options, &check);
    if let Some(path) = &args.json {
        let text = serde_json::to_vec_pretty(&check)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn show(options: &Options, check: &CrossCheck) {
    for law in &check.engines {
        let profile = &law.profile;
        println!(
            "{}: step [ms] = {:.3} + {:.4} a prompt token + {:.2e} a pair + {:.3} a stream + {:.2e} a token behind it; {:.2} outside; \
             {} probes, off by {:.1} % (prompts), {:.1} % (decoding), {:.1} % at worst; jitter {:.1} %",
            profile.name,
            profile.floor_ms,
            profile.prefill_ms_per_token,
            profile.attention_ms_per_token2,
            profile.decode_ms_per_seq,
            profile.decode_ms_per_context_token,
            law.outside_ms,
            law.probes.len(),
            law.first_error * 100.0,
            law.decode_error * 100.0,
            law.worst_error * 100.0,
            profile.jitter_sigma * 100.0,
        );
    }
    println!(
        "{} requests a run, {} seeds, {:.2} a second, {:.0} s in all\n",
        check.requests, options.seeds, check.rate, check.seconds
    );
    println!(
        "                      mean TTFT [ms]            mean E2E [ms]             cached [%]     first pod [%]  busy [%]"
    );
    println!(
        "                      real   sim.  sim./real    real   sim.  sim./real    real   sim.    real   sim."
    );
    for policy in &options.policies {
        let cells: Vec<_> = check.cells.iter().filter(|cell| cell.policy == *policy).collect();
        let mean = |of: &dyn Fn(&engines::Cell) -> f64| {
            cells.iter().map(|cell| of(cell)).sum::<f64>() / cells.len().max(1) as f64
        };
        let both =
            |of: fn(&Measured) -> f64| (mean(&|cell| of(&cell.real)), mean(&|cell| of(&cell.simulated)));
        let (ttft, e2e) = (both(|of| of.ttft_ms), both(|of| of.e2e_ms));
        let (hits, first) = (both(|of| of.hit_rate * 100.0), both(|of| of.first_pod_share * 100.0));
        let busy: Vec<String> = (0..check.engines.len())
            .map(|pod| format!("{:.0}", mean(&|cell| cell.busy.get(pod).copied().unwrap_or(0.0) * 100.0)))
            .collect();
        println!(
            "{policy:<19} {:>6.1} {:>6.1}  {:>9.2}  {:>6.1} {:>6.1}  {:>9.2}  {:>6.1} {:>6.1}  {:>6.1} {:>6.1}  {}",
            ttft.0,
            ttft.1,
            ttft.1 / ttft.0,
            e2e.0,
            e2e.1,
            e2e.1 / e2e.0,
            hits.0,
            hits.1,
            first.0,
            first.1,
            busy.join(", "),
        );
    }
    println!();
    tell_order("TTFT", &check.by_ttft);
    tell_order("E2E", &check.by_e2e);
}

fn tell_order(name: &str, order: &Order) {
    println!(
        "{name}: real {}\n{:width$}  sim. {}\n{:width$}  rank correlation {:.2}; of {} pairs {} are told apart on real engines, {} of them simulated alike; {} told apart in simulation alone",
        order.real.join(" < "),
        "",
        order.simulated.join(" < "),
        "",
        order.rank_correlation,
        order.pairs,
        order.told_apart,
        order.agreed,
        order.only_simulated,
        width = name.len(),
    );
    for one in &order.disagreements {
        println!(
            "{:width$}  {} before {}: {:.2} times on real engines, {:.2} times simulated",
            "",
            one.ahead,
            one.behind,
            one.real_ratio,
            one.simulated_ratio,
            width = name.len(),
        );
    }
}
