//! What has been published, kept across restarts: the model files, and the generation that must only rise.
//!
//! Workers compare generations, so a trainer that forgot its last one would push models that they take for
//! old. A version is committed by its small JSON file, written after the model and by rename: a crash leaves
//! either the whole version or none of it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use foretoken_core::model::Model;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Versions kept on disk.
const KEEP: usize = 20;

/// What went wrong with the registry.
#[derive(Debug, Error)]
#[error("{what} {path}: {cause}")]
pub struct RegistryError {
    what: &'static str,
    path: PathBuf,
    cause: io::Error,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |cause| RegistryError { what: "model registry", path, cause }
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |cause| {
        // The temporary file's error names that file, of which nobody has heard.
        let temporary = cause.kind() != io::ErrorKind::Other && cause.get_ref().is_some();
        let cause = if temporary { cause.kind().into() } else { cause };
        RegistryError { what: "cannot write", path: path.clone(), cause }
    }
}

/// The folder that a file is in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether the folder of a file that is to be written later is there, to say so before the work and not after.
///
/// # Errors
/// [`RegistryError`] names the file and the folder.
pub fn check_folder(path: &Path) -> Result<(), RegistryError> {
    let dir = folder(path);
    if dir.is_dir() {
        return Ok(());
    }
    let cause = io::Error::other(format!("there is no folder {}; make it first", dir.display()));
    Err(cannot_write(path)(cause))
}

/// One published version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// Generation; rises with every publish.
    pub generation: u64,
    /// Id of the model.
    pub model_id: String,
    /// When it was published, ms since the Unix epoch.
    pub published_ms: u64,
    /// Newest sample that it learned from, ms since the Unix epoch.
    pub trained_through_ms: u64,
    /// Its scores when it was published.
    pub scores: serde_json::Value,
}

/// The published versions in a directory.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
    last_generation: u64,
    current: Option<(Version, Vec<u8>)>,
}

impl Registry {
    /// Opens or makes the registry. The newest version that this build can read is the current one; the
    /// generation goes on from the newest of all.
    ///
    /// # Errors
    /// [`RegistryError`] when the directory cannot be read.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        fs::create_dir_all(dir).map_err(at(dir))?;
        let generations = generations(dir)?;
        let last_generation = generations.last().copied().unwrap_or(0);
        let current = generations.iter().rev().find_map(|&generation| {
            let version: Version =
                serde_json::from_slice(&fs::read(json_path(dir, generation)).ok()?).ok()?;
            let onnx = fs::read(onnx_path(dir, generation)).ok()?;
            match Model::from_onnx_lean(&onnx) {
                Ok(_) => Some((version, onnx)),
                Err(error) => {
                    tracing::warn!(generation, %error, "a published model is no longer readable");
                    None
                }
            }
        });
        Ok(Self { dir: dir.to_owned(), last_generation, current })
    }

    /// The newest generation, 0 before the first.
    #[must_use]
    pub fn last_generation(&self) -> u64 {
        self.last_generation
    }

    /// The version that serves, with its ONNX file.
    #[must_use]
    pub fn current(&self) -> Option<(&Version, &[u8])> {
        self.current.as_ref().map(|(version, onnx)| (version, onnx.as_slice()))
    }

    /// Adds a version of the next generation, durably, and makes it current.
    ///
    /// # Errors
    /// [`RegistryError`] when it cannot be written; nothing has changed then.
    pub fn add(
        &mut self,
        model_id: &str,
        trained_through_ms: u64,
        scores: serde_json::Value,
        onnx: Vec<u8>,
    ) -> Result<&Version, RegistryError> {
        let generation = self.last_generation + 1;
        let published_ms = crate::export::now_ms();
        let model_id = model_id.to_owned();
        let version = Version { generation, model_id, published_ms, trained_through_ms, scores };
        write_durably(&onnx_path(&self.dir, generation), &onnx)?;
        let json = serde_json::to_vec_pretty(&version).unwrap_or_default();
        write_durably(&json_path(&self.dir, generation), &json)?;
        self.last_generation = generation;
        let generations = generations(&self.dir)?;
        for &old in generations.iter().rev().skip(KEEP) {
            // The JSON first: a version without it does not exist.
            for path in [json_path(&self.dir, old), onnx_path(&self.dir, old)] {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        let (version, _) = self.current.insert((version, onnx));
        Ok(version)
    }
}

fn onnx_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{generation:08}.onnx"))
}

