//! Streams and bodies of the responses API, of Anthropic's, and of embeddings; and counts of tokens by events.

use proptest::prelude::*;

use super::*;

/// A streamed answer of the responses API: reasoning, text, a call, usage.
const RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"r","object":"response","status":"in_progress","output":[],"usage":null,"error":null}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs","summary":[]}}

event: response.reasoning_text.delta
data: {"type":"response.reasoning_text.delta","output_index":0,"content_index":0,"delta":"hm"}

event: response.reasoning_text.done
data: {"type":"response.reasoning_text.done","output_index":0,"text":"hm"}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":1,"item":{"type":"message","role":"assistant","content":[]}}

event: response.content_part.added
data: {"type":"response.content_part.added","output_index":1,"part":{"type":"output_text","text":""}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","output_index":1,"delta":"a","logprobs":[]}

event: response.output_text.delta
data: {"type":"response.output_text.delta","output_index":1,"delta":"中","logprobs":[]}

event: response.output_text.done
data: {"type":"response.output_text.done","output_index":1,"text":"a中"}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","name":"f","arguments":""}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","output_index":2,"delta":"{}"}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[],"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":16},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":37}}}

"#;

/// A streamed answer of Anthropic's API: a ping, thinking, text, a tool's use, usage.
const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"usage":{"input_tokens":14,"cache_read_input_tokens":16,"cache_creation_input_tokens":0,"output_tokens":1}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a中"}}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}

event: message_stop
data: {"type":"message_stop"}

"#;

fn read_in(chunks: &[&[u8]], form: BodyForm) -> Summary {
    let mut reader = ResponseReader::new(form);
    for chunk in chunks {
        reader.push(chunk, 1);
    }
    reader.finish(1)
}

fn stream(text: &str) -> Summary {
    read_in(&[text.as_bytes()], BodyForm::Sse)
}

fn json(text: &str) -> Summary {
    read_in(&[text.as_bytes()], BodyForm::Json)
}

/// Tokens after each event, each at the clock of its number.
fn tokens_by_event(text: &str) -> (Vec<u32>, Summary) {
    let mut reader = ResponseReader::new(BodyForm::Sse);
    let tokens = text
        .split_inclusive("\n\n")
        .enumerate()
        .map(|(at, event)| reader.push(event.as_bytes(), at as u64).tokens)
        .collect();
    (tokens, reader.finish(99))
}

#[test]
fn a_response_is_timed_from_its_first_reasoning_to_its_last_argument() {
    let (tokens, summary) = tokens_by_event(RESPONSES);
    assert_eq!(tokens, [0, 0, 1, 1, 1, 1, 2, 3, 3, 4, 5, 7]);
    assert_eq!((summary.first_token_us, summary.last_token_us), (Some(2), Some(10)));
    assert_eq!((summary.output_tokens, summary.tokens_from), (7, TokenSource::Usage));
    let usage = Usage { prompt_tokens: Some(30), completion_tokens: Some(7), cached_tokens: Some(16) };
    assert_eq!(summary.usage, usage);
    assert!(summary.complete && !summary.error);
}

#[test]
fn an_anthropic_message_is_timed_from_its_first_thought_to_its_last_argument() {
    let (tokens, summary) = tokens_by_event(ANTHROPIC);
    assert_eq!(tokens, [0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 4, 9, 9]);
    assert_eq!((summary.first_token_us, summary.last_token_us), (Some(3), Some(10)));
    assert_eq!((summary.output_tokens, summary.tokens_from), (9, TokenSource::Usage));
    // Its input tokens leave out what came from the cache.
    let usage = Usage { prompt_tokens: Some(30), completion_tokens: Some(9), cached_tokens: Some(16) };
    assert_eq!(summary.usage, usage);
    assert!(summary.complete && !summary.error);
}

