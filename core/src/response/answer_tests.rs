//! An answer's blocks are those of the next request that repeats it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::request::{Api, BlockOptions, Prompt, read_request};

const BLOCKS: BlockOptions = BlockOptions { block_bytes: 16, max_blocks: 10_000 };

fn prompt(api: Api, body: &Value) -> Prompt {
    read_request(api, body.to_string().as_bytes(), BLOCKS).unwrap().prompt
}

fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
}

fn blocks_of(prompt: &Prompt, form: BodyForm, body: &str) -> Vec<u64> {
    let mut reader = ResponseReader::with_answer(form, prompt.tail.clone());
    reader.push(body.as_bytes(), 1);
    let whole = reader.finish(2).answer_blocks;
    let mut reader = ResponseReader::with_answer(form, prompt.tail.clone());
    for chunk in body.as_bytes().chunks(7) {
        reader.push(chunk, 1);
    }
    assert_eq!(reader.finish(2).answer_blocks, whole, "however it is chunked");
    whole
}

/// The answer to `first` in `body` gives the blocks that `next` has after those of `first`.
#[track_caller]
fn assert_goes_on(api: Api, first: &Value, form: BodyForm, body: &str, next: &Value) {
    let (first, next) = (prompt(api, first), prompt(api, next));
    let blocks = blocks_of(&first, form, body);
    assert!(!blocks.is_empty(), "the answer fills a block");
    let so_far = [first.blocks, blocks].concat();
    assert!(next.blocks.starts_with(&so_far), "{} of {} blocks", so_far.len(), next.blocks.len());
    // Nothing is left out: what the answer did not fill is less than a block.
    let marks = 8 + "assistant".len();
    assert!(next.blocks.len() - so_far.len() <= ("And then?".len() + marks + 32) / 16 + 1);
}

const ANSWER: &str = "Ships sail at noon, if the wind allows it. \u{4e2d}\u{6587} caf\u{e9} \"quoted\"\n";

/// The answer in pieces of four characters, as events of one choice.
fn pieces(of: impl Fn(&str) -> Value) -> Vec<Value> {
    let letters: Vec<char> = ANSWER.chars().collect();
    letters.chunks(4).map(|piece| of(&piece.iter().collect::<String>())).collect()
}

fn chat(messages: &[Value]) -> Value {
    json!({"model": "m", "messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]})
}

#[test]
fn a_chat_goes_on_after_its_streamed_and_its_whole_answer() {
    let user = json!({"role": "user", "content": "When do the ships sail?"});
    let next = [
        user.clone(),
        json!({"role": "assistant", "content": ANSWER}),
        json!({"role": "user", "content": "And then?"}),
    ];
    let mut stream = vec![json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})];
    stream.push(json!({"choices": [{"index": 0, "delta": {"reasoning_content": "Not to be repeated."}}]}));
    stream.extend(pieces(|text| {
        json!({"choices": [
            {"index": 1, "delta": {"content": "another choice"}}, {"index": 0, "delta": {"content": text}},
        ]})
    }));
    let first = chat(&[user]);
    assert_goes_on(Api::Chat, &first, BodyForm::Sse, &events(&stream), &chat(&next));
    let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER, "reasoning": "x"}}]});
    assert_goes_on(Api::Chat, &first, BodyForm::Json, &body.to_string(), &chat(&next));
}

#[test]
fn a_chat_goes_on_after_tool_calls() {
    let user = json!({"role": "user", "content": "When do the ships sail?"});
    let calls = json!([
        {"id": "a", "type": "function", "function": {"name": "wind", "arguments": "{\"place\":\"Cape Horn\",\"hours\":[1,2]}"}},
        {"id": "b", "type": "function", "function": {"name": "tide", "arguments": "{}"}},
    ]);
    let next = [
        user.clone(),
        json!({"role": "assistant", "content": "Let me look.", "tool_calls": calls}),
        json!({"role": "tool", "tool_call_id": "a", "content": "West, 7"}),
        json!({"role": "user", "content": "And then?"}),
    ];
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let stream = [
        delta(json!({"role": "assistant", "content": "Let me "})),
        delta(json!({"content": "look."})),
        delta(
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "wind", "arguments": ""}}]}),
        ),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"place\": \"Cape "}}]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "Horn\", \"hours\": [1, 2]}"}}]})),
        delta(json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "tide"}}]})),
    ];
    let first = chat(&[user]);
    assert_goes_on(Api::Chat, &first, BodyForm::Sse, &events(&stream), &chat(&next));
    let body = json!({"choices": [{"message": {"role": "assistant", "content": "Let me look.", "tool_calls": calls}}]});
    assert_goes_on(Api::Chat, &first, BodyForm::Json, &body.to_string(), &chat(&next));
}

