//! The command line: one module a subcommand.

mod convert;
mod eval;
mod fit;
mod golden;
mod inspect;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod serve;
mod transfer;
mod versions;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use foretoken_trainer::xgb::{LIBRARY_IN_REPOSITORY, LIBRARY_VARIABLE, Xgboost};

/// Fits XGBoost on foretoken samples, converts it to ONNX, proves that both are the same, publishes it to Envoy.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  foretoken-trainer serve --filter-config foretoken.json --module foretoken.wasm --data-dir data\n  foretoken-trainer fit --samples data/samples/*.log --out model.onnx\n  foretoken-trainer inspect model.onnx\n  foretoken-trainer push models/starter.onnx --data-dir data\n  foretoken-trainer versions --data-dir data\n  foretoken-trainer rollback --server http://127.0.0.1:9100\n\nExit status: 0 done, 1 failed, 2 wrong usage. RUST_LOG sets what is logged to stderr (default info)."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // It has many options.
    Serve(Box<serve::Serve>),
    Export(transfer::Export),
    Import(transfer::Import),
    Fit(fit::Fit),
    Eval(eval::Eval),
    Convert(convert::Convert),
    Inspect(inspect::Inspect),
    Versions(versions::Versions),
    Show(versions::Show),
    Push(versions::Push),
    Promote(versions::Promote),
    Rollback(versions::Rollback),
    Diff(versions::Diff),
    Golden(golden::Golden),
}

/// Runs a command.
///
/// # Errors
/// What went wrong, with where and what to do.
pub(crate) fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
        Command::Fit(fit) => fit.run(),
        Command::Eval(eval) => eval.run(),
        Command::Convert(convert) => convert.run(),
        Command::Inspect(inspect) => inspect.run(),
        Command::Versions(versions) => versions.run(),
        Command::Show(show) => show.run(),
        Command::Push(push) => push.run(),
        Command::Promote(promote) => promote.run(),
        Command::Rollback(rollback) => rollback.run(),
        Command::Diff(diff) => diff.run(),
        Command::Golden(golden) => golden.run(),
    }
}

/// Where XGBoost is.
#[derive(Debug, Args)]
struct Library {
    /// libxgboost.so of the xgboost-cpu 3.4.1 wheel; the one that scripts/setup installed unless given.
    #[arg(long, value_name = "PATH", env = LIBRARY_VARIABLE, default_value = LIBRARY_IN_REPOSITORY)]
    xgboost_lib: PathBuf,
}

impl Library {
    fn load(&self) -> Result<Xgboost> {
        Ok(Xgboost::load(&self.xgboost_lib)?)
    }
}

/// How a model is fitted.
#[derive(Debug, Args)]
struct FitArgs {
    /// Most rounds of boosting; each adds a tree for the median and one for the 90th percentile.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_rounds: u16,
    /// Deepest tree.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=10))]
    max_depth: u8,
    /// Threads of XGBoost.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Weight of the oldest sample, the newest has 1: less follows a change sooner, 1 forgets nothing.
    #[arg(long, default_value_t = 0.25, value_parser = weight)]
    oldest_weight: f32,
}

fn weight(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| "a number above 0, at most 1".to_owned())
}

impl FitArgs {
    fn options(&self) -> foretoken_trainer::fit::FitOptions {
        foretoken_trainer::fit::FitOptions {
            max_rounds: self.max_rounds,
            max_depth: self.max_depth,
            threads: self.threads,
            oldest_weight: self.oldest_weight,
            ..Default::default()
        }
    }
}
