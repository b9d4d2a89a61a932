//! The metrics page: vLLM's names and labels, and numbers that follow the load.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{call, eventually, quick_profile, request_bytes, start, vllm_fixtures};
use foretoken_core::telemetry::{Dialect, read_metrics};
use foretoken_sim::engine::profile::Profile;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Series of a page: name to the label sets in which values are left out.
fn series(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("vllm:")) {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
        let labels: Vec<&str> = labels
            .split("\",")
            .map(|label| {
                // Which bucket, reason or source it is belongs to the identity; sizes and names do not.
                let key = label.split_once('=').unwrap().0;
                if ["le", "reason", "source", "finished_reason"].contains(&key) {
                    label.trim_end_matches('"')
                } else {
                    key
                }
            })
            .collect();
        out.entry(name.to_owned()).or_default().insert(labels.join(","));
    }
    out
}

#[tokio::test]
async fn every_series_is_one_that_vllm_has_with_the_same_labels() {
    let Some(fixtures) = vllm_fixtures() else { return };
    let pod = start(quick_profile()).await;
    call(pod.addr(), "POST", "/v1/completions", r#"{"prompt":"one two three"}"#).await;
    let ours = series(&call(pod.addr(), "GET", "/metrics", "").await.text());
    let theirs = series(&std::fs::read_to_string(fixtures.join("metrics-after-load.txt")).unwrap());
    assert!(ours.len() > 20);
    for (name, labels) in &ours {
        assert_eq!(Some(labels), theirs.get(name), "{name}");
    }
    for needed in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:cache_config_info",
        "vllm:time_to_first_token_seconds_bucket",
    ] {
        assert!(ours.contains_key(needed), "{needed}");
    }
}

#[tokio::test]
async fn the_router_reads_queue_cache_and_capacity_from_the_page_of_a_busy_pod() {
    // Two sequences at a time and long answers: of five requests two run and three wait.
    let pod = start(Profile { max_num_seqs: 2, ..quick_profile() }).await;
    let prompt = "word ".repeat(320);
    let body = json!({"prompt": prompt, "max_tokens": 4000, "stream": true}).to_string();
    let mut connections = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(pod.addr()).await.unwrap();
        stream.write_all(&request_bytes("POST", "/v1/completions", &body)).await.unwrap();
        connections.push(stream);
    }
    eventually("two run and three wait", || {
        let engine = pod.stats().engine;
        (engine.running, engine.waiting) == (2, 3)
    })
    .await;
    let response = call(pod.addr(), "GET", "/metrics", "").await;
    assert!(response.head.contains("content-type: text/plain; version="), "{}", response.head);
    let scrape = read_metrics(&response.body, None).unwrap();
    assert_eq!(scrape.dialect, Dialect::Vllm);
    assert_eq!((scrape.running_requests, scrape.waiting_requests), (2.0, 3.0));
    assert_eq!(scrape.kv_capacity_tokens, 160_000.0);
    assert!(scrape.kv_usage > 0.0 && scrape.kv_usage < 0.1, "{}", scrape.kv_usage);
    // 321 tokens twice; the second request found the twenty full blocks of the first.
    assert_eq!((scrape.prefix_query_tokens, scrape.prefix_hit_tokens), (642.0, 320.0));
    assert_eq!(scrape.preemptions, 0.0);
}

#[tokio::test]
async fn histograms_and_counters_add_up_after_some_requests() {
    let pod = start(quick_profile()).await;
    for _ in 0..3 {
        call(pod.addr(), "POST", "/v1/completions", r#"{"prompt":"one two three","max_tokens":5}"#).await;
    }
    let page = call(pod.addr(), "GET", "/metrics", "").await.text();
    let value = |series: &str| -> f64 {
        let line =
            page.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("{series}\n{page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("vllm:time_to_first_token_seconds_count"), 3.0);
    assert_eq!(value(r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf""#), 3.0);
    assert_eq!(value("vllm:inter_token_latency_seconds_count"), 12.0);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count"), 3.0);
    assert_eq!(value("vllm:generation_tokens_total"), 15.0);
    assert_eq!(value("vllm:prompt_tokens_total"), 9.0);
    assert_eq!(value(r#"vllm:request_success_total{engine="0",finished_reason="length""#), 3.0);
    assert_eq!(value("vllm:num_requests_running"), 0.0);
    assert_eq!(value("vllm:kv_cache_usage_perc"), 0.0);
}