#[test]
fn a_message_that_is_continued_is_not_opened_again() {
    let begun = json!({"role": "assistant", "content": "The answer begins: "});
    let whole = json!({"role": "assistant", "content": format!("The answer begins: {ANSWER}")});
    let (user, then) =
        (json!({"role": "user", "content": "Go on."}), json!({"role": "user", "content": "And then?"}));
    let stream = events(&pieces(|text| json!({"choices": [{"delta": {"content": text}}]})));
    let mut first = chat(&[user.clone(), begun.clone()]);
    first["continue_final_message"] = true.into();
    assert_goes_on(
        Api::Chat,
        &first,
        BodyForm::Sse,
        &stream,
        &chat(&[user.clone(), whole.clone(), then.clone()]),
    );

    let anthropic = |messages: Value| json!({"model": "m", "max_tokens": 9, "messages": messages});
    let stream = events(&pieces(
        |text| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
    ));
    let (first, next) = (anthropic(json!([user, begun])), anthropic(json!([user, whole, then])));
    assert_goes_on(Api::Messages, &first, BodyForm::Sse, &stream, &next);
}

#[test]
fn a_completion_goes_on_as_one_text() {
    let of = |text: &str| json!({"model": "m", "prompt": text});
    let stream = events(&pieces(|text| json!({"choices": [{"index": 0, "text": text}]})));
    let next = of(&format!("Once upon a time {ANSWER} and more"));
    assert_goes_on(Api::Completions, &of("Once upon a time "), BodyForm::Sse, &stream, &next);
    let body = json!({"choices": [{"text": ANSWER}]}).to_string();
    assert_goes_on(Api::Completions, &of("Once upon a time "), BodyForm::Json, &body, &next);
}

#[test]
fn a_response_goes_on_as_input_items() {
    let body = |input: Value| json!({"model": "m", "instructions": "Be brief.", "input": input});
    let user = json!({"role": "user", "content": "When do the ships sail?"});
    let message = json!({"type": "message", "role": "assistant", "id": "msg", "status": "completed",
        "content": [{"type": "output_text", "text": ANSWER, "annotations": []}]});
    let call = json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "wind", "arguments": "{\"place\": \"Cape Horn\"}"});
    let reasoning = json!({"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let next = body(json!([
        user, reasoning, message, call,
        {"type": "function_call_output", "call_id": "c", "output": "West, 7"}, {"role": "user", "content": "And then?"},
    ]));
    let mut stream = vec![
        json!({"type": "response.created", "response": {"status": "in_progress", "usage": null}}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs"}}),
        json!({"type": "response.reasoning_text.delta", "output_index": 0, "delta": "hm"}),
        json!({"type": "response.output_item.added", "output_index": 1, "item": {"type": "message", "role": "assistant", "content": []}}),
    ];
    stream.extend(pieces(|text| json!({"type": "response.output_text.delta", "output_index": 1, "delta": text, "logprobs": []})));
    stream.extend([
        json!({"type": "response.output_text.done", "output_index": 1, "text": ANSWER}),
        json!({"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "name": "wind", "arguments": ""}}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{\"place\":"}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "\"Cape Horn\"}"}),
        json!({"type": "response.output_item.done", "output_index": 2, "item": call}),
        json!({"type": "response.completed", "response": {"output": [message, call], "usage": {"input_tokens": 9, "output_tokens": 30}}}),
    ]);
    for first in [body(json!([user])), body(json!("When do the ships sail?"))] {
        assert_goes_on(Api::Responses, &first, BodyForm::Sse, &events(&stream), &next);
        let whole =
            json!({"object": "response", "status": "completed", "output": [reasoning, message, call]});
        assert_goes_on(Api::Responses, &first, BodyForm::Json, &whole.to_string(), &next);
    }
}

