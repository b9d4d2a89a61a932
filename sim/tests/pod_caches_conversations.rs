//! The next turn of a conversation finds the former prompt and the generated answer in the cache.

mod common;

use common::{call, quick_profile, start};
use serde_json::{Value, json};

async fn chat(pod: &foretoken_sim::pod::LivePod, messages: &[Value], max_tokens: u32) -> (String, u64, u64) {
    let body = json!({"model": "tiny", "messages": messages, "max_tokens": max_tokens}).to_string();
    let answer = call(pod.addr(), "POST", "/v1/chat/completions", &body).await.json();
    let usage = &answer["usage"];
    (
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
        usage["prompt_tokens"].as_u64().unwrap(),
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
    )
}

#[tokio::test]
async fn each_turn_reuses_everything_before_its_question() {
    let pod = start(quick_profile()).await;
    let mut messages = vec![json!({"role": "system", "content": "You are terse. ".repeat(30)})];
    let mut before = 0;
    for turn in 0..4 {
        messages.push(
            json!({"role": "user", "content": format!("Question {turn}: why, and since when? ").repeat(5)}),
        );
        let (answer, prompt, cached) = chat(&pod, &messages, 50).await;
        if turn > 0 {
            // All of the former prompt and answer but its last token, in whole blocks of 16.
            let known = before - 1;
            assert_eq!(cached, known / 16 * 16, "turn {turn}");
        }
        before = prompt + 50;
        messages.push(json!({"role": "assistant", "content": answer}));
    }
    let stats = pod.stats();
    assert!(stats.cached_tokens * 2 > stats.prompt_tokens, "{stats:?}");
}

#[tokio::test]
async fn a_completion_that_continues_its_own_text_hits_as_well() {
    let pod = start(quick_profile()).await;
    let first = "Once upon a time there was a cache. ".repeat(20);
    let body = json!({"prompt": first, "max_tokens": 64}).to_string();
    let answer = call(pod.addr(), "POST", "/v1/completions", &body).await.json();
    let tokens = answer["usage"]["total_tokens"].as_u64().unwrap();
    let next = first + answer["choices"][0]["text"].as_str().unwrap() + " And then?";
    let body = json!({"prompt": next, "max_tokens": 1}).to_string();
    let usage = &call(pod.addr(), "POST", "/v1/completions", &body).await.json()["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(), (tokens - 1) / 16 * 16);
}

#[tokio::test]
async fn another_pod_has_nothing_and_a_reset_forgets() {
    let (one, two) = (start(quick_profile()).await, start(quick_profile()).await);
    let messages = [json!({"role": "user", "content": "the same words ".repeat(40)})];
    assert_eq!(chat(&one, &messages, 1).await.2, 0);
    assert!(chat(&one, &messages, 1).await.2 > 0);
    assert_eq!(chat(&two, &messages, 1).await.2, 0);
    assert_eq!(call(one.addr(), "POST", "/sim/reset", "").await.status(), 204);
    assert_eq!(one.stats().first_tokens, 0);
    assert_eq!(chat(&one, &messages, 1).await.2, 0);
}
