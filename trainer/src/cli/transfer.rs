//! `export` and `import`: the samples of a store as Parquet, CSV or NDJSON, and back.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use foretoken_core::sample::Sample;
use foretoken_trainer::export::now_ms;
use foretoken_trainer::store::{Bounds, Store};
use foretoken_trainer::table::files;
use serde_json::json;

/// Most samples of one exported file: it is made in memory.
const MAX_ROWS: usize = 2_000_000;

/// Samples that are appended at a time.
const BATCH: usize = 4096;

/// Write the samples of a store to a file.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer export --data-dir data --to samples.parquet\n  foretoken-trainer export --data-dir data --to s3://bucket/samples.parquet\n\nThe form is told by the name: .parquet, .csv, else NDJSON; docs/samples.md has the schema. A running trainer does\nnot mind: what it has not finished writing is left out. s3://, gs:// and az:// need a build with --features s3, gcs or azure."
)]
pub(super) struct Export {
    /// The trainer's --data-dir.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// File or URL to write.
    #[arg(long, value_name = "PLACE")]
    to: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

impl Export {
    pub(super) fn run(self) -> Result<()> {
        let dir = self.data_dir.join("samples");
        let entries =
            fs::read_dir(&dir).with_context(|| format!("cannot read the store {}", dir.display()))?;
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        paths.sort();
        let runtime = runtime()?;
        let (mut samples, mut rejected): (Vec<Sample>, usize) = (Vec::new(), 0);
        for path in &paths {
            let read = runtime.block_on(files::read(&path.to_string_lossy(), now_ms()))?;
            rejected += read.rejected;
            samples.extend(read.samples.into_iter().map(|(sample, _)| sample));
            if samples.len() > MAX_ROWS {
                bail!(
                    "more than {MAX_ROWS} samples: export single segments with fit's --samples, or lower --store-mib"
                );
            }
        }
        let bytes = runtime.block_on(files::write(&self.to, &samples))?;
        if self.json {
            println!(
                "{}",
                json!({"to": self.to, "samples": samples.len(), "left_out": rejected, "bytes": bytes})
            );
        } else {
            println!(
                "wrote {} samples to {} ({bytes} bytes); {rejected} records left out",
                samples.len(),
                self.to
            );
        }
        Ok(())
    }
}

/// Add the samples of files to a store.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer import --data-dir data --from samples.parquet\n  foretoken-trainer import --data-dir data --from a.csv b.ndjson\n\nNo trainer may run on the store. Samples that it has already are passed over, so an import can be repeated."
)]
pub(super) struct Import {
    /// The trainer's --data-dir.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Files or URLs to read.
    #[arg(long, value_name = "PLACE", required = true, num_args = 1..)]
    from: Vec<String>,
    /// Days after which samples are removed; give what the trainer is started with.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u32).range(1..=3650))]
    store_days: u32,
    /// Most bytes of samples on disk, MiB; give what the trainer is started with.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    store_mib: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Import {
    pub(super) fn run(self) -> Result<()> {
        let bounds = Bounds {
            max_bytes: u64::from(self.store_mib) << 20,
            max_age_ms: u64::from(self.store_days) * 24 * 3600 * 1000,
            sync_interval: Duration::ZERO,
            ..Bounds::default()
        };
        let runtime = runtime()?;
        let mut read = Vec::new();
        let (mut rejected, mut first) = (0, None);
        // All are read before anything is written.
        for place in &self.from {
            let file = runtime.block_on(files::read(place, now_ms()))?;
            rejected += file.rejected;
            first = first.or(file.first.map(|detail| format!("{place}: {detail}")));
            read.extend(file.samples);
        }
        if let (Some(first), true) = (&first, read.is_empty()) {
            bail!("no sample in what was read; the first: {first}");
        }
        read.sort_by_key(|(sample, _)| sample.at_ms);
        let mut store = Store::open(&self.data_dir.join("samples"), bounds, now_ms())?;
        let (mut accepted, mut duplicates, mut quarantined, mut ticket) = (0, 0, 0, 0);
        for batch in read.chunks(BATCH) {
            let appended = store.append(batch, now_ms())?;
            accepted += appended.accepted;
            duplicates += appended.duplicates;
            quarantined += appended.quarantined;
            ticket = appended.ticket;
        }
        let mut progress = store.progress();
        if ticket > 0 {
            let done = runtime
                .block_on(async { progress.wait_for(|p| p.of(ticket).is_some()).await.map(|p| *p) })?;
            if done.of(ticket) != Some(true) {
                bail!("the disk refused to sync the samples; import them again");
            }
        }
        if self.json {
            println!(
                "{}",
                json!({"accepted": accepted, "duplicates": duplicates, "quarantined": quarantined, "rejected": rejected, "first_rejected": first})
            );
        } else {
            println!(
                "{accepted} samples added, {duplicates} were there, {quarantined} not believed, {rejected} rejected"
            );
            if let Some(first) = first {
                println!("the first that was rejected: {first}");
            }
        }
        Ok(())
    }
}
