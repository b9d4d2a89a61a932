//! Models are pushed into a running Envoy while it is under load: every worker swaps, no request is lost.

use std::time::{Duration, Instant};

use anyhow::Result;
use foretoken_tests::completion::{complete_all, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::trainer::{self, Trainer};
use foretoken_tests::{paths, pods};

const PUSHES: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn every_worker_applies_every_push_and_all_requests_are_answered_whole() -> Result<()> {
    let dir = paths::run_dir("push")?;
    let pods = pods::start(&["fast", "slow", "fast"]).await?;
    let fits_often = trainer::Options { min_samples: 150, refit_interval_s: 1, ..trainer::Options::new()? };
    let trainer = Trainer::start("trainer", &fits_often, &dir).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.trainer = Some(trainer.addresses());
    let envoy = Envoy::start("push", &options, &dir).await?;
    envoy.wait_for_pods(3, Duration::from_secs(20)).await?;

    let started = Instant::now();
    let (mut sent, mut generations) = (0, std::collections::BTreeSet::new());
    while trainer.figure("published").await? < PUSHES || sent < 1000 {
        assert!(
            started.elapsed() < Duration::from_secs(150),
            "the trainer did not publish: {}",
            trainer.status().await?
        );
        // complete_all fails with the first request that is not answered whole.
        for completed in complete_all(envoy.llm(), mixed_requests(100, sent), 16).await? {
            generations.insert(completed.explained()?.generation);
        }
        sent += 100;
    }

    trainer.hold().await?;
    let generation = trainer.figure("generation").await?;
    envoy.wait_for_generation(generation, Duration::from_secs(20)).await?;
    let stats = envoy.stats().await?;
    assert_eq!(stats.value("foretoken_models_refused_total"), 0);
    assert!(stats.value("foretoken_models_applied_total") > 0);
    assert!(stats.labelled("foretoken_picks_total", "rung", "model") > 0);
    assert!(generations.len() >= 3, "requests saw only generations {generations:?}");
    assert_eq!(stats.value("foretoken_requests_total"), u64::from(sent));
    println!("{sent} requests over generations {generations:?}, none lost");
    Ok(())
}
