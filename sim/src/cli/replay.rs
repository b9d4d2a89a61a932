//! `foretoken-sim replay`: which policy would have served a trace of the user's own best.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use foretoken_sim::bench::cell::{Cell, CellSpec, JUDGED, run_cell};
use foretoken_sim::bench::policies::{Models, make};
use foretoken_sim::bench::pool::Pool;
use foretoken_sim::bench::traffic::{Source, Traffic};
use foretoken_sim::workloads::{TraceRow, read_file};

use super::common::{self, Scratch};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim replay trace.csv --pods 8\n  \
    foretoken-sim replay mooncake.jsonl --scale 8 --pods 16 --pool mixed --rate 40 --json replay.json\n\n\
    Formats: Azure CSV, BurstGPT CSV, Mooncake and Bailian JSON lines, or `arrival_ms,input_tokens,output_tokens`;\n\
    plain or gzipped; in any order. What exceeds 120,000 tokens of prompt and answer is cut.")]
pub(crate) struct Args {
    /// The trace.
    file: PathBuf,
    /// Pods.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pods: u16,
    /// Their hardware: equal or mixed.
    #[arg(long, default_value = "equal", value_parser = ["equal", "mixed"])]
    pool: String,
    /// Token counts are divided by this.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    scale: u32,
    /// Requests a second, on average; as in the trace when absent.
    #[arg(long, value_parser = common::rate)]
    rate: Option<f64>,
    /// At most this many requests, the first of the trace.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(2..))]
    limit: u32,
    /// Tokens that a pod's KV cache holds.
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(4096..))]
    kv_tokens: u32,
    /// Policy to try (repeatable); all practical ones when absent.
    #[arg(long)]
    policy: Vec<String>,
    /// `foretoken-trainer`, whose `fit` makes the models; else the one beside this program.
    #[arg(long, value_name = "FILE", env = "FORETOKEN_TRAINER")]
    trainer: Option<PathBuf>,
    /// libxgboost for the trainer.
    #[arg(long, value_name = "FILE")]
    xgboost: Option<PathBuf>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    common::check_outputs(&[("--json", args.json.as_deref())])?;
    let mut rows = read_file(&args.file)?;
    if rows.len() < 2 {
        bail!("{} has {} requests; a replay needs at least 2", args.file.display(), rows.len());
    }
    rows.truncate(args.limit as usize);
    let count = rows.len();
    let of = |row: Option<&TraceRow>| row.map_or(0, |row| row.arrival_us);
    let native = count as f64 / ((of(rows.last()) - of(rows.first())) as f64 / 1e6).max(1.0);
    let traffic = Traffic {
        name: args.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        source: Source::Trace { rows: Arc::new(rows), scale: args.scale },
        kv_tokens: args.kv_tokens,
        max_batched_tokens: 2048,
        requests_per_pod: 0,
        pod_rate: 1.0,
    };
    let scratch = Scratch::new("replay")?;
    let models = Models {
        trainer: common::trainer(args.trainer.as_deref(), args.xgboost.as_deref(), &scratch)?,
        ..Models::default()
    };
    let policies = if args.policy.is_empty() {
        ["foretoken", "gie-default", "sticky", "radix", "kv-cost", "queue-kv", "least-request", "round-robin"]
            .map(str::to_owned)
            .to_vec()
    } else {
        args.policy.clone()
    };
    for policy in &policies {
        make(policy, 1, 1, &models, 0).context("--policy")?;
    }
    let mut cells = Vec::new();
    for policy in policies {
        let spec = CellSpec {
            traffic: &traffic,
            load: 1.0,
            rate: args.rate.unwrap_or(native),
            requests: count,
            pods: args.pods.into(),
            pool: if args.pool == "mixed" { Pool::Mixed } else { Pool::Equal },
            policy,
            seed: 1,
            judged: JUDGED,
            event: None,
        };
        cells.push(run_cell(&spec, &models)?);
    }
    common::tell_untrained(&cells);
    cells.sort_by(|a, b| a.e2e_ms.mean.total_cmp(&b.e2e_ms.mean));
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&cells)?)
            .with_context(|| format!("writing --json {}", path.display()))?;
    }
    let mut text = table(&cells);
    let least = |of: fn(&Cell) -> f64| cells.iter().min_by(|a, b| of(a).total_cmp(&of(b)));
    if let (Some(e2e), Some(ttft)) = (least(|cell| cell.e2e_ms.mean), least(|cell| cell.ttft_ms.p99)) {
        text +=
            &format!("least mean time to the last token: {}; least p99 TTFT: {}\n", e2e.policy, ttft.policy);
    }
    common::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Cells, a line each.
pub(crate) fn table(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:16} {:>4} {:>4} {:5} {:25} {:>4} | {:>8} {:>8} {:>8} | {:>7} {:>7} | {:>9} {:>9} | {:>4} {:>5} {:>4}\n",
        "workload",
        "load",
        "pods",
        "pool",
        "policy",
        "seed",
        "TTFT ms",
        "p50",
        "p99",
        "TPOT ms",
        "p90",
        "E2E ms",
        "p90",
        "hits",
        "SLO",
        "lost"
    );
    for cell in cells {
        text += &format!(
            "{:16.16} {:>4.2} {:>4} {:5} {:25} {:>4} | {:>8.0} {:>8.0} {:>8.0} | {:>7.1} {:>7.1} | {:>9.0} {:>9.0} | \
             {:>4.2} {:>5.3} {:>4}\n",
            cell.workload,
            cell.load,
            cell.pods,
            cell.pool.name(),
            cell.policy,
            cell.seed,
            cell.ttft_ms.mean,
            cell.ttft_ms.p50,
            cell.ttft_ms.p99,
            cell.tpot_ms.mean,
            cell.tpot_ms.p90,
            cell.e2e_ms.mean,
            cell.e2e_ms.p90,
            cell.hit_rate,
            cell.slo_attainment,
            cell.lost
        );
    }
    text
}
