//! What is known of the Envoys that ask for the configuration: connected or not, what they took, what they
//! refused.
//!
//! An acknowledgement means that Envoy's main thread accepted the configuration; that every worker runs it
//! shows in the filter's own generation gauge.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Most Envoys that are remembered; beyond it, those that are gone make room.
const MAX_NODES: usize = 1024;

/// Longest error text that is kept.
const MAX_ERROR_CHARS: usize = 500;

/// One Envoy, by the id of its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Id of the node, from Envoy's bootstrap.
    pub node: String,
    /// Open streams.
    pub streams: u32,
    /// Newest generation that it has accepted; absent before the first.
    pub acked_generation: Option<u64>,
    /// Publications that it has refused.
    pub nacks: u64,
    /// What it said last time it refused.
    pub last_error: Option<String>,
}

/// All Envoys that have asked.
#[derive(Debug, Default)]
pub struct Nodes(Mutex<BTreeMap<String, NodeStatus>>);

impl Nodes {
    fn update(&self, node: &str, change: impl FnOnce(&mut NodeStatus)) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !nodes.contains_key(node) && nodes.len() >= MAX_NODES {
            let Some(gone) =
                nodes.values().find(|status| status.streams == 0).map(|status| status.node.clone())
            else {
                return;
            };
            nodes.remove(&gone);
        }
        let fresh = || NodeStatus { node: node.to_owned(), ..NodeStatus::default() };
        change(nodes.entry(node.to_owned()).or_insert_with(fresh));
    }

    pub(super) fn connected(&self, node: &str) {
        self.update(node, |status| status.streams += 1);
    }

    pub(super) fn disconnected(&self, node: &str) {
        self.update(node, |status| status.streams = status.streams.saturating_sub(1));
    }

    pub(super) fn acked(&self, node: &str, generation: u64) {
        self.update(node, |status| status.acked_generation = Some(generation));
    }

    pub(super) fn nacked(&self, node: &str, error: &str) {
        self.update(node, |status| {
            status.nacks += 1;
            status.last_error = Some(error.chars().take(MAX_ERROR_CHARS).collect());
        });
    }

    /// Every Envoy, in the order of their ids.
    #[must_use]
    pub fn list(&self) -> Vec<NodeStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_nodes_is_bounded_and_those_that_are_gone_make_room() {
        let nodes = Nodes::default();
        for index in 0..MAX_NODES {
            nodes.connected(&format!("node-{index:05}"));
        }
        nodes.connected("late");
        assert_eq!(nodes.list().len(), MAX_NODES);
        assert!(!nodes.list().iter().any(|status| status.node == "late"));
        nodes.disconnected("node-00007");
        nodes.connected("late");
        assert_eq!(nodes.list().len(), MAX_NODES);
        assert!(nodes.list().iter().any(|status| status.node == "late"));
        assert!(!nodes.list().iter().any(|status| status.node == "node-00007"));
    }
}
