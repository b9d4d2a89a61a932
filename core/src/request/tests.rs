use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const BLOCKS: BlockOptions = BlockOptions { block_bytes: 16, max_blocks: 100_000 };

fn read(api: Api, body: &Value) -> LlmRequest {
    read_request(api, body.to_string().as_bytes(), BLOCKS).unwrap()
}

#[allow(clippy::needless_pass_by_value)] // so that a call is `chat(json!(…))`
fn chat(messages: Value) -> LlmRequest {
    read(Api::Chat, &json!({ "model": "m", "messages": messages }))
}

fn refusal(api: Api, body: &str) -> String {
    match read_request(api, body.as_bytes(), BLOCKS) {
        Err(RequestError::NotRequest(message)) => message,
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn paths_are_known_with_prefix_query_and_trailing_slash() {
    for path in [
        "/v1/completions",
        "/v1/completions/",
        "/v1/completions?x=/v1/chat/completions",
        "/team-a/v1/completions",
    ] {
        assert_eq!(api_of_path(path), Some(Api::Completions), "{path}");
    }
    for path in ["/v1/chat/completions", "/v1/chat/completions?stream=1", "/openai/v1/chat/completions/"] {
        assert_eq!(api_of_path(path), Some(Api::Chat), "{path}");
    }
    for path in [
        "",
        "/",
        "?",
        "/v1/models",
        "/v1/completionsx",
        "/v2/completions",
        "/chat/completions",
        "/xv1/completions",
    ] {
        assert_eq!(api_of_path(path), None, "{path}");
    }
}

#[test]
fn a_completions_request_gives_all_that_routing_needs() {
    let request = read(
        Api::Completions,
        &json!({
            "model": "tiny", "prompt": "x".repeat(40), "max_tokens": 7, "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "temperature": 0.1,
            "logit_bias": {"1": [{"deep": null}]},
        }),
    );
    assert_eq!(request.api, Api::Completions);
    assert_eq!(request.model, "tiny");
    assert!(request.stream && request.include_usage);
    assert_eq!(request.max_tokens, Some(7));
    assert_eq!(request.prompt.text_bytes, 40);
    assert_eq!(request.prompt.exact_tokens, None);
    assert_eq!(request.prompt.blocks.len(), 2);
}

#[test]
fn what_is_absent_or_null_has_its_default() {
    for body in [
        r#"{"prompt":""}"#,
        r#"{"prompt":"","model":null,"stream":null,"stream_options":null,"max_tokens":null,"cache_salt":null}"#,
        r#"{"prompt":"","stream_options":{}}"#,
    ] {
        let request = read_request(Api::Completions, body.as_bytes(), BLOCKS).unwrap();
        assert_eq!(
            request,
            LlmRequest {
                api: Api::Completions,
                model: String::new(),
                stream: false,
                include_usage: false,
                max_tokens: None,
                prompt: Prompt { tail: request.prompt.tail.clone(), ..Prompt::default() },
            }
        );
    }
}

#[test]
fn the_newer_name_of_the_token_bound_wins_and_odd_bounds_are_read_as_meant() {
    let bound = |json: &str| {
        let body = format!(r#"{{"messages":[],{json}}}"#);
        read_request(Api::Chat, body.as_bytes(), BLOCKS).unwrap().max_tokens
    };
    assert_eq!(bound(r#""max_tokens":5"#), Some(5));
    assert_eq!(bound(r#""max_tokens":5,"max_completion_tokens":9"#), Some(9));
    assert_eq!(bound(r#""max_completion_tokens":null,"max_tokens":5"#), Some(5));
    assert_eq!(bound(r#""max_tokens":-1"#), None);
    assert_eq!(bound(r#""max_tokens":100.0"#), Some(100));
    assert_eq!(bound(r#""max_tokens":99999999999"#), Some(u32::MAX));
}

#[test]
fn a_prompt_is_the_same_as_string_and_as_array_of_one() {
    let text = "The quick brown fox jumps over the lazy dog.";
    let plain = read(Api::Completions, &json!({"model": "m", "prompt": text}));
    let array = read(Api::Completions, &json!({"model": "m", "prompt": [text]}));
    assert_eq!(plain, array);
    let two = read(Api::Completions, &json!({"model": "m", "prompt": [text, text]}));
    assert_eq!(two.prompt.text_bytes, 2 * plain.prompt.text_bytes + 1);
    assert!(two.prompt.blocks.starts_with(&plain.prompt.blocks));
}

#[test]
fn token_ids_are_counted_exactly_and_hashed_four_bytes_each() {
    let ids: Vec<u32> = (0..10).collect();
    let flat = read(Api::Completions, &json!({"model": "m", "prompt": ids}));
    assert_eq!((flat.prompt.exact_tokens, flat.prompt.text_bytes), (Some(10), 40));
    assert_eq!(flat.prompt.blocks.len(), 2);
    let nested = read(Api::Completions, &json!({"model": "m", "prompt": [ids]}));
    assert_eq!(nested.prompt, flat.prompt);
    let batch = read(Api::Completions, &json!({"model": "m", "prompt": [ids, [7]]}));
    assert_eq!((batch.prompt.exact_tokens, batch.prompt.text_bytes), (Some(11), 48));
    let longer = read(Api::Completions, &json!({"model": "m", "prompt": (0..30).collect::<Vec<u32>>()}));
    assert!(longer.prompt.blocks.starts_with(&flat.prompt.blocks));
    let empty = read(Api::Completions, &json!({"model": "m", "prompt": [[]]}));
    assert_eq!(empty.prompt.exact_tokens, Some(0));
}

#[test]
fn content_is_the_same_as_string_and_as_text_parts() {
    let text = "Say something about block hashes, please.";
    let plain = chat(json!([{"role": "user", "content": text}]));
    let parts = chat(json!([{"role": "user", "content": [{"type": "text", "text": text}]}]));
    let bare = chat(json!([{"content": [text], "role": "user", "name": "n"}]));
    assert_eq!(plain, parts);
    assert_eq!(plain, bare);
    assert_eq!(plain.prompt.text_bytes as usize, text.len() + "user".len() + 2);
}

#[test]
fn an_image_counts_a_few_bytes_and_changes_the_hash_by_its_url() {
    let with = |url: &str| {
        chat(json!([{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            {"type": "text", "text": "What is in this picture? Answer in one sentence."},
        ]}]))
    };
    let (a, b) = (with("https://example.com/a.png"), with("https://example.com/b.png"));
    let inline = with(&format!("data:image/png;base64,{}", "A".repeat(100_000)));
    assert_ne!(a.prompt.blocks, b.prompt.blocks);
    assert_eq!(a.prompt.text_bytes, b.prompt.text_bytes);
    assert_eq!(a.prompt.text_bytes, inline.prompt.text_bytes);
    let text_alone =
        chat(json!([{"role": "user", "content": "What is in this picture? Answer in one sentence."}]));
    assert_eq!(a.prompt.text_bytes, text_alone.prompt.text_bytes + 9);
    let bare = chat(json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "text", "text": "What is in this picture? Answer in one sentence."},
    ]}]));
    assert_eq!(a, bare);
    let sound = |data: &str| {
        chat(json!([{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
            {"type": "text", "text": "What is said here? Answer in one sentence."},
        ]}]))
    };
    assert_ne!(sound("AAAA").prompt.blocks, sound("AAAB").prompt.blocks);
}

#[test]
fn tools_stand_before_the_messages_wherever_they_stand_in_the_body() {
    let tools = r#"[{"type":"function","function":{"name":"look_up","parameters":{"type":"object"}}}]"#;
    let messages = r#"[{"role":"user","content":"What is the weather in Oslo today?"}]"#;
    let body = |text: String| read_request(Api::Chat, text.as_bytes(), BLOCKS).unwrap();
    let before = body(format!(r#"{{"model":"m","tools":{tools},"messages":{messages}}}"#));
    let after = body(format!(r#"{{"messages":{messages},"tools":{tools},"model":"m"}}"#));
    let none = body(format!(r#"{{"messages":{messages},"tools":[],"model":"m"}}"#));
    let without = body(format!(r#"{{"messages":{messages},"model":"m"}}"#));
    assert_eq!(before, after);
    assert_eq!(none, without);
    assert_ne!(before.prompt.blocks.first(), without.prompt.blocks.first());
    let other = body(format!(
        r#"{{"model":"m","tools":{tools},"messages":[{{"role":"user","content":"Something else."}}]}}"#
    ));
    let shared = before.prompt.blocks.iter().zip(&other.prompt.blocks).take_while(|(a, b)| a == b).count();
    assert_eq!(shared, tools.len() / 16, "the tools are shared, the messages are not");
}

#[test]
fn tool_calls_count_as_what_the_assistant_said() {
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"city\":\"Oslo\"}"}}]);
    let with = chat(
        json!([{"role": "assistant", "content": null, "tool_calls": call}, {"role": "tool", "content": "12 C"}]),
    );
    let without = chat(json!([{"role": "assistant", "content": null}, {"role": "tool", "content": "12 C"}]));
    assert_eq!(
        with.prompt.text_bytes as usize,
        without.prompt.text_bytes as usize + 2 + r#"f{"city":"Oslo"}"#.len()
    );
    assert_ne!(with.prompt.blocks.first(), without.prompt.blocks.first());
}

#[test]
fn the_order_of_keys_and_escapes_do_not_change_the_prompt() {
    let plain = r#"{"model":"m","messages":[{"role":"user","content":"aaaa bbbb cccc dddd eeee"}]}"#;
    let other = r#"{"messages":[{"content":"aaaa bbbb cccc dddd \u0065\u0065ee","role":"us\u0065r"}],"mod\u0065l":"m"}"#;
    let read = |body: &str| read_request(Api::Chat, body.as_bytes(), BLOCKS).unwrap();
    assert_eq!(read(plain), read(other));
}

#[test]
fn another_model_or_salt_shares_no_block() {
    let prompt = "x".repeat(64);
    let of = |model: &str, salt: Option<&str>| {
        read(Api::Completions, &json!({"model": model, "prompt": prompt, "cache_salt": salt})).prompt.blocks
    };
    let base = of("m", None);
    assert_eq!(base, of("m", None));
    for other in [of("n", None), of("m", Some("s")), of("m", Some("t"))] {
        assert!(base.iter().zip(&other).all(|(a, b)| a != b));
    }
    assert_ne!(of("m", Some("s")), of("m", Some("t")));
}

#[test]
fn a_long_model_name_is_cut_between_characters() {
    let name = "é".repeat(200);
    let request = read(Api::Completions, &json!({"model": format!("a{name}"), "prompt": ""}));
    assert_eq!(request.model.len(), 255);
}

#[test]
fn broken_json_is_told_from_a_wrong_request_and_both_say_where() {
    for body in [
        "",
        "{",
        "not json",
        "{\"prompt\":\"a",
        "{\"prompt\":\"a\"} x",
        "{\"prompt\":\"\u{1}\"}",
        "\u{feff}{}",
    ] {
        let error = read_request(Api::Completions, body.as_bytes(), BLOCKS).unwrap_err();
        assert!(matches!(error, RequestError::NotJson(_)), "{body}: {error}");
        assert!(error.to_string().contains(" at line 1 column "), "{error}");
    }
    let broken_utf8 = read_request(Api::Completions, b"{\"prompt\":\"\xff\"}", BLOCKS).unwrap_err();
    assert!(matches!(broken_utf8, RequestError::NotJson(_)), "{broken_utf8}");

    assert_eq!(
        refusal(Api::Completions, r#"{"model":"m"}"#),
        "`prompt` is missing: expected a string, an array of strings, an array of token ids, or an array of arrays of token ids"
    );
    assert_eq!(
        refusal(Api::Chat, r#"{"prompt":"m"}"#),
        "`messages` is missing: expected an array of message objects"
    );
    assert_eq!(
        refusal(Api::Chat, r#"{"messages":[],"max_tokens":"many"}"#),
        "`max_tokens` at line 1 column 34: expected a whole number"
    );
    assert!(refusal(Api::Completions, "[1,2]").starts_with("the body at line 1 "));
    assert!(refusal(Api::Completions, "7").ends_with("expected a JSON object"));
    for (api, body, place, expected) in [
        (Api::Chat, r#"{"model":5,"messages":[]}"#, "`model`", "a string"),
        (Api::Chat, r#"{"messages":[],"stream":"yes"}"#, "`stream`", "true or false"),
        (
            Api::Chat,
            r#"{"messages":[],"stream_options":{"include_usage":1}}"#,
            "`stream_options`",
            "`include_usage`",
        ),
        (Api::Chat, r#"{"messages":[],"max_tokens":1.5}"#, "`max_tokens`", "a whole number"),
        (Api::Chat, r#"{"messages":{}}"#, "`messages`", "an array of message objects"),
        (Api::Chat, r#"{"messages":[{},"hi"]}"#, "`messages[1]`", "a message object"),
        (Api::Chat, r#"{"messages":[{"role":1}]}"#, "`messages[0].role`", "a string"),
        (
            Api::Chat,
            r#"{"messages":[{},{"content":{"text":"a"}}]}"#,
            "`messages[1].content`",
            "an array of content parts",
        ),
        (
            Api::Chat,
            r#"{"messages":[{"content":[["a"]]}]}"#,
            "`messages[0].content`",
            "an array of content parts",
        ),
        (Api::Chat, r#"{"messages":[{"content":7}]}"#, "`messages[0].content`", "a string, null"),
        (Api::Completions, r#"{"prompt":null}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":["a",1]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[1,"a"]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[1,[2]]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[[2],1]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[["a"]]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[-1]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[1.5]}"#, "`prompt`", "an array of token ids"),
        (Api::Completions, r#"{"prompt":[4294967296]}"#, "`prompt`", "an array of token ids"),
    ] {
        let message = refusal(api, body);
        assert!(message.starts_with(place) && message.contains(expected), "{body}: {message}");
    }
}

#[test]
fn an_error_never_quotes_the_client() {
    let body = r#"{"messages":[{"content":{"secret":"swordfish"}}],"max_tokens":"swordfish"}"#;
    assert!(!refusal(Api::Chat, body).contains("swordfish"));
    assert!(!refusal(Api::Chat, r#"{"max_tokens":"swordfish","messages":[]}"#).contains("swordfish"));
}

#[test]
fn the_last_of_repeated_keys_wins() {
    let twice = r#"{"model":"x","model":"m","messages":[{"content":"no","content":"yes","role":"user"}]}"#;
    let once = r#"{"model":"m","messages":[{"content":"yes","role":"user"}]}"#;
    let read = |body: &str| read_request(Api::Chat, body.as_bytes(), BLOCKS).unwrap();
    assert_eq!(read(twice), read(once));
}

#[test]
fn hostile_bodies_cost_bounded_work() {
    let deep = format!("{{\"messages\":{}", "[".repeat(1_000_000));
    assert!(read_request(Api::Chat, deep.as_bytes(), BLOCKS).is_err());
    let deep = format!("{{\"messages\":[{{\"content\":{}", "[{\"image_url\":".repeat(100_000));
    assert!(read_request(Api::Chat, deep.as_bytes(), BLOCKS).is_err());
    let deep_unknown =
        format!("{{\"prompt\":\"\",\"x\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(
        read_request(Api::Completions, deep_unknown.as_bytes(), BLOCKS).is_ok(),
        "an unknown field is skipped"
    );
    let crowd = format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(100_000));
    assert!(refusal(Api::Chat, &crowd).contains("at most 65536"));
    let crowd = format!("{{\"prompt\":[{}\"\"]}}", "\"\",".repeat(100_000));
    assert!(refusal(Api::Completions, &crowd).contains("at most 65536"));
}

fn message() -> impl Strategy<Value = Value> {
    let text = "[ -~\u{e9}\u{4e2d}\n]{0,60}";
    let part = prop_oneof![
        text.prop_map(|text| json!({"type": "text", "text": text})),
        "[a-z]{1,9}".prop_map(|name| json!({"type": "image_url", "image_url": {"url": name}})),
    ];
    let content = prop_oneof![
        4 => text.prop_map(Value::from),
        1 => Just(Value::Null),
        1 => prop::collection::vec(part, 0..4).prop_map(Value::from),
    ];
    let calls = prop_oneof![3 => Just(Value::Null), 1 => "[a-z]{1,9}".prop_map(|name| json!([{"function": {"name": name}}]))];
    ("(system|user|assistant|tool)", content, calls)
        .prop_map(|(role, content, calls)| json!({"role": role, "content": content, "tool_calls": calls}))
}

proptest! {
    #[test]
    fn a_longer_conversation_begins_with_the_blocks_of_the_shorter(
        messages in prop::collection::vec(message(), 1..12),
        block_bytes in 1u32..40,
        with_tools in any::<bool>(),
    ) {
        let options = BlockOptions { block_bytes, max_blocks: 100_000 };
        let mut shorter: Option<Prompt> = None;
        for turns in 1..=messages.len() {
            let mut body = json!({"model": "m", "messages": messages[..turns]});
            if with_tools {
                body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
            }
            let prompt = read_request(Api::Chat, body.to_string().as_bytes(), options).unwrap().prompt;
            prop_assert_eq!(prompt.blocks.len(), (prompt.text_bytes / block_bytes) as usize);
            if let Some(shorter) = &shorter {
                prop_assert!(prompt.blocks.starts_with(&shorter.blocks));
                prop_assert!(prompt.text_bytes > shorter.text_bytes);
            }
            shorter = Some(prompt);
        }
    }

    #[test]
    fn conversations_share_blocks_just_up_to_where_they_part(
        shared in "[a-z ]{0,80}", left in "[a-z]{1,40}", right in "[A-Z]{1,40}",
    ) {
        let of = |tail: &str| chat(json!([{"role": "user", "content": format!("{shared}{tail}{}", "-".repeat(64))}])).prompt;
        let (a, b) = (of(&left), of(&right));
        let common = a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b).count();
        prop_assert_eq!(common, (shared.len() + "user".len() + 2) / 16);
        prop_assert!(a.blocks.iter().skip(common).all(|block| !b.blocks.contains(block)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for api in Api::ALL {
            let _ = read_request(api, &body, BLOCKS);
        }
    }

    #[test]
    fn a_request_cut_or_damaged_anywhere_never_panics(at in 0usize..400, byte in any::<u8>()) {
        let body = json!({"model": "m", "tools": [{"a": 1}], "max_tokens": 5, "stream_options": {"include_usage": true},
            "prompt": [[1, 2], [3]], "input": [{"type": "function_call", "name": "f", "arguments": "{}"}], "system": [{"text": "s"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "a\n\u{e9}"},
            {"type": "image_url", "image_url": {"url": "u"}}], "tool_calls": [{"id": "x"}]}]}).to_string();
        let mut damaged = body.into_bytes();
        let at = at % damaged.len();
        for api in Api::ALL {
            prop_assert!(read_request(api, &damaged[..at], BLOCKS).is_err());
        }
        damaged[at] = byte;
        for api in Api::ALL {
            let _ = read_request(api, &damaged, BLOCKS);
        }
    }
}
