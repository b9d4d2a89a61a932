//! Request bodies of every API: no panic, and the facts agree with each other whatever a client sends.

#![no_main]

use foretoken_core::request::{Api, BlockOptions, Continues, TokenEstimator, read_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    for (api, block_bytes) in Api::ALL.into_iter().zip([16, 3, 1, 7, 64]) {
        let Ok(request) = read_request(api, body, BlockOptions { block_bytes, max_blocks: 1000 }) else {
            continue;
        };
        assert!(request.model.len() <= 256);
        let prompt = &request.prompt;
        let full_blocks = (prompt.text_bytes / block_bytes).min(1000);
        assert_eq!(prompt.blocks.len(), full_blocks as usize);
        if let Some(tokens) = prompt.exact_tokens {
            assert!(u64::from(tokens) * 4 <= u64::from(prompt.text_bytes));
            assert_eq!(prompt.tail.continues, Continues::Nothing);
        }
        let text = prompt.shape.text;
        assert!(text.words <= text.letters && text.sign_runs <= text.signs);
        let estimate = TokenEstimator::new().estimate(1, prompt);
        assert!(estimate.is_finite() && estimate >= 1.0);
    }
});
