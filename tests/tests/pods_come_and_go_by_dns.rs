//! Pods come and go as the addresses of a name: in a STRICT_DNS cluster that the filter reads through the admin
//! interface, and resolved by the filter itself where there is none.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::pod::{LivePod, PodOptions};
use foretoken_tests::completion::{Request, complete, mixed_requests};
use foretoken_tests::dns::DnsServer;
use foretoken_tests::envoy::{Discovery, Envoy, Options};
use foretoken_tests::load::Load;
use foretoken_tests::{paths, pods, wait};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(30);

/// 127.0.0.2 and following.
fn ip(at: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 2 + at)
}

/// Pods on one port of several loopback addresses, as the pods of a Service are on one port of several hosts.
async fn start_pods(count: u8) -> Result<Vec<LivePod>> {
    let profile = Profile::built_in("fast").context("no profile fast")?;
    let mut pods: Vec<LivePod> = Vec::new();
    for at in 0..count {
        let mut options = PodOptions::new(profile.clone());
        options.ip = ip(at);
        options.port = pods.first().map_or(0, |first| first.addr().port());
        pods.push(LivePod::start(options).await?);
    }
    Ok(pods)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_dns_cluster_is_followed_without_a_failed_request() -> Result<()> {
    let dir = paths::run_dir("dns")?;
    let pods = start_pods(3).await?;
    let port = pods[0].addr().port();
    let dns = DnsServer::start(&[ip(0), ip(1)]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.discovery = Discovery::Dns { server: dns.address(), port };
    options.filter["endpoints"]["refresh_ms"] = 200.into();
    let envoy = Envoy::start("dns", &options, &dir).await?;
    envoy.wait_for_pods(2, PATIENCE).await?;

    let load = Load::start(envoy.llm(), 6);
    load.more(40).await?;
    assert_eq!(pods[2].stats().first_tokens, 0);
    dns.set(&[ip(0), ip(1), ip(2)]);
    envoy.wait_for_pods(3, PATIENCE).await?;
    wait::until("the new pod to be used", PATIENCE, async || {
        Ok((pods[2].stats().first_tokens > 0).then_some(()))
    })
    .await?;
    dns.set(&[ip(1), ip(2)]);
    envoy.wait_for_pods(2, PATIENCE).await?;
    let removed = Instant::now();
    load.more(100).await?;
    let gone = SocketAddr::from((ip(0), port)).to_string();
    let (mut before, mut after) = (0, 0);
    for seen in load.stop().await? {
        let picked_gone = seen.whole()?.explained()?.pod == gone;
        if seen.sent > removed + Duration::from_millis(500) {
            assert!(!picked_gone, "a pod that has left was picked: {seen:?}");
            after += 1;
        } else {
            before += u32::from(picked_gone);
        }
    }
    assert!(before > 0 && after > 0, "{before} requests to the pod before, {after} requests after");
    assert!(dns.asked() > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filter_resolves_the_name_itself() -> Result<()> {
    let dir = paths::run_dir("resolve")?;
    let pods = pods::start(&["fast"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    // Every machine knows this name without asking anyone.
    options.filter["endpoints"] =
        json!({"dns": format!("localhost:{}", pods[0].addr().port()), "refresh_ms": 100});
    let envoy = Envoy::start("resolve", &options, &dir).await?;
    let known = wait::until("the filter to know pods", PATIENCE, async || {
        let known = envoy.stats().await?.value("foretoken_pods");
        Ok((known > 0).then_some(known))
    })
    .await?;
    // Some machines also give it an IPv6 address, where no pod listens.
    assert!((1..=2).contains(&known), "{known} pods");
    for request in mixed_requests(10, 1) {
        let completed = complete(envoy.llm(), &request).await?;
        assert!(completed.status == 200 && completed.whole, "{completed:?}");
        completed.explained()?;
    }
    assert!(pods[0].stats().first_tokens >= 10);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_is_counted_and_requests_go_on() -> Result<()> {
    let dir = paths::run_dir("unresolved")?;
    let pods = pods::start(&["fast"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.filter["endpoints"] = json!({"dns": "no-such-name.invalid:80", "refresh_ms": 100});
    let envoy = Envoy::start("unresolved", &options, &dir).await?;
    wait::until("a resolution to fail", PATIENCE, async || {
        let failed = envoy.stats().await?.value("foretoken_listing_failures_total");
        Ok((failed > 0).then_some(()))
    })
    .await?;
    let completed = complete(envoy.llm(), &Request::new("hello", 4)).await?;
    assert!(completed.status == 200 && completed.whole, "Envoy's own policy picks: {completed:?}");
    Ok(())
}
