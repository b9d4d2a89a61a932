//! The pick travels in a request header. What a client sends in it must neither choose a pod nor reach one.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::recorder::Recorder;
use foretoken_tests::{http, paths};
use serde_json::json;

const PICK_HEADER: &str = "x-gateway-destination-endpoint";

#[tokio::test(flavor = "multi_thread")]
async fn a_pick_sent_by_a_client_is_removed_whether_the_filter_picks_or_not() -> Result<()> {
    let dir = paths::run_dir("steer")?;
    // The client names a server that Envoy knows as well, but not as one of the pods.
    let pods = [Recorder::start().await?, Recorder::start().await?];
    let addresses = pods.each_ref().map(Recorder::address);
    // The filter's own requests for lists of models go by the pick header; what is counted is the client's.
    let mut options = Options::new(&addresses)?;
    options.filter["models"] = json!({"discover": false});
    let envoy = Envoy::start("steer", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    let wanted = addresses[1].to_string();
    let completion = json!({"model": "m", "prompt": "hello", "max_tokens": 2, "stream": true});
    for _ in 0..20 {
        // A request that the filter routes.
        let answer =
            http::post_json(envoy.llm(), "/v1/completions", &[(PICK_HEADER, &wanted)], &completion).await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // Requests that it leaves to Envoy: another path, another method.
        let answer =
            http::post_json(envoy.llm(), "/v1/embeddings", &[(PICK_HEADER, &wanted)], &json!({})).await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer =
            http::send(::http::Method::GET, envoy.llm(), "/v1/models", &[(PICK_HEADER, &wanted)], "").await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // The header twice: neither may survive.
        let answer = http::post_json(
            envoy.llm(),
            "/v1/embeddings",
            &[(PICK_HEADER, &wanted), (PICK_HEADER, &wanted)],
            &json!({}),
        )
        .await?;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    let received = pods.each_ref().map(Recorder::take);
    assert_eq!(received[0].len() + received[1].len(), 80);
    // 80 requests that all went to the named pod were steered; by chance it happens to none of these runs.
    assert!(!received[0].is_empty(), "every request went to the pod that the client named");
    for request in received.iter().flatten() {
        assert!(
            !request.headers.contains_key(PICK_HEADER),
            "{} reached a pod with the pick header",
            request.path
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_reach_a_server_that_is_no_pod() -> Result<()> {
    let dir = paths::run_dir("steer-outside")?;
    let pod = Recorder::start().await?;
    let outside = Recorder::start().await?;
    let envoy = Envoy::start("steer-outside", &Options::new(&[pod.address()])?, &dir).await?;
    envoy.wait_for_pods(1, Duration::from_secs(20)).await?;

    for target in [outside.address().to_string(), envoy.admin().to_string()] {
        for path in ["/v1/completions", "/stats"] {
            let body = json!({"model": "m", "prompt": "hello", "max_tokens": 2, "stream": true});
            let answer = http::post_json(envoy.llm(), path, &[(PICK_HEADER, &target)], &body).await?;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.text().contains("[DONE]"), "not the pod's answer: {}", answer.text());
        }
    }
    assert_eq!(pod.take().len(), 4);
    assert!(outside.take().is_empty());
    Ok(())
}
