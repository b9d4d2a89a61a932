//! Samples on disk and in memory: append-only NDJSON segments, and the newest clean ones ready to fit.
//!
//! A segment is a file of lines as the filters sent them, so `cat` and `jq` read it. A full segment is
//! closed and a new one begun; the oldest go when all together pass a bound. A crash or a full disk can tear the
//! last line: nothing is ever appended after it, and it is cut off at once or skipped when read.
//!
//! One trainer has a directory at a time: two would remove each other's segments.
//!
//! What it is not: it does not survive the loss of the machine's page cache (no fsync per batch): losing some
//! seconds of samples costs nothing, waiting for the disk on every batch would.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foretoken_core::sample::Sample;
use thiserror::Error;

use crate::dataset::{Example, example};
use crate::ingest;
use crate::live::Live;

/// Segment size at which a new one is begun.
const SEGMENT_BYTES: u64 = 8 << 20;

/// Ids remembered to drop duplicates: a filter resends within seconds, if at all.
const MAX_IDS: usize = 100_000;

/// Held locked in the directory as long as the store is open.
const LOCK_FILE: &str = ".lock";

/// What went wrong with the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file or the directory.
    #[error("sample store {path}: {cause}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Another trainer has it.
    #[error(
        "sample store {dir} is in use by another trainer: give this one its own --data-dir, or end the other first"
    )]
    Locked {
        /// The store's directory.
        dir: PathBuf,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |cause| StoreError::Io { path, cause }
}

/// A batch that is in memory, to be learned from, but not on disk.
#[derive(Debug, Error)]
#[error("the samples are in memory only, a restart loses them: {cause}")]
pub struct NotOnDisk {
    /// What memory took.
    pub appended: Appended,
    /// Why the disk did not.
    pub cause: StoreError,
}

/// Bounds of a store.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of all segments together.
    pub max_bytes: u64,
    /// Clean samples kept in memory for fitting.
    pub window: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_bytes: 256 << 20, window: 50_000 }
    }
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// Samples that were new.
    pub accepted: u64,
    /// Samples whose id was known.
    pub duplicates: u64,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    number: u64,
    bytes: u64,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    bounds: Bounds,
    /// Oldest first; the last is being written.
    segments: VecDeque<Segment>,
    file: File,
    /// The last write left half a line that could not be cut off.
    torn: bool,
    window: VecDeque<Example>,
    ids: HashSet<Arc<str>>,
    id_order: VecDeque<Arc<str>>,
    live: Live,
    /// Samples accepted, those read at the start included.
    samples: u64,
    /// Clean samples among them.
    clean: u64,
    /// Lines of segments that could not be read.
    unreadable: u64,
    /// Keeps other trainers out; the system unlocks it even after a crash.
    _lock: File,
}

