//! Metrics pages: no panic, and numbers that are in range or unknown, whosever page it is taken for.

#![no_main]

use foretoken_core::telemetry::{Dialect, read_metrics};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|page: &[u8]| {
    for dialect in Dialect::ALL.map(Some).into_iter().chain([None]) {
        let Ok(scrape) = read_metrics(page, dialect) else { continue };
        assert!(dialect.is_none_or(|dialect| dialect == scrape.dialect));
        for count in [
            scrape.running_requests,
            scrape.waiting_requests,
            scrape.running_adapters,
            scrape.waiting_adapters,
        ] {
            assert!(count.is_nan() || count >= 0.0);
        }
        for share in [scrape.kv_usage, scrape.host_kv_usage] {
            assert!(share.is_nan() || (0.0..=1.0).contains(&share));
        }
        for size in [scrape.kv_capacity_tokens, scrape.host_kv_capacity_tokens, scrape.block_tokens] {
            assert!(size.is_nan() || size > 0.0);
        }
    }
});
