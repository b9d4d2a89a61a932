//! `foretoken-sim load`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use foretoken_sim::load::report::Summary;
use foretoken_sim::load::{self, Balance, Progress, Report, RunOptions, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim load --target http://127.0.0.1:10000 --workload demo --pods 4 --seconds 40\n  \
    foretoken-sim load --target http://127.0.0.1:8001 --target http://127.0.0.1:8002 --balance least-request\n  \
    foretoken-sim load --target http://127.0.0.1:10000 --workload mine.json --header 'x-foretoken-explain: 1' --json out.json\n\n\
    TTFT: send to the first event with a token. TPOT: (last - first token) / (output tokens - 1).\n\
    Exit code 1 when every request failed or none was sent.")]
pub(crate) struct Args {
    /// Base URL, http://host:port. Several are spread over by --balance.
    #[arg(long = "target", value_name = "URL", required = true)]
    targets: Vec<String>,
    /// How to spread over several targets.
    #[arg(long, value_enum, default_value = "round-robin")]
    balance: BalanceArg,
    /// Preset (demo, shared-prefix, constant) or JSON file.
    #[arg(long, value_name = "NAME|FILE", default_value = "demo")]
    workload: String,
    /// Model to ask for, instead of the workload's.
    #[arg(long)]
    model: Option<String>,
    /// Pods behind the target; multiplies the rates.
    #[arg(long, default_value_t = 4)]
    pods: u32,
    /// Seed: the same one sends the same requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long requests are sent if answers take the assumed time; all are sent and waited for.
    #[arg(long, default_value_t = 40.0, value_name = "S")]
    seconds: f64,
    /// A request that takes longer fails.
    #[arg(long, default_value_t = 120.0, value_name = "S")]
    timeout_s: f64,
    /// Bound of requests in flight.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    max_in_flight: usize,
    /// Header for every request, `name: value`. May be repeated.
    #[arg(long = "header", value_name = "LINE")]
    headers: Vec<String>,
    /// Write the report with all records as JSON; `-` for standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BalanceArg {
    RoundRobin,
    LeastRequest,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut workload = Workload::load(&args.workload)?;
    if let Some(model) = args.model {
        workload.model = model;
    }
    let (stop, stopped) = watch::channel(false);
    let options = RunOptions {
        targets: args.targets,
        balance: match args.balance {
            BalanceArg::RoundRobin => Balance::RoundRobin,
            BalanceArg::LeastRequest => Balance::LeastRequest,
        },
        seed: args.seed,
        seconds: args.seconds,
        pods: args.pods,
        max_in_flight: args.max_in_flight,
        timeout: Duration::try_from_secs_f64(args.timeout_s)
            .context("--timeout-s must be a positive number of seconds")?,
        headers: args.headers,
        stop: Some(stopped),
    };
    let bar = progress_bar();
    let run = load::run(&workload, &options, |progress| show(&bar, progress));
    tokio::pin!(run);
    let report = tokio::select! {
        report = &mut run => report?,
        interrupted = super::interrupted() => {
            interrupted?;
            stop.send_replace(true);
            run.await?
        }
    };
    bar.finish_and_clear();
    write(&report, args.json.as_deref())?;
    Ok(if report.requests > report.failed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} requests, {msg}") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
    bar.set_message(format!(
        "{} in flight, {} failed, {:.0} s",
        progress.in_flight, progress.failed, progress.seconds
    ));
}

fn write(report: &Report, json: Option<&Path>) -> anyhow::Result<()> {
    match json {
        Some(path) if path == Path::new("-") => println!("{}", serde_json::to_string(report)?),
        Some(path) => {
            let text = serde_json::to_vec(report)?;
            std::fs::write(path, text)
                .with_context(|| format!("writing the report to {}", path.display()))?;
            print_table(report);
        }
        None => print_table(report),
    }
    Ok(())
}

fn print_table(report: &Report) {
    println!(
        "{}: {} requests in {:.1} s ({:.1}/s), {} failed, {:.0} % of prompt tokens cached",
        report.workload,
        report.requests,
        report.duration_s,
        report.requests_per_second,
        report.failed,
        report.cached_share * 100.0
    );
    println!("{:8} {:>9} {:>9} {:>9} {:>9}", "ms", "mean", "p50", "p90", "p99");
    let line = |name, times: &Summary| {
        println!("{name:8} {:>9.1} {:>9.1} {:>9.1} {:>9.1}", times.mean, times.p50, times.p90, times.p99);
    };
    line("TTFT", &report.ttft_ms);
    line("TPOT", &report.tpot_ms);
    line("E2E", &report.e2e_ms);
    for (reason, count) in &report.failures {
        println!("failed {count} times: {reason}");
    }
    for (pod, of_pod) in &report.by_pod {
        println!(
            "{pod}: {} requests, TTFT mean {:.1} ms, {:.0} % cached",
            of_pod.requests,
            of_pod.ttft_mean_ms,
            of_pod.cached_share * 100.0
        );
    }
}
