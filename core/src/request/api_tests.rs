//! The other APIs' bodies, and prompts of every form: a longer conversation begins with the shorter one's blocks.

use serde_json::{Value, json};

use super::*;

const BLOCKS: BlockOptions = BlockOptions { block_bytes: 1, max_blocks: 100_000 };

fn read(api: Api, body: &Value) -> LlmRequest {
    read_request(api, body.to_string().as_bytes(), BLOCKS).unwrap()
}

fn refusal(api: Api, body: &Value) -> String {
    read_request(api, body.to_string().as_bytes(), BLOCKS).unwrap_err().to_string()
}

/// A conversation of all that messages may hold, in the spelling of this API.
fn conversation(api: Api) -> Vec<Value> {
    let picture = "data:image/png;base64,AAAA";
    match api {
        Api::Chat | Api::Embeddings => vec![
            json!({"role": "developer", "content": "Be brief."}),
            json!({"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "What is this?"},
                {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
                {"type": "video_url", "video_url": {"url": "https://example.com/v"}},
                {"type": "file", "file": {"file_id": "f"}},
            ]}),
            json!({"role": "assistant", "content": null, "reasoning_content": "hm",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}}]}),
            json!({"role": "tool", "tool_call_id": "c", "content": "A lighthouse."}),
            json!({"role": "assistant", "content": "It is a lighthouse."}),
            json!({"role": "user", "content": "Where?"}),
        ],
        Api::Responses => vec![
            json!({"role": "developer", "content": "Be brief."}),
            json!({"type": "message", "role": "user", "content": [
                {"type": "input_image", "image_url": picture, "detail": "auto"}, {"type": "input_text", "text": "What is this?"},
                {"type": "input_file", "file_id": "f"},
            ]}),
            json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{\"at\": 1}"}),
            json!({"type": "function_call_output", "call_id": "c", "output": "A lighthouse."}),
            json!({"type": "item_reference", "id": "msg_1"}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is a lighthouse."}]}),
            json!({"role": "user", "content": "Where?"}),
        ],
        Api::Messages => vec![
            json!({"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "text", "text": "What is this?", "cache_control": {"type": "ephemeral"}},
                {"type": "document", "source": {"type": "url", "url": "https://example.com/d"}, "title": "t"},
            ]}),
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "look", "input": {"at": 1}},
            ]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "A lighthouse."},
                    {"type": "image", "source": {"type": "base64", "data": "CCCC"}}]},
                {"type": "text", "text": "Well?"},
            ]}),
            json!({"role": "assistant", "content": "It is a lighthouse."}),
            json!({"role": "user", "content": "Where?"}),
        ],
        Api::Completions => Vec::new(),
    }
}

fn body(api: Api, messages: &[Value]) -> Value {
    match api {
        Api::Responses => {
            json!({"model": "m", "instructions": "Obey.", "input": messages, "tools": [{"name": "look"}]})
        }
        Api::Messages => {
            json!({"model": "m", "system": "Obey.", "messages": messages, "tools": [{"name": "look"}], "max_tokens": 9})
        }
        _ => json!({"model": "m", "messages": messages, "tools": [{"name": "look"}]}),
    }
}

#[test]
fn in_every_api_a_longer_conversation_begins_with_the_blocks_of_the_shorter() {
    for api in [Api::Chat, Api::Responses, Api::Messages, Api::Embeddings] {
        let messages = conversation(api);
        let mut shorter = read(api, &body(api, &[])).prompt;
        for turns in 1..=messages.len() {
            let prompt = read(api, &body(api, &messages[..turns])).prompt;
            assert!(prompt.text_bytes > shorter.text_bytes, "{api:?} {turns}");
            assert!(prompt.blocks.starts_with(&shorter.blocks), "{api:?} {turns}");
            shorter = prompt;
        }
    }
}

