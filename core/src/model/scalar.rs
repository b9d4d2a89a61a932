//! Evaluates an ensemble node by node, one row at a time.
//!
//! Two uses: trees that the flat kernel cannot hold ([`super::kernel`]: too deep, too many), and the
//! reference that the kernel is tested against. About four times slower per row than the kernel.

use super::ensemble::{Ensemble, Node};

/// Prediction for one row: the sum of all trees through the link. Columns that the row lacks count as unknown.
#[must_use]
pub fn eval(ensemble: &Ensemble, row: &[f32]) -> f32 {
    ensemble.link().apply(sum(ensemble, row))
}

/// Sum of all trees for one row, before the link.
#[must_use]
pub fn sum(ensemble: &Ensemble, row: &[f32]) -> f32 {
    // -0.0 is the neutral element of float addition: the first tree's value stays as it is, sign and all.
    ensemble.trees().fold(-0.0, |sum, (tree, _)| sum + walk(tree, row))
}

fn walk(tree: &[Node], row: &[f32]) -> f32 {
    let mut at = 0u32;
    // A child's index is above its parent's, so this ends within `tree.len()` steps.
    loop {
        match usize::try_from(at).ok().and_then(|at| tree.get(at)) {
            Some(&Node::Branch { feature, threshold, yes, no, missing_yes }) => {
                let value = usize::try_from(feature).ok().and_then(|feature| row.get(feature)).copied();
                let value = value.unwrap_or(f32::NAN);
                let below = if value.is_nan() { missing_yes } else { value < threshold };
                at = if below { yes } else { no };
            }
            Some(&Node::Leaf { value }) => return value,
            None => return 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_follows_the_comparison_and_the_direction_of_missing() {
        let mut ensemble = Ensemble::new(2);
        ensemble.push_constant(10.0).unwrap();
        for missing_yes in [true, false] {
            let root = Node::Branch { feature: 1, threshold: 0.5, yes: 1, no: 2, missing_yes };
            ensemble.push(&[root, Node::Leaf { value: 1.0 }, Node::Leaf { value: 3.0 }]).unwrap();
        }
        assert_eq!(eval(&ensemble, &[0.0, 0.4]), 12.0);
        assert_eq!(eval(&ensemble, &[0.0, 0.5]), 16.0);
        assert_eq!(eval(&ensemble, &[0.0, f32::NAN]), 14.0);
        assert_eq!(eval(&ensemble, &[0.0]), 14.0);
    }
}