fn json_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{generation:08}.json"))
}

/// Committed generations, oldest first.
fn generations(dir: &Path) -> Result<Vec<u64>, RegistryError> {
    let mut generations = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let name = entry.map_err(at(dir))?.file_name();
        let generation: Option<u64> =
            name.to_str().and_then(|name| name.strip_suffix(".json")).and_then(|name| name.parse().ok());
        generations.extend(generation);
    }
    generations.sort_unstable();
    Ok(generations)
}

/// Writes a file so that a crash at any moment leaves the old content or the new.
///
/// # Errors
/// [`RegistryError`] names the file.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), RegistryError> {
    let fail = cannot_write(path);
    let mut file = tempfile::NamedTempFile::new_in(folder(path)).map_err(&fail)?;
    file.write_all(bytes).map_err(&fail)?;
    file.as_file().sync_all().map_err(&fail)?;
    file.persist(path).map_err(|error| fail(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_core::features::COUNT;
    use foretoken_core::model::contract::Output;
    use foretoken_core::model::ensemble::Ensemble;
    use foretoken_core::model::onnx::write;

    fn onnx(id: &str) -> Vec<u8> {
        let facts = crate::export::Facts { model_id: id.to_owned(), ..Default::default() };
        let mut ensemble = Ensemble::new(COUNT);
        ensemble.push_constant(1.0).unwrap();
        let outputs: Vec<_> = Output::ALL.into_iter().take(4).map(|output| (output, &ensemble)).collect();
        write::write(&facts.metadata(), &outputs)
    }

    #[test]
    fn generations_go_on_after_a_restart_and_the_newest_model_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        assert_eq!((registry.last_generation(), registry.current()), (0, None));
        for id in ["a", "b"] {
            registry.add(id, 5, serde_json::json!({"n": 1}), onnx(id)).unwrap();
        }
        let registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.last_generation(), 2);
        let (version, bytes) = registry.current().unwrap();
        assert_eq!((version.model_id.as_str(), version.trained_through_ms), ("b", 5));
        assert_eq!(bytes, onnx("b"));
    }

    #[test]
    fn a_version_whose_model_is_gone_or_broken_is_passed_over_but_its_generation_is_not_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        registry.add("a", 5, serde_json::Value::Null, onnx("a")).unwrap();
        registry.add("b", 5, serde_json::Value::Null, onnx("b")).unwrap();
        fs::write(onnx_path(dir.path(), 2), b"torn").unwrap();
        // A model whose JSON was never written does not exist.
        fs::write(onnx_path(dir.path(), 7), onnx("c")).unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.current().unwrap().0.model_id, "a");
        assert_eq!(registry.add("d", 5, serde_json::Value::Null, onnx("d")).unwrap().generation, 3);
    }

    #[test]
    fn only_the_newest_versions_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        for _ in 0..KEEP + 5 {
            registry.add("a", 5, serde_json::Value::Null, onnx("a")).unwrap();
        }
        assert_eq!(generations(dir.path()).unwrap().first(), Some(&6));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2 * KEEP);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_itself_and_the_cause_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing").join("model.onnx");
        let written = write_durably(&path, b"x").unwrap_err();
        assert_eq!(
            format!("{:#}", anyhow::Error::from(written)),
            format!("cannot write {}: entity not found", path.display())
        );
        let checked = check_folder(&path).unwrap_err().to_string();
        let folder = format!("there is no folder {}", path.parent().unwrap().display());
        assert!(checked.contains(&folder) && checked.contains("model.onnx"), "{checked}");
        assert!(check_folder(&dir.path().join("model.onnx")).is_ok());
        assert!(check_folder(Path::new("model.onnx")).is_ok());
    }
}
