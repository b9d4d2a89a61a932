//! The command line; thin over the library.

mod bench;
mod calibrate;
mod common;
mod load;
mod pods;
mod profiles;
mod replay;
mod samples;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Pods without a GPU, and the load that makes them queue.
#[derive(Debug, Parser)]
#[command(
    name = "foretoken-sim",
    version,
    after_help = "Examples:\n  \
        foretoken-sim pods --profile fast --profile slow --count 4 --json\n  \
        foretoken-sim load --target http://127.0.0.1:10000 --workload demo --pods 4 --seconds 40 --json report.json\n  \
        foretoken-sim bench --quick --json bench.json --html bench.html\n  \
        foretoken-sim replay trace.csv --pods 8\n  \
        foretoken-sim samples --drawn 70 --out samples.ndjson\n  \
        foretoken-sim profiles --json > profiles.json"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start OpenAI-compatible pods and serve until interrupted.
    Pods(pods::Args),
    /// Play a workload against a base URL and report TTFT, TPOT and E2E.
    Load(load::Args),
    /// Run every policy on every traffic in virtual time, and report.
    Bench(Box<bench::Args>),
    /// Play a trace against policies in virtual time, and say which would have served it best.
    Replay(replay::Args),
    /// Write the samples of runs in virtual time, for the trainer's `fit` and `eval`.
    Samples(samples::Args),
    /// Fit the step time to published measurements, and say how well it fits.
    Calibrate(calibrate::Args),
    /// List the built-in hardware profiles and workloads.
    Profiles(profiles::Args),
}

/// Runs the command.
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Pods(args) => runtime()?.block_on(pods::run(args)),
        Command::Load(args) => runtime()?.block_on(load::run(args)),
        Command::Bench(args) => bench::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Samples(args) => samples::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Profiles(args) => profiles::run(&args),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        // Pods and load share a small machine with a proxy; more workers only cost wake-ups.
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the async runtime")
}

/// Resolves on Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .context("listening for SIGTERM")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("listening for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}
