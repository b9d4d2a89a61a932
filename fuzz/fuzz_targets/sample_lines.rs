//! What a filter, or somebody else, posts: no panic, and each line is taken or rejected exactly once. The first byte
//! chooses the encoding.

#![no_main]

use foretoken_trainer::ingest::{decode, read, read_line};
use libfuzzer_sys::fuzz_target;

/// A clock that the generated times lie before and after.
const NOW_MS: u64 = 1_800_000_000_000;

fuzz_target!(|input: &[u8]| {
    let Some((encoding, body)) = input.split_first() else { return };
    let encoding = [None, Some("gzip"), Some("br")][usize::from(*encoding) % 3];
    let Ok(body) = decode(body, encoding) else { return };
    let batch = read(&body, NOW_MS);
    let all: Vec<&[u8]> = body.split(|&byte| byte == b'\n').collect();
    let lines = all.iter().filter(|line| !line.trim_ascii().is_empty()).count();
    let told = batch.samples.len() + usize::try_from(batch.rejected_count()).unwrap();
    assert!(told == lines || (all.len() > 10_000 && told < lines), "{told} of {lines} lines");
    for (sample, text) in &batch.samples {
        let again = read_line(text, NOW_MS).expect("what was accepted is accepted again");
        assert_eq!(format!("{sample:?}"), format!("{again:?}"));
    }
});
