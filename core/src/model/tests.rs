use super::testing::{Random, metadata, model};
use super::*;
use crate::features::{COUNT, Feature};
use crate::model::ensemble::Ensemble;
use crate::model::onnx::write;

fn constant(value: f32) -> Ensemble {
    let mut ensemble = Ensemble::new(COUNT);
    ensemble.push_constant(value).unwrap();
    ensemble
}

fn constants(outputs: &[(&str, f32)]) -> Vec<u8> {
    let ensembles: Vec<_> = outputs.iter().map(|(name, value)| (*name, constant(*value))).collect();
    let outputs: Vec<_> =
        ensembles.iter().map(|(name, trees)| (Output::from_name(name).unwrap(), trees)).collect();
    write::write(&metadata(), &outputs)
}

fn predict(bytes: &[u8], row: Row) -> Prediction {
    let model = Model::from_onnx(bytes).unwrap();
    let mut out = Vec::new();
    model.predict(&[row], &mut out);
    out[0]
}

#[test]
fn ratios_are_multiplied_by_the_prior_of_the_row_and_milliseconds_are_not() {
    let mut row = Row::default();
    row.set(Feature::PriorTtftMs, 200.0);
    row.set(Feature::PriorTpotMs, 10.0);
    let bytes = constants(&[
        ("ttft_ratio_p50", 1.5),
        ("ttft_ratio_p90", 2.0),
        ("tpot_ms_p50", 7.0),
        ("tpot_ms_p90", 8.0),
    ]);
    let expected = Prediction { ttft_ms_p50: 300.0, ttft_ms_p90: 400.0, tpot_ms_p50: 7.0, tpot_ms_p90: 8.0 };
    assert_eq!(predict(&bytes, row), expected);
}

#[test]
fn crossed_quantiles_are_sorted_and_a_lone_quantile_stands_for_both() {
    let bytes = constants(&[("ttft_ms_p50", 9.0), ("ttft_ms_p90", 5.0), ("tpot_ms_p90", 3.0)]);
    let expected = Prediction { ttft_ms_p50: 5.0, ttft_ms_p90: 9.0, tpot_ms_p50: 3.0, tpot_ms_p90: 3.0 };
    assert_eq!(predict(&bytes, Row::default()), expected);
}

#[test]
fn a_ratio_that_the_trees_put_below_nothing_is_a_small_one() {
    let mut row = Row::default();
    row.set(Feature::PriorTtftMs, 200.0);
    row.set(Feature::PriorTpotMs, 10.0);
    let bytes = constants(&[("ttft_ratio_p50", 1.5), ("tpot_ratio_p50", -0.02), ("tpot_ratio_p90", 0.5)]);
    let prediction = predict(&bytes, row);
    assert_eq!(
        (prediction.ttft_ms_p50, prediction.tpot_ms_p50, prediction.tpot_ms_p90),
        (300.0, 0.01 * 10.0, 5.0)
    );
}

#[test]
fn an_unknown_prior_makes_a_ratio_unknown() {
    let bytes = constants(&[("ttft_ratio_p50", 1.0), ("tpot_ms_p50", 3.0)]);
    let prediction = predict(&bytes, Row::default());
    assert!(prediction.ttft_ms_p50.is_nan() && prediction.ttft_ms_p90.is_nan());
    assert_eq!(prediction.tpot_ms_p50, 3.0);
}

#[test]
fn a_batch_of_any_size_gives_each_row_what_it_gets_alone() {
    let model = Model::from_onnx_lean(&model(11, 20, 5)).unwrap();
    let mut random = Random(5);
    let rows: Vec<Row> = (0..27).map(|_| random.row()).collect();
    let (mut batch, mut alone) = (Vec::new(), Vec::new());
    for n in 0..=rows.len() {
        model.evaluate(&rows[..n], &mut batch);
        assert_eq!(batch.len(), n);
        for (row, prediction) in rows.iter().zip(&batch) {
            model.evaluate(std::slice::from_ref(row), &mut alone);
            assert_eq!(alone, [*prediction]);
        }
    }
}

