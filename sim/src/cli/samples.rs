//! `foretoken-sim samples`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use foretoken_core::model::Model;
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::lessons::hardware::in_virtual_blocks;
use foretoken_sim::lessons::{Lesson, next_begin_ms, on_drawn_hardware, on_hardware};
use foretoken_sim::workloads::Shape;
use serde_json::json;

use super::common;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    foretoken-sim samples --drawn 70 --out samples.ndjson\n  \
    foretoken-sim samples --profile h100 --profile a100 --seed 11 --out large.ndjson\n  \
    foretoken-sim samples --profile mine.json --model models/starter.onnx --out mine.ndjson --json\n\n\
    Each run is of one kind of traffic at loads from nearly idle to queues that grow, on pods that come and go.\n\
    The same seed gives the same samples.")]
pub(crate) struct Args {
    /// Where the samples go, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// So many runs, each on pods of one to three kinds of hardware drawn at random.
    #[arg(long, value_name = "N", conflicts_with = "profile", required_unless_present = "profile",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    drawn: Option<u32>,
    /// Runs on pods of this profile, built in or a JSON file; given again, of all of them in turn.
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Pods of those, the ones that join late included.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pods: u32,
    /// Only this traffic (repeatable).
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Requests of a run.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    requests: u32,
    /// Sets hardware, traffic, engines and routers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Route by this model instead of the prior.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Print the figures of the runs as one JSON object.
    #[arg(long)]
    json: bool,
}

fn lessons(args: &Args) -> anyhow::Result<Vec<Lesson>> {
    let requests = args.requests as usize;
    let mut lessons = match args.drawn {
        Some(count) => on_drawn_hardware(count as usize, requests, args.seed),
        None => {
            let profiles = args.profile.iter().map(|name| Profile::load(name).map(in_virtual_blocks));
            let profiles: Vec<Profile> = profiles.collect::<Result<_, _>>()?;
            on_hardware(&profiles, args.pods as usize, requests, args.seed)
        }
    };
    if !args.workload.is_empty() {
        let shape = |name: &String| {
            Shape::named(name)
                .with_context(|| format!("no workload `{name}`; `foretoken-sim bench --list` names all"))
        };
        let shapes: Vec<Shape> = args.workload.iter().map(shape).collect::<anyhow::Result<_>>()?;
        lessons.retain(|lesson| shapes.contains(&lesson.shape));
    }
    if lessons.is_empty() {
        bail!("nothing is left to run");
    }
    Ok(lessons)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let lessons = lessons(args)?;
    common::check_outputs(&[("--out", Some(&args.out))])?;
    let model = match &args.model {
        None => None,
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            Some(Arc::new(Model::from_onnx(&bytes).with_context(|| path.display().to_string())?))
        }
    };
    let writing = || format!("writing {}", args.out.display());
    // Under its name there is all of it or nothing, whatever ends the run.
    let mut partial = args.out.clone();
    if args.out.is_file() || !args.out.exists() {
        partial.as_mut_os_string().push(".partial");
    }
    let mut out = BufWriter::new(File::create(&partial).with_context(writing)?);
    let (mut began_ms, mut written, mut runs) = (0, 0, Vec::new());
    for lesson in &lessons {
        let taught = lesson.run(model.as_ref())?;
        for mut sample in taught.samples {
            sample.at_ms += began_ms;
            serde_json::to_writer(&mut out, &sample).with_context(writing)?;
            out.write_all(b"\n").with_context(writing)?;
            written += 1;
        }
        began_ms = next_begin_ms(began_ms, taught.length_ms);
        let figures = taught.figures;
        if !args.json {
            common::print(&format!(
                "{:50} {:>6} requests, {:>4} lost; TTFT {:>8.1} ms, TPOT {:>6.1} ms, E2E {:>9.1} ms\n",
                lesson.name,
                figures.requests,
                figures.lost,
                figures.ttft_ms.mean,
                figures.tpot_ms.mean,
                figures.e2e_ms.mean
            ))?;
        }
        runs.push(json!({
            "name": lesson.name, "requests": figures.requests, "lost": figures.lost, "hit_rate": figures.hit_rate,
            "ttft_ms": figures.ttft_ms, "tpot_ms": figures.tpot_ms, "e2e_ms": figures.e2e_ms,
        }));
    }
    out.flush().with_context(writing)?;
    std::fs::rename(&partial, &args.out).with_context(writing)?;
    common::print(&if args.json {
        format!("{}\n", json!({"out": args.out, "samples": written, "runs": runs}))
    } else {
        format!("{written} samples in {}\n", args.out.display())
    })?;
    Ok(ExitCode::SUCCESS)
}
