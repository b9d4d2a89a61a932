use super::*;
use crate::model::contract::Output;
use crate::model::ensemble::{Link, Node};
use crate::model::onnx::proto::{Attribute, GraphProto, NodeProto, OperatorSetId, StringPair};
use crate::model::testing::{Random, metadata, model};
use proptest::prelude::*;

fn small() -> ModelProto {
    ModelProto::decode(model(1, 3, 2).as_slice()).unwrap()
}

fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

fn attribute<'a>(node: &'a mut NodeProto, name: &str) -> &'a mut Attribute {
    node.attribute.iter_mut().find(|attribute| attribute.name == name).unwrap()
}

/// Applies a change to a good model and returns why the result is refused.
fn refusal(change: impl FnOnce(&mut ModelProto)) -> String {
    let mut model = small();
    change(&mut model);
    read(&model.encode_to_vec()).unwrap_err().to_string()
}

fn refusal_of_attribute(name: &str, change: impl FnOnce(&mut Attribute)) -> String {
    refusal(|model| change(attribute(&mut graph(model).node[2], name)))
}

#[test]
fn what_is_written_is_read_back_the_same() {
    let mut random = Random(7);
    let ensembles: Vec<_> = [0, 1, 3, 6].into_iter().map(|depth| random.ensemble(4, depth)).collect();
    let outputs: Vec<_> = Output::ALL.into_iter().zip(&ensembles).collect();
    let (card, read) = read(&write::write(&metadata(), &outputs)).unwrap();
    assert_eq!(card.model_id, "test-1");
    assert_eq!(card.properties, metadata());
    assert_eq!(read.len(), 4);
    for ((output, trees), (expected_output, expected)) in read.iter().zip(&outputs) {
        assert_eq!(output, expected_output);
        assert_eq!(&trees, expected);
    }
}

#[test]
fn a_node_of_another_operator_is_refused_by_name() {
    let why = refusal(|model| {
        let node = NodeProto { op_type: "Log".to_owned(), name: "e".to_owned(), ..NodeProto::default() };
        graph(model).node.push(node);
    });
    assert!(why.contains("`e`") && why.contains("Log") && why.contains("tract"), "{why}");
}

#[test]
fn an_exponential_after_the_trees_is_read_back_as_their_link() {
    let mut random = Random(8);
    let exponential = random.ensemble(3, 4).with_link(Link::Exp);
    let plain = random.ensemble(3, 4);
    let outputs = [(Output::ALL[4], &exponential), (Output::ALL[6], &plain)];
    let bytes = write::write(&metadata(), &outputs);
    let (_, ensembles) = read(&bytes).unwrap();
    assert_eq!((ensembles[0].1.link(), ensembles[1].1.link()), (Link::Exp, Link::Identity));
    assert_eq!((&ensembles[0].1, &ensembles[1].1), (&exponential, &plain));
    let refusal = |change: &dyn Fn(&mut GraphProto)| {
        let mut model = ModelProto::decode(bytes.as_slice()).unwrap();
        change(graph(&mut model));
        read(&model.encode_to_vec()).unwrap_err().to_string()
    };
    let why = refusal(&|graph| graph.node[1].input[0] = "features".to_owned());
    assert!(why.contains("ttft_ms_p50_sum") && why.contains("not an output"), "{why}");
    let why = refusal(&|graph| {
        let second =
            NodeProto { output: vec!["x".to_owned()], name: "second".to_owned(), ..graph.node[1].clone() };
        graph.node.push(second);
    });
    assert!(why.contains("`second`") && why.contains("another node reads"), "{why}");
    let why = refusal(&|graph| graph.node[1].output[0] = "tpot_ms_p50".to_owned());
    assert!(why.contains("`tpot_ms_p50` a second time"), "{why}");
    let why = refusal(&|graph| {
        graph.node.remove(0);
    });
    assert!(why.contains("no sum of trees"), "{why}");
    let why = refusal(&|graph| graph.node[1].input.clear());
    assert!(why.contains("one input"), "{why}");
}

