//! `foretoken-sim bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use foretoken_sim::bench::event::Event;
use foretoken_sim::bench::matrix::Rate;
use foretoken_sim::bench::plan::Block;
use foretoken_sim::bench::policies::{ABLATIONS, FORETOKEN, Models, make};
use foretoken_sim::bench::pool::Pool;
use foretoken_sim::bench::{Matrix, html, traffic};
use foretoken_sim::rivals::{ORACLES, RIVALS};
use indicatif::{ProgressBar, ProgressStyle};

use super::common::{self, Scratch};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim bench --quick --json bench.json --html bench.html\n  \
    foretoken-sim bench --traces ../shared/traces --json bench.json\n  \
    foretoken-sim bench --million --json million.json\n  \
    foretoken-sim bench --workload churn --pods 16 --load 0.6 --event killed --json killed.json\n  \
    foretoken-sim bench --workload churn --pods 8 --load 0.8 --policy foretoken --policy gie-default\n\n\
    Without --trainer (and none beside this program) foretoken runs untrained, on its prior.")]
pub(crate) struct Args {
    /// A corner of the matrix: 4 pods, load 80 %, one seed.
    #[arg(long)]
    quick: bool,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Folder of public traces; generators stand in for those that are not there.
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Only this traffic (repeatable).
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Only this policy (repeatable).
    #[arg(long, value_name = "NAME")]
    policy: Vec<String>,
    /// Only this load, as a share of the best policy's sustained rate (repeatable).
    #[arg(long, value_name = "SHARE", value_parser = common::share)]
    load: Vec<f64>,
    /// Only this many pods (repeatable).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pods: Vec<u16>,
    /// Only this hardware: equal or mixed (repeatable).
    #[arg(long, value_name = "POOL", value_parser = ["equal", "mixed"])]
    pool: Vec<String>,
    /// Only this seed (repeatable).
    #[arg(long, value_name = "N")]
    seed: Vec<u64>,
    /// Requests of a cell, as a share of the usual.
    #[arg(long, value_name = "SHARE", value_parser = common::share)]
    requests: Option<f64>,
    /// Requests a second for each pod at load 1, instead of searching.
    #[arg(long, value_name = "RATE", value_parser = common::rate)]
    rate_per_pod: Option<f64>,
    /// Take the sustained rates from the JSON of an earlier run instead of searching: the same load for another version
    /// or other policies.
    #[arg(long, value_name = "FILE", conflicts_with = "rate_per_pod")]
    rates: Option<PathBuf>,
    /// `foretoken-trainer`, whose `fit` makes the models; else the one beside this program.
    #[arg(long, value_name = "FILE", env = "FORETOKEN_TRAINER")]
    trainer: Option<PathBuf>,
    /// libxgboost for the trainer.
    #[arg(long, value_name = "FILE")]
    xgboost: Option<PathBuf>,
    /// Fields of the filter's configuration laid over its defaults, as JSON.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
    /// Only the large run: 256 pods, a million requests, foretoken alone.
    #[arg(long, conflicts_with_all = ["quick", "workload", "policy", "event"])]
    million: bool,
    /// Change the pool when half of the requests have arrived: added, slowed or killed (repeatable; loads, pods,
    /// hardware and policies as chosen).
    #[arg(long, value_name = "CHANGE", value_parser = ["added", "slowed", "killed"])]
    event: Vec<String>,
    /// Runs at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Name all traffic and policies, and run nothing.
    #[arg(long)]
    list: bool,
}

/// Of an earlier report, whatever else it says.
#[derive(serde::Deserialize)]
struct Rates {
    rates: Vec<Rate>,
}

