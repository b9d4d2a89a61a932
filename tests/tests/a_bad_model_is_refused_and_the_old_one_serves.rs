//! Whatever is pushed, a configuration that cannot work is refused in Envoy's trial VM and the one before
//! it goes on serving; no worker sees it, no request notices.

use std::time::Duration;

use anyhow::Result;
use foretoken_core::features::Feature;
use foretoken_tests::completion::{Request, complete};
use foretoken_tests::envoy::ecds::EcdsFile;
use foretoken_tests::envoy::{Envoy, Flavour, Options, filter_config};
use foretoken_tests::models::{Switch, with_model};
use foretoken_tests::{paths, pods};
use serde_json::{Value, json};

fn model(model_id: &str) -> Switch {
    let feature = Feature::PromptTokens;
    Switch {
        model_id: model_id.to_owned(),
        feature,
        threshold: 100.0,
        below_ttft_ms: 50.0,
        above_ttft_ms: 80.0,
        tpot_ms: 10.0,
    }
}

/// What a broken trainer, a broken disk or a stranger could send, as settings for the filter.
fn bad_pushes(filter: &Value) -> Result<Vec<(&'static str, String)>> {
    let good = model("bad").onnx()?;
    let flipped: Vec<u8> =
        good.iter().enumerate().map(|(at, byte)| if at % 97 == 50 { !byte } else { *byte }).collect();
    let mut not_base64 = with_model(filter, 9, &good);
    not_base64["model"]["onnx_deflate_base64"] = json!("!!! not base64 !!!");
    let mut misspelt = with_model(filter, 9, &good);
    misspelt["policy"] = json!({"tie_shares": 0.1});
    let with = |onnx: &[u8]| with_model(filter, 9, onnx).to_string();
    Ok(vec![
        ("a file cut in half", with(&good[..good.len() / 2])),
        ("a file with flipped bytes", with(&flipped)),
        ("an empty file", with(&[])),
        ("a file of zeros", with(&[0; 4096])),
        ("another feature schema", with(&model("bad").onnx_for_schema("foretoken-0")?)),
        ("no base64", not_base64.to_string()),
        ("settings with a misspelt field", misspelt.to_string()),
        ("no JSON", "{\"cluster\": ".to_owned()),
        ("nothing", String::new()),
    ])
}

async fn assert_served_by(envoy: &Envoy, generation: u64, model_id: &str, after: &str) -> Result<()> {
    for index in 0..10 {
        let completed = complete(envoy.llm(), &Request::new(format!("{after} {index}"), 2)).await?;
        assert_eq!(completed.status, 200, "after {after}");
        let explain = completed.explained()?;
        assert_eq!(explain.rung, "model", "after {after}: {explain:?}");
        assert_eq!((explain.generation, explain.model_id.as_str()), (generation, model_id), "after {after}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_push_leaves_the_model_before_it_in_use_and_a_good_one_is_taken_again() -> Result<()> {
    let dir = paths::run_dir("bad-model")?;
    let pods = pods::start(&["fast", "fast"]).await?;
    let filter = filter_config()?;
    let mut pushes =
        EcdsFile::create(&dir, Flavour::Default, &with_model(&filter, 1, &model("first").onnx()?))?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.ecds = Some(pushes.path().to_owned());
    let envoy = Envoy::start("bad-model", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;
    envoy.wait_for_generation(1, Duration::from_secs(20)).await?;
    assert_served_by(&envoy, 1, "first", "the start").await?;

    for (count, (what, text)) in (1..).zip(bad_pushes(&filter)?) {
        pushes.push_text(&text)?;
        envoy.wait_for_refusals(count, Duration::from_secs(20)).await?;
        assert_served_by(&envoy, 1, "first", what).await?;
    }
    let refused = envoy.stats().await?.value("foretoken_models_refused_total");
    assert!(refused >= 5, "only {refused} refused models were counted");

    pushes.push(&with_model(&filter, 2, &model("second").onnx()?))?;
    envoy.wait_for_generation(2, Duration::from_secs(20)).await?;
    assert_served_by(&envoy, 2, "second", "a good push").await
}
