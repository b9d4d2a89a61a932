//! `foretoken-sim calibrate`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use foretoken_sim::calibrate::{Coefficients, Fit, fit_silicon, fit_splitwise, judge_splitwise, tables};
use foretoken_sim::engine::profile::Profile;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim calibrate --splitwise splitwise-perf-model.csv.gz\n  \
    foretoken-sim calibrate --silicon aiconfigurator-silicon-agg.csv.gz --json")]
pub(crate) struct Args {
    /// Table of prompt and token times by prompt size and batch.
    #[arg(long, value_name = "FILE")]
    splitwise: Option<PathBuf>,
    /// Table of TTFT and TPOT by concurrency.
    #[arg(long, value_name = "FILE")]
    silicon: Option<PathBuf>,
    /// Print all fits as JSON.
    #[arg(long)]
    json: bool,
}

/// Groups that a built-in profile stands for.
const BUILT_IN: [(&str, &str); 2] =
    [("h100", "splitwise llama2-70b h100-80gb tp8"), ("a100", "splitwise llama2-70b a100-80gb tp8")];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.splitwise.is_none() && args.silicon.is_none() {
        bail!("nothing to fit to; give --splitwise or --silicon");
    }
    let mut fits = Vec::new();
    let mut judged = Vec::new();
    if let Some(path) = &args.splitwise {
        let rows = tables::splitwise(path)?;
        fits.extend(fit_splitwise(&rows));
        for (name, group) in BUILT_IN {
            let Some(profile) = Profile::built_in(name) else { continue };
            let coefficients = Coefficients {
                floor_ms: profile.floor_ms,
                prefill_ms_per_token: profile.prefill_ms_per_token,
                attention_ms_per_token2: profile.attention_ms_per_token2,
                decode_ms_per_seq: profile.decode_ms_per_seq,
                decode_ms_per_context_token: profile.decode_ms_per_context_token,
                start_ms_per_token: 0.0,
            };
            if let Some((prompt, token)) = judge_splitwise(&rows, group, &coefficients) {
                judged.push((name, group, prompt, token));
            }
        }
    }
    if let Some(path) = &args.silicon {
        fits.extend(fit_silicon(&tables::silicon(path)?));
    }
    if args.json {
        let judged: Vec<_> = judged
            .iter()
            .map(|(name, group, prompt, token)| {
                json!({"profile": name, "group": group, "first_error": prompt, "token_error": token})
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&json!({"fits": fits, "built_in": judged}))?);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:62} {:>6} {:>8} {:>9} {:>10} {:>8} {:>10} | {:>6} {:>6} {:>6}",
        "group", "points", "floor", "prefill", "attention", "seq", "context", "first", "token", "unseen"
    );
    fits.iter().for_each(line);
    for (name, group, prompt, token) in judged {
        println!(
            "built-in {name} against {group}: prompt times {:.1} %, token times {:.1} %",
            100.0 * prompt,
            100.0 * token
        );
    }
    println!(
        "(errors: median absolute relative, in percent; unseen: each tenth predicted by a fit to the others)"
    );
    Ok(ExitCode::SUCCESS)
}

fn line(fit: &Fit) {
    let c = &fit.coefficients;
    println!(
        "{:62} {:>6} {:>8.2} {:>9.4} {:>10.2e} {:>8.3} {:>10.2e} | {:>6.1} {:>6.1} {:>6.1}",
        fit.group,
        fit.points,
        c.floor_ms,
        c.prefill_ms_per_token,
        c.attention_ms_per_token2,
        c.decode_ms_per_seq,
        c.decode_ms_per_context_token,
        100.0 * fit.first_error,
        100.0 * fit.token_error,
        100.0 * fit.left_out_error
    );
}