impl Store {
    /// Opens or makes the store in a directory and reads what is there. A line that would not be taken from a
    /// filter now, by its form or because its time lies ahead of `now_ms`, counts as unreadable and stays on disk.
    ///
    /// # Errors
    /// [`StoreError`] when another store is open on the directory, or it cannot be read or written.
    pub fn open(dir: &Path, bounds: Bounds, now_ms: u64) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(at(dir))?;
        // Before anything is removed: the other's newest segment may be empty still.
        let lock = lock(dir)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(at(dir))? {
            let path = entry.map_err(at(dir))?.path();
            let number = path.file_name().and_then(|name| name.to_str()).and_then(segment_number);
            if let Some(number) = number {
                let bytes = path.metadata().map_err(at(&path))?.len();
                if bytes == 0 {
                    // Left by a start that received nothing.
                    fs::remove_file(&path).map_err(at(&path))?;
                } else {
                    found.push(Segment { path, number, bytes });
                }
            }
        }
        found.sort_by_key(|segment| segment.number);
        let mut segments: VecDeque<Segment> = found.into();
        drop_oldest(&mut segments, bounds.max_bytes)?;
        let next = segments.back().map_or(1, |last| last.number + 1);
        let (segment, file) = new_segment(dir, next)?;
        let mut store = Self {
            dir: dir.to_owned(),
            bounds,
            segments: VecDeque::new(),
            file,
            torn: false,
            window: VecDeque::new(),
            ids: HashSet::new(),
            id_order: VecDeque::new(),
            live: Live::default(),
            samples: 0,
            clean: 0,
            unreadable: 0,
            _lock: lock,
        };
        for segment in &segments {
            let bytes = fs::read(&segment.path).map_err(at(&segment.path))?;
            for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                match ingest::read_line(line, now_ms) {
                    Ok(sample) => {
                        store.take(&sample);
                    }
                    Err(_) => store.unreadable += 1,
                }
            }
        }
        segments.push_back(segment);
        store.segments = segments;
        Ok(store)
    }

    /// Adds a batch; samples whose id is known are dropped.
    ///
    /// # Errors
    /// [`NotOnDisk`] when the segment cannot be written; the samples are then in memory only.
    pub fn append(&mut self, batch: &[(Sample, Vec<u8>)]) -> Result<Appended, NotOnDisk> {
        let mut appended = Appended::default();
        let mut text = Vec::new();
        for (sample, line) in batch {
            if self.take(sample) {
                appended.accepted += 1;
                text.extend_from_slice(line);
                text.push(b'\n');
            } else {
                appended.duplicates += 1;
            }
        }
        match self.write(&text) {
            Ok(()) => Ok(appended),
            Err(cause) => Err(NotOnDisk { appended, cause }),
        }
    }

    fn write(&mut self, text: &[u8]) -> Result<(), StoreError> {
        if text.is_empty() {
            return Ok(());
        }
        let full = self.segments.back().is_none_or(|segment| segment.bytes >= SEGMENT_BYTES);
        if full || self.torn {
            let next = self.segments.back().map_or(1, |last| last.number + 1);
            let (segment, file) = new_segment(&self.dir, next)?;
            self.segments.push_back(segment);
            self.file = file;
            self.torn = false;
            drop_oldest(&mut self.segments, self.bounds.max_bytes)?;
        }
        if let Err(cause) = self.file.write_all(text) {
            self.cut_off_half_line();
            return Err(at(self.segments.back().map_or(&self.dir, |segment| &segment.path))(cause));
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += text.len() as u64;
        }
        Ok(())
    }

    /// After a failed write: goes back to the last whole line, or else begins a new segment at the next write.
    fn cut_off_half_line(&mut self) {
        let whole = self.segments.back().map_or(0, |segment| segment.bytes);
        self.torn = self.file.set_len(whole).is_err();
    }

    /// Takes a sample into memory; `false` for a duplicate.
    fn take(&mut self, sample: &Sample) -> bool {
        let id: Arc<str> = sample.id.as_str().into();
        if !self.ids.insert(id.clone()) {
            return false;
        }
        self.id_order.push_back(id);
        if self.id_order.len() > MAX_IDS
            && let Some(oldest) = self.id_order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.samples += 1;
        self.live.add(sample);
        if let Some(example) = example(sample) {
            self.clean += 1;
            self.window.push_back(example);
            if self.window.len() > self.bounds.window {
                self.window.pop_front();
            }
        }
        true
    }

    /// The newest clean samples in order of time.
    #[must_use]
    pub fn examples(&self) -> Vec<Example> {
        let mut examples: Vec<Example> = self.window.iter().cloned().collect();
        // Several workers send in batches, so the order of arrival is only roughly that of time.
        examples.sort_by_key(|example| example.at_ms);
        examples
    }

    /// Clean samples in memory.
    #[must_use]
    pub fn window_len(&self) -> usize {
        self.window.len()
    }

    /// How many of them are newer than this, and so unknown to a model that learned through it.
    #[must_use]
    pub fn newer_than(&self, at_ms: u64) -> usize {
        self.window.iter().filter(|example| example.at_ms > at_ms).count()
    }

    /// Samples accepted so far, clean samples among them, lines that could not be read back.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.samples, self.clean, self.unreadable)
    }

    /// Errors of the newest predictions.
    #[must_use]
    pub fn live(&self) -> &Live {
        &self.live
    }
}

#[cfg(all(test, target_os = "linux"))]
impl Store {
    /// The next write finds no space, and cannot be cut off either.
    pub(crate) fn fill_disk(&mut self) {
        self.file = OpenOptions::new().append(true).open("/dev/full").unwrap();
    }
}

/// `samples-00000001.ndjson` to 1.
fn segment_number(name: &str) -> Option<u64> {
    name.strip_prefix("samples-")?.strip_suffix(".ndjson")?.parse().ok()
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(cause)) => Err(at(&path)(cause)),
    }
}

fn new_segment(dir: &Path, number: u64) -> Result<(Segment, File), StoreError> {
    let path = dir.join(format!("samples-{number:08}.ndjson"));
    let file = OpenOptions::new().create_new(true).append(true).open(&path).map_err(at(&path))?;
    Ok((Segment { path, number, bytes: 0 }, file))
}

