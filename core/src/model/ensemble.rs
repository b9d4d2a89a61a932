//! A sum of decision trees as a file holds it: plain nodes, checked, in an order that cannot loop.
//!
//! This is the form between a file (ONNX, XGBoost JSON) and the evaluators ([`super::kernel`],
//! [`super::scalar`]), and what the ONNX writer reads back. Nodes of a tree are renumbered in pre-order,
//! so a child's index is always above its parent's: a walk ends by construction, whatever the file said.
//!
//! It is not an evaluator and knows no file format.

use thiserror::Error;

/// Most nodes in one ensemble. 100 trees of depth 6 have 12 700; the bound keeps a hostile file from
/// filling the memory of a wasm VM (about 1 GiB in Envoy).
pub const MAX_NODES: usize = 2_000_000;

/// One node. `yes` and `no` are indices within the tree; the root is node 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Node {
    /// Goes to `yes` when the feature is below the threshold, else to `no`.
    Branch {
        /// Column of the row.
        feature: u32,
        /// Compared as `value < threshold`.
        threshold: f32,
        /// Index of the node for "below".
        yes: u32,
        /// Index of the node for "not below".
        no: u32,
        /// Whether an unknown (NaN) value goes to `yes`.
        missing_yes: bool,
    },
    /// Adds its value to the sum.
    Leaf {
        /// What is added.
        value: f32,
    },
}

/// Why a tree was refused. `tree` counts from 0 in the order of the ensemble, `node` as the file counts.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum EnsembleError {
    /// A tree without a root.
    #[error("tree {tree} has no nodes")]
    Empty {
        /// The tree.
        tree: usize,
    },
    /// More than [`MAX_NODES`].
    #[error("more than {MAX_NODES} nodes by tree {tree}: use fewer or shallower trees")]
    TooManyNodes {
        /// The tree that passed the bound.
        tree: usize,
    },
    /// A child that does not exist.
    #[error("tree {tree}, node {node}: child {child} does not exist")]
    ChildOutOfRange {
        /// The tree.
        tree: usize,
        /// The parent.
        node: usize,
        /// The child it names.
        child: u32,
    },
    /// A node with two parents, or one that is its own ancestor.
    #[error("tree {tree}, node {node} is reached twice: the nodes form a cycle or share a child")]
    ReachedTwice {
        /// The tree.
        tree: usize,
        /// The node.
        node: usize,
    },
    /// Nodes that no path from the root reaches.
    #[error("tree {tree}: {count} of its nodes are not reached from the root")]
    Unreachable {
        /// The tree.
        tree: usize,
        /// How many.
        count: usize,
    },
    /// A column that rows do not have.
    #[error("tree {tree}, node {node}: feature {feature} does not exist, rows have {width}")]
    FeatureOutOfRange {
        /// The tree.
        tree: usize,
        /// The node.
        node: usize,
        /// The column it names.
        feature: u32,
        /// Columns of a row.
        width: usize,
    },
    /// A threshold that compares with nothing.
    #[error("tree {tree}, node {node}: the threshold is NaN")]
    NanThreshold {
        /// The tree.
        tree: usize,
        /// The node.
        node: usize,
    },
    /// A leaf that would make every sum infinite or NaN.
    #[error("tree {tree}, node {node}: the leaf's value is not finite")]
    LeafNotFinite {
        /// The tree.
        tree: usize,
        /// The node.
        node: usize,
    },
}

/// What a sum goes through before it is the prediction: the inverse of the link function of an objective.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Link {
    /// Nothing.
    #[default]
    Identity,
    /// `exp`: objectives for positive labels (gamma, tweedie, poisson, accelerated failure time) learn a logarithm.
    Exp,
}

impl Link {
    /// The prediction of a sum.
    #[must_use]
    pub fn apply(self, sum: f32) -> f32 {
        match self {
            Self::Identity => sum,
            // Computed in 64 bits and rounded once: the nearest float on every machine, where the 32-bit functions
            // of C libraries are one unit off in the last place for about one value in ten.
            #[allow(clippy::cast_possible_truncation)]
            Self::Exp => f64::from(sum).exp() as f32,
        }
    }
}

