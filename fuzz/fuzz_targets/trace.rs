//! Traces: no panic, no more rows than lines, and requests that an engine could take, whatever the file.

#![no_main]

use foretoken_sim::workloads::{TraceOptions, arrivals, read_trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let Ok(rows) = read_trace(file) else { return };
    if !file.starts_with(&[0x1f, 0x8b]) {
        assert!(rows.len() <= file.split(|byte| *byte == b'\n').count());
    }
    // A row of four bytes may ask for a prompt of 120,000 tokens; thousands of them only take time.
    let options = TraceOptions { limit: 50, ..TraceOptions::default() };
    let played = arrivals(&rows, &options);
    assert_eq!(played.len(), rows.len().min(options.limit));
    assert!(played.windows(2).all(|pair| pair[0].at_us <= pair[1].at_us));
    for arrival in &played {
        let request = &arrival.request;
        assert!(request.prompt_tokens > 0 && request.output_tokens > 0);
        assert!(request.prompt_tokens + request.output_tokens <= options.max_tokens);
    }
});
