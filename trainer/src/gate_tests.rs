use super::*;
use crate::dataset::example;
use crate::synthetic;
use foretoken_core::features::COUNT;
use foretoken_core::model::contract::{Output, Unit};
use foretoken_core::model::ensemble::Ensemble;
use foretoken_core::model::onnx::write;

/// A model that answers these ratios for every row.
pub(crate) fn constant(ttft: f32, tpot: f32) -> Model {
    let facts = crate::export::Facts { model_id: "constant".to_owned(), ..Default::default() };
    let ensemble = |value| {
        let mut ensemble = Ensemble::new(COUNT);
        ensemble.push_constant(value).unwrap();
        ensemble
    };
    let (ttft, tpot) = (ensemble(ttft), ensemble(tpot));
    let outputs: Vec<(Output, &Ensemble)> = Output::ALL
        .into_iter()
        .filter(|output| output.unit == Unit::Ratio)
        .map(|output| (output, if output.target == Target::Ttft { &ttft } else { &tpot }))
        .collect();
    Model::from_onnx_lean(&write::write(&facts.metadata(), &outputs)).unwrap()
}

fn examples(count: usize) -> Vec<Example> {
    synthetic::samples(9, count).iter().filter_map(example).collect()
}

#[test]
fn a_better_model_passes_and_a_worse_one_is_refused_with_target_and_figures() {
    let examples = examples(400);
    // The law's ratios lie around 1.6 and 1.3.
    let (good, bad) = (constant(1.6, 1.3), constant(4.0, 1.3));
    assert!(judge(&good, None, &examples).passed());
    let verdict = judge(&bad, None, &examples);
    assert!(verdict.refused.iter().all(|line| line.contains("ttft")), "{:?}", verdict.refused);
    assert!(verdict.refused[0].contains("prior") && !verdict.ttft_passed && verdict.tpot_passed);
    let low = constant(0.4, 1.3);
    assert!(judge(&good, Some(&low), &examples).passed(), "{:?}", judge(&good, Some(&low), &examples));
    // Both of its quantiles are the median: it covers half, and the other nearly all.
    let verdict = judge(&good, Some(&bad), &examples);
    assert!(verdict.refused.len() == 1 && verdict.refused[0].contains("covers"), "{:?}", verdict.refused);
    let verdict = judge(&constant(1.0, 1.0), Some(&good), &examples);
    assert!(!verdict.ttft_passed && !verdict.tpot_passed, "{:?}", verdict.refused);
    assert!(verdict.refused.iter().any(|line| line.contains("live model")));
    assert!(verdict.live.unwrap().ttft.unwrap().n > 300);
}

#[test]
fn what_chance_explains_is_not_refused() {
    let examples = examples(40);
    let verdict = judge(&constant(1.7, 1.32), Some(&constant(1.6, 1.3)), &examples);
    assert!(verdict.passed(), "{:?}", verdict.refused);
}

#[test]
fn a_better_ttft_is_not_held_back_by_a_worse_tpot() {
    let examples = examples(400);
    let verdict = judge(&constant(1.6, 3.0), Some(&constant(1.0, 1.3)), &examples);
    assert!(verdict.ttft_passed && !verdict.tpot_passed, "{:?}", verdict.refused);
    assert!(verdict.refused.iter().all(|line| line.starts_with("tpot")), "{:?}", verdict.refused);
}

/// A model whose ratios step at a column.
fn step(column: foretoken_core::features::Feature, below: f32, above: f32, threshold: f32) -> Model {
    use foretoken_core::model::ensemble::Node;
    let facts = crate::export::Facts { model_id: "step".to_owned(), ..Default::default() };
    let mut ensemble = Ensemble::new(COUNT);
    ensemble.push_constant(0.0).unwrap();
    let nodes = [
        Node::Branch { feature: column as u32, threshold, yes: 1, no: 2, missing_yes: true },
        Node::Leaf { value: below },
        Node::Leaf { value: above },
    ];
    ensemble.push(&nodes).unwrap();
    let outputs: Vec<(Output, &Ensemble)> = Output::ALL
        .into_iter()
        .filter(|output| output.unit == Unit::Ratio)
        .map(|output| (output, &ensemble))
        .collect();
    Model::from_onnx_lean(&write::write(&facts.metadata(), &outputs)).unwrap()
}

#[test]
fn what_is_better_on_the_many_but_worse_on_the_few_is_refused_by_the_name_of_the_stratum() {
    use foretoken_core::features::Feature;
    // Nine in ten requests find a pod with two requests, where both are right; one in ten finds a hundred.
    let mut examples = examples(2000);
    for (index, example) in examples.iter_mut().enumerate() {
        let busy = index % 10 == 0;
        example.row.set(Feature::InflightRequests, if busy { 100.0 } else { 2.0 });
        example.row.set(Feature::RunningRequests, f32::NAN);
        let actual = |outcome: &mut crate::dataset::Outcome| {
            outcome.actual_ms =
                outcome.prior_ms * if busy { 2.0 } else { 1.0 } * (1.0 + (index % 7) as f32 / 50.0);
        };
        example.ttft.iter_mut().chain(&mut example.tpot).for_each(actual);
    }
    let live = step(Feature::InflightRequests, 1.2, 2.1, 50.0);
    let candidate = step(Feature::InflightRequests, 1.11, 2.6, 50.0);
    let verdict = judge(&candidate, Some(&live), &examples);
    assert!(!verdict.refused.is_empty());
    assert!(verdict.refused.iter().all(|line| line.contains("(load full)")), "{:?}", verdict.refused);
    let full = verdict.strata["load full"];
    assert!(full.n == 200 && full.ttft.unwrap() > full.ttft_before.unwrap());
}

#[test]
fn a_model_that_is_too_large_or_too_slow_is_refused_with_the_fix() {
    let onnx = {
        let facts = crate::export::Facts { model_id: "constant".to_owned(), ..Default::default() };
        let mut ensemble = Ensemble::new(COUNT);
        ensemble.push_constant(1.0).unwrap();
        let outputs: Vec<_> = Output::ALL.into_iter().take(4).map(|output| (output, &ensemble)).collect();
        write::write(&facts.metadata(), &outputs)
    };
    let model = Model::from_onnx_lean(&onnx).unwrap();
    let rows = [Row::default()];
    let (measured, refused) = cost(&onnx, &model, &rows, &Limits::default());
    assert!(refused.is_empty() && measured.packed_bytes > 100 && measured.row_us > 0.0, "{measured:?}");
    let (_, refused) = cost(&onnx, &model, &rows, &Limits { packed_bytes: 10, row_us: 0.0 });
    assert!(refused[0].contains("--max-depth") && refused[1].contains("us a row"), "{refused:?}");
}
