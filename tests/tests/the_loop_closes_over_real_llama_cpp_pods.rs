//! The whole loop over engines that foretoken did not write: llama.cpp servers of different speed, routed,
//! measured, learned from and routed better, with their own metrics and their own answers.

use std::time::Duration;

use anyhow::Result;
use foretoken_tests::completion::{Request, complete_all};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::llama_cpp::{self, LlamaCpp};
use foretoken_tests::paths;
use foretoken_tests::trainer::{self, Trainer};

/// Prompts of 100 to 1,500 bytes, a token each for these models.
fn requests(count: u32, seed: u32) -> Vec<Request> {
    (0..count)
        .map(|index| {
            let bytes = 100 + (index.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) % 1400;
            let prompt = format!("{seed} {index} ").repeat(bytes as usize / 6);
            Request { prompt, max_tokens: 4 + index % 12, model: "tiny".to_owned() }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_learned_from_llama_cpp_answers_routes_llama_cpp_requests() -> Result<()> {
    let dir = paths::run_dir("llama-cpp")?;
    let mut engines = Vec::new();
    for (index, layers) in [2, 2, 4].into_iter().enumerate() {
        let options = llama_cpp::Options { layers, threads: 1, slots: 4, prompt_cache_mib: 0 };
        engines.push(LlamaCpp::start(&format!("llama-{index}"), options, &dir).await?);
    }
    let addresses: Vec<_> = engines.iter().map(LlamaCpp::address).collect();
    let trainer = Trainer::start("trainer", &trainer::Options::new()?, &dir).await?;
    let mut options = Options::new(&addresses)?;
    options.trainer = Some(trainer.addresses());
    options.one_request_per_connection = true;
    let envoy = Envoy::start("llama-cpp", &options, &dir).await?;
    envoy.wait_for_pods(3, Duration::from_secs(20)).await?;
    envoy.wait_for_scrapes(6, Duration::from_secs(20)).await?;

    complete_all(envoy.llm(), requests(500, 1), 6).await?;
    let generation = trainer.wait_for_generation(1, Duration::from_secs(90)).await?;
    envoy.wait_for_generation(generation, Duration::from_secs(20)).await?;
    let routed = complete_all(envoy.llm(), requests(200, 2), 6).await?;
    for completed in &routed {
        let explain = completed.explained()?;
        assert_eq!((explain.rung.as_str(), explain.reason.as_deref()), ("model", None));
    }

    // Every request became a sample, and nearly all of them can be learned from: usage, times and the end of
    // llama.cpp's streams are read.
    let sent = trainer.wait_for("samples", 700, Duration::from_secs(20)).await?;
    let status = trainer.status().await?;
    let clean = status["clean_samples"].as_u64().unwrap_or(0);
    assert!(clean * 100 >= sent * 98, "only {clean} of {sent} samples are clean: {status}");
    // On a machine with two cores for three engines times are noisy; a model that is off by 100 % in the
    // median would be no model.
    let error = status["live"]["ttft_ape_median"].as_f64();
    assert!(error.is_some_and(|error| error < 1.0), "live error: {status}");
    let stats = envoy.stats().await?;
    assert_eq!(stats.value("foretoken_scrape_failures_total"), 0);
    println!(
        "{clean} of {sent} samples are clean; median live error of TTFT {error:?}, of TPOT {}",
        status["live"]["tpot_ape_median"]
    );
    Ok(())
}