#[test]
fn both_streams_are_read_the_same_wherever_they_are_split() {
    for text in [RESPONSES, ANTHROPIC] {
        for line_end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', line_end);
            let whole = stream(&text);
            assert!(whole.complete && whole.output_tokens > 0);
            for at in 0..=text.len() {
                let (head, tail) = text.as_bytes().split_at(at);
                assert_eq!(read_in(&[head, tail], BodyForm::Sse), whole, "split at {at}");
            }
        }
    }
}

#[test]
fn a_response_that_ends_early_or_fails_says_so() {
    let end = |kind: &str| {
        let (events, _) = RESPONSES.split_once("event: response.completed").unwrap();
        stream(&format!(
            "{events}data: {{\"type\":\"{kind}\",\"response\":{{\"usage\":{{\"output_tokens\":6}}}}}}\n\n"
        ))
    };
    let cut = end("response.incomplete");
    assert!(cut.complete && !cut.error, "the client's own bound was reached");
    assert_eq!(cut.output_tokens, 6);
    assert!(end("response.failed").error);
    assert!(!end("response.in_progress").complete);
    let (broken, _) = ANTHROPIC.split_once("event: message_delta").unwrap();
    let broken_off = stream(broken);
    assert!(!broken_off.complete);
    assert_eq!((broken_off.output_tokens, broken_off.tokens_from), (4, TokenSource::Events));
    for error in [
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
        "data: {\"type\":\"error\",\"message\":\"no\"}\n\n",
    ] {
        assert!(stream(error).error, "{error}");
    }
}

#[test]
fn a_counted_stream_without_usage_names_its_source() {
    let (events, _) = RESPONSES.split_once("event: response.completed").unwrap();
    let summary = stream(&format!("{events}data: {{\"type\":\"response.completed\",\"response\":{{}}}}\n\n"));
    assert_eq!((summary.output_tokens, summary.tokens_from), (5, TokenSource::Events));
}

#[test]
fn whole_bodies_of_both_apis_are_read() {
    let response = json(
        r#"{"id":"r","object":"response","status":"completed","error":null,"output":[
            {"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"}]},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"abc"}]},
            {"type":"function_call","name":"f","arguments":"{}"}],
            "usage":{"input_tokens":5,"output_tokens":8,"input_tokens_details":{"cached_tokens":4}}}"#,
    );
    assert_eq!((response.output_tokens, response.tokens_from), (8, TokenSource::Usage));
    assert_eq!((response.usage.prompt_tokens, response.usage.cached_tokens), (Some(5), Some(4)));
    assert_eq!(response.events, EventCount { parts: 3, bytes: 8, stated: false });
    assert!(response.complete && !response.error);
    assert!(
        json(r#"{"object":"response","status":"failed","error":{"code":"server_error"},"output":[]}"#).error
    );

    let message = json(
        r#"{"type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"abc"},
            {"type":"tool_use","name":"f","input":{"a":1}}],"stop_reason":"tool_use","usage":{"input_tokens":5,"output_tokens":8}}"#,
    );
    assert_eq!((message.output_tokens, message.usage.prompt_tokens), (8, Some(5)));
    assert_eq!(message.events, EventCount { parts: 3, bytes: 13, stated: false });
    assert!(message.complete && message.first_token_us.is_some());
}

