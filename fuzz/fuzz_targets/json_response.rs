//! Unstreamed bodies: no panic, and no token before the body is whole.

#![no_main]

use foretoken_core::response::{BodyForm, Progress, ResponseReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let mut reader = ResponseReader::new(BodyForm::Json);
    for chunk in body.chunks(7) {
        assert_eq!(reader.push(chunk, 1), Progress::default());
    }
    let summary = reader.finish(2);
    assert!(!summary.complete || is_bracketed(body), "only JSON is complete");
    assert!(summary.complete || summary.output_tokens == 0);
});

/// Whether the body could be an object or an array.
fn is_bracketed(body: &[u8]) -> bool {
    matches!(body.trim_ascii(), [b'{', .., b'}'] | [b'[', .., b']'])
}