/// Removes the oldest segments beyond the bound.
fn drop_oldest(segments: &mut VecDeque<Segment>, max_bytes: u64) -> Result<(), StoreError> {
    let mut total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    while segments.len() > 1
        && total > max_bytes
        && let Some(oldest) = segments.front()
    {
        fs::remove_file(&oldest.path).map_err(at(&oldest.path))?;
        total -= oldest.bytes;
        segments.pop_front();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    /// Later than all synthetic samples.
    const NOW_MS: u64 = 1_800_000_000_000;

    fn batch(seed: u64, count: usize) -> Vec<(Sample, Vec<u8>)> {
        let with_text = |sample: Sample| {
            let text = serde_json::to_vec(&sample).unwrap();
            (sample, text)
        };
        synthetic::samples(seed, count).into_iter().map(with_text).collect()
    }

    fn open(dir: &Path, bounds: Bounds) -> Result<Store, StoreError> {
        Store::open(dir, bounds, NOW_MS)
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| !path.ends_with(LOCK_FILE));
        files.sort();
        files
    }

    #[test]
    fn what_was_appended_is_there_after_a_restart_and_duplicates_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let samples = batch(1, 50);
        let mut store = open(dir.path(), Bounds::default()).unwrap();
        assert_eq!(store.append(&samples).unwrap(), Appended { accepted: 50, duplicates: 0 });
        assert_eq!(store.append(&samples[..5]).unwrap(), Appended { accepted: 0, duplicates: 5 });
        let examples = store.examples();
        drop(store);
        let mut store = open(dir.path(), Bounds::default()).unwrap();
        assert_eq!(store.counts(), (50, 50, 0));
        assert_eq!(format!("{:?}", store.examples()), format!("{examples:?}"));
        assert_eq!(store.append(&samples[..5]).unwrap(), Appended { accepted: 0, duplicates: 5 });
        assert_eq!(store.newer_than(samples[39].0.at_ms), 10);
    }

    #[test]
    fn a_torn_last_line_is_skipped_and_never_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let samples = batch(1, 10);
        open(dir.path(), Bounds::default()).unwrap().append(&samples[..9]).unwrap();
        let segment = files(dir.path()).pop().unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        bytes.truncate(bytes.len() - 30);
        fs::write(&segment, bytes).unwrap();
        let mut store = open(dir.path(), Bounds::default()).unwrap();
        assert_eq!(store.counts(), (8, 8, 1));
        store.append(&samples[9..]).unwrap();
        drop(store);
        assert_eq!(open(dir.path(), Bounds::default()).unwrap().counts(), (9, 9, 1));
    }

    #[test]
    fn bytes_on_disk_and_samples_in_memory_stay_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let bounds = Bounds { max_bytes: 2 * SEGMENT_BYTES, window: 1000 };
        let mut store = open(dir.path(), bounds).unwrap();
        for seed in 0..12 {
            store.append(&batch(seed, 4000)).unwrap();
        }
        let total: u64 = files(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
        // The segment that is being written comes on top of the bound.
        assert!(total <= 3 * SEGMENT_BYTES + (4 << 20), "{total}");
        assert!(!dir.path().join("samples-00000001.ndjson").exists());
        assert_eq!(store.examples().len(), 1000);
        assert_eq!(store.counts().0, 48_000);
    }

    #[test]
    fn empty_segments_of_earlier_starts_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..5 {
            open(dir.path(), Bounds::default()).unwrap();
        }
        assert_eq!(files(dir.path()).len(), 1);
    }

    #[test]
    fn a_line_from_the_future_is_skipped_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let mut samples = batch(1, 3);
        samples[1].0.at_ms = u64::MAX;
        samples[1].1 = serde_json::to_vec(&samples[1].0).unwrap();
        open(dir.path(), Bounds::default()).unwrap().append(&samples).unwrap();
        let store = open(dir.path(), Bounds::default()).unwrap();
        assert_eq!(store.counts(), (2, 2, 1));
        assert_eq!(store.examples().last().unwrap().at_ms, samples[2].0.at_ms);
    }

    #[test]
    fn a_second_trainer_is_refused_by_name_and_the_first_keeps_its_segment() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = open(dir.path(), Bounds::default()).unwrap();
        let refused = open(dir.path(), Bounds::default()).unwrap_err();
        assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
        let message = refused.to_string();
        assert!(
            message.contains(dir.path().to_str().unwrap()) && message.contains("--data-dir"),
            "{message}"
        );
        first.append(&batch(1, 3)).unwrap();
        drop(first);
        assert_eq!(open(dir.path(), Bounds::default()).unwrap().counts(), (3, 3, 0));
    }

    #[test]
    fn half_a_line_is_cut_off_before_the_next_append() {
        let dir = tempfile::tempdir().unwrap();
        let samples = batch(1, 4);
        let mut store = open(dir.path(), Bounds::default()).unwrap();
        store.append(&samples[..2]).unwrap();
        // What a write leaves that the disk had no room for.
        store.file.write_all(&samples[2].1[..100]).unwrap();
        store.cut_off_half_line();
        store.append(&samples[3..]).unwrap();
        drop(store);
        assert_eq!(files(dir.path()).len(), 1);
        assert_eq!(open(dir.path(), Bounds::default()).unwrap().counts(), (3, 3, 0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_keeps_samples_in_memory_and_the_next_append_begins_a_segment() {
        let dir = tempfile::tempdir().unwrap();
        let samples = batch(1, 6);
        let mut store = open(dir.path(), Bounds::default()).unwrap();
        store.append(&samples[..2]).unwrap();
        store.fill_disk();
        let failed = store.append(&samples[1..4]).unwrap_err();
        assert_eq!(failed.appended, Appended { accepted: 2, duplicates: 1 });
        assert!(failed.to_string().contains("samples-00000001.ndjson"), "{failed}");
        assert_eq!(store.counts(), (4, 4, 0));
        assert_eq!(store.append(&samples[4..]).unwrap(), Appended { accepted: 2, duplicates: 0 });
        drop(store);
        assert_eq!(files(dir.path()).len(), 2);
        assert_eq!(open(dir.path(), Bounds::default()).unwrap().counts(), (4, 4, 0));
    }
}
