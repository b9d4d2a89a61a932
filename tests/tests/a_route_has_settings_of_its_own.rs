//! What the configuration says of a route holds on that route, by its name or by its metadata, in a real Envoy.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::completion::{Asked, Request, complete, complete_with};
use foretoken_tests::envoy::{Envoy, Options, RouteSpec};
use foretoken_tests::{paths, pods};
use serde_json::{Value, json};

fn route(prefix: &str, name: Option<&str>, metadata: Option<Value>) -> RouteSpec {
    RouteSpec { prefix: prefix.to_owned(), name: name.map(str::to_owned), metadata }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_is_known_by_its_name_and_by_its_metadata() -> Result<()> {
    let dir = paths::run_dir("routes")?;
    let pods = pods::start(&["fast", "fast"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.filter["slo"] = json!({"ttft_ms": 9000});
    options.filter["routes"] = json!({
        "batch": {"priority": -3, "ttft_ms": 0, "tpot_ms": 400},
        "chat-*": {"ttft_ms": 800, "trust": "none"},
        "off": {"enabled": false},
        "unread": {"body": "none"},
    });
    options.routes = vec![
        route("/batch/", Some("batch"), None),
        route("/chat/", Some("chat-eu-1"), None),
        route("/off/", Some("off"), None),
        route("/unread/", Some("unread"), None),
        // A controller's name, and the operator's own word for it. Other metadata beside it does not matter.
        route("/made-up/", Some("rule/7/match/0"), Some(json!({"route": "batch", "owner": {"team": 3}}))),
        // Metadata that says something else leaves the name.
        route("/other/", Some("chat-other"), Some(json!({"route": 5}))),
    ];
    let envoy = Envoy::start("routes", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    let request = Request::new("what does the route say of this ".repeat(60), 2);
    let asked = async |prefix: &str| -> Result<Option<Asked>> {
        let headers = [("x-slo-tpot-ms", "70000")];
        let path = format!("{prefix}/v1/completions");
        let completed = complete_with(envoy.llm(), &path, &headers, &request).await?;
        assert_eq!(completed.status, 200, "{completed:?}");
        Ok(completed.explain.and_then(|explain| explain.asked))
    };
    let expect = |ttft_ms, tpot_ms, priority| Some(Asked { ttft_ms, tpot_ms, priority, in_time: Some(true) });
    assert_eq!(asked("").await?, expect(Some(9000.0), Some(70_000.0), 0));
    assert_eq!(asked("/batch").await?, expect(None, Some(70_000.0), -3));
    assert_eq!(asked("/made-up").await?, expect(None, Some(70_000.0), -3));
    assert_eq!(asked("/chat").await?, expect(Some(800.0), None, 0), "no header counts there");
    assert_eq!(asked("/other").await?, expect(Some(800.0), None, 0));
    assert_eq!(asked("/off").await?, None);

    let unread = complete_with(envoy.llm(), "/unread/v1/completions", &[], &request).await?;
    let read = complete(envoy.llm(), &request).await?;
    let (unread, read) = (unread.explained()?, read.explained()?);
    assert!(read.cached_tokens > 0.0, "the same prompt again: {read:?}");
    assert!(unread.cached_tokens == 0.0, "nothing is known of a prompt that was not read: {unread:?}");
    assert!(unread.prompt_tokens > read.prompt_tokens, "the whole body counts: {unread:?}");

    let stats = envoy.stats().await?;
    assert_eq!(stats.labelled("foretoken_fallback_total", "reason", "route_off"), 1);
    let picks: u64 = stats.by_label("foretoken_picks_total", "rung").values().sum();
    assert_eq!(picks, 7);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_bodies_unread_an_envoy_that_cannot_hold_headers_routes_too() -> Result<()> {
    let dir = paths::run_dir("routes-unread")?;
    let pods = pods::start(&["fast", "slow"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.holds_headers = false;
    options.filter["request"] = json!({"body": "none"});
    let envoy = Envoy::start("routes-unread", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    for number in 0..40 {
        let request = Request::new(format!("{number} {}", "and some words more ".repeat(100)), 4);
        let completed = complete(envoy.llm(), &request).await?;
        assert_eq!((completed.status, completed.whole), (200, true));
        let explain = completed.explained()?;
        assert_eq!(explain.pod, completed.pod, "another pod answered than the one that was picked");
        assert!((400.0..800.0).contains(&explain.prompt_tokens), "{explain:?}");
    }
    // Answers are measured, so the faster pod is found out.
    let last = complete(envoy.llm(), &Request::new("last", 4)).await?;
    assert_eq!(last.pod, pods[0].addr().to_string());
    let picks: u64 = envoy.stats().await?.by_label("foretoken_picks_total", "rung").values().sum();
    assert_eq!(picks, 41);
    Ok(())
}
