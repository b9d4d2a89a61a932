//! What commands that run policies share: numbers that are checked, outputs that are checked before the work, the
//! trainer, and a scratch folder.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use foretoken_sim::bench::fit::Trainer;

/// A number within bounds; for clap.
fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("write a number from {least} to {most}"))?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        Err(format!("it must be from {least} to {most}"))
    }
}

/// A share of a load or a number of requests.
pub(super) fn share(text: &str) -> Result<f64, String> {
    within(text, 0.001, 100.0)
}

/// Requests a second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    within(text, 0.001, 1e6)
}

/// Refuses outputs that could not be written, before anything is run for them.
pub(super) fn check_outputs(outputs: &[(&str, Option<&Path>)]) -> anyhow::Result<()> {
    let mut seen: Vec<&Path> = Vec::new();
    for (option, path) in outputs.iter().filter_map(|(option, path)| Some((option, (*path)?))) {
        if path.is_dir() {
            bail!("{option} {} is a folder; name a file", path.display());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!("{option} {}: there is no folder {}; make it first", path.display(), folder.display());
        }
        if seen.contains(&path) {
            bail!("{option} {}: another option writes there, too", path.display());
        }
        seen.push(path);
    }
    Ok(())
}

/// Writes to standard output. Who closed it wants no more of it, and that is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}

/// The trainer that was named, else the one beside this program; says so where there is none.
pub(super) fn trainer(
    named: Option<&Path>,
    xgboost: Option<&Path>,
    scratch: &Scratch,
) -> anyhow::Result<Option<Trainer>> {
    for (option, path) in [("--trainer", named), ("--xgboost", xgboost)] {
        if let Some(path) = path.filter(|path| !path.is_file()) {
            bail!("{option} {}: there is no such file", path.display());
        }
    }
    let mut arguments = Vec::new();
    if let Some(library) = xgboost {
        arguments.extend(["--xgboost-lib".to_owned(), library.display().to_string()]);
    }
    let binary = named.map(Path::to_owned).or_else(Trainer::beside);
    if binary.is_none() {
        eprintln!(
            "foretoken-sim: no foretoken-trainer here, so foretoken runs untrained; give it with --trainer"
        );
    }
    Ok(binary.map(|binary| Trainer::new(&binary, &scratch.0, arguments)))
}

/// Says which policy ran untrained though there is a trainer, and why.
pub(super) fn tell_untrained(cells: &[foretoken_sim::bench::Cell]) {
    let untrained = |cell: &&foretoken_sim::bench::Cell| cell.by_model == 0.0 && cell.fit_refused.is_some();
    if let Some(cell) = cells.iter().find(untrained) {
        let reason = cell.fit_refused.as_deref().unwrap_or_default();
        eprintln!("foretoken-sim: {} on {} ran untrained: {reason}", cell.policy, cell.workload);
    }
}

/// A folder for the files of fits, gone at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(command: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("foretoken-{command}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing is lost with what cannot be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