/// These, each once, in their order.
fn once<T: PartialEq + Clone>(all: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for one in all {
        if !kept.contains(one) {
            kept.push(one.clone());
        }
    }
    kept
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    common::check_outputs(&[("--json", args.json.as_deref()), ("--html", args.html.as_deref())])?;
    if let Some(folder) = args.traces.as_ref().filter(|folder| !folder.is_dir()) {
        bail!("--traces {}: there is no such folder", folder.display());
    }
    let mut traffic = traffic::all(args.traces.as_deref())?;
    if args.list {
        let names = traffic.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        let policies = format!("{FORETOKEN}, {}, {}", RIVALS.join(", "), ORACLES.join(", "));
        let ablations: String =
            ABLATIONS.iter().map(|(name, what)| format!("  {name:27} {what}\n")).collect();
        common::print(&format!("workloads: {names}\npolicies: {policies}\n{ablations}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    for name in &args.workload {
        if !traffic.iter().any(|one| one.name == *name) {
            bail!("no workload `{name}`; `foretoken-sim bench --list` names all");
        }
    }
    traffic.retain(|one| args.workload.is_empty() || args.workload.contains(&one.name));
    let mut matrix = Matrix::new(traffic, args.quick);
    if !args.policy.is_empty() {
        matrix.policies = once(&args.policy);
        matrix.ablations.clear();
    }
    if !args.load.is_empty() {
        matrix.loads = once(&args.load);
    }
    if !args.pods.is_empty() {
        matrix.pods = once(&args.pods).into_iter().map(usize::from).collect();
    }
    if !args.pool.is_empty() {
        let pool = |name: &String| if name == "mixed" { Pool::Mixed } else { Pool::Equal };
        matrix.pools = once(&args.pool).iter().map(pool).collect();
    }
    if !args.seed.is_empty() {
        matrix.seeds = once(&args.seed);
    }
    let chosen = [&args.workload, &args.policy, &args.pool];
    let numbers = [args.load.len(), args.pods.len(), args.seed.len()];
    let narrowed = chosen.iter().any(|list| !list.is_empty()) || numbers.iter().any(|count| *count > 0);
    if narrowed || args.million {
        matrix.blocks.clear();
    }
    if args.million {
        matrix.traffic.clear();
    } else if narrowed {
        matrix.large = None;
    }
    matrix.requests = args.requests.unwrap_or(matrix.requests);
    matrix.rate_per_pod = args.rate_per_pod;
    if let Some(path) = &args.rates {
        let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let earlier: Rates = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not the JSON of a bench", path.display()))?;
        matrix.rates = Some(earlier.rates);
    }
    matrix.threads = args.threads.map_or(matrix.threads, usize::from);
    for event in Event::ALL.iter().filter(|event| args.event.iter().any(|name| name == event.name())) {
        matrix.blocks.extend(
            matrix
                .pods
                .iter()
                .flat_map(|pods| {
                    matrix.loads.iter().map(|load| Block {
                        traffic: vec![""],
                        pods: *pods,
                        pools: matrix.pools.clone(),
                        load: *load,
                        policies: matrix.policies.clone(),
                        seeds: matrix.seeds.clone(),
                        requests: matrix.requests,
                        event: Some(*event),
                    })
                })
                .collect::<Vec<_>>(),
        );
    }

    let scratch = Scratch::new("bench")?;
    let models = Models {
        trainer: common::trainer(args.trainer.as_deref(), args.xgboost.as_deref(), &scratch)?,
        start: None,
        config: serde_json::from_str(&args.config).context("--config is not JSON")?,
    };
    // Names and configuration are wrong now or never: not after the search for the rates.
    make(FORETOKEN, 1, 1, &models, 0).context("--config")?;
    for policy in &matrix.policies {
        make(policy, 1, 1, &models, 0).context("--policy")?;
    }
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}")
            .unwrap_or(ProgressStyle::default_bar()),
    );
    let report = matrix.run(&models, &|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    common::tell_untrained(&report.cells);
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&report)).with_context(|| format!("writing {}", path.display()))?;
    }
    let mut text = super::replay::table(&report.cells);
    for (name, reached, goal, less) in html::goals(&report) {
        if let Some(reached) = reached {
            let met = if less { reached <= goal } else { reached >= goal };
            let word = if met { "met   " } else { "missed" };
            text += &format!("{word} {name}: {reached:.3} (goal {goal})\n");
        }
    }
    text += &format!("{} runs in {:.0} s\n", report.cells.len(), report.wall_s);
    common::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