/// Trees in the order in which their leaves are added, which decides the last bits of the sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Ensemble {
    width: usize,
    link: Link,
    nodes: Vec<Node>,
    /// End of each tree in `nodes`.
    ends: Vec<usize>,
    depths: Vec<u32>,
}

impl Ensemble {
    /// An empty ensemble over rows of `width` columns.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { width, link: Link::Identity, nodes: Vec::new(), ends: Vec::new(), depths: Vec::new() }
    }

    /// The same trees, their sum going through `link`.
    #[must_use]
    pub fn with_link(self, link: Link) -> Self {
        Self { link, ..self }
    }

    /// What the sum goes through.
    #[must_use]
    pub fn link(&self) -> Link {
        self.link
    }

    /// Columns of the rows that it reads.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Nodes of all trees together.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Number of trees.
    #[must_use]
    pub fn tree_count(&self) -> usize {
        self.ends.len()
    }

    /// Depth of the deepest tree; a lone leaf has depth 0.
    #[must_use]
    pub fn max_depth(&self) -> u32 {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// The trees in order, each with its depth; every child's index is above its parent's.
    pub fn trees(&self) -> impl Iterator<Item = (&[Node], u32)> {
        let mut start = 0;
        self.ends.iter().zip(&self.depths).map(move |(&end, &depth)| {
            let tree = self.nodes.get(start..end).unwrap_or(&[]);
            start = end;
            (tree, depth)
        })
    }

    /// Adds a tree of one leaf: how a base score is written, so that it is the first term of the sum.
    ///
    /// # Errors
    /// As for [`Self::push`].
    pub fn push_constant(&mut self, value: f32) -> Result<(), EnsembleError> {
        self.push(&[Node::Leaf { value }])
    }

    /// Adds a tree given in any node order with its root first, and checks that it is one.
    ///
    /// # Errors
    /// [`EnsembleError`] names the tree and the node; the ensemble is then unchanged.
    pub fn push(&mut self, given: &[Node]) -> Result<(), EnsembleError> {
        let tree = self.ends.len();
        if given.is_empty() {
            return Err(EnsembleError::Empty { tree });
        }
        if given.len() > MAX_NODES.saturating_sub(self.nodes.len()) {
            return Err(EnsembleError::TooManyNodes { tree });
        }
        let (nodes, depth) = renumber(given, tree, self.width)?;
        self.nodes.extend(nodes);
        self.ends.push(self.nodes.len());
        self.depths.push(depth);
        Ok(())
    }
}

/// Where a node's new index is to be written: the parent's new index, and which of its children it is.
struct Place {
    parent: usize,
    is_yes: bool,
}

