//! The model decides. Two pods differ in nothing but the KV usage that they report; one model says that
//! the full one is fast, the next says the opposite, and the picks follow each.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use foretoken_core::features::Feature;
use foretoken_tests::completion::{Completed, Request, complete, complete_all, mixed_requests};
use foretoken_tests::envoy::ecds::EcdsFile;
use foretoken_tests::envoy::{Envoy, Flavour, Options, filter_config};
use foretoken_tests::models::{Switch, with_model};
use foretoken_tests::recorder::Recorder;
use foretoken_tests::{paths, pods, wait};

const FAST_MS: f32 = 20.0;
const SLOW_MS: f32 = 2000.0;
const TPOT_MS: f32 = 7.0;

/// A model by which pods whose KV cache is less than half full answer after `below_ttft_ms`.
fn by_kv_usage(model_id: &str, below_ttft_ms: f32, above_ttft_ms: f32) -> Result<Vec<u8>> {
    let feature = Feature::KvUsage;
    Switch {
        model_id: model_id.to_owned(),
        feature,
        threshold: 0.5,
        below_ttft_ms,
        above_ttft_ms,
        tpot_ms: TPOT_MS,
    }
    .onnx()
}

async fn assert_picks(envoy: &Envoy, pod: SocketAddr, model_id: &str, generation: u64) -> Result<()> {
    for index in 0..30 {
        let completed = complete(envoy.llm(), &Request::new(format!("{model_id} {index}"), 2)).await?;
        let explain = completed.explained()?;
        assert_eq!(explain.pod, pod.to_string(), "{explain:?}");
        assert_eq!((explain.rung.as_str(), explain.generation), ("model", generation));
        assert_eq!(explain.model_id, model_id);
        assert_eq!(explain.reason, None);
        // The model's own words, but for the pod's correction: it answers faster than the model says.
        for (predicted, corrected, said) in [
            (explain.ttft_ms, explain.corrected[0], FAST_MS),
            (explain.tpot_ms, explain.corrected[1], TPOT_MS),
        ] {
            assert!(corrected <= 1.0 && corrected > 0.3, "{explain:?}");
            for value in predicted {
                assert!((value / corrected - f64::from(said)).abs() < 0.01, "{explain:?}");
            }
        }
        let runner_up = explain.runner_up.as_ref().expect("two pods were compared");
        assert!(runner_up.cost_ms > f64::from(SLOW_MS), "{explain:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_that_the_model_calls_fast_is_picked_and_a_new_model_turns_the_picks() -> Result<()> {
    let dir = paths::run_dir("picks")?;
    let full = Recorder::start_with_kv_usage(0.9).await?;
    let empty = Recorder::start_with_kv_usage(0.1).await?;
    let mut filter = filter_config()?;
    // What the pods get is counted at the end: the filter's own requests for lists of models must not be in it.
    filter["models"] = serde_json::json!({"discover": false});
    let mut pushes = EcdsFile::create(&dir, Flavour::Default, &filter)?;
    let mut options = Options::new(&[full.address(), empty.address()])?;
    options.ecds = Some(pushes.path().to_owned());
    let envoy = Envoy::start("picks", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;
    envoy.wait_for_scrapes(4, Duration::from_secs(20)).await?;

    pushes.push(&with_model(&filter, 1, &by_kv_usage("full-is-fast", SLOW_MS, FAST_MS)?))?;
    envoy.wait_for_generation(1, Duration::from_secs(20)).await?;
    assert_picks(&envoy, full.address(), "full-is-fast", 1).await?;

    pushes.push(&with_model(&filter, 2, &by_kv_usage("empty-is-fast", FAST_MS, SLOW_MS)?))?;
    envoy.wait_for_generation(2, Duration::from_secs(20)).await?;
    assert_picks(&envoy, empty.address(), "empty-is-fast", 2).await?;

    // What was picked is what was sent: 30 each, nothing went astray.
    assert_eq!((full.take().len(), empty.take().len()), (30, 30));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_model_the_prior_learns_which_pod_is_faster_and_prefers_it() -> Result<()> {
    let dir = paths::run_dir("prior")?;
    let pods = pods::start(&["slow", "fast"]).await?;
    let envoy = Envoy::start("prior", &Options::new(&pods::addresses(&pods))?, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    // Load enough that both pods are tried.
    complete_all(envoy.llm(), mixed_requests(120, 1), 8).await?;
    let both = pods.iter().all(|pod| pod.stats().first_tokens > 2);
    assert!(
        both,
        "one pod was hardly tried: {:?}",
        pods.iter().map(|pod| pod.stats().first_tokens).collect::<Vec<_>>()
    );

    // One request at a time: nothing speaks for the slow pod, once the burst on the fast one is forgotten.
    let alone: Vec<Completed> = complete_all(envoy.llm(), mixed_requests(80, 2), 1).await?;
    let fast = pods[1].addr().to_string();
    let to_fast = alone[40..].iter().filter(|completed| completed.pod == fast).count();
    assert!(to_fast >= 36, "only {to_fast} of 40 requests went to the fast pod");
    wait::until("the slow pod to be idle", Duration::from_secs(5), async || {
        Ok((pods[0].stats().engine.running == 0).then_some(()))
    })
    .await
}
