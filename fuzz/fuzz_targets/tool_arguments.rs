//! Arguments of tool calls: however an engine splits and spaces them, the answer's blocks are those of the request
//! that repeats them.
//!
//! The first byte of the input chooses where the arguments are split.

#![no_main]

use foretoken_core::request::{Api, BlockOptions, read_request};
use foretoken_core::response::{BodyForm, ResponseReader};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

const OPTIONS: BlockOptions = BlockOptions { block_bytes: 1, max_blocks: 10_000 };

fn blocks(messages: &Value) -> foretoken_core::request::Prompt {
    let body = json!({"model": "m", "messages": messages}).to_string();
    read_request(Api::Chat, body.as_bytes(), OPTIONS).expect("a chat").prompt
}

fuzz_target!(|input: &[u8]| {
    let Some((at, arguments)) = input.split_first() else { return };
    let Ok(arguments) = core::str::from_utf8(arguments) else { return };
    let at = arguments.floor_char_boundary(usize::from(*at));
    let (head, tail) = arguments.split_at(at);
    let user = json!({"role": "user", "content": "x"});
    let call = json!([{"function": {"name": "f", "arguments": arguments}}]);
    let first = blocks(&json!([user]));
    let next = blocks(&json!([user, {"role": "assistant", "content": null, "tool_calls": call}]));
    let mut reader = ResponseReader::with_answer(BodyForm::Sse, first.tail.clone());
    for function in [json!({"name": "f", "arguments": head}), json!({"arguments": tail})] {
        let event = json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": function}]}}]});
        reader.push(format!("data: {event}\n\n").as_bytes(), 1);
    }
    let answer = reader.finish(2).answer_blocks;
    let so_far = [first.blocks, answer].concat();
    assert!(so_far.len() > 1024 || so_far == next.blocks);
});
