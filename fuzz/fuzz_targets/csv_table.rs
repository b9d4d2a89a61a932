//! Samples as CSV: no panic, and what is read is a line that ingest can judge.

#![no_main]

use foretoken_trainer::{ingest, table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    for line in table::csv::read(file).unwrap_or_default() {
        assert!(!line.contains(&b'\n'));
        let _ = ingest::read_line(&line, u64::MAX);
    }
});
