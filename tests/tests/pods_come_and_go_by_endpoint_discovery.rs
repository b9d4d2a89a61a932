//! Pods are added to and taken out of an EDS cluster under load. No request fails, open streams end properly,
//! a pod that has left gets no pick, and one that comes back at its address is a new one.

use std::time::{Duration, Instant};

use anyhow::Result;
use foretoken_sim::pod::LivePod;
use foretoken_tests::completion::{Request, complete};
use foretoken_tests::envoy::endpoints::EndpointsFile;
use foretoken_tests::envoy::{Discovery, Envoy, Options};
use foretoken_tests::load::Load;
use foretoken_tests::{paths, pods, wait};

const PATIENCE: Duration = Duration::from_secs(30);

/// Long enough to span the pod's removal.
const LONG_ANSWER_TOKENS: u32 = 1000;

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_and_no_state_stays() -> Result<()> {
    let dir = paths::run_dir("eds")?;
    let mut pods = pods::start(&["fast", "fast", "fast", "fast"]).await?;
    let addresses = pods::addresses(&pods);
    let mut endpoints = EndpointsFile::create(&dir, &addresses[..2])?;
    let mut options = Options::new(&addresses)?;
    options.discovery = Discovery::File(endpoints.path().to_owned());
    options.filter["endpoints"]["refresh_ms"] = 200.into();
    let envoy = Envoy::start("eds", &options, &dir).await?;
    envoy.wait_for_pods(2, PATIENCE).await?;

    // A prompt that its pod keeps in the cache, and that the filter knows to be there.
    let prompt = Request::new("a conversation that goes on and on. ".repeat(150), 4);
    let home = wait::until("the prompt to be known to be cached", PATIENCE, async || {
        let completed = complete(envoy.llm(), &prompt).await?;
        let explain = completed.explained()?;
        Ok((explain.cached_tokens > 100.0).then(|| explain.pod.clone()))
    })
    .await?;
    let at = addresses.iter().position(|address| address.to_string() == home).expect("one of ours");

    // More pods come, under load.
    let load = Load::start(envoy.llm(), 6);
    load.more(40).await?;
    endpoints.set(&addresses)?;
    envoy.wait_for_pods(4, PATIENCE).await?;
    for pod in &pods[2..] {
        wait::until("the new pod to be used", PATIENCE, async || {
            Ok((pod.stats().first_tokens > 0).then_some(()))
        })
        .await?;
    }

    // The prompt's pod is taken out while streams are open on it.
    let streams: Vec<_> = (0..6)
        .map(|_| {
            let (llm, mut long) = (envoy.llm(), prompt.clone());
            long.max_tokens = LONG_ANSWER_TOKENS;
            tokio::spawn(async move { anyhow::Ok((complete(llm, &long).await?, Instant::now())) })
        })
        .collect();
    wait::until("the streams to run", PATIENCE, async || {
        Ok((pods[at].stats().engine.running >= 3).then_some(()))
    })
    .await?;
    let left = (0..4).filter(|other| *other != at).map(|other| addresses[other]).collect::<Vec<_>>();
    endpoints.set(&left)?;
    envoy.wait_for_pods(3, PATIENCE).await?;
    let removed = Instant::now();
    load.more(100).await?;
    let before_return = Instant::now();
    let mut ended_later = 0;
    for stream in streams {
        let (completed, ended) = stream.await??;
        assert!(completed.status == 200 && completed.whole, "an open stream was cut: {completed:?}");
        ended_later += u32::from(completed.explained()?.pod == home && ended > removed);
    }
    assert!(ended_later > 0, "no stream of the removed pod was open any more when it was removed");

    // Another process takes its address, with nothing in its cache.
    load.more(20).await?;
    for seen in load.stop().await? {
        let completed = seen.whole()?;
        // Workers read the new list within a fifth of a second.
        let picked = seen.sent > removed + Duration::from_millis(500) && seen.sent < before_return;
        assert!(
            !picked || completed.explained()?.pod != home,
            "a pod that has left was picked: {completed:?}"
        );
    }
    pods[at].kill();
    pods[at] =
        wait::until("the pod's port to be free", PATIENCE, async || pods::restart(&pods[at]).await.map(Some))
            .await?;
    endpoints.set(&[addresses[at]])?;
    envoy.wait_for_pods(1, PATIENCE).await?;
    envoy.wait_for_pod_health(addresses[at], true, PATIENCE).await?;
    let fresh = complete(envoy.llm(), &prompt).await?;
    let explain = fresh.explained()?;
    assert_eq!((explain.pod.as_str(), explain.candidates), (home.as_str(), 1));
    assert_eq!(explain.cached_tokens, 0.0, "what the former pod held is not believed of this one");
    assert_eq!(pods.iter().map(LivePod::addr).collect::<Vec<_>>(), addresses);
    assert_eq!(envoy.stats().await?.value("foretoken_listing_failures_total"), 0);
    Ok(())
}
