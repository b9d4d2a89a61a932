//! Samples on disk and in memory: append-only segments with a checksum a record, and what of them is to be
//! learned from.
//!
//! **What is promised.** A sample that the ingest answer counts as `synced` survives a crash of the process and
//! of the machine. A batch is appended before it is answered, and one thread syncs for all that wait ([`sync`]);
//! kill -9 at any point loses at most samples that were never called synced. A half-written record is passed
//! over when read, and nothing is ever appended after it: every start begins a segment of its own.
//!
//! **What is bounded.** The oldest segments go when all together pass a number of bytes or when their newest
//! sample passes an age. A sample whose id is among the newest [`MAX_IDS`] is dropped as a duplicate, across
//! restarts as well, as far as the disk still has them.
//!
//! One trainer has a directory at a time: two would remove each other's segments.
//!
//! What it is not: a log of everything. What is not clean is stored and counted, by reason, but teaches nothing.

pub mod segment;
pub mod sync;
pub mod training;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foretoken_core::sample::Sample;
use thiserror::Error;

use self::segment::{Kind, Line, Segment};
use self::sync::Syncer;
use self::training::{Filling, TrainingSet};
use crate::dataset::{Example, Unclean, example, unclean};
use crate::ingest::{self, Reason};
use crate::live::Live;
use crate::trust::Trust;

/// Segment size at which a new one is begun.
const SEGMENT_BYTES: u64 = 8 << 20;

/// Age of a segment at which a new one is begun, ms: the grain of retention by age.
const SEGMENT_MS: u64 = 3600 * 1000;

/// Newest ids that are remembered to drop duplicates: at 100 requests a second, nearly three hours. A filter
/// resends within minutes, if at all.
pub const MAX_IDS: usize = 1_000_000;

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

fn io_error((path, cause): (PathBuf, io::Error)) -> StoreError {
    StoreError::Io { path, cause }
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
    /// Age of the newest sample of a segment at which the segment goes, ms; also of what is learned from.
    pub max_age_ms: u64,
    /// Clean samples kept in memory for fitting.
    pub window: usize,
    /// Shortest time from one sync to the next.
    pub sync_interval: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            max_age_ms: 14 * 24 * 3600 * 1000,
            window: 50_000,
            sync_interval: Duration::from_millis(20),
        }
    }
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// Samples that were new.
    pub accepted: u64,
    /// Samples whose id was known.
    pub duplicates: u64,
    /// Samples among the new ones that are not believed.
    pub quarantined: u64,
    /// To ask [`sync::Progress::of`] whether they are on disk.
    pub ticket: u64,
}

/// What the store has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Samples accepted, those read at the start included.
    pub samples: u64,
    /// Those among them that teach something.
    pub clean: u64,
    /// Those that were not believed.
    pub quarantined: u64,
    /// Those that teach nothing, by reason.
    pub unclean: BTreeMap<&'static str, u64>,
    /// Records of segments that ended in their middle: what a crash cut off.
    pub torn: u64,
    /// Records of segments with a wrong checksum: bits that changed on disk.
    pub damaged: u64,
    /// Records of segments that would not be accepted now, by reason: most of all another feature schema.
    pub refused: BTreeMap<&'static str, u64>,
}

