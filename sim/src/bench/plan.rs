//! What the whole matrix runs beside its core of every policy on every traffic and load.
//!
//! Not every combination says something new, and all of it has to end within half an hour on two cores: larger
//! pools are run at one load against the strongest rivals, ablations and changes of the pool on the traffic where
//! routing matters most.

use super::event::Event;
use super::policies::{ABLATIONS, FORETOKEN};
use super::pool::Pool;

/// Traffic on which claims are made; of a trace and of its generator alike.
const MAIN: [&str; 4] = ["churn", "multi-turn", "mooncake", "azure-code"];

/// Cells beyond the core: all combinations of what stands here.
#[derive(Debug, Clone)]
pub struct Block {
    /// Traffic whose names begin so.
    pub traffic: Vec<&'static str>,
    /// Pods.
    pub pods: usize,
    /// Hardware.
    pub pools: Vec<Pool>,
    /// Share of the best policy's sustained rate.
    pub load: f64,
    /// Who routes.
    pub policies: Vec<String>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Requests of a cell, as a share of what the traffic asks for.
    pub requests: f64,
    /// What happens to the pool in the middle.
    pub event: Option<Event>,
}

/// The blocks of the whole matrix.
#[must_use]
pub fn blocks() -> Vec<Block> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let block = |traffic: &[&'static str], pods: usize, policies: Vec<String>| Block {
        traffic: traffic.to_vec(),
        pods,
        pools: vec![Pool::Equal],
        load: 0.8,
        policies,
        seeds: vec![1],
        requests: 1.0,
        event: None,
    };
    let rivals = ["queue-kv", "gie-default", "sticky", "radix"];
    let with = |more: &[&str]| names(&[&[FORETOKEN], &rivals[..], more].concat());
    let mut blocks = vec![
        Block {
            pools: vec![Pool::Equal, Pool::Mixed],
            seeds: vec![1, 2, 3],
            requests: 0.5,
            ..block(&MAIN, 16, with(&["oracle-social", "oracle-full"]))
        },
        Block { requests: 0.1, ..block(&["churn", "mooncake"], 256, with(&[])) },
        // As many requests as foretoken's own cells have: a ratio of other requests says nothing.
        Block {
            seeds: vec![1, 2, 3],
            ..block(&MAIN, 4, ABLATIONS.iter().map(|(name, _)| (*name).to_owned()).collect())
        },
    ];
    blocks.extend(Event::ALL.map(|event| Block {
        load: 0.6,
        seeds: vec![1, 2, 3],
        requests: 0.5,
        event: Some(event),
        ..block(&["churn", "mooncake"], 16, with(&["least-request"]))
    }));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ablation_stands_beside_foretoken_on_the_same_traffic() {
        let blocks = blocks();
        for (name, _) in ABLATIONS {
            let block = blocks.iter().find(|block| block.policies.iter().any(|policy| policy == name));
            assert!(block.is_some_and(|block| block.requests == 1.0 && block.load == 0.8), "{name}");
        }
        for event in Event::ALL {
            let block = blocks.iter().find(|block| block.event == Some(event)).unwrap();
            assert!(block.policies.len() > 3 && block.load < 0.8, "{block:?}");
        }
        assert_eq!(blocks.iter().map(|block| block.pods).max(), Some(256));
    }
}
