//! Load reports in response headers, in every form: no panic, and numbers that are in range or unknown.

#![no_main]

use foretoken_core::telemetry::orca::{read_report, read_report_binary};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| {
    for report in [read_report(value), read_report_binary(value)].into_iter().flatten() {
        assert!(report.waiting_requests.is_nan() || report.waiting_requests >= 0.0);
        assert!(report.running_requests.is_nan() || report.running_requests >= 0.0);
        assert!(report.kv_usage.is_nan() || (0.0..=1.0).contains(&report.kv_usage));
    }
});
