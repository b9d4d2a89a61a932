//! The fast evaluator: perfect trees in heap order, eight rows at once, one compare a step.
//!
//! Every candidate pod is a row and every request evaluates all of them, so this is the inner loop of
//! the router. Three things make it fast, in V8 as well as natively:
//!
//! * Trees are padded to a power of two, so a step is `at = 2 * at + (value >= threshold)`: no branch to
//!   mispredict and no child index to load.
//! * Rows are interleaved ([`Block`]), so eight independent chains of loads overlap.
//! * A row's unknown values cost nothing: each column is there twice, with NaN replaced by -inf and by
//!   +inf, and a cell names the copy that sends an unknown where the tree's default direction wants it.
//!
//! The result equals [`super::scalar`] to the last bit, because leaves are added in the same order.
//! It is not for unbounded trees: padding doubles with every level ([`Flat::build`] then declines).

use super::ensemble::{Ensemble, Link, Node};

/// Rows that are evaluated together.
pub const LANES: usize = 8;

/// Columns of a block, each there twice: a power of two, so that an index needs a mask and no check.
const SLOTS: usize = (2 * crate::features::COUNT).next_power_of_two();

/// Widest row that a block holds.
pub const MAX_WIDTH: usize = SLOTS / 2;

/// Deepest tree that is padded.
pub const MAX_DEPTH: u32 = 10;

/// Most cells over all trees of an ensemble: 12 MiB. 400 trees of depth 8 take a tenth of it.
const MAX_CELLS: usize = 1 << 20;

/// Interleaved rows, unknowns replaced: `[2 * column]` has -inf for NaN, `[2 * column + 1]` has +inf.
#[derive(Debug, Clone)]
pub struct Block<const L: usize> {
    values: [[f32; L]; SLOTS],
}

impl<const L: usize> Block<L> {
    /// Takes up to `L` rows of up to [`MAX_WIDTH`] columns. What is missing counts as unknown.
    pub fn load<'a>(rows: impl IntoIterator<Item = &'a [f32]>) -> Self {
        let mut values = [[f32::NEG_INFINITY; L]; SLOTS];
        for pair in values.chunks_exact_mut(2) {
            if let [_, above] = pair {
                *above = [f32::INFINITY; L];
            }
        }
        for (lane, row) in rows.into_iter().enumerate().take(L) {
            for (pair, &value) in values.chunks_exact_mut(2).zip(row) {
                if let [below, above] = pair
                    && let (Some(below), Some(above)) = (below.get_mut(lane), above.get_mut(lane))
                    && !value.is_nan()
                {
                    *below = value;
                    *above = value;
                }
            }
        }
        Self { values }
    }
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    threshold: f32,
    slot: u32,
}

/// What a padded inner node compares: any result leads to the same leaf.
const PADDING: Cell = Cell { threshold: 0.0, slot: 0 };

/// An ensemble in the layout above.
#[derive(Debug, Clone)]
pub struct Flat {
    depths: Vec<u32>,
    /// `2^depth` per tree: cell 1 is the root, the children of `i` are `2i` and `2i + 1`; cell 0 is unused.
    cells: Vec<Cell>,
    /// `2^depth` per tree, left to right.
    leaves: Vec<f32>,
}

impl Flat {
    /// Lays the ensemble out; `None` when it does not fit (depth, width or size) or when a threshold of
    /// -inf makes an unknown indistinguishable: then [`super::scalar`] evaluates it.
    #[must_use]
    pub fn build(ensemble: &Ensemble) -> Option<Self> {
        if ensemble.width() > MAX_WIDTH || ensemble.max_depth() > MAX_DEPTH {
            return None;
        }
        let total: usize = ensemble.trees().map(|(_, depth)| 1usize << depth).sum();
        if total > MAX_CELLS {
            return None;
        }
        let mut flat = Self {
            depths: Vec::with_capacity(ensemble.tree_count()),
            cells: Vec::with_capacity(total),
            leaves: Vec::with_capacity(total),
        };
        for (tree, depth) in ensemble.trees() {
            flat.push(tree, depth)?;
        }
        Some(flat)
    }

