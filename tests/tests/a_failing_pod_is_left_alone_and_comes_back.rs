//! A pod answers every request with an error, quickly, while its health checks and metrics are fine. It is
//! ejected after a few of them, tried now and then, and used again once it is repaired.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::completion::{Completed, complete, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::{paths, pods, wait};
use futures_util::{StreamExt, TryStreamExt, stream};

const PATIENCE: Duration = Duration::from_secs(30);
const CLIENTS: usize = 4;
const THRESHOLD: usize = 3;

async fn send(envoy: &Envoy, count: u32, seed: u32) -> Result<Vec<Completed>> {
    stream::iter(mixed_requests(count, seed))
        .map(|request| async move { complete(envoy.llm(), &request).await })
        .buffer_unordered(CLIENTS)
        .try_collect()
        .await
}

fn failed(completed: &[Completed]) -> usize {
    completed.iter().filter(|one| one.status == 500).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_eject_a_pod_and_good_answers_bring_it_back() -> Result<()> {
    let dir = paths::run_dir("ejected")?;
    let pods = pods::start(&["fast", "fast", "fast"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    // Long enough for a hundred requests, short enough to wait for.
    options.filter["health"] =
        serde_json::json!({"consecutive_failures": THRESHOLD, "eject_base_ms": 4000, "eject_max_ms": 4000});
    let envoy = Envoy::start("ejected", &options, &dir).await?;
    envoy.wait_for_pods(3, PATIENCE).await?;
    assert_eq!(failed(&send(&envoy, 60, 1).await?), 0);
    let sick = 0;
    let sick_address = pods[sick].addr().to_string();

    // Before its first health check no pod is healthy yet.
    let none_healthy = envoy.stats().await?.labelled("foretoken_fallback_total", "reason", "none_healthy");
    pods[sick].fail_next(500, u32::MAX);
    let first = send(&envoy, 100, 2).await?;
    // What was on its way when the third failure was seen may fail as well.
    let lost = failed(&first);
    assert!((THRESHOLD..=THRESHOLD + CLIENTS).contains(&lost), "{lost} of 100 requests failed");
    let stats = envoy.stats().await?;
    assert!(stats.value("foretoken_ejections_total") >= 1);
    assert_eq!(stats.labelled("foretoken_fallback_total", "reason", "none_healthy"), none_healthy);

    // One request at a time tries it after the back-off, fails, and it is ejected again.
    let tried = wait::until("the pod to be tried and ejected again", PATIENCE, async || {
        let more = send(&envoy, 8, 3).await?;
        let again = envoy.stats().await?.value("foretoken_ejections_total") >= 2;
        Ok(again.then(|| failed(&more)))
    })
    .await?;
    assert!(tried <= 2, "{tried} of 8 requests were let go to a pod that fails");

    pods[sick].fail_next(500, 0);
    let served_before = pods[sick].stats().first_tokens;
    wait::until("the repaired pod to be used", PATIENCE, async || {
        assert_eq!(failed(&send(&envoy, 8, 4).await?), 0, "a repaired pod does not fail");
        Ok((pods[sick].stats().first_tokens > served_before).then_some(()))
    })
    .await?;
    let after = send(&envoy, 60, 5).await?;
    assert_eq!(failed(&after), 0);
    assert!(after.iter().any(|one| one.explain.as_ref().is_some_and(|explain| explain.pod == sick_address)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_pods_fail_requests_still_reach_them_and_the_reason_is_counted() -> Result<()> {
    let dir = paths::run_dir("all-ejected")?;
    let pods = pods::start(&["fast", "fast"]).await?;
    let envoy = Envoy::start("all-ejected", &Options::new(&pods::addresses(&pods))?, &dir).await?;
    envoy.wait_for_pods(2, PATIENCE).await?;
    pods.iter().for_each(|pod| pod.fail_next(500, u32::MAX));
    assert_eq!(failed(&send(&envoy, 40, 1).await?), 40, "the client sees the pods' own answer");
    assert!(envoy.stats().await?.labelled("foretoken_fallback_total", "reason", "none_healthy") > 0);
    // Repaired, the next request finds out, without waiting for any back-off.
    pods.iter().for_each(|pod| pod.fail_next(500, 0));
    assert_eq!(failed(&send(&envoy, 20, 2).await?), 0);
    Ok(())
}
