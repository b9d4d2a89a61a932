//! Bytes of answers and errors, next to what vLLM was seen to send.

mod common;

use std::collections::BTreeSet;

use common::{call, quick_profile, start, vllm_fixtures};
use serde_json::{Value, json};

#[tokio::test]
async fn a_streamed_completion_is_one_event_a_token_and_ends_with_done() {
    let pod = start(quick_profile()).await;
    let body =
        json!({"model": "tiny", "prompt": "one two three", "max_tokens": 4, "stream": true}).to_string();
    let response = call(pod.addr(), "POST", "/v1/completions", &body).await;
    assert_eq!(response.status(), 200);
    assert!(response.head.contains("content-type: text/event-stream; charset=utf-8"), "{}", response.head);
    assert!(!response.head.contains("content-length"));
    let events = response.events();
    assert_eq!(events.len(), 4);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["object"], "text_completion");
        assert!(event["id"].as_str().unwrap().starts_with("cmpl-"));
        let choice = &event["choices"][0];
        assert!(choice["text"].as_str().unwrap().starts_with(' '));
        assert_eq!(choice["finish_reason"], if at == 3 { json!("length") } else { Value::Null });
        assert!(event.get("usage").is_none());
    }
}

#[tokio::test]
async fn a_streamed_chat_opens_with_the_role_and_closes_with_usage_when_asked() {
    let pod = start(quick_profile()).await;
    let body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3,
                      "stream": true, "stream_options": {"include_usage": true}})
        .to_string();
    let events = call(pod.addr(), "POST", "/v1/chat/completions", &body).await.events();
    assert_eq!(events.len(), 5);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[4]["choices"], json!([]));
    // <|user|> hello there <|end|> <|assistant|>: five tokens, where "hello" has no space before it.
    assert_eq!(
        events[4]["usage"],
        json!({"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3,
               "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn usage_rides_on_every_event_with_continuous_usage_stats() {
    let pod = start(quick_profile()).await;
    let body = json!({"prompt": "one two", "max_tokens": 3, "stream": true,
                      "stream_options": {"include_usage": true, "continuous_usage_stats": true}})
    .to_string();
    let events = call(pod.addr(), "POST", "/v1/completions", &body).await.events();
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2, 3, 3]);
}

#[tokio::test]
async fn the_same_prompt_gets_the_same_words_streamed_or_not_on_any_pod() {
    let (one, two) = (start(quick_profile()).await, start(quick_profile()).await);
    let ask = |stream: bool| {
        json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "stream": stream})
            .to_string()
    };
    let whole = call(one.addr(), "POST", "/v1/chat/completions", &ask(false)).await;
    assert!(whole.head.contains("content-type: application/json"));
    let text = whole.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let streamed: String = call(two.addr(), "POST", "/v1/chat/completions", &ask(true))
        .await
        .events()
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, streamed);
    assert_eq!(whole.json()["usage"]["completion_tokens"], 20);
}

#[tokio::test]
async fn sixteen_tokens_come_when_no_maximum_is_named_and_ignore_eos_is_accepted() {
    let pod = start(quick_profile()).await;
    let body = json!({"prompt": "x", "ignore_eos": true, "temperature": 0.0}).to_string();
    let answer = call(pod.addr(), "POST", "/v1/completions", &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn errors_carry_vllms_status_and_shape() {
    let pod = start(quick_profile()).await;
    let unknown = call(pod.addr(), "POST", "/v1/completions", r#"{"model":"nope","prompt":"x"}"#).await;
    assert_eq!(unknown.status(), 404);
    assert!(unknown.head.contains("content-type: application/json"));
    let body = json!({"prompt": vec![1; 16_384]}).to_string();
    let too_long = call(pod.addr(), "POST", "/v1/completions", &body).await;
    assert_eq!(too_long.status(), 400);
    assert_eq!(too_long.json()["error"]["param"], "input_tokens");
    assert_eq!(call(pod.addr(), "POST", "/v1/completions", "not json").await.status(), 400);
    assert_eq!(call(pod.addr(), "GET", "/nowhere", "").await.status(), 404);

    if let Some(fixtures) = vllm_fixtures() {
        let captured = std::fs::read(fixtures.join("error-unknown-model.json")).unwrap();
        assert_eq!(unknown.json(), serde_json::from_slice::<Value>(&captured).unwrap());
        let captured: Value =
            serde_json::from_slice(&std::fs::read(fixtures.join("error-too-long.json")).unwrap()).unwrap();
        let ours = too_long.json()["error"]["message"].as_str().unwrap().replace("16384", "N");
        let theirs = captured["error"]["message"].as_str().unwrap().replace("8192", "N").replace("8193", "N");
        assert_eq!(ours, theirs);
    }
}

#[tokio::test]
async fn models_and_health_answer() {
    let pod = start(quick_profile()).await;
    assert_eq!(call(pod.addr(), "GET", "/health", "").await.status(), 200);
    let models = call(pod.addr(), "GET", "/v1/models", "").await.json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("tiny"), &json!(16_384))
    );
}

/// All keys of an event, by path.
fn keys(value: &Value, path: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| keys(value, &format!("{path}.{key}"), out));
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, &format!("{path}[]"), out)),
        _ => {
            out.insert(path.to_owned());
        }
    }
}

#[tokio::test]
async fn stream_events_have_the_keys_of_a_captured_vllm_stream() {
    let Some(fixtures) = vllm_fixtures() else { return };
    let pod = start(quick_profile()).await;
    for (file, path, request) in [
        (
            "chat-stream-usage.sse",
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "stream": true,
                   "stream_options": {"include_usage": true}}),
        ),
        (
            "completions-stream-usage.sse",
            "/v1/completions",
            json!({"prompt": "hi", "max_tokens": 6, "stream": true,
                   "stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
        ),
        (
            "completions-stream.sse",
            "/v1/completions",
            json!({"prompt": "hi", "max_tokens": 6, "stream": true}),
        ),
    ] {
        let captured = std::fs::read_to_string(fixtures.join(file)).unwrap();
        let captured: Vec<Value> = captured
            .lines()
            .filter_map(|line| line.strip_prefix("data: ")?.strip_prefix('{'))
            .map(|rest| serde_json::from_str(&format!("{{{rest}")).unwrap())
            .collect();
        let ours = call(pod.addr(), "POST", path, &request.to_string()).await.events();
        assert_eq!(ours.len(), captured.len(), "{file}");
        for (ours, captured) in ours.iter().zip(&captured) {
            let (mut our_keys, mut their_keys) = (BTreeSet::new(), BTreeSet::new());
            keys(ours, "", &mut our_keys);
            keys(captured, "", &mut their_keys);
            // The captured server ran without prompt token details.
            our_keys.remove(".usage.prompt_tokens_details.cached_tokens");
            assert_eq!(our_keys, their_keys, "{file}");
        }
    }
}
