//! Where the scripts put what the harness starts.
//!
//! Everything outside the crates lies in the ignored folder `.foretoken/` of the repository; binaries lie
//! in cargo's target folder. A missing file is an error that names the script to run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

/// The two builds of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The reader of the contract's ONNX subset.
    Default,
    /// The reader of any ONNX graph, through tract.
    Tract,
}

/// The repository's root.
#[must_use]
pub fn root() -> &'static Path {
    // This crate's folder is a direct child of the root.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The Envoy binary.
///
/// # Errors
/// When it is not installed.
pub fn envoy() -> Result<PathBuf> {
    existing(root().join(".foretoken/envoy/envoy"), "scripts/setup")
}

/// The filter as wasm.
///
/// # Errors
/// When it is not built.
pub fn module(flavour: Flavour) -> Result<PathBuf> {
    match flavour {
        Flavour::Default => existing(root().join(".foretoken/wasm/foretoken.wasm"), "scripts/build"),
        Flavour::Tract => {
            existing(root().join(".foretoken/wasm/foretoken-tract.wasm"), "scripts/build --tract")
        }
    }
}

/// The trainer's binary.
///
/// # Errors
/// When it is not built.
pub fn trainer() -> Result<PathBuf> {
    existing(target().join("release/foretoken-trainer"), "scripts/build")
}

/// The XGBoost library.
///
/// # Errors
/// When it is not installed.
pub fn xgboost() -> Result<PathBuf> {
    existing(root().join(".foretoken/xgboost/xgboost/lib/libxgboost.so"), "scripts/setup")
}

/// A headless Chromium.
///
/// # Errors
/// When it is not installed.
pub fn chromium() -> Result<PathBuf> {
    existing(root().join(".foretoken/chromium/chromium"), "scripts/setup --browser")
}

/// Python with llama.cpp in it.
///
/// # Errors
/// When it is not installed.
pub fn engines_python() -> Result<PathBuf> {
    existing(root().join(".foretoken/engines/bin/python"), "scripts/setup --engines")
}

/// The tiny GGUF model with this many layers (2 or 4).
///
/// # Errors
/// When it has not been written.
pub fn tiny_model(layers: u32) -> Result<PathBuf> {
    existing(root().join(format!(".foretoken/models/tiny-{layers}.gguf")), "scripts/setup --engines")
}

/// A folder for logs and other leavings of this run; it stays for a day, so that a failure can be looked into.
///
/// # Errors
/// When it cannot be made.
pub fn run_dir(name: &str) -> Result<PathBuf> {
    let runs = root().join(".foretoken/runs");
    let dir = runs.join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    forget_old(&runs);
    Ok(dir)
}

/// Removes what is older than a day. Another run may be doing the same, so failures are left to it.
fn forget_old(runs: &Path) {
    const KEPT: Duration = Duration::from_secs(24 * 3600);
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > KEPT) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

fn existing(path: PathBuf, script: &str) -> Result<PathBuf> {
    if !path.exists() {
        bail!("{} is missing: run {script}", path.display());
    }
    Ok(path)
}
