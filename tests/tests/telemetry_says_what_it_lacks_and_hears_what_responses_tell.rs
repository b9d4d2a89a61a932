//! A series that pods' pages lack is said once a pod, in the log and as a metric; load reports in responses are asked
//! for, taken, and kept from clients that did not ask.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::recorder::Recorder;
use foretoken_tests::{http, paths};
use serde_json::json;

const FORMAT: &str = "endpoint-load-metrics-format";
const REPORT: &str = "endpoint-load-metrics";

#[tokio::test(flavor = "multi_thread")]
async fn a_series_that_pages_lack_is_said_once_a_pod_with_what_to_do() -> Result<()> {
    let dir = paths::run_dir("telemetry-missing")?;
    let pods = [Recorder::start().await?, Recorder::start().await?];
    let addresses = pods.each_ref().map(Recorder::address);
    let mut options = Options::new(&addresses)?;
    options.filter["telemetry"]["idle_interval_ms"] = json!(50);
    options.filter["telemetry"]["interval_ms"] = json!(50);
    let mut envoy = Envoy::start("telemetry-missing", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;
    envoy.wait_for_scrapes(40, Duration::from_secs(20)).await?;

    let missing = envoy.stats().await?.by_label("foretoken_telemetry_missing_total", "series");
    let expected =
        ["vllm:cache_config_info", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total"];
    assert_eq!(missing, expected.map(|series| (series.to_owned(), 2)).into());

    let log = std::fs::read_to_string(envoy.process().log())?;
    for address in addresses {
        for series in expected {
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| line.contains(&address.to_string()) && line.contains(series))
                .collect();
            assert_eq!(lines.len(), 1, "{address} {series}: {lines:?}");
        }
    }
    assert!(log.contains("set prefix.default_capacity_tokens"), "the fix is named");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn load_reports_are_asked_for_and_stay_between_envoy_and_the_pods() -> Result<()> {
    let dir = paths::run_dir("telemetry-reports")?;
    let pod = Recorder::start().await?;
    let mut options = Options::new(&[pod.address()])?;
    options.filter["telemetry"]["orca_request"] = json!(true);
    let envoy = Envoy::start("telemetry-reports", &options, &dir).await?;
    envoy.wait_for_pods(1, Duration::from_secs(20)).await?;

    let body = json!({"model": "recorder", "prompt": "hello", "max_tokens": 2, "stream": true});
    let answer = http::post_json(envoy.llm(), "/v1/completions", &[], &body).await?;
    assert_eq!((answer.status.as_u16(), answer.header(REPORT)), (200, None), "the client did not ask");
    let received = pod.take();
    let asked = received.iter().find(|request| request.path == "/v1/completions").expect("it arrived");
    assert_eq!(asked.headers[FORMAT], "TEXT");

    let asking = [(FORMAT, "JSON")];
    let answer = http::post_json(envoy.llm(), "/v1/completions", &asking, &body).await?;
    assert!(answer.header(REPORT).is_some_and(|report| report.contains("kv_cache_usage_perc")));
    let received = pod.take();
    let asked = received.iter().find(|request| request.path == "/v1/completions").expect("it arrived");
    assert_eq!(asked.headers[FORMAT], "JSON", "the client's own form");
    assert_eq!(envoy.stats().await?.value("foretoken_load_reports_total"), 2);
    Ok(())
}
