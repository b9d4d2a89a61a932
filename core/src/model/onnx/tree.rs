//! `TreeEnsembleRegressor` attributes to [`Ensemble`]s.
//!
//! The lean reader takes the contract's strict form; the tract flavour's operator takes what other
//! exporters write as well ([`Form::Wide`]): other comparisons, several targets, `base_values`. Both
//! refuse by name what they would otherwise evaluate wrongly.

use thiserror::Error;

use super::proto::{Attribute, NodeProto};
use crate::model::ensemble::{Ensemble, EnsembleError, MAX_NODES, Node};

/// The operator's name.
pub const OPERATOR: &str = "TreeEnsembleRegressor";

/// Most targets of one node in the wide form.
const MAX_TARGETS: usize = 16;

/// How much of the operator is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The contract's: one target, `BRANCH_LT`, no `base_values`. What XGBoost's own sums need.
    Strict,
    /// Also `BRANCH_LEQ`, `BRANCH_GT`, `BRANCH_GTE`, several targets and `base_values`.
    Wide,
}

/// Why the attributes were refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TreeError {
    /// A needed attribute is absent.
    #[error("attribute `{0}` is missing")]
    Missing(&'static str),
    /// Two attributes of one name.
    #[error("attribute `{0}` is given twice")]
    Twice(String),
    /// An attribute that changes the result and is not implemented.
    #[error("attribute `{0}` is not supported")]
    Unsupported(String),
    /// Parallel arrays of different lengths.
    #[error("attribute `{name}` has {len} values, expected {expected}")]
    Length {
        /// The attribute.
        name: &'static str,
        /// Its length.
        len: usize,
        /// Length of the arrays it goes with.
        expected: usize,
    },
    /// A value that is not supported.
    #[error("`{name}` is {value}: {fix}")]
    Value {
        /// The attribute.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is supported.
        fix: &'static str,
    },
    /// More than [`MAX_NODES`].
    #[error("{0} nodes, at most {MAX_NODES} are read")]
    TooManyNodes(usize),
    /// The nodes do not form trees.
    #[error(transparent)]
    Ensemble(#[from] EnsembleError),
}

/// One target: the trees, and what ONNX adds after their sum.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetSum {
    /// The trees in order.
    pub trees: Ensemble,
    /// `base_values`, added last as ONNX Runtime does; absent in the strict form.
    pub base: Option<f32>,
}

/// Reads the node over rows of `width` columns: one sum per target.
///
/// # Errors
/// [`TreeError`] names the attribute and what is supported.
pub fn read(node: &NodeProto, width: usize, form: Form) -> Result<Vec<TargetSum>, TreeError> {
    let attributes = Attributes::new(node)?;
    attributes.check_modifiers(form)?;
    let columns = Columns::new(&attributes)?;
    let targets = attributes.targets(form)?;
    let bases = attributes.bases(form, targets)?;
    let spans = columns.spans()?;
    let weights = columns.weights(&attributes, &spans, targets)?;
    let mut sums: Vec<TargetSum> = (0..targets)
        .map(|target| TargetSum { trees: Ensemble::new(width), base: bases.get(target).copied() })
        .collect();
    for (tree, span) in spans.iter().enumerate() {
        let branches = columns.tree(tree, span, form)?;
        for (sum, weights) in sums.iter_mut().zip(&weights) {
            let weights = weights.get(span.start..span.end).unwrap_or(&[]);
            // XGBoost writes the trees of several outputs interleaved: a tree without a leaf of this
            // target adds nothing to it.
            if targets > 1 && weights.iter().all(Option::is_none) {
                continue;
            }
            sum.trees.push(&with_leaves(&branches, weights, tree, targets)?)?;
        }
    }
    Ok(sums)
}