#[test]
fn what_would_change_the_sum_is_refused_by_name() {
    let why = refusal_of_attribute("nodes_modes", |modes| modes.strings[1] = b"BRANCH_LEQ".to_vec());
    assert!(
        why.contains("tpot_ratio_p50") && why.contains("BRANCH_LEQ") && why.contains("BRANCH_LT"),
        "{why}"
    );
    let why = refusal_of_attribute("aggregate_function", |aggregate| aggregate.s = b"AVERAGE".to_vec());
    assert!(why.contains("AVERAGE") && why.contains("SUM"), "{why}");
    let why = refusal_of_attribute("post_transform", |transform| transform.s = b"LOGISTIC".to_vec());
    assert!(why.contains("LOGISTIC") && why.contains("NONE"), "{why}");
    let why = refusal_of_attribute("n_targets", |targets| targets.i = 2);
    assert!(why.contains("n_targets"), "{why}");
    let why = refusal(|model| {
        let base = Attribute { name: "base_values".to_owned(), floats: vec![1.0], ..Attribute::default() };
        graph(model).node[0].attribute.push(base);
    });
    assert!(why.contains("base_values") && why.contains("leading tree"), "{why}");
    let why = refusal(|model| {
        let unknown = Attribute { name: "nodes_values_as_tensor".to_owned(), ..Attribute::default() };
        graph(model).node[0].attribute.push(unknown);
    });
    assert!(why.contains("nodes_values_as_tensor"), "{why}");
}

#[test]
fn trees_that_are_not_trees_are_refused_by_tree_and_node() {
    let why = refusal_of_attribute("nodes_truenodeids", |ids| ids.ints[1] = 0);
    assert!(why.contains("tree 1") && why.contains("twice"), "{why}");
    let why = refusal_of_attribute("nodes_falsenodeids", |ids| ids.ints[1] = 70);
    assert!(why.contains("child 70"), "{why}");
    let why = refusal_of_attribute("nodes_featureids", |ids| ids.ints[1] = COUNT as i64);
    assert!(why.contains(&format!("feature {COUNT}")), "{why}");
    let why = refusal_of_attribute("nodes_featureids", |ids| ids.ints[1] = -1);
    assert!(why.contains("nodes_featureids") && why.contains("-1"), "{why}");
    let why = refusal_of_attribute("nodes_values", |values| values.floats[1] = f32::NAN);
    assert!(why.contains("threshold is NaN"), "{why}");
    let why = refusal_of_attribute("target_weights", |values| values.floats[1] = f32::INFINITY);
    assert!(why.contains("not finite"), "{why}");
    let why = refusal_of_attribute("nodes_treeids", |ids| ids.ints[3] = 9);
    assert!(why.contains("nodes_treeids"), "{why}");
    let why = refusal_of_attribute("nodes_nodeids", |ids| ids.ints[2] = 0);
    assert!(why.contains("nodes_nodeids"), "{why}");
    let why = refusal_of_attribute("nodes_values", |values| values.floats.truncate(3));
    assert!(why.contains("nodes_values") && why.contains('3'), "{why}");
    let why = refusal_of_attribute("target_nodeids", |ids| ids.ints[2] = ids.ints[1]);
    assert!(why.contains("target_nodeids"), "{why}");
}

#[test]
fn an_input_or_output_of_another_form_is_refused() {
    let why = refusal(|model| graph(model).input[0].name = "x".to_owned());
    assert!(why.contains("`x`") && why.contains("features"), "{why}");
    let why = refusal(|model| {
        let tensor = graph(model).input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.shape.as_mut().unwrap().dim[1].value = Some(DimensionValue::Number(3));
    });
    assert!(why.contains("shape"), "{why}");
    let why = refusal(|model| {
        let tensor = graph(model).input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.elem_type = 11;
    });
    assert!(why.contains("11") && why.contains("float32"), "{why}");
    let why = refusal(|model| {
        graph(model).node.pop();
    });
    assert!(why.contains("tpot_ratio_p90"), "{why}");
    let why = refusal(|model| graph(model).initializer.push(vec![1, 2, 3]));
    assert!(why.contains("initializers"), "{why}");
    let why = refusal(|model| model.graph = None);
    assert!(why.contains("no graph"), "{why}");
    let why = refusal(|model| {
        model.opset_import.push(OperatorSetId { domain: "ai.onnx.ml".to_owned(), version: 5 });
    });
    assert!(why.contains("ai.onnx.ml 5"), "{why}");
}

#[test]
fn a_model_of_another_schema_is_refused_before_its_trees_are_read() {
    let why = refusal(|model| {
        model.metadata_props =
            vec![StringPair { key: contract::KEY_SCHEMA.to_owned(), value: "foretoken-0".to_owned() }];
        graph(model).node.clear();
    });
    assert!(why.contains("foretoken-0"), "{why}");
}

#[test]
fn a_file_past_the_bound_is_refused_unread() {
    let error = read(&vec![0; contract::MAX_FILE_BYTES + 1]).unwrap_err();
    assert!(matches!(error, ModelError::Size { .. }), "{error}");
}