/// Ids seen, the newest [`MAX_IDS`], as hashes: two ids share one in 10^13 cases.
#[derive(Debug, Default)]
struct Ids {
    hasher: RandomState,
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Ids {
    /// Adds an id; `false` when it is known.
    fn insert(&mut self, id: &str) -> bool {
        let id = self.hasher.hash_one(id);
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// The store.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    bounds: Bounds,
    /// Oldest first; the last is being written.
    segments: VecDeque<Segment>,
    file: Arc<File>,
    /// When the segment that is being written was begun, ms since the Unix epoch.
    begun_ms: u64,
    /// The last write left half a record that could not be cut off.
    torn: bool,
    training: TrainingSet,
    ids: Ids,
    live: Live,
    trust: Trust,
    counts: Counts,
    /// Records appended since the start.
    ticket: u64,
    syncer: Syncer,
    /// Keeps other trainers out; the system unlocks it even after a crash.
    _lock: File,
}

impl Store {
    /// Opens or makes the store in a directory and reads what is there. A record that would not be taken from a
    /// filter now, by its form or because its time lies ahead of `now_ms`, is counted and stays on disk.
    ///
    /// # Errors
    /// [`StoreError`] when another store is open on the directory, or it cannot be read or written.
    pub fn open(dir: &Path, bounds: Bounds, now_ms: u64) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(at(dir))?;
        // Before anything is removed: the other's newest segment may be empty still.
        let lock = lock(dir)?;
        let mut segments: VecDeque<Segment> = segment::find(dir).map_err(io_error)?.into();
        drop_oldest(&mut segments, bounds.max_bytes)?;
        let next = segments.back().map_or(1, |last| last.number + 1);
        let (newest, file) = segment::create(dir, next).map_err(io_error)?;
        let mut store = Self {
            dir: dir.to_owned(),
            bounds,
            segments: VecDeque::new(),
            file: Arc::new(file),
            begun_ms: now_ms,
            torn: false,
            training: TrainingSet::new(bounds.window, bounds.max_age_ms),
            ids: Ids::default(),
            live: Live::default(),
            trust: Trust::default(),
            counts: Counts::default(),
            ticket: 0,
            syncer: Syncer::start(bounds.sync_interval),
            _lock: lock,
        };
        for segment in &mut segments {
            let bytes = fs::read(&segment.path).map_err(at(&segment.path))?;
            for line in segment::lines(&bytes) {
                if let Some(at_ms) = store.read_back(line, now_ms) {
                    segment.newest_ms = segment.newest_ms.max(at_ms);
                }
            }
        }
        segments.push_back(newest);
        store.segments = segments;
        store.drop_too_old(now_ms)?;
        Ok(store)
    }

    /// Takes a record of an earlier start; its time, if it is a sample's.
    fn read_back(&mut self, line: Line<'_>, now_ms: u64) -> Option<u64> {
        let (kind, json) = match line {
            Line::Record(kind, json) => (kind, json),
            Line::Torn => {
                self.counts.torn += 1;
                return None;
            }
            Line::Damaged => {
                self.counts.damaged += 1;
                return None;
            }
        };
        match ingest::read_line(json, now_ms) {
            Ok(sample) => {
                if self.ids.insert(&sample.id) {
                    self.take(&sample, kind == Kind::Sample);
                    if kind == Kind::Sample {
                        self.trust.believe(&sample);
                    }
                }
                Some(sample.at_ms)
            }
            Err((reason, _)) => {
                *self.counts.refused.entry(Reason::name(reason)).or_default() += 1;
                None
            }
        }
    }

    /// Adds a batch; samples whose id is known are dropped. `now_ms` is the trainer's clock.
    ///
    /// # Errors
    /// [`NotOnDisk`] when the segment cannot be written; the samples are then in memory only.
    pub fn append(&mut self, batch: &[(Sample, Vec<u8>)], now_ms: u64) -> Result<Appended, NotOnDisk> {
        let new: Vec<&(Sample, Vec<u8>)> =
            batch.iter().filter(|(sample, _)| self.ids.insert(&sample.id)).collect();
        let samples: Vec<&Sample> = new.iter().map(|(sample, _)| sample).collect();
        let believed = self.trust.judge(&samples);
        let mut appended = Appended {
            accepted: new.len() as u64,
            duplicates: (batch.len() - new.len()) as u64,
            quarantined: believed.iter().filter(|believed| !**believed).count() as u64,
            ticket: self.ticket,
        };
        let mut text = Vec::with_capacity(new.iter().map(|(_, json)| json.len() + 16).sum());
        let mut newest_ms = 0;
        for ((sample, json), &believed) in new.iter().zip(&believed) {
            self.take(sample, believed);
            newest_ms = newest_ms.max(sample.at_ms);
            segment::encode(if believed { Kind::Sample } else { Kind::Quarantined }, json, &mut text);
        }
        match self.write(&text, new.len() as u64, newest_ms, now_ms) {
            Ok(()) => {
                appended.ticket = self.ticket;
                Ok(appended)
            }
            Err(cause) => Err(NotOnDisk { appended, cause }),
        }
    }

    fn write(&mut self, text: &[u8], records: u64, newest_ms: u64, now_ms: u64) -> Result<(), StoreError> {
        if text.is_empty() {
            return Ok(());
        }
        let broken = self.syncer.take_broken();
        let full = self.segments.back().is_none_or(|segment| {
            segment.bytes >= SEGMENT_BYTES
                || (segment.bytes > 0 && now_ms.saturating_sub(self.begun_ms) >= SEGMENT_MS)
        });
        if full || broken || self.torn {
            self.begin_segment(now_ms, broken)?;
        }
        if let Err(cause) = self.file.as_ref().write_all(text) {
            self.cut_off_half_record();
            return Err(at(self.segments.back().map_or(&self.dir, |segment| &segment.path))(cause));
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += text.len() as u64;
            segment.newest_ms = segment.newest_ms.max(newest_ms);
        }
        self.ticket += records;
        self.syncer.dirty(self.file.clone(), self.ticket);
        Ok(())
    }

    fn begin_segment(&mut self, now_ms: u64, broken: bool) -> Result<(), StoreError> {
        if !broken {
            // Who waits for a ticket in it waits for this.
            let synced = self.file.sync_data();
            self.syncer.closed(self.ticket, synced.is_ok());
        }
        let next = self.segments.back().map_or(1, |last| last.number + 1);
        let (segment, file) = segment::create(&self.dir, next).map_err(io_error)?;
        self.segments.push_back(segment);
        self.file = Arc::new(file);
        self.begun_ms = now_ms;
        self.torn = false;
        drop_oldest(&mut self.segments, self.bounds.max_bytes)?;
        self.drop_too_old(now_ms)
    }

    /// Removes segments whose newest sample is too old.
    fn drop_too_old(&mut self, now_ms: u64) -> Result<(), StoreError> {
        let oldest_ms = now_ms.saturating_sub(self.bounds.max_age_ms);
        while self.segments.len() > 1
            && let Some(oldest) = self.segments.front()
            && (if oldest.newest_ms > 0 { oldest.newest_ms } else { oldest.written_ms }) < oldest_ms
        {
            fs::remove_file(&oldest.path).map_err(at(&oldest.path))?;
            self.segments.pop_front();
        }
        Ok(())
    }

    /// After a failed write: goes back to the last whole record, or else begins a new segment at the next write.
    fn cut_off_half_record(&mut self) {
        let whole = self.segments.back().map_or(0, |segment| segment.bytes);
        self.torn = self.file.set_len(whole).is_err();
    }

    /// Takes a new sample into memory.
    fn take(&mut self, sample: &Sample, believed: bool) {
        self.counts.samples += 1;
        if !believed {
            self.counts.quarantined += 1;
            return;
        }
        self.live.add(sample);
        if let Some(example) = example(sample) {
            self.counts.clean += 1;
            self.training.push(example);
        } else {
            let reason = unclean(sample).unwrap_or(Unclean::Other);
            *self.counts.unclean.entry(reason.name()).or_default() += 1;
        }
    }

    /// What a fit learns from, in order of time.
    #[must_use]
    pub fn examples(&self) -> Vec<Example> {
        self.training.examples()
    }

    /// Clean samples in memory.
    #[must_use]
    pub fn window_len(&self) -> usize {
        self.training.len()
    }

    /// How the training set is filled.
    #[must_use]
    pub fn filling(&self) -> Filling {
        self.training.filling()
    }

    /// How many of them are newer than this, and so unknown to a model that learned through it.
    #[must_use]
    pub fn newer_than(&self, at_ms: u64) -> usize {
        self.training.newer_than(at_ms)
    }

    /// What has been seen so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// To wait for tickets with.
    #[must_use]
    pub fn progress(&self) -> tokio::sync::watch::Receiver<sync::Progress> {
        self.syncer.progress()
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
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
        self.file = Arc::new(OpenOptions::new().append(true).open("/dev/full").unwrap());
    }
}

/// Takes the directory for this process until the file is dropped.
///
/// # Errors
/// [`StoreError::Locked`] when another process has it.
pub fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(cause)) => Err(at(&path)(cause)),
    }
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
mod tests;