fn with_leaves(
    branches: &[Option<Node>],
    weights: &[Option<f32>],
    tree: usize,
    targets: usize,
) -> Result<Vec<Node>, TreeError> {
    let mut nodes = Vec::with_capacity(branches.len());
    for (node, (branch, weight)) in branches.iter().zip(weights).enumerate() {
        nodes.push(match (branch, weight) {
            (Some(_), Some(_)) => {
                let value = format!("tree {tree}, node {node}");
                return Err(TreeError::Value { name: "target_nodeids", value, fix: "name leaves only" });
            }
            (Some(branch), None) => *branch,
            (None, Some(weight)) => Node::Leaf { value: *weight },
            (None, None) if targets > 1 => Node::Leaf { value: 0.0 },
            (None, None) => {
                let value = format!("without tree {tree}, leaf {node}");
                return Err(TreeError::Value {
                    name: "target_nodeids",
                    value,
                    fix: "give every leaf a weight",
                });
            }
        });
    }
    Ok(nodes)
}

/// Places of one tree in the node arrays.
struct Span {
    start: usize,
    end: usize,
}

struct Attributes<'a>(&'a [Attribute]);

impl<'a> Attributes<'a> {
    fn new(node: &'a NodeProto) -> Result<Self, TreeError> {
        for (index, attribute) in node.attribute.iter().enumerate() {
            if node.attribute.iter().take(index).any(|before| before.name == attribute.name) {
                return Err(TreeError::Twice(attribute.name.clone()));
            }
            // Hit rates describe the training data; everything else not listed would change the result.
            let known = [
                "aggregate_function",
                "base_values",
                "n_targets",
                "nodes_falsenodeids",
                "nodes_featureids",
                "nodes_hitrates",
                "nodes_missing_value_tracks_true",
                "nodes_modes",
                "nodes_nodeids",
                "nodes_treeids",
                "nodes_truenodeids",
                "nodes_values",
                "post_transform",
                "target_ids",
                "target_nodeids",
                "target_treeids",
                "target_weights",
            ];
            if !known.contains(&attribute.name.as_str()) {
                return Err(TreeError::Unsupported(attribute.name.clone()));
            }
        }
        Ok(Self(&node.attribute))
    }

    fn find(&self, name: &str) -> Option<&'a Attribute> {
        self.0.iter().find(|attribute| attribute.name == name)
    }

    fn ints(&self, name: &'static str) -> Result<&'a [i64], TreeError> {
        self.find(name).map(|attribute| attribute.ints.as_slice()).ok_or(TreeError::Missing(name))
    }

    fn floats(&self, name: &'static str) -> Result<&'a [f32], TreeError> {
        self.find(name).map(|attribute| attribute.floats.as_slice()).ok_or(TreeError::Missing(name))
    }

    /// `aggregate_function` and `post_transform`: only their defaults are sums.
    fn check_modifiers(&self, form: Form) -> Result<(), TreeError> {
        let modifiers = [
            ("aggregate_function", "SUM", "only SUM is evaluated"),
            ("post_transform", "NONE", "only NONE is evaluated; add nodes to the graph instead"),
        ];
        for (name, only, fix) in modifiers {
            if let Some(attribute) = self.find(name)
                && attribute.s != only.as_bytes()
            {
                return Err(TreeError::Value {
                    name,
                    value: String::from_utf8_lossy(&attribute.s).into_owned(),
                    fix,
                });
            }
        }
        if form == Form::Strict && self.find("base_values").is_some_and(|base| !base.floats.is_empty()) {
            return Err(TreeError::Value {
                name: "base_values",
                value: "given".to_owned(),
                fix: "write the base as a leading tree of one leaf: added after the sum it differs from XGBoost",
            });
        }
        Ok(())
    }

    fn targets(&self, form: Form) -> Result<usize, TreeError> {
        let count = self.find("n_targets").map_or(1, |attribute| attribute.i);
        let most = if form == Form::Strict { 1 } else { MAX_TARGETS };
        match usize::try_from(count) {
            Ok(targets) if (1..=most).contains(&targets) => Ok(targets),
            _ => Err(TreeError::Value {
                name: "n_targets",
                value: count.to_string(),
                fix: if form == Form::Strict { "use one node per output" } else { "use 1 to 16" },
            }),
        }
    }

    fn bases(&self, form: Form, targets: usize) -> Result<&'a [f32], TreeError> {
        let bases = self.find("base_values").map_or(&[][..], |attribute| attribute.floats.as_slice());
        if form == Form::Strict || bases.is_empty() {
            return Ok(&[]);
        }
        if bases.len() != targets {
            return Err(TreeError::Length { name: "base_values", len: bases.len(), expected: targets });
        }
        Ok(bases)
    }
}

