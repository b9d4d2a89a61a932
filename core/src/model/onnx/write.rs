//! Tree ensembles to ONNX bytes: the inverse of the lean reader.
//!
//! It is here, beside the reader, so that what is written and what is read cannot drift apart; the
//! trainer, the tests and the benches use it. The filter never calls it and so does not carry it.
//!
//! The base score is not an attribute: `base_values` is added after the sum by ONNX Runtime and by
//! tract, while XGBoost starts its sum with it, so 80 to 94 % of outputs would differ in their last bits.
//! Callers push it as the first tree ([`Ensemble::push_constant`]). A link is a node of its own after the trees, which
//! every runtime knows.

use prost::Message;

use super::proto::{
    Attribute, Dimension, DimensionValue, ELEMENT_FLOAT, GraphProto, ModelProto, NodeProto, OperatorSetId,
    StringPair, TYPE_FLOATS, TYPE_INT, TYPE_INTS, TYPE_STRING, TYPE_STRINGS, TensorShape, TensorType,
    TypeProto, ValueInfo,
};
use super::tree::OPERATOR;
use crate::features::COUNT;
use crate::model::contract::{self, Output};
use crate::model::ensemble::{Ensemble, Link, Node};

/// File format version: 8 is what goes with operator set 15 (ONNX 1.10).
const IR_VERSION: i64 = 8;

/// `ai.onnx` operator set.
const OPSET: i64 = 15;

/// `ai.onnx.ml` operator set: the last with `TreeEnsembleRegressor` unchanged.
const ML_OPSET: i64 = 3;

/// Writes a model of one tree node per output, and one for its link when it has one.
#[must_use]
pub fn write(metadata: &[(String, String)], outputs: &[(Output, &Ensemble)]) -> Vec<u8> {
    model(metadata, outputs).encode_to_vec()
}

/// The same as a message, for tests that change it.
#[must_use]
pub fn model(metadata: &[(String, String)], outputs: &[(Output, &Ensemble)]) -> ModelProto {
    let columns = i64::try_from(COUNT).unwrap_or(0);
    let graph = GraphProto {
        name: "foretoken".to_owned(),
        node: outputs.iter().flat_map(|(output, ensemble)| nodes(output.name(), ensemble)).collect(),
        initializer: Vec::new(),
        input: vec![value(contract::INPUT, columns)],
        output: outputs.iter().map(|(output, _)| value(output.name(), 1)).collect(),
    };
    ModelProto {
        ir_version: IR_VERSION,
        producer_name: "foretoken".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(graph),
        opset_import: vec![
            OperatorSetId { domain: String::new(), version: OPSET },
            OperatorSetId { domain: "ai.onnx.ml".to_owned(), version: ML_OPSET },
        ],
        metadata_props: metadata
            .iter()
            .map(|(key, value)| StringPair { key: key.clone(), value: value.clone() })
            .collect(),
    }
}

fn value(name: &str, columns: i64) -> ValueInfo {
    let dim = [DimensionValue::Symbol("n".to_owned()), DimensionValue::Number(columns)];
    let dim = dim.into_iter().map(|value| Dimension { value: Some(value) }).collect();
    let tensor = TensorType { elem_type: ELEMENT_FLOAT, shape: Some(TensorShape { dim }) };
    ValueInfo { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}

/// The trees, and what their sum goes through.
fn nodes(output: &str, ensemble: &Ensemble) -> Vec<NodeProto> {
    let operator = match ensemble.link() {
        Link::Identity => return vec![node(output, ensemble)],
        Link::Exp => super::EXP,
    };
    let sum = format!("{output}_sum");
    let link = NodeProto {
        input: vec![sum.clone()],
        output: vec![output.to_owned()],
        name: format!("{output}_link"),
        op_type: operator.to_owned(),
        attribute: Vec::new(),
        domain: String::new(),
    };
    vec![node(&sum, ensemble), link]
}

fn node(output: &str, ensemble: &Ensemble) -> NodeProto {
    let mut columns = Columns::default();
    for (tree, (nodes, _)) in (0i64..).zip(ensemble.trees()) {
        for (id, node) in (0i64..).zip(nodes) {
            columns.push(tree, id, node);
        }
    }
    NodeProto {
        input: vec![contract::INPUT.to_owned()],
        output: vec![output.to_owned()],
        name: output.to_owned(),
        op_type: OPERATOR.to_owned(),
        attribute: columns.attributes(),
        domain: "ai.onnx.ml".to_owned(),
    }
}

#[derive(Default)]
struct Columns {
    tree_ids: Vec<i64>,
    node_ids: Vec<i64>,
    feature_ids: Vec<i64>,
    yes_ids: Vec<i64>,
    no_ids: Vec<i64>,
    missing_yes: Vec<i64>,
    values: Vec<f32>,
    modes: Vec<Vec<u8>>,
    leaf_tree_ids: Vec<i64>,
    leaf_node_ids: Vec<i64>,
    leaf_values: Vec<f32>,
}

impl Columns {
    fn push(&mut self, tree: i64, id: i64, node: &Node) {
        self.tree_ids.push(tree);
        self.node_ids.push(id);
        let (mode, feature, threshold, yes, no, missing_yes) = match *node {
            Node::Branch { feature, threshold, yes, no, missing_yes } => {
                (&b"BRANCH_LT"[..], feature, threshold, yes, no, missing_yes)
            }
            Node::Leaf { value } => {
                self.leaf_tree_ids.push(tree);
                self.leaf_node_ids.push(id);
                self.leaf_values.push(value);
                (&b"LEAF"[..], 0, 0.0, 0, 0, false)
            }
        };
        self.modes.push(mode.to_vec());
        self.feature_ids.push(feature.into());
        self.values.push(threshold);
        self.yes_ids.push(yes.into());
        self.no_ids.push(no.into());
        self.missing_yes.push(missing_yes.into());
    }

    fn attributes(self) -> Vec<Attribute> {
        let target_ids = vec![0; self.leaf_values.len()];
        let ints = |name: &str, ints| Attribute { ints, ..attribute(name, TYPE_INTS) };
        let floats = |name: &str, floats| Attribute { floats, ..attribute(name, TYPE_FLOATS) };
        vec![
            Attribute { i: 1, ..attribute("n_targets", TYPE_INT) },
            Attribute { s: b"SUM".to_vec(), ..attribute("aggregate_function", TYPE_STRING) },
            Attribute { s: b"NONE".to_vec(), ..attribute("post_transform", TYPE_STRING) },
            ints("nodes_treeids", self.tree_ids),
            ints("nodes_nodeids", self.node_ids),
            ints("nodes_featureids", self.feature_ids),
            floats("nodes_values", self.values),
            Attribute { strings: self.modes, ..attribute("nodes_modes", TYPE_STRINGS) },
            ints("nodes_truenodeids", self.yes_ids),
            ints("nodes_falsenodeids", self.no_ids),
            ints("nodes_missing_value_tracks_true", self.missing_yes),
            ints("target_treeids", self.leaf_tree_ids),
            ints("target_nodeids", self.leaf_node_ids),
            ints("target_ids", target_ids),
            floats("target_weights", self.leaf_values),
        ]
    }
}

fn attribute(name: &str, r#type: i32) -> Attribute {
    Attribute { name: name.to_owned(), r#type, ..Attribute::default() }
}