    fn push(&mut self, tree: &[Node], depth: u32) -> Option<()> {
        let size = 1usize << depth;
        let mut cells = vec![PADDING; size];
        let mut level: Vec<u32> = vec![0];
        for step in 0..depth {
            let mut next = Vec::with_capacity(level.len() * 2);
            for (place, &index) in (1usize << step..).zip(&level) {
                match *tree.get(usize::try_from(index).ok()?)? {
                    Node::Branch { feature, threshold, yes, no, missing_yes } => {
                        if threshold == f32::NEG_INFINITY {
                            return None;
                        }
                        let slot = 2 * feature + u32::from(!missing_yes);
                        *cells.get_mut(place)? = Cell { threshold, slot };
                        next.extend([yes, no]);
                    }
                    Node::Leaf { .. } => next.extend([index, index]),
                }
            }
            level = next;
        }
        for &index in &level {
            match tree.get(usize::try_from(index).ok()?)? {
                Node::Leaf { value } => self.leaves.push(*value),
                Node::Branch { .. } => return None,
            }
        }
        self.cells.extend(cells);
        self.depths.push(depth);
        Some(())
    }

    /// Sum of all trees for each row of the block.
    #[must_use]
    pub fn eval<const L: usize>(&self, block: &Block<L>) -> [f32; L] {
        // -0.0 is the neutral element of float addition: the first tree's value stays as it is, sign and all.
        let mut sums = [-0.0; L];
        let mut rest = (self.cells.as_slice(), self.leaves.as_slice());
        for depth in &self.depths {
            let after = match depth {
                0 => add_tree::<1, L>(rest, block, &mut sums),
                1 => add_tree::<2, L>(rest, block, &mut sums),
                2 => add_tree::<4, L>(rest, block, &mut sums),
                3 => add_tree::<8, L>(rest, block, &mut sums),
                4 => add_tree::<16, L>(rest, block, &mut sums),
                5 => add_tree::<32, L>(rest, block, &mut sums),
                6 => add_tree::<64, L>(rest, block, &mut sums),
                7 => add_tree::<128, L>(rest, block, &mut sums),
                8 => add_tree::<256, L>(rest, block, &mut sums),
                9 => add_tree::<512, L>(rest, block, &mut sums),
                _ => add_tree::<1024, L>(rest, block, &mut sums),
            };
            match after {
                Some(after) => rest = after,
                None => break,
            }
        }
        sums
    }
}

type Rest<'a> = (&'a [Cell], &'a [f32]);

/// One tree of `N` leaves. `N` is a constant so that masked indices need no bounds check and the loop
/// over its levels unrolls.
#[inline]
fn add_tree<'a, const N: usize, const L: usize>(
    (cells, leaves): Rest<'a>,
    block: &Block<L>,
    sums: &mut [f32; L],
) -> Option<Rest<'a>> {
    let (cells, rest_cells) = cells.split_first_chunk::<N>()?;
    let (leaves, rest_leaves) = leaves.split_first_chunk::<N>()?;
    let mut at = [1usize; L];
    for _ in 0..N.trailing_zeros() {
        for (lane, at) in at.iter_mut().enumerate() {
            let cell = cells.get(*at & (N - 1)).unwrap_or(&PADDING);
            let column = block.values.get(cell.slot as usize & (SLOTS - 1));
            let value = column.and_then(|column| column.get(lane)).copied().unwrap_or(0.0);
            // No value is NaN here: "not below" is one compare.
            *at = 2 * *at + usize::from(value >= cell.threshold);
        }
    }
    for (sum, at) in sums.iter_mut().zip(at) {
        *sum += leaves.get(at & (N - 1)).copied().unwrap_or(0.0);
    }
    Some((rest_cells, rest_leaves))
}

/// An ensemble ready to evaluate, in the fastest form that holds it.
#[derive(Debug, Clone)]
pub enum Forest {
    /// The flat layout.
    Flat(Flat, Link),
    /// Node by node.
    Plain(Ensemble),
}

impl Forest {
    /// Picks the form.
    #[must_use]
    pub fn new(ensemble: Ensemble) -> Self {
        let link = ensemble.link();
        Flat::build(&ensemble).map_or(Self::Plain(ensemble), |flat| Self::Flat(flat, link))
    }

