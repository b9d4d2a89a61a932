//! Models made up for tests: random trees over the feature schema, and the metadata that the contract asks for.

use super::contract::{self, Output};
use super::ensemble::{Ensemble, Node};
use super::onnx::write;
use crate::features::{COUNT, Row, SCHEMA_ID};

/// A small deterministic generator (splitmix64): tests and benches must not differ from run to run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// A row of values between 0 and 1, one in twelve unknown.
    pub(crate) fn row(&mut self) -> Row {
        let mut row = Row::default();
        for value in &mut row.0 {
            if !self.next().is_multiple_of(12) {
                *value = self.unit();
            }
        }
        row
    }

    /// A perfect tree of that depth, in heap order.
    fn tree(&mut self, depth: u32) -> Vec<Node> {
        let inner = (1u32 << depth) - 1;
        let total = 2 * inner + 1;
        (0..total)
            .map(|index| {
                if index < inner {
                    Node::Branch {
                        feature: (self.next() % COUNT as u64) as u32,
                        threshold: self.unit(),
                        yes: 2 * index + 1,
                        no: 2 * index + 2,
                        missing_yes: self.next().is_multiple_of(2),
                    }
                } else {
                    Node::Leaf { value: self.unit() - 0.5 }
                }
            })
            .collect()
    }

    /// An ensemble with a base and `trees` trees of that depth.
    pub(crate) fn ensemble(&mut self, trees: usize, depth: u32) -> Ensemble {
        let mut ensemble = Ensemble::new(COUNT);
        ensemble.push_constant(1.0).unwrap();
        for _ in 0..trees {
            let tree = self.tree(depth);
            ensemble.push(&tree).unwrap();
        }
        ensemble
    }
}

/// The metadata that every model needs.
pub(crate) fn metadata() -> Vec<(String, String)> {
    [
        (contract::KEY_SCHEMA, SCHEMA_ID.to_owned()),
        (contract::KEY_FEATURES, contract::feature_names()),
        (contract::KEY_MODEL_ID, "test-1".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec()
}

/// The four ratio outputs, each with its own random trees.
pub(crate) fn model(seed: u64, trees: usize, depth: u32) -> Vec<u8> {
    let mut random = Random(seed);
    let ensembles: Vec<(Output, Ensemble)> =
        Output::ALL.into_iter().take(4).map(|output| (output, random.ensemble(trees, depth))).collect();
    let outputs: Vec<(Output, &Ensemble)> =
        ensembles.iter().map(|(output, trees)| (*output, trees)).collect();
    write::write(&metadata(), &outputs)
}
