//! What has been published, kept across restarts: every version with its card, its model and its boosters, and
//! the generation that must only rise.
//!
//! Workers compare generations, so a trainer that forgot its last one would push models that they take for
//! old. A version is committed by its card, a JSON file written after all others and by rename: a crash leaves
//! either the whole version or none of it. Going back to an old version publishes its content under a new
//! generation; nothing is ever changed in place.
//!
//! What it is not: the judge of what may be published, nor the one who sends it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use foretoken_core::features::{COLUMNS, Row, SCHEMA_ID};
use foretoken_core::model::{Model, contract};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::gate::{self, Limits};
use crate::half::HalfCard;

/// Versions kept on disk, about a megabyte each.
const KEEP: usize = 200;

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

/// Why a version was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It was fitted and passed the gate.
    #[default]
    Fitted,
    /// Somebody asked for this version again.
    Promoted,
    /// Somebody asked for the version before.
    RolledBack,
    /// The live error had worsened past the bound.
    RolledBackByItself,
    /// Somebody sent its file: one to start with, or one that was fitted elsewhere.
    Pushed,
}

/// The halves of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HalfCards {
    /// TTFT.
    pub ttft: HalfCard,
    /// TPOT.
    pub tpot: HalfCard,
}

/// The card of a published version.
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
    /// Oldest sample that it learned from, ms since the Unix epoch.
    #[serde(default)]
    pub trained_from_ms: u64,
    /// Samples that it learned from.
    #[serde(default)]
    pub samples: usize,
    /// Id of the feature schema.
    #[serde(default)]
    pub schema: String,
    /// Columns in order.
    #[serde(default)]
    pub features: Vec<String>,
    /// Why it was published.
    #[serde(default)]
    pub origin: Origin,
    /// The generation whose content it has: its own when it was fitted.
    #[serde(default)]
    pub content_of: u64,
    /// The generation that it was judged against and took over from, to which a rollback goes; 0 for none.
    #[serde(default)]
    pub parent: u64,
    /// The halves; absent in versions of older trainers.
    #[serde(default)]
    pub halves: Option<HalfCards>,
    /// Size of the ONNX file.
    #[serde(default)]
    pub onnx_bytes: usize,
    /// What it costs to send and to evaluate.
    #[serde(default)]
    pub cost: serde_json::Value,
    /// Its scores when it was published.
    pub scores: serde_json::Value,
}

/// All that a new version is made of.
#[derive(Debug)]
pub struct Content {
    /// The card; generation, time, origin and what it is the content of are filled in.
    pub card: Version,
    /// The ONNX file.
    pub onnx: Vec<u8>,
    /// The boosters of TTFT and TPOT in UBJSON, as fitted.
    pub boosters: Option<[Vec<u8>; 2]>,
}

impl Content {
    /// A model file of somebody's own. It has no boosters to go on from, and no sample of this trainer's is known to
    /// it, so all that come judge it.
    ///
    /// # Errors
    /// A sentence for people: why it cannot serve, or what of it is too much.
    pub fn of_file(onnx: Vec<u8>, limits: &Limits) -> Result<Self, String> {
        let model = Model::from_onnx_lean(&onnx).map_err(|error| error.to_string())?;
        let (cost, too_much) = gate::cost(&onnx, &model, &[Row::default()], limits);
        if !too_much.is_empty() {
            return Err(too_much.join("; "));
        }
        let property = |key| model.card().get(key).unwrap_or_default();
        let card = Version {
            origin: Origin::Pushed,
            cost: serde_json::to_value(cost).unwrap_or_default(),
            ..Version::new(
                &model.card().model_id,
                (0, 0),
                property(contract::KEY_SAMPLES).parse().unwrap_or(0),
                serde_json::Value::Null,
            )
        };
        Ok(Self { card, onnx, boosters: None })
    }
}

