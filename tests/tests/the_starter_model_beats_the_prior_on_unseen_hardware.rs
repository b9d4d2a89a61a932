//! The model that is shipped to start with, as core's default reader takes it, on small runs over hardware that it was
//! not fitted on. `scripts/starter-model` makes it and has the whole table.

use foretoken_core::features::SCHEMA_ID;
use foretoken_core::model::contract::KEY_SCHEMA;
use foretoken_core::model::{Model, packed};
use foretoken_sim::engine::profile::BUILT_IN;
use foretoken_sim::lessons::on_hardware;
use foretoken_tests::learning::profile;
use foretoken_tests::paths;
use foretoken_trainer::dataset::{Example, example};
use foretoken_trainer::fit::score_model;
use foretoken_trainer::score::{Score, TargetScore, score_prior};

/// Bytes that it may add to the filter's configuration.
const MOST_PACKED_BYTES: usize = 256 << 10;

/// Requests of each of seven runs.
const REQUESTS: usize = 400;

#[test]
fn it_loads_is_small_and_predicts_better_than_the_prior_on_every_built_in_profile() {
    let onnx = std::fs::read(paths::root().join("models/starter.onnx")).unwrap();
    let model = Model::from_onnx_lean(&onnx).unwrap();
    assert_eq!(model.card().get(KEY_SCHEMA), Some(SCHEMA_ID));
    assert_eq!(model.outputs().len(), 4, "both targets, both quantiles");
    let bytes = packed::pack(&onnx).len();
    assert!(bytes <= MOST_PACKED_BYTES, "{bytes}");

    for name in BUILT_IN {
        let lessons = on_hardware(&[profile(name).unwrap()], 6, REQUESTS, 5);
        let samples = lessons.iter().flat_map(|lesson| lesson.run(None).unwrap().samples);
        let examples: Vec<Example> = samples.filter_map(|sample| example(&sample)).collect();
        assert!(examples.len() > 4 * REQUESTS, "{name}: {}", examples.len());
        let (ours, prior) = (score_model(&model, &examples), score_prior(&examples));
        for of in [|score: &Score| score.ttft, |score: &Score| score.tpot] {
            let (ours, prior) = (of(&ours).unwrap(), of(&prior).unwrap());
            assert!(ours.ape_median < prior.ape_median, "{name}: {ours:?} {prior:?}");
            assert!(ours.pinball_p50 < prior.pinball_p50, "{name}: {ours:?} {prior:?}");
            // What a fit makes small: the losses of both quantiles together.
            let loss = |score: TargetScore| score.pinball_p50 + score.pinball_p90;
            assert!(loss(ours) < loss(prior), "{name}: {ours:?} {prior:?}");
        }
    }
}