/// The parallel node arrays, all of one length.
struct Columns<'a> {
    tree_ids: &'a [i64],
    node_ids: &'a [i64],
    feature_ids: &'a [i64],
    yes_ids: &'a [i64],
    no_ids: &'a [i64],
    values: &'a [f32],
    modes: &'a [Vec<u8>],
    /// Empty when the attribute is absent: then unknown goes to the false branch.
    missing_yes: &'a [i64],
}

impl<'a> Columns<'a> {
    fn new(attributes: &Attributes<'a>) -> Result<Self, TreeError> {
        let columns = Self {
            tree_ids: attributes.ints("nodes_treeids")?,
            node_ids: attributes.ints("nodes_nodeids")?,
            feature_ids: attributes.ints("nodes_featureids")?,
            yes_ids: attributes.ints("nodes_truenodeids")?,
            no_ids: attributes.ints("nodes_falsenodeids")?,
            values: attributes.floats("nodes_values")?,
            modes: attributes
                .find("nodes_modes")
                .map(|a| a.strings.as_slice())
                .ok_or(TreeError::Missing("nodes_modes"))?,
            missing_yes: attributes
                .find("nodes_missing_value_tracks_true")
                .map_or(&[][..], |a| a.ints.as_slice()),
        };
        let expected = columns.tree_ids.len();
        let lengths = [
            ("nodes_nodeids", columns.node_ids.len()),
            ("nodes_featureids", columns.feature_ids.len()),
            ("nodes_truenodeids", columns.yes_ids.len()),
            ("nodes_falsenodeids", columns.no_ids.len()),
            ("nodes_values", columns.values.len()),
            ("nodes_modes", columns.modes.len()),
        ];
        for (name, len) in lengths {
            if len != expected {
                return Err(TreeError::Length { name, len, expected });
            }
        }
        let len = columns.missing_yes.len();
        if len != 0 && len != expected {
            return Err(TreeError::Length { name: "nodes_missing_value_tracks_true", len, expected });
        }
        if expected > MAX_NODES {
            return Err(TreeError::TooManyNodes(expected));
        }
        Ok(columns)
    }

    /// Splits the arrays into trees; ids must count up from 0, which is what every exporter writes.
    fn spans(&self) -> Result<Vec<Span>, TreeError> {
        let mut spans: Vec<Span> = Vec::new();
        for (place, &id) in self.tree_ids.iter().enumerate() {
            let count = spans.len();
            match (usize::try_from(id), spans.last_mut()) {
                (Ok(id), Some(last)) if id + 1 == count => last.end = place + 1,
                (Ok(id), _) if id == count => spans.push(Span { start: place, end: place + 1 }),
                _ => {
                    return Err(TreeError::Value {
                        name: "nodes_treeids",
                        value: id.to_string(),
                        fix: "number the trees 0, 1, 2, ... and keep a tree's nodes together",
                    });
                }
            }
        }
        Ok(spans)
    }

    /// The tree's nodes by node id; `None` is a leaf.
    fn tree(&self, tree: usize, span: &Span, form: Form) -> Result<Vec<Option<Node>>, TreeError> {
        let mut nodes: Vec<Option<Option<Node>>> = vec![None; span.end - span.start];
        for place in span.start..span.end {
            let (Some(&id), Some(mode)) = (self.node_ids.get(place), self.modes.get(place)) else {
                return Err(TreeError::Missing("nodes_nodeids"));
            };
            let slot = usize::try_from(id).ok().and_then(|id| nodes.get_mut(id));
            let Some(slot @ None) = slot else {
                return Err(TreeError::Value {
                    name: "nodes_nodeids",
                    value: format!("{id} in tree {tree}"),
                    fix: "number a tree's nodes 0, 1, 2, ... once each, the root first",
                });
            };
            *slot = Some(if mode == b"LEAF" { None } else { Some(self.branch(place, mode, form)?) });
        }
        Ok(nodes.into_iter().map(Option::flatten).collect())
    }

