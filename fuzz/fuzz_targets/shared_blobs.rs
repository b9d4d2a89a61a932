//! What a worker reads out of shared data, where another build of the module may have written it: no panic.

#![no_main]

use foretoken_core::fleet::Fleet;
use foretoken_core::ledger::LedgerView;
use foretoken_core::placements::{LogPosition, LogReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|blob: &[u8]| {
    let _ = Fleet::read(blob);
    let _ = LedgerView::read(blob);
    let position = LogPosition { placements: 7, segment: 1 };
    LogReader::default().catch_up(0, position, |_| Some(blob.to_vec()), |_| {});
});