fn renumber(given: &[Node], tree: usize, width: usize) -> Result<(Vec<Node>, u32), EnsembleError> {
    let mut nodes: Vec<Node> = Vec::with_capacity(given.len());
    let mut seen = vec![false; given.len()];
    let mut deepest = 0;
    let mut to_visit: Vec<(usize, u32, Option<Place>)> = vec![(0, 0, None)];
    // Every node is taken at most once, so the loop runs at most `given.len()` times.
    while let Some((index, depth, link)) = to_visit.pop() {
        match seen.get_mut(index) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(EnsembleError::ReachedTwice { tree, node: index }),
        }
        deepest = deepest.max(depth);
        let new_index = nodes.len();
        if let Some(Place { parent, is_yes }) = link
            && let Some(Node::Branch { yes, no, .. }) = nodes.get_mut(parent)
        {
            *(if is_yes { yes } else { no }) = crate::num::u32_of_usize(new_index);
        }
        let Some(&node) = given.get(index) else {
            return Err(EnsembleError::Empty { tree });
        };
        match node {
            Node::Leaf { value } => {
                if !value.is_finite() {
                    return Err(EnsembleError::LeafNotFinite { tree, node: index });
                }
            }
            Node::Branch { feature, threshold, yes, no, .. } => {
                if usize::try_from(feature).map_or(true, |feature| feature >= width) {
                    return Err(EnsembleError::FeatureOutOfRange { tree, node: index, feature, width });
                }
                if threshold.is_nan() {
                    return Err(EnsembleError::NanThreshold { tree, node: index });
                }
                // `yes` is pushed last and so comes first: pre-order.
                for (child, is_yes) in [(no, false), (yes, true)] {
                    match usize::try_from(child) {
                        Ok(next) if next < given.len() => {
                            to_visit.push((
                                next,
                                depth.saturating_add(1),
                                Some(Place { parent: new_index, is_yes }),
                            ));
                        }
                        _ => {
                            return Err(EnsembleError::ChildOutOfRange { tree, node: index, child });
                        }
                    }
                }
            }
        }
        nodes.push(node);
    }
    match given.len().saturating_sub(nodes.len()) {
        0 => Ok((nodes, deepest)),
        count => Err(EnsembleError::Unreachable { tree, count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(feature: u32, threshold: f32, yes: u32, no: u32) -> Node {
        Node::Branch { feature, threshold, yes, no, missing_yes: false }
    }

    fn leaf(value: f32) -> Node {
        Node::Leaf { value }
    }

    #[test]
    fn a_tree_in_any_node_order_is_stored_in_pre_order() {
        let mut ensemble = Ensemble::new(2);
        ensemble
            .push(&[branch(1, 0.5, 3, 1), leaf(2.0), leaf(4.0), branch(0, 1.0, 4, 2), leaf(3.0)])
            .unwrap();
        let (tree, depth) = ensemble.trees().next().unwrap();
        assert_eq!(depth, 2);
        assert_eq!(tree, [branch(1, 0.5, 1, 4), branch(0, 1.0, 2, 3), leaf(3.0), leaf(4.0), leaf(2.0)]);
    }

    #[test]
    fn a_cycle_is_refused() {
        let mut ensemble = Ensemble::new(1);
        let error = ensemble.push(&[branch(0, 1.0, 1, 2), branch(0, 2.0, 0, 2), leaf(1.0)]).unwrap_err();
        assert!(matches!(error, EnsembleError::ReachedTwice { .. }), "{error}");
        assert_eq!(ensemble, Ensemble::new(1));
    }

    #[test]
    fn a_shared_child_is_refused() {
        let error = Ensemble::new(1).push(&[branch(0, 1.0, 1, 1), leaf(1.0)]).unwrap_err();
        assert_eq!(error, EnsembleError::ReachedTwice { tree: 0, node: 1 });
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        let mut ensemble = Ensemble::new(1);
        assert_eq!(ensemble.push(&[]).unwrap_err(), EnsembleError::Empty { tree: 0 });
        let error = ensemble.push(&[branch(0, 1.0, 1, 7), leaf(1.0)]).unwrap_err();
        assert_eq!(error, EnsembleError::ChildOutOfRange { tree: 0, node: 0, child: 7 });
        let error = ensemble.push(&[branch(1, 1.0, 1, 2), leaf(1.0), leaf(1.0)]).unwrap_err();
        assert_eq!(error, EnsembleError::FeatureOutOfRange { tree: 0, node: 0, feature: 1, width: 1 });
        let error = ensemble.push(&[branch(0, f32::NAN, 1, 2), leaf(1.0), leaf(1.0)]).unwrap_err();
        assert_eq!(error, EnsembleError::NanThreshold { tree: 0, node: 0 });
        let error = ensemble.push(&[leaf(f32::INFINITY)]).unwrap_err();
        assert_eq!(error, EnsembleError::LeafNotFinite { tree: 0, node: 0 });
        let error = ensemble.push(&[leaf(1.0), leaf(2.0)]).unwrap_err();
        assert_eq!(error, EnsembleError::Unreachable { tree: 0, count: 1 });
    }
}
