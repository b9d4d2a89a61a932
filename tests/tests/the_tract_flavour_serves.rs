//! The flavour that runs any ONNX graph through tract: the same routing, and models that the default flavour
//! does not read.

use std::time::Duration;

use anyhow::Result;
use foretoken_core::features::Feature;
use foretoken_tests::completion::{Request, complete, complete_all, mixed_requests};
use foretoken_tests::envoy::ecds::EcdsFile;
use foretoken_tests::envoy::{Envoy, Flavour, Options, filter_config};
use foretoken_tests::models::{Switch, with_model};
use foretoken_tests::recorder::Recorder;
use foretoken_tests::trainer::{self, Trainer};
use foretoken_tests::{paths, pods};

#[tokio::test(flavor = "multi_thread")]
async fn both_flavours_predict_the_same_from_the_same_file() -> Result<()> {
    let pods = [Recorder::start_with_kv_usage(0.9).await?, Recorder::start_with_kv_usage(0.1).await?];
    let addresses = pods.each_ref().map(Recorder::address);
    let filter = filter_config()?;
    let onnx = Switch {
        model_id: "same".to_owned(),
        feature: Feature::KvUsage,
        threshold: 0.5,
        below_ttft_ms: 1234.567,
        above_ttft_ms: 76.543_21,
        tpot_ms: 7.891,
    }
    .onnx()?;
    let mut explained = Vec::new();
    for (name, flavour) in [("same-default", Flavour::Default), ("same-tract", Flavour::Tract)] {
        let dir = paths::run_dir(name)?;
        let pushes = EcdsFile::create(&dir, flavour, &with_model(&filter, 1, &onnx))?;
        let mut options = Options::new(&addresses)?;
        options.flavour = flavour;
        options.ecds = Some(pushes.path().to_owned());
        let envoy = Envoy::start(name, &options, &dir).await?;
        envoy.wait_for_pods(2, Duration::from_secs(20)).await?;
        envoy.wait_for_generation(1, Duration::from_secs(20)).await?;
        envoy.wait_for_scrapes(4, Duration::from_secs(20)).await?;
        let completed = complete(envoy.llm(), &Request::new("the same question", 2)).await?;
        let explain = completed.explained()?.clone();
        assert_eq!(explain.rung, "model", "{explain:?}");
        explained.push((explain.pod, explain.model_id, explain.ttft_ms, explain.tpot_ms));
    }
    assert_eq!(explained[0], explained[1]);
    assert_eq!(explained[0].0, addresses[0].to_string());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_closes_with_the_tract_flavour() -> Result<()> {
    let dir = paths::run_dir("tract")?;
    let pods = pods::start(&["fast", "slow"]).await?;
    let with_tract = trainer::Options { flavour: Flavour::Tract, ..trainer::Options::new()? };
    let trainer = Trainer::start("trainer", &with_tract, &dir).await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.flavour = Flavour::Tract;
    options.trainer = Some(trainer.addresses());
    let envoy = Envoy::start("tract", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    complete_all(envoy.llm(), mixed_requests(400, 1), 8).await?;
    let generation = trainer.wait_for_generation(1, Duration::from_secs(60)).await?;
    envoy.wait_for_generation(generation, Duration::from_secs(30)).await?;
    trainer.hold().await?;
    for completed in complete_all(envoy.llm(), mixed_requests(50, 2), 4).await? {
        assert_eq!(completed.explained()?.rung, "model");
    }
    Ok(())
}