#[test]
fn an_embedding_has_an_end_and_no_token() {
    let mut reader = ResponseReader::new(BodyForm::Json);
    reader.push(br#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-0.2]}],"#, 5);
    reader.push(br#""model":"e","usage":{"prompt_tokens":8,"total_tokens":8,"completion_tokens":0}}"#, 7);
    let summary = reader.finish(50);
    assert_eq!((summary.first_token_us, summary.last_token_us, summary.end_us), (None, None, Some(7)));
    assert_eq!((summary.output_tokens, summary.usage.prompt_tokens), (0, Some(8)));
    assert!(summary.complete && !summary.error);
}

#[test]
fn token_ids_and_log_probabilities_tell_several_tokens_of_one_event() {
    for choice in [
        r#"{"text":"abcdef","token_ids":[1,2,3]}"#,
        r#"{"text":"abcdef","logprobs":{"tokens":["a","b","c"],"token_logprobs":[-1,-1,-1],"text_offset":[0,1,2]}}"#,
        r#"{"delta":{"content":"abcdef"},"logprobs":{"content":[{"token":"a","top_logprobs":[{},{}]},{"token":"b"},{"token":"c"}],"refusal":null}}"#,
        r#"{"delta":{"content":null},"token_ids":[7,8,9]}"#,
    ] {
        let summary = stream(&format!("data: {{\"choices\":[{choice}]}}\n\ndata: [DONE]\n\n"));
        assert_eq!(
            (summary.output_tokens, summary.events.parts, summary.events.stated),
            (3, 1, true),
            "{choice}"
        );
        assert_eq!(summary.tokens_from, TokenSource::Events);
    }
    let delta = r#"data: {"type":"response.output_text.delta","delta":"abcdef","logprobs":[{"token":"a"},{"token":"b"}]}"#;
    assert_eq!(stream(&format!("{delta}\n\n")).output_tokens, 2);
    let unsaid = r#"data: {"choices":[{"text":"abcdef","token_ids":null,"logprobs":null}]}"#;
    assert!(!stream(&format!("{unsaid}\n\n")).events.stated);
    // One event that does not say it spoils the count of all.
    let said = r#"data: {"choices":[{"text":"a","token_ids":[1]}]}"#;
    assert!(stream(&format!("{said}\n\n{said}\n\n")).events.stated);
    assert!(!stream(&format!("{said}\n\n{unsaid}\n\n")).events.stated);
}

#[test]
fn parts_count_as_tokens_only_with_the_text_of_one_token_each() {
    let count = |parts, bytes, stated| EventCount { parts, bytes, stated }.counts_tokens(4.0);
    assert!(count(100, 450, false));
    assert!(!count(100, 900, false), "two tokens in every event");
    assert!(count(100, 900, true), "the events say how many");
    assert!(count(0, 0, false));
}

#[test]
fn an_event_too_large_to_read_is_taken_by_its_name() {
    let big = "x".repeat(300_000);
    for (name, tokens, complete) in [
        ("response.created", 0, false),
        ("response.output_text.delta", 1, false),
        ("response.completed", 0, true),
        ("message_start", 0, false),
    ] {
        let summary = stream(&format!("event: {name}\ndata: {{\"type\":\"{name}\",\"x\":\"{big}\"}}\n\n"));
        assert_eq!((summary.output_tokens, summary.complete), (tokens, complete), "{name}");
    }
    // One that fits is read, however large: it repeats the request's instructions.
    let long = format!(
        "data: {{\"type\":\"response.created\",\"response\":{{\"instructions\":\"{}\"}}}}\n\n",
        "x".repeat(200_000)
    );
    assert_eq!(stream(&long).output_tokens, 0);
}

#[test]
fn fields_of_unexpected_types_spoil_nothing() {
    for field in [
        "usage", "timings", "error", "delta", "item", "message", "response", "logprobs", "content", "output",
        "status",
    ] {
        for value in ["null", "1", "\"x\"", "[]", "[1,[2],{}]", "{}", "true"] {
            let event = format!("data: {{\"{field}\":{value},\"choices\":[{{\"text\":\"a\"}}]}}\n\n");
            assert_eq!(stream(&event).output_tokens, 1, "{event}");
        }
    }
    for (field, value) in
        [("delta", "7"), ("message", "\"x\""), ("logprobs", "[]"), ("token_ids", "{}"), ("index", "\"0\"")]
    {
        let event = format!("data: {{\"choices\":[{{\"text\":\"a\",\"{field}\":{value}}}]}}\n\n");
        assert_eq!(stream(&event).output_tokens, 1, "{event}");
    }
}

proptest! {
    #[test]
    fn a_damaged_stream_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for text in [RESPONSES, ANTHROPIC] {
            let mut bytes = text.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            read_in(&[&bytes], BodyForm::Sse);
            read_in(&[&bytes[..at]], BodyForm::Json);
        }
    }
}
