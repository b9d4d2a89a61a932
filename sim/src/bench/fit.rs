//! Models from the trainer's own `fit` command: the code that a deployment runs, as a process.
//!
//! The simulator knows core alone; the trainer brings XGBoost. So the two meet where users meet them: samples
//! as lines of JSON in a file, a model as ONNX in another.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foretoken_core::model::Model;
use foretoken_core::sample::Sample;

use crate::virtual_time::foretoken::Fit;

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// What of the trainer's answer matters here.
#[derive(serde::Deserialize)]
struct Said {
    /// Why the service would not publish the model.
    refused: Vec<String>,
}

/// `foretoken-trainer fit`, called for each model.
#[derive(Debug, Clone)]
pub struct Trainer {
    binary: PathBuf,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl Trainer {
    /// The trainer's binary, and a folder for the files of a fit, which are removed again.
    #[must_use]
    pub fn new(binary: &Path, folder: &Path, arguments: Vec<String>) -> Self {
        Self { binary: binary.to_owned(), folder: folder.to_owned(), arguments }
    }

    /// The trainer beside this executable, where it is.
    #[must_use]
    pub fn beside() -> Option<PathBuf> {
        let path = std::env::current_exe().ok()?.with_file_name("foretoken-trainer");
        path.is_file().then_some(path)
    }
}

impl Fit for Trainer {
    fn fit(&mut self, samples: &[Sample]) -> Result<Arc<Model>, String> {
        // Unique among the threads of this process; the process is in the folder's name.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let lines = self.folder.join(format!("{serial}.ndjson"));
        let onnx = self.folder.join(format!("{serial}.onnx"));
        let result = self.fit_files(samples, &lines, &onnx);
        for path in [&lines, &onnx] {
            // What was never written need not be removed.
            let _ = std::fs::remove_file(path);
        }
        result
    }
}

impl Trainer {
    fn fit_files(&self, samples: &[Sample], lines: &Path, onnx: &Path) -> Result<Arc<Model>, String> {
        let mut text = Vec::with_capacity(samples.len() * 600);
        for sample in samples {
            serde_json::to_writer(&mut text, sample).map_err(|error| error.to_string())?;
            text.push(b'\n');
        }
        std::fs::File::create(lines)
            .and_then(|mut file| file.write_all(&text))
            .map_err(|error| format!("cannot write {}: {error}", lines.display()))?;
        let output = Command::new(&self.binary)
            .arg("fit")
            .arg("--samples")
            .arg(lines)
            .arg("--out")
            .arg(onnx)
            .arg("--json")
            .args(&self.arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run {}: {error}", self.binary.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        // What the service would not publish is not routed by here either.
        let said: Said = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("the trainer's answer is not the JSON of a fit: {error}"))?;
        if !said.refused.is_empty() {
            return Err(format!("not published: {}", said.refused.join("; ")));
        }
        let bytes =
            std::fs::read(onnx).map_err(|error| format!("cannot read {}: {error}", onnx.display()))?;
        Model::from_onnx(&bytes).map(Arc::new).map_err(|error| error.to_string())
    }
}
