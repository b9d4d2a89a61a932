//! The trainer is not in the path of a request: Envoy starts without it, and routes on when it goes.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::completion::{complete_all, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::trainer::{self, Trainer};
use foretoken_tests::{paths, pods, wait};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn envoy_started_without_a_trainer_routes_by_the_prior_and_counts_the_samples_it_drops() -> Result<()> {
    let dir = paths::run_dir("no-trainer")?;
    let pods = pods::start(&["fast", "slow"]).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.filter["samples"]["buffer"] = json!(64);
    options.filter["samples"]["batch"] = json!(16);
    let envoy = Envoy::start("no-trainer", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    for completed in complete_all(envoy.llm(), mixed_requests(200, 1), 8).await? {
        assert_eq!(completed.explained()?.rung, "prior");
    }
    // Nothing waits for ever for a trainer that is not there.
    wait::until("samples to be dropped and counted", Duration::from_secs(20), async || {
        let stats = envoy.stats().await?;
        Ok((stats.value("foretoken_samples_dropped_total") > 0).then_some(()))
    })
    .await?;
    assert_eq!(envoy.stats().await?.labelled("foretoken_picks_total", "rung", "prior"), 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_dies_leaves_its_model_serving_and_is_found_again() -> Result<()> {
    let dir = paths::run_dir("trainer-dies")?;
    let pods = pods::start(&["fast", "slow"]).await?;
    let mut trainer = Trainer::start("trainer", &trainer::Options::new()?, &dir).await?;
    let addresses = trainer.addresses();
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.trainer = Some(addresses);
    let envoy = Envoy::start("trainer-dies", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    complete_all(envoy.llm(), mixed_requests(400, 1), 8).await?;
    let generation = trainer.wait_for_generation(1, Duration::from_secs(60)).await?;
    envoy.wait_for_generation(generation, Duration::from_secs(20)).await?;

    trainer.process().kill();
    for completed in complete_all(envoy.llm(), mixed_requests(100, 2), 8).await? {
        let explain = completed.explained()?;
        assert_eq!(explain.rung, "model", "{explain:?}");
        assert!(!explain.model_id.is_empty());
    }

    // It comes back at its address with its data: samples arrive again and a newer model is applied.
    let again = trainer::Options { listen: Some(addresses), ..trainer::Options::new()? };
    let trainer = Trainer::start("trainer", &again, &dir).await?;
    let kept = trainer.figure("samples").await?;
    assert!(kept >= 200, "of the samples it had only {kept} survived the crash");
    complete_all(envoy.llm(), mixed_requests(400, 3), 8).await?;
    trainer.wait_for("samples", kept + 300, Duration::from_secs(30)).await?;
    let newer = trainer.wait_for_generation(generation + 1, Duration::from_secs(60)).await?;
    envoy.wait_for_generation(newer, Duration::from_secs(30)).await?;
    for completed in complete_all(envoy.llm(), mixed_requests(20, 4), 4).await? {
        assert_eq!(completed.explained()?.rung, "model");
    }
    Ok(())
}
