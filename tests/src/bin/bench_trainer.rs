//! How well and how soon the loop learns, in virtual time, and what crashes cost; `scripts/bench trainer` calls it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use foretoken_tests::learning::{cold, drift};
use foretoken_tests::{crash, paths};
use foretoken_trainer::xgb::{self, Xgboost};
use serde_json::json;

/// Measures errors of live predictions (of a deployment of which nothing is known, and after hardware has slowed down),
/// and what is lost when the trainer is killed.
#[derive(Debug, Parser)]
#[command(
    name = "foretoken-bench-trainer",
    after_help = "Examples:\n  foretoken-bench-trainer cold --json\n  foretoken-bench-trainer drift --seed 2\n  foretoken-bench-trainer crash --runs 20\n\nExit status: 0 done, 1 failed, 2 wrong usage."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// One JSON object on standard output.
    #[arg(long, global = true)]
    json: bool,
    /// The seed of traffic, engines and routers.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Errors with 300 and with 5,000 samples.
    Cold {
        /// Only the runs with this text in their name.
        #[arg(long)]
        only: Option<String>,
        /// Begin with this model instead of the prior.
        #[arg(long, value_name = "FILE")]
        start: Option<PathBuf>,
    },
    /// Half of the pods slow down by two; a sender lies.
    Drift,
    /// Kills at random points while a real Envoy serves.
    Crash {
        /// Kills.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        runs: u32,
    },
}

fn main() -> ExitCode {
    xgb::wait_without_spinning();
    match bench(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foretoken-bench-trainer: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &Args) -> Result<()> {
    let xgboost = Xgboost::load(&paths::xgboost()?)?;
    let dir = tempfile::tempdir()?;
    let value = match &args.command {
        Command::Cold { only, start } => {
            let start = start.as_ref().map(std::fs::read).transpose().context("cannot read the model")?;
            let cold = cold::cold(&xgboost, dir.path(), args.seed, only.as_deref(), start.as_deref())?;
            if !args.json {
                for run in &cold.runs {
                    println!(
                        "{}: TTFT off by {:.1} % (prior {:.1} %) with 300 samples, {:.1} % with 5,000; p90 covers {:.1} %, {:.1} % in queues",
                        run.name,
                        run.n300.ttft_mdape * 100.0,
                        run.prior.ttft_mdape * 100.0,
                        run.n5000.ttft_mdape * 100.0,
                        run.all.ttft_p90_coverage * 100.0,
                        run.queued.ttft_p90_coverage * 100.0,
                    );
                }
                println!(
                    "all: {:.1} % with 300 samples, {:.1} % with 5,000",
                    cold.n300_mdape * 100.0,
                    cold.n5000_mdape * 100.0
                );
            }
            json!({"cold": cold})
        }
        Command::Drift => {
            let drift = drift::drift(&xgboost, dir.path(), args.seed)?;
            if !args.json {
                println!(
                    "TTFT off by {:.1} % before, {:.1} % at once, {:.1} % after; under {:.0} % within {}; {} of {} lies believed",
                    drift.before.ttft_mdape * 100.0,
                    drift.at_once.ttft_mdape * 100.0,
                    drift.mdape * 100.0,
                    drift::BOUND * 100.0,
                    drift.recovered_s.map_or("no time".to_owned(), |after_s| format!("{after_s:.0} s")),
                    drift.poison.sent - drift.poison.quarantined,
                    drift.poison.sent,
                );
            }
            json!({"drift": drift})
        }
        Command::Crash { runs } => {
            let runtime = tokio::runtime::Runtime::new()?;
            let runs_dir = paths::run_dir("crash")?;
            let crashes = runtime.block_on(async {
                tokio::select! {
                    crashes = crash::crashes(*runs as usize, args.seed, &runs_dir) => crashes,
                    // Dropping the future ends all that it started.
                    _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
                }
            })?;
            if !args.json {
                println!(
                    "{} kills: {} of {} samples lost; {} of {} requests failed",
                    crashes.runs, crashes.lost, crashes.promised, crashes.failed, crashes.requests
                );
            }
            json!({"crash": crashes})
        }
    };
    if args.json {
        println!("{value}");
    }
    Ok(())
}