#[test]
fn every_part_of_a_conversation_changes_its_blocks() {
    for api in [Api::Chat, Api::Responses, Api::Messages] {
        let messages = conversation(api);
        let whole = read(api, &body(api, &messages)).prompt.blocks;
        for (from, to) in [
            ("What is this?", "What is that?"),
            ("A lighthouse.", "A light house."),
            ("\"look\"", "\"hook\""),
            ("AAAA", "AAAB"),
            ("Where?", "When?  "),
            ("\"at\": 1", "\"at\": 2"),
            ("\"at\":1", "\"at\":2"),
            ("example.com/v", "example.com/w"),
            ("example.com/d", "example.com/e"),
            ("CCCC", "CCCD"),
            ("BBBB", "BBBC"),
            ("\"file_id\":\"f\"", "\"file_id\":\"g\""),
            ("msg_1", "msg_2"),
            ("Obey.", "Obey!"),
            ("\"user\"", "\"User\""),
        ] {
            let text = body(api, &messages).to_string();
            let escaped = (from.replace('"', "\\\""), to.replace('"', "\\\""));
            for (from, to) in [(from.to_owned(), to.to_owned()), escaped] {
                let changed = text.replace(&from, &to);
                if changed != text {
                    let blocks = read_request(api, changed.as_bytes(), BLOCKS).unwrap().prompt.blocks;
                    assert_ne!(blocks, whole, "{api:?} {from} {to}");
                }
            }
        }
        // What no template shows a model again changes nothing.
        let text = body(api, &messages).to_string();
        for (from, to) in [
            ("\"hm\"", "\"well\""),
            ("\"signature\":\"s\"", "\"signature\":\"t\""),
            ("\"call_id\":\"c\"", "\"call_id\":\"d\""),
        ] {
            let blocks = read_request(api, text.replace(from, to).as_bytes(), BLOCKS).unwrap().prompt.blocks;
            assert_eq!(blocks, whole, "{api:?} {from}");
        }
    }
}

#[test]
fn a_responses_request_gives_all_that_routing_needs() {
    let request = read(
        Api::Responses,
        &json!({"model": "m", "input": "Hello there, how are you?", "instructions": "Be kind.", "max_output_tokens": 5, "stream": true}),
    );
    assert_eq!((request.api, request.stream, request.max_tokens), (Api::Responses, true, Some(5)));
    assert!(request.include_usage, "this API always tells");
    assert_eq!(request.prompt.shape.messages, 2);
    let items = json!({"model": "m", "instructions": "Be kind.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello there, how are you?"}]}]});
    assert_eq!(read(Api::Responses, &items).prompt, request.prompt);
    let chat = json!({"model": "m", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello there, how are you?"}]});
    assert_eq!(read(Api::Chat, &chat).prompt.blocks, request.prompt.blocks, "one engine serves both");
}

#[test]
fn what_only_the_engine_knows_is_no_shared_prefix_and_no_lesson() {
    let of = |key: &str, value: Value| {
        let mut body = json!({"model": "m", "input": "The same long question, many times over."});
        body[key] = value;
        read(Api::Responses, &body).prompt
    };
    let plain = of("previous_response_id", Value::Null);
    assert!(!plain.shape.unseen);
    for (key, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!({"id": "conv_1"})),
        ("prompt", json!({"id": "pmpt_1"})),
    ] {
        let prompt = of(key, value);
        assert!(
            prompt.shape.unseen && prompt.blocks.iter().all(|block| !plain.blocks.contains(block)),
            "{key}"
        );
    }
    let mut estimator = TokenEstimator::new();
    let unseen = of("conversation", json!("conv_1"));
    estimator.observe(1, unseen.text_bytes, &unseen.shape, 100_000);
    assert_eq!(estimator, TokenEstimator::new());
}

