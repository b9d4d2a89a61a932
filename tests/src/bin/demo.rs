//! The demo's command line; `scripts/demo` sets up, builds and calls it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use foretoken_tests::demo::{Engine, Options, play, table};
use tokio::signal::unix::{SignalKind, signal};

/// Shows foretoken at work: one workload routed three ways, in a real Envoy.
#[derive(Debug, Parser)]
#[command(
    name = "foretoken-demo",
    after_help = "Examples:\n  foretoken-demo\n  foretoken-demo --engine llamacpp --json result.json\n  foretoken-demo --pods 8 --seconds 30 --seed 2\n\nExit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."
)]
struct Args {
    /// What answers the requests.
    #[arg(long, value_enum, default_value = "sim")]
    engine: Engine,
    /// Number of pods; 4 simulated or 3 llama.cpp servers unless given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pods: Option<u32>,
    /// Seconds in which each phase sends requests.
    #[arg(long, default_value_t = 45.0, value_parser = seconds)]
    seconds: f64,
    /// Seed of the workload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (10.0..=3600.0).contains(seconds))
        .ok_or("use 10 to 3600".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::select! {
        outcome = demo(&args) => outcome,
        // Dropping the demo's future ends all that it started.
        interrupted = interrupted() => {
            return match interrupted {
                Ok(()) => {
                    eprintln!("demo: interrupted; everything it started is ended");
                    ExitCode::from(130)
                }
                Err(error) => fail(&error),
            };
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn demo(args: &Args) -> Result<()> {
    let pods = args.pods.unwrap_or(match args.engine {
        Engine::Sim => 4,
        Engine::Llamacpp => 3,
    });
    let options =
        Options { engine: args.engine, pods: pods as usize, seconds: args.seconds, seed: args.seed };
    // Opened first: a path that cannot be written should not cost a whole run.
    let json = args.json.as_ref().map(|path| {
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
        opened.map(|_| path).with_context(|| format!("cannot write {}", path.display()))
    });
    let json = json.transpose()?;
    let result = play(&options).await?;
    println!("{}", table(&result));
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&result)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("demo: error: {error:#}");
    ExitCode::FAILURE
}
