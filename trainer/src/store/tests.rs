use super::*;
use crate::synthetic;
use foretoken_core::sample::Ending;

/// A day after the first synthetic sample.
const NOW_MS: u64 = 1_700_000_000_000 + 24 * 3600 * 1000;

fn batch_of(samples: Vec<Sample>) -> Vec<(Sample, Vec<u8>)> {
    let with_text = |sample: Sample| {
        let text = serde_json::to_vec(&sample).unwrap();
        (sample, text)
    };
    samples.into_iter().map(with_text).collect()
}

fn batch(seed: u64, count: usize) -> Vec<(Sample, Vec<u8>)> {
    batch_of(synthetic::samples(seed, count))
}

fn open(dir: &Path, bounds: Bounds) -> Result<Store, StoreError> {
    Store::open(dir, bounds, NOW_MS)
}

/// Accepted and duplicates of an append.
fn append(store: &mut Store, batch: &[(Sample, Vec<u8>)]) -> (u64, u64) {
    let appended = store.append(batch, NOW_MS).unwrap();
    (appended.accepted, appended.duplicates)
}

/// Samples, clean samples, torn and damaged records.
fn counts(store: &Store) -> (u64, u64, u64, u64) {
    let counts = store.counts();
    (counts.samples, counts.clean, counts.torn, counts.damaged)
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
    assert_eq!(append(&mut store, &samples), (50, 0));
    assert_eq!(append(&mut store, &samples[..5]), (0, 5));
    let examples = store.examples();
    drop(store);
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    assert_eq!(counts(&store), (50, 50, 0, 0));
    assert_eq!(format!("{:?}", store.examples()), format!("{examples:?}"));
    assert_eq!(append(&mut store, &samples[..5]), (0, 5));
    assert_eq!(store.newer_than(samples[39].0.at_ms), 10);
}

#[test]
fn a_crash_at_any_byte_loses_only_the_record_it_cuts_and_the_next_start_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let samples = batch(1, 4);
    append(&mut open(dir.path(), Bounds::default()).unwrap(), &samples[..3]);
    let segment = files(dir.path()).pop().unwrap();
    let bytes = fs::read(&segment).unwrap();
    let ends: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == b'\n').map(|at| at + 1).collect();
    for cut in (1..bytes.len()).step_by(41).chain(ends.iter().copied()) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("samples-00000001.log"), &bytes[..cut]).unwrap();
        let mut store = open(dir.path(), Bounds::default()).unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut).count() as u64;
        let torn = u64::from(!ends.contains(&cut));
        assert_eq!(counts(&store), (whole, whole, torn, 0), "cut at {cut}");
        append(&mut store, &samples[3..]);
        drop(store);
        let store = open(dir.path(), Bounds::default()).unwrap();
        assert_eq!(counts(&store), (whole + 1, whole + 1, torn, 0), "cut at {cut}");
    }
}

#[test]
fn a_bit_that_changed_on_disk_costs_that_record_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    append(&mut open(dir.path(), Bounds::default()).unwrap(), &batch(1, 5));
    let segment = files(dir.path()).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    assert_eq!(counts(&open(dir.path(), Bounds::default()).unwrap()), (4, 4, 0, 1));
}

#[test]
fn what_is_acknowledged_as_synced_is_told_by_ticket() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    let mut progress = store.progress();
    let samples = batch(1, 20);
    let first = store.append(&samples[..8], NOW_MS).unwrap();
    let second = store.append(&samples[8..], NOW_MS).unwrap();
    let again = store.append(&samples, NOW_MS).unwrap();
    assert_eq!((first.ticket, second.ticket, again.ticket), (8, 20, 20));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let synced = runtime.block_on(progress.wait_for(|progress| progress.of(20).is_some()));
    assert_eq!(synced.unwrap().of(20), Some(true));
}

#[test]
fn bytes_on_disk_and_samples_in_memory_stay_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = Bounds { max_bytes: 2 * SEGMENT_BYTES, window: 1000, ..Bounds::default() };
    let mut store = open(dir.path(), bounds).unwrap();
    for seed in 0..12 {
        append(&mut store, &batch(seed, 4000));
    }
    let total: u64 = files(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    // The segment that is being written comes on top of the bound.
    assert!(total <= 3 * SEGMENT_BYTES + (4 << 20), "{total}");
    assert!(!dir.path().join("samples-00000001.log").exists());
    assert_eq!(store.examples().len(), 1000);
    assert_eq!(store.counts().samples, 48_000);
}