impl Version {
    /// A card to be filled in by the registry.
    #[must_use]
    pub fn new(model_id: &str, trained_ms: (u64, u64), samples: usize, scores: serde_json::Value) -> Self {
        Self {
            generation: 0,
            model_id: model_id.to_owned(),
            published_ms: 0,
            trained_through_ms: trained_ms.1,
            trained_from_ms: trained_ms.0,
            samples,
            schema: SCHEMA_ID.to_owned(),
            features: COLUMNS.iter().map(|column| column.name.to_owned()).collect(),
            origin: Origin::Fitted,
            content_of: 0,
            parent: 0,
            halves: None,
            onnx_bytes: 0,
            cost: serde_json::Value::Null,
            scores,
        }
    }
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
            let (version, onnx) = read(dir, generation).ok()?;
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

    /// Cards of all versions kept, oldest first. One that cannot be read is left out.
    ///
    /// # Errors
    /// [`RegistryError`] when the directory cannot be read.
    pub fn versions(&self) -> Result<Vec<Version>, RegistryError> {
        versions(&self.dir)
    }

    /// A version's card and ONNX file.
    ///
    /// # Errors
    /// [`RegistryError`] when there is none of this generation, or it cannot be read.
    pub fn read(&self, generation: u64) -> Result<(Version, Vec<u8>), RegistryError> {
        read(&self.dir, generation)
    }

    /// The boosters of a version, TTFT first; absent in versions of older trainers.
    #[must_use]
    pub fn boosters(&self, generation: u64) -> Option<[Vec<u8>; 2]> {
        let read = |target| fs::read(booster_path(&self.dir, generation, target)).ok();
        Some([read("ttft")?, read("tpot")?])
    }

    /// Adds a model file as the next version; a rollback goes to the one that serves now.
    ///
    /// # Errors
    /// As [`Content::of_file`], and when it cannot be written.
    pub fn push(&mut self, onnx: Vec<u8>, limits: &Limits) -> Result<&Version, String> {
        let mut content = Content::of_file(onnx, limits)?;
        content.card.parent = self.current.as_ref().map_or(0, |(version, _)| version.generation);
        self.add(content).map_err(|error| error.to_string())
    }

    /// Adds a version of the next generation, durably, and makes it current.
    ///
    /// # Errors
    /// [`RegistryError`] when it cannot be written; nothing has changed then.
    pub fn add(&mut self, content: Content) -> Result<&Version, RegistryError> {
        self.add_at(content, crate::export::now_ms())
    }

    /// The same at this time, ms since the Unix epoch.
    ///
    /// # Errors
    /// As [`Registry::add`].
    pub fn add_at(&mut self, content: Content, now_ms: u64) -> Result<&Version, RegistryError> {
        let generation = self.last_generation + 1;
        let Content { card, onnx, boosters } = content;
        let content_of = if card.content_of == 0 { generation } else { card.content_of };
        let onnx_bytes = onnx.len();
        let version = Version { generation, content_of, published_ms: now_ms, onnx_bytes, ..card };
        write_durably(&onnx_path(&self.dir, generation), &onnx)?;
        if let Some([ttft, tpot]) = boosters {
            write_durably(&booster_path(&self.dir, generation, "ttft"), &ttft)?;
            write_durably(&booster_path(&self.dir, generation, "tpot"), &tpot)?;
        }
        let json = serde_json::to_vec_pretty(&version).unwrap_or_default();
        write_durably(&json_path(&self.dir, generation), &json)?;
        // The new names themselves are on disk only with the directory.
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(at(&self.dir))?;
        self.last_generation = generation;
        let generations = generations(&self.dir)?;
        for &old in generations.iter().rev().skip(KEEP) {
            // The card first: a version without it does not exist.
            for path in files(&self.dir, old) {
                match fs::remove_file(&path) {
                    Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(at(&path)(cause)),
                    _ => {}
                }
            }
        }
        let (version, _) = self.current.insert((version, onnx));
        Ok(version)
    }

    /// The content of an old version, to be published again.
    ///
    /// # Errors
    /// [`RegistryError`] when it is not there or this build cannot read its model.
    pub fn again(&self, generation: u64, origin: Origin) -> Result<Content, RegistryError> {
        let (old, onnx) = self.read(generation)?;
        if let Err(error) = Model::from_onnx_lean(&onnx) {
            let cause = io::Error::other(format!("this build cannot serve it: {error}"));
            return Err(at(&onnx_path(&self.dir, generation))(cause));
        }
        Ok(Content { card: Version { origin, ..old }, onnx, boosters: self.boosters(generation) })
    }