#[test]
fn medians_alone_are_those_of_the_whole_prediction() {
    let model = Model::from_onnx_lean(&model(13, 20, 5)).unwrap();
    let mut random = Random(6);
    let rows: Vec<Row> = (0..27).map(|_| random.row()).collect();
    let (mut whole, mut medians) = (Vec::new(), Vec::new());
    model.predict(&rows, &mut whole);
    model.predict_medians(&rows, &mut medians);
    let is_known = |one: &&Prediction| !one.ttft_ms_p50.is_nan() && !one.tpot_ms_p50.is_nan();
    assert!(whole.iter().filter(is_known).count() > 10);
    for (whole, median) in whole.iter().zip(&medians) {
        assert!(median.ttft_ms_p90.is_nan() && median.tpot_ms_p90.is_nan());
        // Where the trees cross, the median is the upper one of the sorted.
        let same = |median: f32, p50: f32, p90: f32| {
            [p50, p90].map(f32::to_bits).contains(&median.to_bits()) || (median.is_nan() && p50.is_nan())
        };
        assert!(same(median.ttft_ms_p50, whole.ttft_ms_p50, whole.ttft_ms_p90), "{median:?} {whole:?}");
        assert!(same(median.tpot_ms_p50, whole.tpot_ms_p50, whole.tpot_ms_p90), "{median:?} {whole:?}");
    }
}

#[test]
fn what_stands_for_a_median_is_evaluated_with_the_medians() {
    let bytes = constants(&[("ttft_ms_p50", 9.0), ("ttft_ms_p90", 12.0), ("tpot_ms_p90", 3.0)]);
    let model = Model::from_onnx(&bytes).unwrap();
    let mut out = Vec::new();
    model.predict_medians(&[Row::default()], &mut out);
    let Prediction { ttft_ms_p50, tpot_ms_p50, tpot_ms_p90, .. } = out[0];
    assert_eq!((ttft_ms_p50, tpot_ms_p50, tpot_ms_p90), (9.0, 3.0, 3.0));
}

#[test]
fn a_packed_model_is_the_model() {
    let bytes = model(2, 10, 4);
    let model = Model::from_packed(&packed::pack(&bytes)).unwrap();
    assert_eq!(model.card().model_id, "test-1");
    assert_eq!(model.card().get(contract::KEY_SCHEMA), Some(crate::features::SCHEMA_ID));
    let error = Model::from_packed("AAAA").unwrap_err();
    assert!(error.to_string().starts_with("model refused"), "{error}");
}

#[cfg(feature = "tract")]
mod tract_tests {
    use super::*;
    use crate::model::onnx::proto::{Attribute, ModelProto, NodeProto};
    use prost::Message;

    fn bits(model: &Model, rows: &[Row]) -> Vec<[u32; 4]> {
        let mut out = Vec::new();
        model.evaluate(rows, &mut out);
        out.iter()
            .map(|p| [p.ttft_ms_p50, p.ttft_ms_p90, p.tpot_ms_p50, p.tpot_ms_p90].map(f32::to_bits))
            .collect()
    }

    #[test]
    fn tract_and_the_lean_reader_agree_to_the_last_bit_on_any_batch_size() {
        for (seed, trees, depth) in [(1, 1, 0), (2, 30, 6), (3, 5, 12)] {
            let bytes = model(seed, trees, depth);
            let lean = Model::from_onnx_lean(&bytes).unwrap();
            let graph = Model::from_onnx_tract(&bytes).unwrap();
            assert_eq!(lean.card(), graph.card());
            assert_eq!(lean.outputs(), graph.outputs());
            let mut random = Random(seed);
            let rows: Vec<Row> = (0..41).map(|_| random.row()).collect();
            for n in [0, 1, 3, 8, 9, 41] {
                assert_eq!(bits(&lean, &rows[..n]), bits(&graph, &rows[..n]), "{n} rows");
            }
        }
    }

