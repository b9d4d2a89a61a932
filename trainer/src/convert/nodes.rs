//! One tree of XGBoost's arrays to nodes that only compare.
//!
//! A split by category asks whether the value, cut to a whole number, is in a set: the same as asking between which of
//! the set's bounds the value is, so it becomes a small tree of comparisons with copies of both children beneath. That
//! is exact for every number (XGBoost sends what is no category to the left), and the copies are bounded.

use foretoken_core::model::ensemble::Node;

use super::file::Tree;
use super::{ConvertError, parse};

/// Most nodes of a converted tree.
const MAX_NODES: usize = 1 << 16;

/// XGBoost takes whole numbers below this for categories (2^24, where float32 still has them all).
const MAX_CATEGORY: i64 = 1 << 24;

/// One leaf's value for one output.
pub(super) struct Leaves {
    /// Which output, where leaves are vectors.
    pub(super) output: usize,
    /// Length of the vector; 1 for a plain leaf.
    pub(super) size: usize,
    /// What a DART booster multiplies the tree by.
    pub(super) weight: Option<f32>,
}

/// Where a node comes from: a place in the arrays, or a range of regions of a split by category.
#[derive(Clone, Copy)]
enum Origin {
    Place(usize),
    Regions { split: usize, low: usize, high: usize },
}

/// A split by category. Region `i` is between bound `i - 1` and bound `i`; the odd ones are in the set and go right.
struct Split {
    place: usize,
    bounds: Vec<f32>,
    /// A region of the side that unknown values go to.
    unknown: usize,
}

struct Reader<'a> {
    tree: usize,
    arrays: &'a Tree<'a>,
    splits: Vec<Split>,
    /// What each node to be is made from, by its index.
    taken: Vec<Origin>,
}