    /// The generation that a rollback goes to: the one that the current content took over from.
    #[must_use]
    pub fn before(&self) -> Option<u64> {
        let (current, _) = self.current.as_ref()?;
        (current.parent > 0 && json_path(&self.dir, current.parent).exists()).then_some(current.parent)
    }
}

/// Cards of all versions in a directory, oldest first. One that cannot be read is left out.
///
/// # Errors
/// [`RegistryError`] when the directory cannot be read.
pub fn versions(dir: &Path) -> Result<Vec<Version>, RegistryError> {
    let read = |generation| serde_json::from_slice(&fs::read(json_path(dir, generation)).ok()?).ok();
    Ok(generations(dir)?.into_iter().filter_map(read).collect())
}

/// A version's card and ONNX file.
///
/// # Errors
/// [`RegistryError`] when there is none of this generation, or it cannot be read.
pub fn read(dir: &Path, generation: u64) -> Result<(Version, Vec<u8>), RegistryError> {
    let path = json_path(dir, generation);
    let card = fs::read(&path).map_err(at(&path))?;
    let card = serde_json::from_slice(&card).map_err(|error| at(&path)(io::Error::other(error)))?;
    let path = onnx_path(dir, generation);
    Ok((card, fs::read(&path).map_err(at(&path))?))
}

fn booster_path(dir: &Path, generation: u64, target: &str) -> PathBuf {
    dir.join(format!("{generation:08}.{target}.ubj"))
}

/// All files of a version, its card first.
fn files(dir: &Path, generation: u64) -> [PathBuf; 4] {
    [
        json_path(dir, generation),
        onnx_path(dir, generation),
        booster_path(dir, generation, "ttft"),
        booster_path(dir, generation, "tpot"),
    ]
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

    fn content(id: &str) -> Content {
        let card = Version::new(id, (1, 5), 10, serde_json::json!({"n": 1}));
        Content { card, onnx: onnx(id), boosters: None }
    }

    #[test]
    fn generations_go_on_after_a_restart_and_the_newest_model_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        assert_eq!((registry.last_generation(), registry.current()), (0, None));
        for id in ["a", "b"] {
            registry.add(content(id)).unwrap();
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
        registry.add(content("a")).unwrap();
        registry.add(content("b")).unwrap();
        fs::write(onnx_path(dir.path(), 2), b"torn").unwrap();
        // A model whose JSON was never written does not exist.
        fs::write(onnx_path(dir.path(), 7), onnx("c")).unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.current().unwrap().0.model_id, "a");
        assert_eq!(registry.add(content("d")).unwrap().generation, 3);
    }

    #[test]
    fn going_back_publishes_the_old_content_anew_and_going_back_again_goes_further() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.before(), None);
        for (id, parent) in [("a", 0), ("b", 1), ("c", 2)] {
            let mut content = content(id);
            content.card.parent = parent;
            content.boosters = Some([id.into(), b"tpot".to_vec()]);
            registry.add(content).unwrap();
        }
        for (generation, id) in [(4, "b"), (5, "a")] {
            let before = registry.before().unwrap();
            let content = registry.again(before, Origin::RolledBack).unwrap();
            let version = registry.add(content).unwrap();
            assert_eq!((version.generation, version.model_id.as_str()), (generation, id));
            assert_eq!(version.content_of, before);
            assert_eq!(registry.boosters(generation).unwrap()[0], id.as_bytes());
        }
        assert_eq!(registry.before(), None);
        let promoted = registry.again(3, Origin::Promoted).unwrap();
        registry.add(promoted).unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.current().unwrap().1, onnx("c"));
        let ids: Vec<String> = registry.versions().unwrap().into_iter().map(|v| v.model_id).collect();
        assert_eq!(ids, ["a", "b", "c", "b", "a", "c"]);
        assert!(registry.again(9, Origin::Promoted).unwrap_err().to_string().contains("00000009.json"));
    }

    #[test]
    fn only_the_newest_versions_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::open(dir.path()).unwrap();
        for _ in 0..KEEP + 5 {
            registry.add(content("a")).unwrap();
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