    #[test]
    fn an_exponential_after_the_trees_is_the_same_in_both_but_for_the_last_place() {
        use crate::model::contract::Output;
        use crate::model::ensemble::Link;
        use crate::model::onnx::write;
        let mut random = Random(4);
        let (ttft, tpot) =
            (random.ensemble(20, 5).with_link(Link::Exp), random.ensemble(20, 12).with_link(Link::Exp));
        let bytes = write::write(&metadata(), &[(Output::ALL[4], &ttft), (Output::ALL[6], &tpot)]);
        let (lean, graph) = (Model::from_onnx_lean(&bytes).unwrap(), Model::from_onnx_tract(&bytes).unwrap());
        let rows: Vec<Row> = (0..100).map(|_| random.row()).collect();
        let (mut from_lean, mut from_graph) = (Vec::new(), Vec::new());
        lean.evaluate(&rows, &mut from_lean);
        graph.evaluate(&rows, &mut from_graph);
        for ((lean, graph), row) in from_lean.iter().zip(&from_graph).zip(&rows) {
            for (lean, graph, trees) in
                [(lean.ttft_ms_p50, graph.ttft_ms_p50, &ttft), (lean.tpot_ms_p50, graph.tpot_ms_p50, &tpot)]
            {
                assert_eq!(lean, scalar::eval(trees, &row.0));
                assert_eq!(lean, f64::from(scalar::sum(trees, &row.0)).exp() as f32);
                assert!(lean.to_bits().abs_diff(graph.to_bits()) <= 1, "{lean} {graph}");
            }
        }
    }

    #[test]
    fn a_graph_with_nodes_around_the_trees_runs_in_tract_only() {
        let mut proto =
            ModelProto::decode(constants(&[("ttft_ms_p50", 0.5), ("tpot_ms_p50", 3.0)]).as_slice()).unwrap();
        let graph = proto.graph.as_mut().unwrap();
        graph.node[0].output[0] = "square".to_owned();
        graph.node.push(NodeProto {
            input: vec!["square".to_owned()],
            output: vec!["ttft_ms_p50".to_owned()],
            name: "root".to_owned(),
            op_type: "Sqrt".to_owned(),
            ..NodeProto::default()
        });
        let bytes = proto.encode_to_vec();
        assert!(Model::from_onnx_lean(&bytes).unwrap_err().to_string().contains("Sqrt"));
        let prediction = predict(&bytes, Row::default());
        assert!((prediction.ttft_ms_p50 - 0.5f32.sqrt()).abs() < 1e-6, "{prediction:?}");
        assert_eq!(prediction.tpot_ms_p50, 3.0);
    }

    #[test]
    fn what_the_operator_cannot_evaluate_is_refused_with_its_name() {
        let mut proto =
            ModelProto::decode(constants(&[("ttft_ms_p50", 0.5), ("tpot_ms_p50", 3.0)]).as_slice()).unwrap();
        let node = &mut proto.graph.as_mut().unwrap().node[0];
        node.attribute.retain(|attribute| attribute.name != "aggregate_function");
        let minimum =
            Attribute { name: "aggregate_function".to_owned(), s: b"MIN".to_vec(), ..Attribute::default() };
        node.attribute.push(minimum);
        let error = Model::from_onnx_tract(&proto.encode_to_vec()).unwrap_err().to_string();
        assert!(error.contains("MIN") && error.contains("SUM"), "{error}");
    }

    #[test]
    fn an_unknown_operator_and_a_wrong_shape_are_refused() {
        let good = constants(&[("ttft_ms_p50", 0.5), ("tpot_ms_p50", 3.0)]);
        let mut proto = ModelProto::decode(good.as_slice()).unwrap();
        proto.graph.as_mut().unwrap().node[0].op_type = "Oracle".to_owned();
        let error = Model::from_onnx_tract(&proto.encode_to_vec()).unwrap_err().to_string();
        assert!(error.contains("Oracle"), "{error}");
        let mut proto = ModelProto::decode(good.as_slice()).unwrap();
        let graph = proto.graph.as_mut().unwrap();
        graph.input[0].name = "x".to_owned();
        for node in &mut graph.node {
            node.input[0] = "x".to_owned();
        }
        let error = Model::from_onnx_tract(&proto.encode_to_vec()).unwrap_err().to_string();
        assert!(error.contains("`x`") && error.contains("features"), "{error}");
    }
}
