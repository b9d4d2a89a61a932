//! Pods of different models behind one cluster: each request goes to a pod that lists its model, an adapter
//! that is loaded later is found, and a model that nobody serves is the engine's to refuse.

use std::time::Duration;

use anyhow::{Context, Result};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::pod::{LivePod, PodOptions};
use foretoken_tests::completion::{Completed, Request, complete, complete_all, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::{paths, pods, wait};

const PATIENCE: Duration = Duration::from_secs(30);

async fn pod(model: &str, adapters: &[&str]) -> Result<LivePod> {
    let mut options = PodOptions::new(Profile::built_in("fast").context("no profile fast")?);
    options.model = model.to_owned();
    options.adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
    Ok(LivePod::start(options).await?)
}

fn requests(count: u32, seed: u32, models: &[&str]) -> Vec<Request> {
    let mut requests = mixed_requests(count, seed);
    for (at, request) in requests.iter_mut().enumerate() {
        request.model = models[at % models.len()].to_owned();
    }
    requests
}

async fn ask(envoy: &Envoy, model: &str) -> Result<Completed> {
    complete(envoy.llm(), &Request { model: model.to_owned(), ..Request::new("hello", 4) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_models_decide_who_is_a_candidate() -> Result<()> {
    let dir = paths::run_dir("models")?;
    let pods = [
        pod("alpha", &[]).await?,
        pod("alpha", &[]).await?,
        pod("beta", &["sql"]).await?,
        pod("beta", &[]).await?,
    ];
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.filter["models"] = serde_json::json!({"refresh_ms": 200});
    let envoy = Envoy::start("models", &options, &dir).await?;
    envoy.wait_for_pods(4, PATIENCE).await?;
    wait::until("the lists to be known", PATIENCE, async || {
        let both = (ask(&envoy, "alpha").await?, ask(&envoy, "beta").await?);
        Ok((both.0.explained()?.candidates == 2 && both.1.explained()?.candidates == 2).then_some(()))
    })
    .await?;

    // A pod answers 404 to a model that it does not serve, so a whole answer says where the request was.
    complete_all(envoy.llm(), requests(200, 1, &["alpha", "beta", "sql"]), 6).await?;
    for pod in &pods {
        assert!(pod.stats().first_tokens > 10, "every pod has its share");
    }
    let adapter = ask(&envoy, "sql").await?;
    let explain = adapter.explained()?;
    assert_eq!((explain.candidates, explain.pod.clone()), (1, pods[2].addr().to_string()));

    let unserved = || async {
        let stats = envoy.stats().await?;
        anyhow::Ok(stats.labelled("foretoken_fallback_total", "reason", "model_not_served"))
    };
    assert_eq!(unserved().await?, 0);
    let refused = ask(&envoy, "later").await?;
    assert_eq!((refused.status, refused.explained()?.candidates), (404, 4));
    assert_eq!(unserved().await?, 1);

    pods[3].load_adapter("later");
    wait::until("the adapter to be found", PATIENCE, async || {
        Ok((ask(&envoy, "later").await?.explained()?.candidates == 1).then_some(()))
    })
    .await?;
    for done in complete_all(envoy.llm(), requests(40, 2, &["later"]), 6).await? {
        assert_eq!(done.explained()?.pod, pods[3].addr().to_string());
    }
    Ok(())
}