/// The nodes that the root reaches, root first: pruned ones stay in XGBoost's arrays. `column` gives the column of the row
/// for a feature of the model.
pub(super) fn nodes(
    tree: usize,
    arrays: &Tree<'_>,
    column: &dyn Fn(u32) -> Option<u32>,
    leaves: &Leaves,
) -> Result<Vec<Node>, ConvertError> {
    check(tree, arrays)?;
    let mut reader = Reader { tree, arrays, splits: Vec::new(), taken: vec![Origin::Place(0)] };
    let mut nodes: Vec<Node> = Vec::new();
    while let Some(&origin) = reader.taken.get(nodes.len()) {
        let node = reader.node(origin, column, leaves)?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// Lengths, and that no node is reached twice: copying would otherwise never end.
fn check(tree: usize, arrays: &Tree<'_>) -> Result<(), ConvertError> {
    let fail = |reason| Err(ConvertError::Tree { tree, reason });
    let count = arrays.left_children.len();
    let lengths = [
        arrays.right_children.len(),
        arrays.split_conditions.len(),
        arrays.split_indices.len(),
        arrays.default_left.len(),
    ];
    if lengths.iter().any(|&length| length != count) {
        return fail("its arrays have different lengths");
    }
    let mut reached = vec![false; count];
    let mut to_visit = vec![0_usize];
    while let Some(place) = to_visit.pop() {
        match reached.get_mut(place) {
            Some(reached) if !*reached => *reached = true,
            Some(_) => return fail("its nodes form a cycle or share a child"),
            None => return fail("a child does not exist"),
        }
        let (Some(&left), Some(&right)) = (arrays.left_children.get(place), arrays.right_children.get(place))
        else {
            return fail("a child does not exist");
        };
        if left >= 0 {
            let (Ok(left), Ok(right)) = (usize::try_from(left), usize::try_from(right)) else {
                return fail("a node has one child");
            };
            to_visit.extend([left, right]);
        }
    }
    Ok(())
}

impl Reader<'_> {
    fn fail<T>(&self, reason: &'static str) -> Result<T, ConvertError> {
        Err(ConvertError::Tree { tree: self.tree, reason })
    }

    fn node(
        &mut self,
        origin: Origin,
        column: &dyn Fn(u32) -> Option<u32>,
        leaves: &Leaves,
    ) -> Result<Node, ConvertError> {
        let place = match origin {
            Origin::Place(place) => place,
            Origin::Regions { split, low, high } if low == high => match self.splits.get(split) {
                Some(split) => self.child(split.place, low % 2 == 1)?,
                None => return self.fail("a child does not exist"),
            },
            Origin::Regions { split, low, high } => return self.regions(split, low, high, column),
        };
        if self.arrays.left_children.get(place).is_none_or(|&left| left < 0) {
            return Ok(Node::Leaf { value: self.leaf(place, leaves)? });
        }
        if self.arrays.split_type.get(place).is_some_and(|&kind| kind != 0) {
            let split = self.split(place)?;
            let high = split.bounds.len();
            self.splits.push(split);
            let split = self.splits.len() - 1;
            return self.regions(split, 0, high, column);
        }
        let threshold = match self.arrays.split_conditions.get(place) {
            Some(raw) => parse("split_conditions", raw.get())?,
            None => return self.fail("a child does not exist"),
        };
        let (yes, no) = (self.child(place, false)?, self.child(place, true)?);
        Ok(Node::Branch {
            feature: self.feature(place, column)?,
            threshold,
            yes: self.take(Origin::Place(yes))?,
            no: self.take(Origin::Place(no))?,
            missing_yes: self.arrays.default_left.get(place).is_some_and(|&left| left != 0),
        })
    }

    /// A comparison that halves the regions; a set without any bound never gets here.
    fn regions(
        &mut self,
        split: usize,
        low: usize,
        high: usize,
        column: &dyn Fn(u32) -> Option<u32>,
    ) -> Result<Node, ConvertError> {
        let middle = low + (high - low) / 2;
        let Some(Split { place, bounds, unknown }) = self.splits.get(split) else {
            return self.fail("a child does not exist");
        };
        let (place, unknown) = (*place, *unknown);
        let Some(&threshold) = bounds.get(middle) else {
            return self.fail("a split by category has no categories");
        };
        Ok(Node::Branch {
            feature: self.feature(place, column)?,
            threshold,
            yes: self.take(Origin::Regions { split, low, high: middle })?,
            no: self.take(Origin::Regions { split, low: middle + 1, high })?,
            missing_yes: unknown <= middle,
        })
    }

    fn split(&self, place: usize) -> Result<Split, ConvertError> {
        let arrays = self.arrays;
        let at = arrays.categories_nodes.iter().position(|&node| node == place);
        let range = at.and_then(|at| {
            let start = *arrays.categories_segments.get(at)?;
            let end = start.checked_add(*arrays.categories_sizes.get(at)?)?;
            arrays.categories.get(start..end)
        });
        let Some(range) = range else { return self.fail("a split by category has no categories") };
        let mut set = range.to_vec();
        set.sort_unstable();
        set.dedup();
        if set.is_empty() || set.iter().any(|category| !(0..MAX_CATEGORY).contains(category)) {
            return self.fail("a split by category has categories that are none");
        }
        // Whole numbers that follow each other make one range; each range has a lower and an upper bound.
        let mut bounds: Vec<f32> = Vec::new();
        for category in set {
            // Exact: up to 2^24.
            let (lower, upper) = (category as f32, (category + 1) as f32);
            match bounds.last_mut() {
                Some(last) if *last == lower => *last = upper,
                _ => bounds.extend([lower, upper]),
            }
        }
        let left = arrays.default_left.get(place).is_some_and(|&left| left != 0);
        Ok(Split { place, bounds, unknown: usize::from(!left) })
    }

    fn child(&self, place: usize, right: bool) -> Result<usize, ConvertError> {
        let children = if right { &self.arrays.right_children } else { &self.arrays.left_children };
        match children.get(place).map(|&child| usize::try_from(child)) {
            Some(Ok(child)) => Ok(child),
            _ => self.fail("a node has one child"),
        }
    }

    fn take(&mut self, origin: Origin) -> Result<u32, ConvertError> {
        if self.taken.len() >= MAX_NODES {
            return Err(ConvertError::Unsupported {
                what: format!("tree {} of more than {MAX_NODES} comparisons", self.tree),
                fix: "fit shallower trees, with fewer categories in a split (max_cat_threshold) or with categories as numbers",
            });
        }
        self.taken.push(origin);
        u32::try_from(self.taken.len() - 1).or_else(|_| self.fail("too many nodes"))
    }

    fn feature(&self, place: usize, column: &dyn Fn(u32) -> Option<u32>) -> Result<u32, ConvertError> {
        let feature = self.arrays.split_indices.get(place).copied().unwrap_or(u32::MAX);
        column(feature).map_or_else(|| self.fail("a split reads a feature that the model has not"), Ok)
    }

    fn leaf(&self, place: usize, leaves: &Leaves) -> Result<f32, ConvertError> {
        let raw = if leaves.size == 1 {
            self.arrays.split_conditions.get(place)
        } else {
            let index = self.arrays.right_children.get(place).and_then(|&index| usize::try_from(index).ok());
            let place = index.and_then(|index| index.checked_mul(leaves.size)?.checked_add(leaves.output));
            place.and_then(|place| self.arrays.leaf_weights.get(place))
        };
        let value = match raw {
            Some(raw) => parse("leaf", raw.get())?,
            None => return self.fail("a leaf has no value"),
        };
        Ok(leaves.weight.map_or(value, |weight| value * weight))
    }
}
