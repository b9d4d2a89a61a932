//! `foretoken-sim profiles`.

use std::process::ExitCode;

use foretoken_sim::engine::profile::{BUILT_IN, Profile};
use foretoken_sim::load::Workload;
use foretoken_sim::load::workload::PRESETS;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim profiles\n  \
    foretoken-sim profiles --json     (complete objects to copy into files of your own)")]
pub(crate) struct Args {
    /// Print the complete profiles and workloads.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let profiles: Vec<Profile> = BUILT_IN.iter().filter_map(|name| Profile::built_in(name)).collect();
    let workloads: Vec<Workload> = PRESETS.iter().filter_map(|name| Workload::preset(name)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json!({"profiles": profiles, "workloads": workloads}))?);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:8} {:>9} {:>17} {:>14} {:>12}",
        "profile", "floor ms", "prefill ms/token", "decode ms/seq", "KV tokens"
    );
    for profile in &profiles {
        println!(
            "{:8} {:>9} {:>17} {:>14} {:>12}",
            profile.name,
            profile.floor_ms,
            profile.prefill_ms_per_token,
            profile.decode_ms_per_seq,
            profile.kv_capacity_tokens()
        );
    }
    println!("workloads: {}", PRESETS.join(", "));
    Ok(ExitCode::SUCCESS)
}