#[test]
fn the_wide_form_reads_other_comparisons_targets_and_base_values() {
    let mut model = small();
    let node = &mut graph(&mut model).node[0];
    // One tree: x0 <op> 0.5 ? 1 : 2, as two targets with weights of their own.
    let ints = |name: &str, ints: Vec<i64>| Attribute { name: name.to_owned(), ints, ..Attribute::default() };
    let floats =
        |name: &str, floats: Vec<f32>| Attribute { name: name.to_owned(), floats, ..Attribute::default() };
    let bytes = |list: &[&str]| list.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let mut with_mode = |mode: &str, tracks_true: i64| {
        node.attribute = vec![
            Attribute { name: "n_targets".to_owned(), i: 2, ..Attribute::default() },
            ints("nodes_treeids", vec![0, 0, 0]),
            ints("nodes_nodeids", vec![0, 1, 2]),
            ints("nodes_featureids", vec![0, 0, 0]),
            floats("nodes_values", vec![0.5, 0.0, 0.0]),
            Attribute {
                name: "nodes_modes".to_owned(),
                strings: bytes(&[mode, "LEAF", "LEAF"]),
                ..Attribute::default()
            },
            ints("nodes_truenodeids", vec![1, 0, 0]),
            ints("nodes_falsenodeids", vec![2, 0, 0]),
            ints("nodes_missing_value_tracks_true", vec![tracks_true, 0, 0]),
            ints("target_treeids", vec![0, 0, 0]),
            ints("target_nodeids", vec![1, 2, 1]),
            ints("target_ids", vec![0, 0, 1]),
            floats("target_weights", vec![1.0, 2.0, 10.0]),
            floats("base_values", vec![100.0, 200.0]),
        ];
        let sums = tree::read(node, 1, tree::Form::Wide).unwrap();
        assert_eq!(sums.len(), 2);
        assert_eq!((sums[0].base, sums[1].base), (Some(100.0), Some(200.0)));
        let at = |value: f32| {
            (
                crate::model::scalar::eval(&sums[0].trees, &[value]),
                crate::model::scalar::eval(&sums[1].trees, &[value]),
            )
        };
        let (yes, no) = ((1.0, 10.0), (2.0, 0.0));
        let side = |value: f32| {
            if at(value) == yes {
                true
            } else {
                assert_eq!(at(value), no);
                false
            }
        };
        (side(0.5f32.next_down()), side(0.5), side(0.5f32.next_up()), side(f32::NAN))
    };
    assert_eq!(with_mode("BRANCH_LT", 0), (true, false, false, false));
    assert_eq!(with_mode("BRANCH_LEQ", 1), (true, true, false, true));
    assert_eq!(with_mode("BRANCH_GT", 0), (false, false, true, false));
    assert_eq!(with_mode("BRANCH_GTE", 1), (false, true, true, true));
}

#[test]
fn every_truncation_of_a_file_is_refused() {
    let bytes = model(3, 2, 2);
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end]).is_err(), "{end} of {} bytes were accepted", bytes.len());
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = read(&bytes);
    }

    #[test]
    fn a_file_with_changed_bytes_never_panics_and_what_is_accepted_can_be_evaluated(
        seed in 0u64..20,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        removed in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = model(seed, 3, 3);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(place) = removed {
            let place = place.index(bytes.len());
            bytes.remove(place);
        }
        if let Ok(model) = crate::model::Model::from_onnx_lean(&bytes) {
            let mut out = Vec::new();
            model.predict(&[crate::features::Row::default(), Random(seed).row()], &mut out);
            prop_assert_eq!(out.len(), 2);
        }
    }

    #[test]
    fn changed_tree_attributes_never_panic(
        which in 0usize..15,
        place in any::<prop::sample::Index>(),
        value in prop_oneof![-3i64..20, any::<i64>()],
        form in prop_oneof![Just(tree::Form::Strict), Just(tree::Form::Wide)],
    ) {
        let mut model = small();
        let node = &mut graph(&mut model).node[0];
        let attribute = &mut node.attribute[which];
        attribute.i = value;
        if !attribute.ints.is_empty() {
            let place = place.index(attribute.ints.len());
            attribute.ints[place] = value;
        }
        if let Ok(sums) = tree::read(node, COUNT, form) {
            for sum in sums {
                prop_assert!(sum.trees.trees().all(|(nodes, _)| !nodes.is_empty()));
                let sound = |node: &Node| match node {
                    Node::Leaf { value } => value.is_finite(),
                    Node::Branch { threshold, .. } => !threshold.is_nan(),
                };
                prop_assert!(sum.trees.trees().flat_map(|(nodes, _)| nodes).all(sound));
            }
        }
    }
}