#[test]
fn segments_go_when_their_newest_sample_is_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = Bounds { max_age_ms: 2 * 3600 * 1000, ..Bounds::default() };
    let start_ms = 1_700_000_000_000;
    let mut store = Store::open(dir.path(), bounds, start_ms).unwrap();
    let mut samples = batch(1, 5);
    for (hour, (sample, text)) in samples.iter_mut().enumerate() {
        sample.at_ms = start_ms + hour as u64 * 3600 * 1000;
        *text = serde_json::to_vec(sample).unwrap();
    }
    for sample in &samples {
        store.append(std::slice::from_ref(sample), sample.0.at_ms).unwrap();
    }
    // One segment an hour; those of the hours 0 and 1 are gone at hour 4.
    let names = |dir: &Path| -> Vec<String> {
        files(dir).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(dir.path()), [3, 4, 5].map(|number| format!("samples-0000000{number}.log")));
    drop(store);
    // A start a day later has nothing to keep.
    let store = Store::open(dir.path(), bounds, start_ms + 28 * 3600 * 1000).unwrap();
    assert_eq!(names(dir.path()), ["samples-00000006.log"]);
    drop(store);
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
fn a_record_from_the_future_or_of_another_schema_is_counted_by_reason_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut samples = batch(1, 4);
    samples[1].0.at_ms = u64::MAX;
    samples[2].0.schema = "foretoken-0".to_owned();
    let samples = batch_of(samples.into_iter().map(|(sample, _)| sample).collect());
    append(&mut open(dir.path(), Bounds::default()).unwrap(), &samples);
    let store = open(dir.path(), Bounds::default()).unwrap();
    assert_eq!(counts(&store), (2, 2, 0, 0));
    assert_eq!(store.counts().refused, BTreeMap::from([("future", 1), ("schema", 1)]));
    assert_eq!(store.examples().last().unwrap().at_ms, samples[3].0.at_ms);
}

#[test]
fn what_teaches_nothing_is_counted_by_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut samples = synthetic::samples(1, 6);
    samples[1].attempts = 2;
    samples[2].ending = Ending::Cancelled;
    samples[3].ending = Ending::Cancelled;
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    append(&mut store, &batch_of(samples));
    assert_eq!(counts(&store), (6, 3, 0, 0));
    assert_eq!(store.counts().unclean, BTreeMap::from([("cancelled", 2), ("retried", 1)]));
}

#[test]
fn a_batch_that_is_not_believed_stays_out_of_the_training_set_after_a_restart_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    append(&mut store, &batch(1, 400));
    let mut poison = synthetic::samples(2, 300);
    for sample in &mut poison {
        sample.ttft_ms = sample.ttft_ms.map(|ttft_ms| 10.0 * ttft_ms);
        sample.tpot_ms = sample.tpot_ms.map(|tpot_ms| 10.0 * tpot_ms);
    }
    let poison = batch_of(poison);
    let appended = store.append(&poison, NOW_MS).unwrap();
    assert_eq!((appended.accepted, appended.quarantined), (300, 300));
    drop(store);
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    assert_eq!((store.counts().samples, store.counts().quarantined), (700, 300));
    assert_eq!((store.counts().clean, store.examples().len()), (400, 400));
    assert_eq!(append(&mut store, &poison), (0, 300));
    // The measure is there again too.
    let fresh: Vec<Sample> = poison
        .into_iter()
        .map(|(mut sample, _)| {
            sample.id.insert(0, 'b');
            sample
        })
        .collect();
    assert_eq!(store.append(&batch_of(fresh), NOW_MS).unwrap().quarantined, 300);
}

#[test]
fn a_second_trainer_is_refused_by_name_and_the_first_keeps_its_segment() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), Bounds::default()).unwrap();
    let refused = open(dir.path(), Bounds::default()).unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    let message = refused.to_string();
    assert!(message.contains(dir.path().to_str().unwrap()) && message.contains("--data-dir"), "{message}");
    append(&mut first, &batch(1, 3));
    drop(first);
    assert_eq!(counts(&open(dir.path(), Bounds::default()).unwrap()), (3, 3, 0, 0));
}

#[test]
fn half_a_record_is_cut_off_before_the_next_append() {
    let dir = tempfile::tempdir().unwrap();
    let samples = batch(1, 4);
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    append(&mut store, &samples[..2]);
    // What a write leaves that the disk had no room for.
    store.file.as_ref().write_all(&samples[2].1[..100]).unwrap();
    store.cut_off_half_record();
    append(&mut store, &samples[3..]);
    drop(store);
    assert_eq!(files(dir.path()).len(), 1);
    assert_eq!(counts(&open(dir.path(), Bounds::default()).unwrap()), (3, 3, 0, 0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_keeps_samples_in_memory_and_the_next_append_begins_a_segment() {
    let dir = tempfile::tempdir().unwrap();
    let samples = batch(1, 6);
    let mut store = open(dir.path(), Bounds::default()).unwrap();
    append(&mut store, &samples[..2]);
    store.fill_disk();
    let failed = store.append(&samples[1..4], NOW_MS).unwrap_err();
    assert_eq!((failed.appended.accepted, failed.appended.duplicates), (2, 1));
    assert!(failed.to_string().contains("samples-00000001.log"), "{failed}");
    assert_eq!(counts(&store), (4, 4, 0, 0));
    assert_eq!(append(&mut store, &samples[4..]), (2, 0));
    drop(store);
    assert_eq!(files(dir.path()).len(), 2);
    assert_eq!(counts(&open(dir.path(), Bounds::default()).unwrap()), (4, 4, 0, 0));
}