    fn branch(&self, place: usize, mode: &[u8], form: Form) -> Result<Node, TreeError> {
        let id = |name: &'static str, ids: &[i64]| {
            let id = ids.get(place).copied().unwrap_or(-1);
            u32::try_from(id).map_err(|_| TreeError::Value {
                name,
                value: id.to_string(),
                fix: "use ids from 0",
            })
        };
        let feature = id("nodes_featureids", self.feature_ids)?;
        let yes = id("nodes_truenodeids", self.yes_ids)?;
        let no = id("nodes_falsenodeids", self.no_ids)?;
        let threshold = self.values.get(place).copied().unwrap_or(f32::NAN);
        let missing_yes = self.missing_yes.get(place).is_some_and(|&tracks| tracks != 0);
        // `x <= t` is `x < the next float above t`, and "greater" is "less" with the children swapped.
        let (threshold, swap) = match (form, mode) {
            (_, b"BRANCH_LT") => (threshold, false),
            (Form::Wide, b"BRANCH_LEQ") if threshold < f32::INFINITY => (threshold.next_up(), false),
            (Form::Wide, b"BRANCH_GTE") => (threshold, true),
            (Form::Wide, b"BRANCH_GT") if threshold < f32::INFINITY => (threshold.next_up(), true),
            _ => {
                return Err(TreeError::Value {
                    name: "nodes_modes",
                    value: String::from_utf8_lossy(mode).into_owned(),
                    fix: match form {
                        Form::Strict => "only BRANCH_LT and LEAF are evaluated",
                        Form::Wide => {
                            "only BRANCH_LT, _LEQ, _GT, _GTE with finite thresholds and LEAF are evaluated"
                        }
                    },
                });
            }
        };
        let (yes, no, missing_yes) = if swap { (no, yes, !missing_yes) } else { (yes, no, missing_yes) };
        Ok(Node::Branch { feature, threshold, yes, no, missing_yes })
    }

    /// Leaf weights per target, laid out as the node arrays are, by node id within each tree.
    fn weights(
        &self,
        attributes: &Attributes<'_>,
        spans: &[Span],
        targets: usize,
    ) -> Result<Vec<Vec<Option<f32>>>, TreeError> {
        let tree_ids = attributes.ints("target_treeids")?;
        let node_ids = attributes.ints("target_nodeids")?;
        let target_ids = attributes.ints("target_ids")?;
        let values = attributes.floats("target_weights")?;
        let expected = tree_ids.len();
        let lengths = [
            ("target_nodeids", node_ids.len()),
            ("target_ids", target_ids.len()),
            ("target_weights", values.len()),
        ];
        for (name, len) in lengths {
            if len != expected {
                return Err(TreeError::Length { name, len, expected });
            }
        }
        let mut weights = vec![vec![None; self.tree_ids.len()]; targets];
        for (((&tree, &node), &target), &value) in tree_ids.iter().zip(node_ids).zip(target_ids).zip(values) {
            let place = usize::try_from(tree).ok().and_then(|tree| spans.get(tree)).and_then(|span| {
                let place = span.start.checked_add(usize::try_from(node).ok()?)?;
                (place < span.end).then_some(place)
            });
            let slot = usize::try_from(target)
                .ok()
                .and_then(|target| weights.get_mut(target))
                .zip(place)
                .and_then(|(weights, place)| weights.get_mut(place));
            match slot {
                Some(slot @ None) => *slot = Some(value),
                _ => {
                    return Err(TreeError::Value {
                        name: "target_nodeids",
                        value: format!("tree {tree}, node {node}, target {target}"),
                        fix: "name each leaf of an existing tree once per target",
                    });
                }
            }
        }
        Ok(weights)
    }
}