#[test]
fn an_embeddings_request_is_a_prompt_without_output() {
    let text = "The text that is to be embedded, of some length.";
    let one = read(
        Api::Embeddings,
        &json!({"model": "e", "input": text, "encoding_format": "base64", "max_tokens": 99}),
    );
    assert_eq!((one.max_tokens, one.stream), (Some(1), false));
    assert_eq!(one.prompt.tail.continues, Continues::Nothing);
    let as_prompt = read(Api::Completions, &json!({"model": "e", "prompt": text})).prompt;
    assert_eq!(one.prompt.blocks, as_prompt.blocks);
    let batch = read(Api::Embeddings, &json!({"model": "e", "input": [text, "another"]})).prompt;
    assert!(batch.blocks.starts_with(&one.prompt.blocks));
    for (input, tokens) in [(json!([1, 2, 3]), 3), (json!([[1, 2], [3]]), 3)] {
        let prompt = read(Api::Embeddings, &json!({"model": "e", "input": input})).prompt;
        assert_eq!(prompt.exact_tokens, Some(tokens));
    }
}

#[test]
fn an_anthropic_request_gives_all_that_routing_needs() {
    let request = read(Api::Messages, &body(Api::Messages, &conversation(Api::Messages)));
    assert_eq!((request.max_tokens, request.include_usage), (Some(9), true));
    assert_eq!((request.prompt.shape.messages, request.prompt.shape.media), (6, 3));
    let system = |system: Value| {
        read(Api::Messages, &json!({"model": "m", "system": system, "messages": [{"role": "user", "content": "Hello, good day."}]})).prompt
    };
    assert_eq!(system(json!("Be brief.")), system(json!([{"type": "text", "text": "Be brief."}])));
    assert_eq!(system(json!("")).blocks.is_empty(), system(Value::Null).blocks.is_empty());
    assert_ne!(system(json!("Be brief.")).blocks, system(Value::Null).blocks);
}

#[test]
fn older_function_calls_count_as_tool_calls() {
    let chat = |message: Value| {
        read(Api::Chat, &json!({"model": "m", "messages": [message], "functions": [{"name": "f"}]})).prompt
    };
    let old = chat(
        json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{\"a\":1}"}}),
    );
    let new = chat(
        json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}),
    );
    assert_eq!(old, new);
    let tools = json!({"model": "m", "messages": [], "tools": [{"name": "f"}]});
    let functions = json!({"model": "m", "messages": [], "functions": [{"name": "f"}]});
    assert_eq!(read(Api::Chat, &tools).prompt, read(Api::Chat, &functions).prompt);
}

#[test]
fn the_errors_of_the_other_apis_name_the_field() {
    for (api, body, place) in [
        (
            Api::Responses,
            json!({"model": "m"}),
            "`input` is missing: expected a string or an array of input items",
        ),
        (Api::Responses, json!({"input": 7}), "`input` at"),
        (Api::Responses, json!({"input": [7]}), "`input[0]` at"),
        (
            Api::Responses,
            json!({"input": [{"type": "function_call_output", "output": {}}]}),
            "`input[0].output` at",
        ),
        (Api::Responses, json!({"input": "", "max_output_tokens": "x"}), "`max_output_tokens` at"),
        (
            Api::Embeddings,
            json!({"prompt": "x"}),
            "`input` is missing: expected a string, an array of strings",
        ),
        (Api::Embeddings, json!({"input": [{}]}), "`input` at"),
        (Api::Messages, json!({"system": 7, "messages": []}), "`system` at"),
        (Api::Messages, json!({"messages": "x"}), "`messages` at"),
        (
            Api::Messages,
            json!({"messages": [{"content": [{"type": "tool_result", "content": [["x"]]}]}]}),
            "`messages[0].content` at",
        ),
        (Api::Chat, json!({"messages": [{"tool_calls": 7}]}), "`messages[0].tool_calls` at"),
        (Api::Chat, json!({"messages": "x"}), "`messages` at"),
    ] {
        let message = refusal(api, &body);
        assert!(message.contains(place), "{body}: {message}");
    }
}

#[test]
fn paths_of_all_apis_are_known() {
    for api in Api::ALL {
        assert_eq!(api_of_path(&format!("/team{}?x=1", api.path())), Some(api));
    }
    for path in ["/v1/messages/count_tokens", "/v1/responses/resp_1", "/v1/responses/resp_1/cancel"] {
        assert_eq!(api_of_path(path), None, "{path}");
    }
}
