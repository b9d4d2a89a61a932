//! Figures of what the filter measures and shares, in a real Envoy; `scripts/bench state` calls it.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use foretoken_tests::measure::{self, Answers};
use foretoken_tests::paths;
use serde_json::json;

/// Measures what the filter measures, and what its workers share.
#[derive(Debug, Parser)]
#[command(
    name = "foretoken-bench-state",
    after_help = "Examples:\n  foretoken-bench-state measure --json\n  foretoken-bench-state workers --seconds 60 --rounds 3\n\nExit status: 0 done, 1 failed, 2 wrong usage."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// One JSON object on standard output.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// TTFT and TPOT of the filter's samples against what the client measures.
    Measure {
        /// Streamed requests, for single events and again for coalesced ones.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=20_000))]
        requests: u32,
    },
    /// Mean end-to-end time of one load with one worker and with two.
    Workers {
        /// Seconds of each run.
        #[arg(long, default_value_t = 30.0)]
        seconds: f64,
        /// Pairs of runs, each with its own seed.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
        rounds: u64,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    foretoken_tests::to_exit_code("foretoken-bench-state", bench(&args)).await
}

async fn bench(args: &Args) -> Result<()> {
    let dir = paths::run_dir("bench-state")?;
    match args.command {
        Command::Measure { requests } => {
            let single = measure::agreement(requests as usize, Answers::Single, &dir).await?;
            let coalesced = measure::agreement(requests as usize, Answers::Coalesced, &dir).await?;
            if args.json {
                let mut value = serde_json::to_value(&single)?;
                value["coalesced"] = serde_json::to_value(&coalesced)?;
                println!("{}", json!({"measure": value}));
            } else {
                for (name, figures) in [("single events", single), ("coalesced events", coalesced)] {
                    println!(
                        "{name}: {} requests; TTFT off by {:.2} ms (p50), {:.2} ms (p99); TPOT off by {:.2} % (p50), {:.2} % (p99); within 2 ms or 2 %: {:.1} % and {:.1} %",
                        figures.requests,
                        figures.ttft_abs_ms_p50,
                        figures.ttft_abs_ms_p99,
                        figures.tpot_rel_p50 * 100.0,
                        figures.tpot_rel_p99 * 100.0,
                        figures.ttft_near * 100.0,
                        figures.tpot_near * 100.0,
                    );
                }
            }
        }
        Command::Workers { seconds, rounds } => {
            let figures = measure::workers(seconds, rounds, &dir).await?;
            if args.json {
                println!("{}", json!({"workers": figures}));
            } else {
                println!(
                    "mean E2E: one worker {:.1} ms, two workers {:.1} ms ({:+.1} %)",
                    figures.one_e2e_ms,
                    figures.two_e2e_ms,
                    (figures.two_e2e_ms / figures.one_e2e_ms - 1.0) * 100.0
                );
            }
        }
    }
    Ok(())
}
