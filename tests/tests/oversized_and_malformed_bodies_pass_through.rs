//! What the filter cannot read is not its business to refuse: it goes to Envoy's own policy, byte for byte,
//! and is counted by reason.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::recorder::Recorder;
use foretoken_tests::{http, paths};
use serde_json::json;

struct Case {
    reason: &'static str,
    method: ::http::Method,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
}

fn post(reason: &'static str, body: impl Into<Vec<u8>>) -> Case {
    Case { reason, method: ::http::Method::POST, path: "/v1/completions", headers: &[], body: body.into() }
}

/// Over the filter's bound of 8 MiB, under Envoy's of 16 MiB.
fn oversized() -> String {
    json!({"model": "m", "prompt": "x".repeat(9 << 20), "max_tokens": 1}).to_string()
}

fn cases() -> Vec<Case> {
    vec![
        post("body_too_large", oversized()),
        post("body_not_json", "{\"model\": \"m\", \"prompt\": "),
        post("body_not_json", vec![0xff, 0xfe, 0x00, 0x80]),
        // Deep nesting is how a recursive reader is made to overflow its stack.
        post("body_not_json", format!("{{\"x\": {}", "[".repeat(1 << 20))),
        post("body_not_request", "[".repeat(1 << 20)),
        post("body_not_request", "[]"),
        post("body_not_request", "{\"model\": \"m\"}"),
        post("body_not_request", "{\"model\": 7, \"prompt\": {\"a\": 1}}"),
        post("no_body", ""),
        Case {
            headers: &[("content-encoding", "gzip")],
            ..post("body_encoded", vec![0x1f, 0x8b, 0x08, 0x00])
        },
        Case { path: "/v1/rerank", ..post("unknown_path", "{\"input\": \"x\"}") },
        Case { path: "/v1/../v1/tokenize?x=%00", ..post("unknown_path", "{}") },
        Case { method: ::http::Method::GET, path: "/v1/completions", ..post("method", "") },
    ]
}

/// Without the filter's own requests for lists of models: what is counted is the client's.
fn options(pod: &Recorder) -> Result<Options> {
    let mut options = Options::new(&[pod.address()])?;
    options.filter["models"] = json!({"discover": false});
    Ok(options)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_reaches_a_pod_unchanged_and_is_counted_by_reason() -> Result<()> {
    let dir = paths::run_dir("malformed")?;
    let pod = Recorder::start().await?;
    let envoy = Envoy::start("malformed", &options(&pod)?, &dir).await?;
    envoy.wait_for_pods(1, Duration::from_secs(20)).await?;

    for case in cases() {
        let label = format!("{} {} with a body of {} bytes", case.method, case.path, case.body.len());
        let before = envoy.stats().await?.labelled("foretoken_fallback_total", "reason", case.reason);
        let answer =
            http::send(case.method.clone(), envoy.llm(), case.path, case.headers, case.body.clone()).await?;
        assert_eq!(answer.status, 200, "{label}: {}", answer.text());
        let received = pod.take();
        assert_eq!(received.len(), 1, "{label}");
        assert!(received[0].body == case.body, "{label}: the body changed on its way");
        let after = envoy.stats().await?.labelled("foretoken_fallback_total", "reason", case.reason);
        let reasons = envoy.stats().await?.by_label("foretoken_fallback_total", "reason");
        assert_eq!(after, before + 1, "{label}: expected reason {}, counted {reasons:?}", case.reason);
    }

    // After all that, a request is still routed.
    let body = json!({"model": "m", "prompt": "hello", "max_tokens": 2, "stream": true});
    let answer =
        http::post_json(envoy.llm(), "/v1/completions", &[("x-foretoken-explain", "1")], &body).await?;
    assert_eq!(answer.status, 200);
    assert!(answer.header("x-foretoken-explain").is_some(), "the filter no longer routes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_length_is_read_while_it_fits_and_let_go_when_it_does_not() -> Result<()> {
    let dir = paths::run_dir("chunked")?;
    let pod = Recorder::start().await?;
    let envoy = Envoy::start("chunked", &options(&pod)?, &dir).await?;
    envoy.wait_for_pods(1, Duration::from_secs(20)).await?;

    let small = json!({"model": "m", "prompt": "hello", "max_tokens": 2, "stream": true}).to_string();
    for (body, reason) in [(small, "no_model"), (oversized(), "body_too_large")] {
        let before = envoy.stats().await?.labelled("foretoken_fallback_total", "reason", reason);
        let head = "POST /v1/completions HTTP/1.1\r\nhost: pods\r\ncontent-type: application/json\r\n\
                    transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
        let mut request = head.as_bytes().to_vec();
        for chunk in body.as_bytes().chunks(60_000) {
            request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            request.extend_from_slice(chunk);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        let answer = http::raw(envoy.llm(), &request, Duration::from_secs(30)).await?;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 200"), "{reason}: {answer}");
        let received = pod.take();
        assert_eq!(received.len(), 1);
        assert!(received[0].body == body, "{reason}: the body changed on its way");
        let after = envoy.stats().await?.labelled("foretoken_fallback_total", "reason", reason);
        assert_eq!(after, before + 1, "expected reason {reason}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http_are_refused_and_the_next_request_is_served() -> Result<()> {
    let dir = paths::run_dir("raw")?;
    let pod = Recorder::start().await?;
    let envoy = Envoy::start("raw", &options(&pod)?, &dir).await?;
    envoy.wait_for_pods(1, Duration::from_secs(20)).await?;

    let answer =
        http::raw(envoy.llm(), b"\x16\x03\x01\x00\x05hello\r\n\r\n", Duration::from_secs(10)).await?;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    // A client that promises a body and goes away while the filter waits for it.
    let promise = b"POST /v1/completions HTTP/1.1\r\nhost: pods\r\ncontent-length: 1000\r\n\r\n{\"model\":";
    http::raw(envoy.llm(), promise, Duration::from_millis(200)).await?;
    assert!(pod.take().is_empty());

    let body = json!({"model": "m", "prompt": "hello", "max_tokens": 2, "stream": true});
    let answer = http::post_json(envoy.llm(), "/v1/completions", &[], &body).await?;
    assert_eq!(answer.status, 200);
    Ok(())
}
