//! Request bodies: no panic, and the facts agree with each other whatever a client sends.

#![no_main]

use foretoken_core::request::{Api, BlockOptions, read_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    for (api, block_bytes) in [(Api::Completions, 16), (Api::Chat, 3)] {
        let Ok(request) = read_request(api, body, BlockOptions { block_bytes, max_blocks: 1000 }) else {
            continue;
        };
        assert!(request.model.len() <= 256);
        let full_blocks = (request.prompt.text_bytes / block_bytes).min(1000);
        assert_eq!(request.prompt.blocks.len(), full_blocks as usize);
        if let Some(tokens) = request.prompt.exact_tokens {
            assert!(u64::from(tokens) * 4 <= u64::from(request.prompt.text_bytes));
        }
    }
});
