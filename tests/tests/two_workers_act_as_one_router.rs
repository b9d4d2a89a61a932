//! Each Envoy worker runs the filter in a VM of its own. What one has sent must count in the next
//! decision of the other, or a router of two workers is two routers that disturb each other.

use std::time::Duration;

use anyhow::Result;
use foretoken_sim::pod::LivePod;
use foretoken_tests::completion::{Request, complete, complete_all};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::{paths, pods, wait};
use serde_json::json;

/// An Envoy with two workers whose telemetry is too rare to carry anything from one to the other.
async fn envoy_without_telemetry(name: &str, pods: &[LivePod]) -> Result<Envoy> {
    let mut options = Options::new(&pods::addresses(pods))?;
    options.filter["telemetry"] = json!({"interval_ms": 60_000, "stale_after_ms": 600_000});
    let envoy = Envoy::start(name, &options, &paths::run_dir(name)?).await?;
    envoy.wait_for_pods(pods.len(), Duration::from_secs(20)).await?;
    // VMs look for each other a few times a second; this traffic takes longer than that.
    let hello = (0..30).map(|index| Request::new(format!("hello {index}"), 2)).collect();
    complete_all(envoy.llm(), hello, 1).await?;
    Ok(envoy)
}

/// The kernel spreads connections over workers by a hash, so many of them reach both.
async fn assert_both_workers_were_used(envoy: &Envoy) -> Result<()> {
    let connections = envoy.connections_by_worker().await?;
    assert_eq!(connections.len(), 2, "{connections:?}");
    assert!(connections.iter().all(|count| *count > 0), "one worker had no connection: {connections:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prefill_sent_by_one_worker_is_avoided_by_both() -> Result<()> {
    let pods = pods::start(&["fast", "fast"]).await?;
    let envoy = envoy_without_telemetry("workers-ledger", &pods).await?;
    let llm = envoy.llm();

    // About 14,000 tokens: more than a second of prefill on one of the two pods.
    let long = Request::new("all work and no play makes a dull boy ".repeat(1450), 2);
    let long = tokio::spawn(async move { complete(llm, &long).await });
    let busy = wait::until("a pod to start the long prefill", Duration::from_secs(10), async || {
        Ok(pods.iter().find(|pod| pod.stats().engine.running > 0).map(LivePod::addr))
    })
    .await?;

    let mut answered_meanwhile = 0;
    for index in 0..30 {
        let short = complete(llm, &Request::new(format!("question {index}"), 1)).await?;
        if long.is_finished() {
            break;
        }
        assert_ne!(short.pod, busy.to_string(), "short request {index} was sent behind the long prefill");
        answered_meanwhile += 1;
    }
    assert!(
        answered_meanwhile >= 20,
        "only {answered_meanwhile} short requests fitted beside the long prefill"
    );
    assert_eq!(long.await??.pod, busy.to_string());
    assert_both_workers_were_used(&envoy).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_placed_by_one_worker_is_found_by_both() -> Result<()> {
    let pods = pods::start(&["fast", "fast", "fast"]).await?;
    let envoy = envoy_without_telemetry("workers-prefix", &pods).await?;

    let prompt = "the quick brown fox jumps over the lazy dog ".repeat(200);
    let first = complete(envoy.llm(), &Request::new(&*prompt, 2)).await?;
    assert_eq!(first.explained()?.cached_tokens, 0.0, "nothing can be cached yet");
    for index in 0..30 {
        let again = complete(envoy.llm(), &Request::new(format!("{prompt} {index}"), 2)).await?;
        assert_eq!(again.pod, first.pod, "request {index} missed the pod that holds its prompt");
        let explain = again.explained()?;
        assert!(
            explain.cached_tokens > 0.8 * explain.prompt_tokens,
            "request {index} was not known to be cached: {explain:?}"
        );
    }
    assert_both_workers_were_used(&envoy).await
}
