//! Event streams: no panic, and neither the summary nor the answer's blocks depend on how the stream was split.
//!
//! The first byte of the input chooses the length of the chunks.

#![no_main]

use foretoken_core::request::{Api, BlockOptions, ChainTail, read_request};
use foretoken_core::response::{BodyForm, ResponseReader, Summary};
use libfuzzer_sys::fuzz_target;

fn tail() -> ChainTail {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
    let options = BlockOptions { block_bytes: 4, max_blocks: 100 };
    read_request(Api::Chat, body, options).expect("a chat").prompt.tail
}

fn read(stream: &[u8], chunk_bytes: usize) -> Summary {
    let mut reader = ResponseReader::with_answer(BodyForm::Sse, tail());
    let mut shown = 0;
    let mut had_first = false;
    for chunk in stream.chunks(chunk_bytes) {
        let progress = reader.push(chunk, 1);
        assert!(progress.tokens >= shown, "the count never falls");
        assert!(!(had_first && progress.first_token), "there is one first token");
        shown = progress.tokens;
        had_first |= progress.first_token;
    }
    let summary = reader.finish(1);
    assert_eq!(summary.first_token_us.is_some(), summary.last_token_us.is_some());
    assert!(summary.answer_blocks.len() <= 100);
    summary
}

fuzz_target!(|input: &[u8]| {
    let Some((chunk_bytes, stream)) = input.split_first() else { return };
    let chunk_bytes = usize::from(*chunk_bytes).max(1);
    assert_eq!(read(stream, chunk_bytes), read(stream, usize::MAX));
});
