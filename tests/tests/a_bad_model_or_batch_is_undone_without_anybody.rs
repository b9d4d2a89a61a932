//! Nobody watches this trainer: held, it publishes nothing; a batch of lies teaches it nothing; a model that predicts
//! worse than the one before it is taken back, and Envoy follows each time.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use foretoken_core::features::Feature;
use foretoken_core::sample::Sample;
use foretoken_tests::completion::{Completed, complete_all, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::models::Switch;
use foretoken_tests::trainer::{self, Trainer};
use foretoken_tests::{http, paths, pods, wait};
use foretoken_trainer::export::now_ms;
use foretoken_trainer::registry::{Content, Registry, Version};

const SOON: Duration = Duration::from_secs(20);

/// Sends requests until the trainer's figure has come to a value.
async fn load_until(
    envoy: &Envoy,
    trainer: &Trainer,
    seed: &mut u32,
    what: &str,
    pointer: &str,
    at_least: u64,
) -> Result<Vec<Completed>> {
    let mut all = Vec::new();
    for _ in 0..40 {
        let value = trainer.status().await?.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0);
        if value >= at_least {
            return Ok(all);
        }
        *seed += 1;
        all.extend(complete_all(envoy.llm(), mixed_requests(60, *seed), 12).await?);
    }
    anyhow::bail!("{what}: {}", trainer.status().await?)
}

/// The samples that the trainer has on disk.
fn stored(data: &Path) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for entry in std::fs::read_dir(data.join("samples"))? {
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        // CRC, kind, JSON; a line that is being written is cut off.
        let json = |line: &str| line.get(11..).and_then(|json| serde_json::from_str(json).ok());
        samples.extend(text.lines().filter_map(json));
    }
    Ok(samples)
}

/// Copies of these samples in which everything took ten times as long, from a sender of their own.
fn lies(samples: &[Sample]) -> Result<(usize, String)> {
    let mut body = String::new();
    let clean: Vec<&Sample> = samples.iter().filter(|sample| sample.is_clean()).collect();
    for (index, sample) in clean.iter().enumerate() {
        let mut lie = (*sample).clone();
        lie.id = format!("bad-{index:x}");
        lie.at_ms = now_ms();
        for time in [&mut lie.ttft_ms, &mut lie.tpot_ms, &mut lie.e2e_ms].into_iter().flatten() {
            *time *= 10.0;
        }
        body += &serde_json::to_string(&lie)?;
        body.push('\n');
    }
    Ok((clean.len(), body))
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_lies_and_a_worse_model_end_with_the_good_model_in_envoy() -> Result<()> {
    let dir = paths::run_dir("undone")?;
    let mut seed = 100;
    let pods = pods::start(&["fast", "slow"]).await?;
    let held = trainer::Options { hold: true, refit_interval_s: 1, ..trainer::Options::new()? };
    let trainer = Trainer::start("trainer", &held, &dir).await?;
    let ports = trainer.addresses();
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.trainer = Some(ports);
    let envoy = Envoy::start("undone", &options, &dir).await?;
    envoy.wait_for_pods(2, SOON).await?;

    // Held: it fits, and nothing goes out.
    load_until(&envoy, &trainer, &mut seed, "no fit", "/fits", 1).await?;
    let status = trainer.status().await?;
    assert_eq!((status["generation"].as_u64(), status["held"].as_bool()), (Some(0), Some(true)), "{status}");

    // Lies in quarantine, all of them, before anything has ever been published.
    let data = dir.join("trainer-data");
    let (count, body) = lies(&stored(&data)?)?;
    ensure!(count >= 150, "only {count} samples to lie about");
    let answer = http::send(::http::Method::POST, ports.0, "/v1/samples", &[], body).await?.json()?;
    assert_eq!(answer["accepted"], count, "{answer}");
    assert_eq!(answer["quarantined"], count, "{answer}");

    trainer.release().await?;
    trainer.wait_for_generation(1, SOON).await?;
    trainer.hold().await?;
    let good = trainer.figure("generation").await?;
    envoy.wait_for_generation(good, SOON).await?;
    let good_id = trainer.status().await?["model_id"].as_str().context("no id")?.to_owned();
    // Of pods whose answers take ten times as long, the model would have learned otherwise.
    seed += 1;
    for completed in complete_all(envoy.llm(), mixed_requests(40, seed), 4).await? {
        let explain = completed.explained()?;
        assert_eq!(explain.model_id, good_id);
        let ratio = explain.ttft_ms[0] / explain.corrected[0] / explain.prior_ttft_ms;
        assert!(ratio < 4.0, "the model says {ratio} times the prior: {explain:?}");
    }
    drop(trainer);

    // Somebody's mistake: a model that takes every request to be eight times as long is the newest version.
    let model = Switch {
        model_id: "mistake".to_owned(),
        feature: Feature::PromptTokens,
        threshold: 1e6,
        below_ttft_ms: 20_000.0,
        above_ttft_ms: 20_000.0,
        tpot_ms: 400.0,
    };
    let mut registry = Registry::open(&data.join("models"))?;
    let mut card = Version::new("mistake", (now_ms() - 1000, now_ms()), 1000, serde_json::Value::Null);
    card.parent = good;
    let bad = registry.add(Content { card, onnx: model.onnx()?, boosters: None })?.generation;
    drop(registry);
    std::fs::remove_file(data.join("held"))?;
    // It must go back by itself, not because a fit is better.
    let watching = trainer::Options { min_samples: 50_000, listen: Some(ports), ..trainer::Options::new()? };
    let trainer = Trainer::start("trainer", &watching, &dir).await?;
    envoy.wait_for_generation(bad, SOON).await?;
    seed += 1;
    let completed = complete_all(envoy.llm(), mixed_requests(20, seed), 4).await?;
    assert!(completed.iter().all(|one| one.explain.as_ref().is_some_and(|e| e.model_id == "mistake")));

    load_until(&envoy, &trainer, &mut seed, "it did not go back", "/rollbacks/count", 1).await?;
    let status = trainer.status().await?;
    assert_eq!(status["model_id"], good_id.as_str(), "{status}");
    assert!(status["rollbacks"]["reasons"][0].as_str().is_some_and(|line| line.contains("loss")), "{status}");
    let back = status["generation"].as_u64().unwrap_or(0);
    assert!(back > bad);
    envoy.wait_for_generation(back, SOON).await?;
    wait::until("Envoy to route by the good model", SOON, async || {
        let completed = complete_all(envoy.llm(), mixed_requests(4, 1), 1).await?;
        let all = completed.iter().all(|one| one.explain.as_ref().is_some_and(|e| e.model_id == good_id));
        Ok(all.then_some(()))
    })
    .await?;
    let versions = http::get_json(ports.0, "/v1/versions").await?;
    let origins: Vec<&str> =
        versions.as_array().into_iter().flatten().filter_map(|one| one["origin"].as_str()).collect();
    assert_eq!(origins.last(), Some(&"rolled_back_by_itself"), "{versions}");
    Ok(())
}
