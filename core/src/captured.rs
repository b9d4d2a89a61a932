//! Bytes captured from real engines, for the readers' tests.
//!
//! They are not part of the repository: a test that finds none says so and goes on, and the same readers
//! are tested on written pages and streams that are always there.

use std::io::Write;
use std::path::PathBuf;

/// A captured file, by its path below `engines/fixtures`; `None`, with a line on stderr, when absent.
/// Not by `eprintln!`, which the test harness keeps to itself when the test passes.
pub(crate) fn engine_bytes(path: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("FORETOKEN_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    match std::fs::read(root.join("engines/fixtures").join(path)) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: captured {path}: {error}; set FORETOKEN_SHARED to the folder that holds engines/"
            );
            None
        }
    }
}
