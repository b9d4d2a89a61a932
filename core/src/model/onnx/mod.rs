//! The lean reader: ONNX bytes of the contract's form to tree ensembles.
//!
//! It reads what the trainer writes and nothing else: one float input, `TreeEnsembleRegressor` nodes
//! that read it, each making one output, directly or through an `Exp` node. That keeps the filter near 0.3 MB; linking tract costs 8 MB
//! or more. Everything else is refused by name, never skipped: an ignored node would be a wrong
//! prediction. Models with other nodes are for the `tract` flavour.

pub mod proto;
pub mod tree;
pub mod write;

use prost::Message;

use self::proto::{DimensionValue, ELEMENT_FLOAT, ModelProto, NodeProto, ValueInfo};
use super::contract;
use super::ensemble::{Ensemble, Link};
use super::{ModelCard, ModelError};
use crate::features::COUNT;

/// Newest `ai.onnx.ml` operator set with this `TreeEnsembleRegressor`; version 5 deprecates it.
const NEWEST_ML_OPSET: i64 = 4;

/// Operator of [`Link::Exp`], of the default domain.
pub(super) const EXP: &str = "Exp";

/// Parses the protobuf, bounded by [`contract::MAX_FILE_BYTES`].
///
/// # Errors
/// [`ModelError::Size`] or [`ModelError::Contract`].
pub fn decode(bytes: &[u8]) -> Result<ModelProto, ModelError> {
    if bytes.len() > contract::MAX_FILE_BYTES {
        return Err(ModelError::Size {
            what: "ONNX file",
            bytes: bytes.len(),
            limit: contract::MAX_FILE_BYTES,
        });
    }
    ModelProto::decode(bytes).map_err(|error| ModelError::Contract(format!("not an ONNX file: {error}")))
}

/// Reads and checks a model.
///
/// # Errors
/// [`ModelError`] names what is missing or wrong.
pub fn read(bytes: &[u8]) -> Result<(ModelCard, Vec<(contract::Output, Ensemble)>), ModelError> {
    let model = decode(bytes)?;
    let card = card(&model)?;
    for opset in &model.opset_import {
        if opset.domain == "ai.onnx.ml" && opset.version > NEWEST_ML_OPSET {
            return Err(ModelError::Contract(format!(
                "opset ai.onnx.ml {}: this reader knows up to {NEWEST_ML_OPSET}",
                opset.version
            )));
        }
    }
    let graph =
        model.graph.as_ref().ok_or_else(|| ModelError::Contract("the file has no graph".to_owned()))?;
    check_input(&graph.input)?;
    if !graph.initializer.is_empty() {
        return Err(ModelError::Contract("initializers are not read here: use the tract flavour".to_owned()));
    }
    let outputs = contract::outputs(graph.output.iter().map(|output| output.name.as_str()))?;
    // First, so that a file for the other flavour is told so and not that its names are wrong.
    for node in &graph.node {
        if !is_trees(node) && !is_link(node) {
            return Err(ModelError::Contract(format!(
                "node `{}`: operator {} of domain `{}` is not read here: use the tract flavour",
                node.name, node.op_type, node.domain
            )));
        }
    }
    let mut links = links(&graph.node)?;
    let mut ensembles: Vec<(contract::Output, Ensemble)> = Vec::with_capacity(outputs.len());
    for node in graph.node.iter().filter(|node| is_trees(node)) {
        let refuse = |why: String| Err(ModelError::Contract(format!("node `{}`: {why}", node.name)));
        let ([input], [output]) = (node.input.as_slice(), node.output.as_slice()) else {
            return refuse("expected one input and one output".to_owned());
        };
        if input != contract::INPUT {
            return refuse(format!("reads `{input}`, only `{}` is read here", contract::INPUT));
        }
        let link = links.iter().position(|(sum, _)| sum == output).map(|place| links.swap_remove(place));
        let (output, link) = link.map_or((output.as_str(), Link::Identity), |(_, made)| (made, Link::Exp));
        let Some(&(_, made)) = outputs.iter().find(|(name, _)| *name == output) else {
            return refuse(format!("makes `{output}`, which is not an output of the graph"));
        };
        if ensembles.iter().any(|(before, _)| *before == made) {
            return refuse(format!("makes `{output}` a second time"));
        }
        match tree::read(node, COUNT, tree::Form::Strict) {
            Ok(mut sums) => match sums.pop() {
                Some(sum) => ensembles.push((made, sum.trees.with_link(link))),
                None => return refuse("has no target".to_owned()),
            },
            Err(error) => return refuse(error.to_string()),
        }
    }
    if let Some((sum, made)) = links.first() {
        return Err(ModelError::Contract(format!("`{made}` is made of `{sum}`, which is no sum of trees")));
    }
    if let Some((name, _)) =
        outputs.iter().find(|(_, output)| !ensembles.iter().any(|(made, _)| made == output))
    {
        return Err(ModelError::Contract(format!("no node makes the output `{name}`")));
    }
    Ok((card, ensembles))
}

fn is_trees(node: &NodeProto) -> bool {
    node.op_type == tree::OPERATOR && node.domain == "ai.onnx.ml"
}

fn is_link(node: &NodeProto) -> bool {
    node.op_type == EXP && matches!(node.domain.as_str(), "" | "ai.onnx")
}

/// What each `Exp` node reads and makes.
fn links(nodes: &[NodeProto]) -> Result<Vec<(&str, &str)>, ModelError> {
    let mut links: Vec<(&str, &str)> = Vec::new();
    for node in nodes.iter().filter(|node| is_link(node)) {
        let refuse = |why: &str| Err(ModelError::Contract(format!("node `{}`: {why}", node.name)));
        let ([input], [output], []) =
            (node.input.as_slice(), node.output.as_slice(), node.attribute.as_slice())
        else {
            return refuse("expected one input, one output and no attribute");
        };
        if links.iter().any(|(sum, _)| sum == input) {
            return refuse("reads what another node reads: give each output its own trees");
        }
        links.push((input, output));
    }
    Ok(links)
}

/// Reads and checks the metadata.
///
/// # Errors
/// [`ModelError`] names the missing or differing key.
pub fn card(model: &ModelProto) -> Result<ModelCard, ModelError> {
    contract::card(model.metadata_props.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())))
}

fn check_input(inputs: &[ValueInfo]) -> Result<(), ModelError> {
    let fail = |why: String| Err(ModelError::Contract(why));
    let [input] = inputs else {
        return fail(format!("{} graph inputs, expected one named `{}`", inputs.len(), contract::INPUT));
    };
    if input.name != contract::INPUT {
        return fail(format!("the input is `{}`, expected `{}`", input.name, contract::INPUT));
    }
    let tensor = input.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let Some(tensor) = tensor else {
        return fail("the input is not a tensor".to_owned());
    };
    if tensor.elem_type != ELEMENT_FLOAT {
        return fail(format!("the input's element type is {}, expected float32 (1)", tensor.elem_type));
    }
    let dims = tensor.shape.as_ref().map_or(&[][..], |shape| shape.dim.as_slice());
    match dims {
        [rows, columns]
            if !matches!(rows.value, Some(DimensionValue::Number(_)))
                && columns.value == Some(DimensionValue::Number(i64::try_from(COUNT).unwrap_or(0))) =>
        {
            Ok(())
        }
        _ => fail(format!("the input's shape must be [n, {COUNT}] with a free n")),
    }
}

#[cfg(test)]
mod tests;
