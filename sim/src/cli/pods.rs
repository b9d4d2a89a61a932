//! `foretoken-sim pods`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::pod::{DEFAULT_MODEL, LivePod, PodOptions};
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim pods --profile fast --count 2\n  \
    foretoken-sim pods --profile fast --profile slow --ports 8001,8002 --json\n  \
    foretoken-sim pods --profile my-card.json --model llama --sim-endpoints\n\n\
    When all pods listen, one line is printed: with --json {\"pods\":[{\"address\":...}]}, else one line a pod.")]
pub(crate) struct Args {
    /// Hardware: a built-in name (see `profiles`) or a JSON file. Several are taken in turn.
    #[arg(long = "profile", value_name = "NAME|FILE", default_value = "fast")]
    profiles: Vec<String>,
    /// Number of pods; by default one for each port, or for each profile.
    #[arg(long, value_name = "N")]
    count: Option<usize>,
    /// Ports on the loopback address; 0 for any.
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    ports: Vec<u16>,
    /// Model that the pods serve.
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Seed of the step times.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Offer POST /sim/fault and POST /sim/reset.
    #[arg(long)]
    sim_endpoints: bool,
    /// Print the addresses as one JSON line.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profiles = args.profiles.iter().map(|name| Profile::load(name)).collect::<Result<Vec<_>, _>>()?;
    let count = args.count.unwrap_or(if args.ports.is_empty() { profiles.len() } else { args.ports.len() });
    if count == 0 || (!args.ports.is_empty() && args.ports.len() != count) {
        bail!(
            "--count is {count} and --ports names {}: give one port for each pod, or leave one of them out",
            args.ports.len()
        );
    }
    let mut pods = Vec::with_capacity(count);
    for at in 0..count {
        let options = PodOptions {
            model: args.model.clone(),
            port: args.ports.get(at).copied().unwrap_or(0),
            seed: args.seed.wrapping_add(at as u64),
            sim_endpoints: args.sim_endpoints,
            ..PodOptions::new(profiles[at % profiles.len()].clone())
        };
        pods.push(LivePod::start(options).await.with_context(|| format!("starting pod {at}"))?);
    }
    announce(&args, &pods)?;
    super::interrupted().await?;
    Ok(ExitCode::SUCCESS)
}

fn announce(args: &Args, pods: &[LivePod]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let list: Vec<_> = pods
            .iter()
            .map(|pod| json!({"address": pod.addr().to_string(), "profile": pod.profile().name, "model": args.model}))
            .collect();
        writeln!(out, "{}", json!({"pods": list}))?;
    } else {
        for pod in pods {
            writeln!(out, "{}  profile {}  model {}", pod.url(), pod.profile().name, args.model)?;
        }
    }
    Ok(out.flush()?)
}