    /// Prediction for up to `L` rows; `block` must hold the same rows.
    #[must_use]
    pub fn eval<'a, const L: usize>(
        &self,
        block: &Block<L>,
        rows: impl IntoIterator<Item = &'a [f32]>,
    ) -> [f32; L] {
        match self {
            Self::Flat(flat, link) => flat.eval(block).map(|sum| link.apply(sum)),
            Self::Plain(ensemble) => {
                let mut sums = [0.0; L];
                for (sum, row) in sums.iter_mut().zip(rows) {
                    *sum = super::scalar::eval(ensemble, row);
                }
                sums
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::COUNT;
    use crate::model::scalar;
    use proptest::prelude::*;

    /// A random tree: a list of splits, each applied to a leaf that exists at that moment.
    fn tree(splits: &[Split], values: &[f32]) -> Vec<Node> {
        let mut nodes = vec![Node::Leaf { value: values[0] }];
        for &(at, feature, threshold, missing_yes) in splits {
            let leaves: Vec<usize> =
                (0..nodes.len()).filter(|&index| matches!(nodes[index], Node::Leaf { .. })).collect();
            let chosen = leaves[usize::from(at) % leaves.len()];
            let yes = nodes.len() as u32;
            nodes[chosen] = Node::Branch { feature, threshold, yes, no: yes + 1, missing_yes };
            for child in 0..2 {
                nodes.push(Node::Leaf { value: values[(yes as usize + child) % values.len()] });
            }
        }
        nodes
    }

    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => -10.0f32..10.0,
            1 => Just(f32::NAN),
            1 => prop_oneof![Just(0.0f32), Just(-0.0), Just(f32::MAX), Just(f32::MIN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::MIN_POSITIVE / 2.0)],
            2 => (-4i32..4).prop_map(|whole| whole as f32),
        ]
    }

    fn threshold() -> impl Strategy<Value = f32> {
        prop_oneof![3 => -10.0f32..10.0, 2 => (-4i32..4).prop_map(|whole| whole as f32), 1 => Just(f32::INFINITY)]
    }

    /// Where a split goes, its feature, threshold and direction of unknown.
    type Split = (u16, u32, f32, bool);

    fn trees() -> impl Strategy<Value = Vec<(Vec<Split>, Vec<f32>)>> {
        let split = (any::<u16>(), 0..COUNT as u32, threshold(), any::<bool>());
        let leaf = -100.0f32..100.0;
        prop::collection::vec((prop::collection::vec(split, 0..40), prop::collection::vec(leaf, 1..9)), 1..12)
    }

    proptest! {
        #[test]
        fn eight_four_and_one_row_equal_the_scalar_walk_to_the_last_bit(
            trees in trees(),
            rows in prop::collection::vec(prop::collection::vec(value(), COUNT), 8),
        ) {
            let mut ensemble = Ensemble::new(COUNT);
            for (splits, values) in &trees {
                ensemble.push(&tree(splits, values)).unwrap();
            }
            let slices: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let forest = Forest::new(ensemble.clone());
            prop_assert_eq!(matches!(forest, Forest::Flat(..)), ensemble.max_depth() <= MAX_DEPTH);
            let eight = forest.eval(&Block::<8>::load(slices.iter().copied()), slices.iter().copied());
            let four = forest.eval(&Block::<4>::load(slices.iter().copied()), slices.iter().copied());
            for (lane, row) in rows.iter().enumerate() {
                let expected = scalar::eval(&ensemble, row).to_bits();
                let one = forest.eval(&Block::<1>::load([row.as_slice()]), [row.as_slice()]);
                prop_assert_eq!(eight[lane].to_bits(), expected);
                prop_assert_eq!(one[0].to_bits(), expected);
                if lane < 4 {
                    prop_assert_eq!(four[lane].to_bits(), expected);
                }
            }
        }
    }

    #[test]
    fn a_chain_deeper_than_the_bound_is_walked_node_by_node() {
        let mut nodes = Vec::new();
        for level in 0..20u32 {
            nodes.push(Node::Branch {
                feature: 0,
                threshold: level as f32,
                yes: 2 * level + 1,
                no: 2 * level + 2,
                missing_yes: true,
            });
            nodes.push(Node::Leaf { value: level as f32 });
        }
        nodes.push(Node::Leaf { value: 99.0 });
        let mut ensemble = Ensemble::new(COUNT);
        ensemble.push(&nodes).unwrap();
        let forest = Forest::new(ensemble);
        assert!(matches!(forest, Forest::Plain(_)));
        let mut row = [0.0; COUNT];
        row[0] = 12.5;
        assert_eq!(forest.eval(&Block::<1>::load([row.as_slice()]), [row.as_slice()]), [13.0]);
    }

    #[test]
    fn a_threshold_of_minus_infinity_is_left_to_the_scalar_walk() {
        let mut ensemble = Ensemble::new(1);
        let root =
            Node::Branch { feature: 0, threshold: f32::NEG_INFINITY, yes: 1, no: 2, missing_yes: true };
        ensemble.push(&[root, Node::Leaf { value: 1.0 }, Node::Leaf { value: 2.0 }]).unwrap();
        let forest = Forest::new(ensemble);
        let unknown: &[f32] = &[f32::NAN];
        assert_eq!(forest.eval(&Block::<1>::load([unknown]), [unknown]), [1.0]);
    }
}
