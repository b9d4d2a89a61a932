//! Metrics pages: no panic, and numbers that are in range or unknown.

#![no_main]

use foretoken_core::telemetry::{Dialect, read_metrics};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|page: &[u8]| {
    for dialect in [None, Some(Dialect::Vllm), Some(Dialect::LlamaCpp)] {
        let Ok(scrape) = read_metrics(page, dialect) else { continue };
        assert!(dialect.is_none_or(|dialect| dialect == scrape.dialect));
        assert!(scrape.running_requests >= 0.0 && scrape.waiting_requests >= 0.0);
        assert!(scrape.kv_usage.is_nan() || (0.0..=1.0).contains(&scrape.kv_usage));
        assert!(scrape.kv_capacity_tokens.is_nan() || scrape.kv_capacity_tokens > 0.0);
    }
});
