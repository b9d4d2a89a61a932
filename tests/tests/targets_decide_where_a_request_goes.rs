//! Among pods that meet a request's targets one policy leaves the fast pod to others and the other takes it; a
//! target that only the fast pod meets leaves no choice.

use std::time::Duration;

use anyhow::Result;
use foretoken_sim::pod::DEFAULT_MODEL;
use foretoken_tests::completion::{Request, complete_all, complete_with, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options, RouteSpec};
use foretoken_tests::http::EventStream;
use foretoken_tests::{paths, pods};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_loose_target_leaves_the_fast_pod_to_others_and_a_tight_one_takes_it() -> Result<()> {
    let dir = paths::run_dir("targets")?;
    let pods = pods::start(&["fast", "slow"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.filter["routes"] = json!({"spread": {"policy": "spread"}});
    options.routes =
        vec![RouteSpec { prefix: "/spread/".to_owned(), name: Some("spread".to_owned()), metadata: None }];
    let envoy = Envoy::start("targets", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;
    // Both learn their speeds.
    complete_all(envoy.llm(), mixed_requests(60, 1), 4).await?;
    let fast = pods[0].addr().to_string();

    // An answer is under way on the fast pod for all of the test. It prefers the fast one by its cost.
    let body = json!({"model": DEFAULT_MODEL, "prompt": "a long answer", "max_tokens": 6000, "stream": true, "ignore_eos": true});
    let mut running = EventStream::open(envoy.llm(), "/v1/completions", &body).await?;
    running.next().await?;

    let loose = [("x-slo-ttft-ms", "60000"), ("x-slo-tpot-ms", "10000")];
    let request = |prompt: &str| Request::new(format!("{prompt} {}", "some words more ".repeat(40)), 2);
    let packed = complete_with(envoy.llm(), "/v1/completions", &loose, &request("one")).await?;
    let spread = complete_with(envoy.llm(), "/spread/v1/completions", &loose, &request("two")).await?;
    for completed in [&packed, &spread] {
        let asked = completed.explained()?.asked.as_ref().expect("it asked");
        assert_eq!(
            (asked.ttft_ms, asked.tpot_ms, asked.in_time),
            (Some(60_000.0), Some(10_000.0), Some(true))
        );
    }
    let (packed, spread) = (packed.explained()?, spread.explained()?);
    assert_ne!(packed.pod, fast, "it delays the answer under way: {packed:?}");
    assert_eq!(spread.pod, fast, "{spread:?}");

    // A target between the two pods' predictions.
    let fast_ms = spread.tpot_ms[1];
    let slow_ms = packed.tpot_ms[1];
    assert!(fast_ms < slow_ms, "{fast_ms} against {slow_ms}");
    let between = ((fast_ms * slow_ms).sqrt()).to_string();
    let tight = [("x-slo-tpot-ms", between.as_str())];
    let completed = complete_with(envoy.llm(), "/v1/completions", &tight, &request("three")).await?;
    let explain = completed.explained()?;
    assert_eq!((explain.pod.as_str(), completed.pod.as_str()), (fast.as_str(), fast.as_str()), "{explain:?}");
    assert_eq!(explain.asked.as_ref().and_then(|asked| asked.in_time), Some(true));
    assert!(running.next().await?.is_some(), "the answer had ended before the test");
    Ok(())
}
