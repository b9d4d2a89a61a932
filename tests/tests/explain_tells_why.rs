//! The explain header says where a request went and why; it is not given where it was not allowed.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::completion::{complete, complete_all, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::{http, paths, pods};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_explanation_is_of_the_decision_that_was_taken() -> Result<()> {
    let dir = paths::run_dir("explain")?;
    let pods = pods::start(&["fast", "slow", "fast"]).await?;
    let envoy = Envoy::start("explain", &Options::new(&pods::addresses(&pods))?, &dir).await?;
    envoy.wait_for_pods(3, Duration::from_secs(20)).await?;

    for completed in complete_all(envoy.llm(), mixed_requests(60, 1), 4).await? {
        let explain = completed.explained()?;
        assert_eq!(
            explain.pod, completed.pod,
            "the explanation names another pod than the one that answered"
        );
        assert_eq!(explain.rung, "prior");
        assert_eq!(explain.reason.as_deref(), Some("no_model"));
        assert!(explain.model_id.is_empty());
        assert_eq!(explain.candidates, 3);
        assert!(explain.ttft_ms[0] > 0.0 && explain.ttft_ms[0] <= explain.ttft_ms[1], "{explain:?}");
        assert!(explain.tpot_ms[0] > 0.0 && explain.tpot_ms[0] <= explain.tpot_ms[1], "{explain:?}");
        assert!(explain.cost_ms.own >= explain.ttft_ms[0], "{explain:?}");
        assert!(explain.cost_ms.others >= 0.0 && explain.cost_ms.future >= 0.0, "{explain:?}");
        assert!(explain.cached_tokens <= explain.prompt_tokens, "{explain:?}");
        let runner_up = explain.runner_up.as_ref().expect("three pods were compared");
        assert_ne!(runner_up.pod, explain.pod);
        // Pods that cannot be told apart are drawn from at random: 1 % by default.
        assert!(explain.total_ms <= runner_up.cost_ms * 1.011, "the runner-up was cheaper: {explain:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_explained_unasked_or_where_it_is_not_allowed() -> Result<()> {
    let dir = paths::run_dir("explain-off")?;
    let pods = pods::start(&["fast"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    let allowing = Envoy::start("explain-on", &options, &dir).await?;
    options.filter["explain"] = json!({"allow": false});
    let refusing = Envoy::start("explain-off", &options, &dir).await?;
    for envoy in [&allowing, &refusing] {
        envoy.wait_for_pods(1, Duration::from_secs(20)).await?;
    }

    let request = &mixed_requests(1, 2)[0];
    assert!(complete(allowing.llm(), request).await?.explain.is_some());
    assert!(complete(refusing.llm(), request).await?.explain.is_none());
    let body = json!({"model": request.model, "prompt": "unasked", "max_tokens": 1, "stream": true});
    let unasked = http::post_json(allowing.llm(), "/v1/completions", &[], &body).await?;
    assert_eq!(unasked.status, 200);
    assert!(unasked.header("x-foretoken-explain").is_none());
    Ok(())
}