#[test]
fn an_anthropic_message_goes_on_with_its_tool_use() {
    let body = |messages: Value| json!({"model": "m", "max_tokens": 100, "system": [{"type": "text", "text": "Be brief."}], "messages": messages});
    let user = json!({"role": "user", "content": "When do the ships sail?"});
    let content = json!([
        {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": ANSWER},
        {"type": "tool_use", "id": "t", "name": "wind", "input": {"place": "Cape Horn"}},
        {"type": "tool_use", "id": "u", "name": "tide", "input": {}},
    ]);
    let next = body(json!([
        user, {"role": "assistant", "content": content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "West"}]}]},
    ]));
    let mut stream = vec![
        json!({"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
    ];
    stream.extend(pieces(|text| json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": text}})));
    stream.extend([
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "wind", "input": {}}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"place\": \"Cape"}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": " Horn\"}"}}),
        json!({"type": "content_block_start", "index": 3, "content_block": {"type": "tool_use", "id": "u", "name": "tide", "input": {}}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}}),
        json!({"type": "message_stop"}),
    ]);
    let first = body(json!([user]));
    assert_goes_on(Api::Messages, &first, BodyForm::Sse, &events(&stream), &next);
    let whole = json!({"type": "message", "role": "assistant", "content": content, "usage": {"input_tokens": 9, "output_tokens": 30}});
    assert_goes_on(Api::Messages, &first, BodyForm::Json, &whole.to_string(), &next);
}

#[test]
fn where_the_next_prompt_is_not_known_nothing_is_hashed() {
    let stream = events(&pieces(|text| json!({"choices": [{"text": text}]})));
    for (api, body) in [
        (Api::Completions, json!({"model": "m", "prompt": ["a", "b"]})),
        (Api::Completions, json!({"model": "m", "prompt": [1, 2, 3]})),
        (Api::Completions, json!({"model": "m", "prompt": "a", "echo": true})),
        (Api::Embeddings, json!({"model": "m", "input": "a"})),
        (Api::Responses, json!({"model": "m", "input": "a", "previous_response_id": "resp_1"})),
    ] {
        assert!(blocks_of(&prompt(api, &body), BodyForm::Sse, &stream).is_empty(), "{body}");
    }
    let plain = ResponseReader::new(BodyForm::Sse);
    assert!(plain.answer.is_none());
}

#[test]
fn an_endless_answer_has_bounded_blocks() {
    let prompt = prompt(Api::Completions, &json!({"model": "m", "prompt": "a"}));
    let mut reader = ResponseReader::with_answer(BodyForm::Sse, prompt.tail);
    let event = events(&[json!({"choices": [{"text": "x".repeat(1000)}]})]);
    for _ in 0..1000 {
        reader.push(event.as_bytes(), 1);
    }
    assert_eq!(reader.finish(2).answer_blocks.len(), 1024);
}

proptest! {
    #[test]
    fn any_answer_gives_the_blocks_of_the_next_turn(
        question in "[ -~\u{4e2d}]{0,60}",
        answer in prop::collection::vec("[ -~\n\u{e9}\u{4e2d}\u{1f600}]{0,12}", 0..20),
        block_bytes in 1u32..40,
    ) {
        let options = BlockOptions { block_bytes, max_blocks: 10_000 };
        let text = answer.concat();
        let user = json!({"role": "user", "content": question});
        let stream = events(&answer.iter().map(|text| json!({"choices": [{"delta": {"content": text}}]})).collect::<Vec<_>>());
        let turns = chat(&[user.clone(), json!({"role": "assistant", "content": text}), json!({"role": "user", "content": "x".repeat(40)})]);
        let read = |body: &Value| read_request(Api::Chat, body.to_string().as_bytes(), options).unwrap().prompt;
        let (first, next) = (read(&chat(&[user])), read(&turns));
        let mut reader = ResponseReader::with_answer(BodyForm::Sse, first.tail.clone());
        reader.push(stream.as_bytes(), 1);
        let blocks = reader.finish(2).answer_blocks;
        let added = if text.is_empty() { 0 } else { text.len() + "assistant".len() + 2 };
        prop_assert_eq!(first.blocks.len() + blocks.len(), (first.text_bytes as usize + added) / block_bytes as usize);
        prop_assert!(next.blocks.starts_with(&[first.blocks, blocks].concat()));
    }
}
