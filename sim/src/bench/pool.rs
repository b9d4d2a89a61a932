//! Pools of pods.

use serde::{Deserialize, Serialize};

use super::traffic::Traffic;
use crate::engine::profile::Profile;

/// Which hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// All pods alike.
    Equal,
    /// Every second pod of an older generation.
    Mixed,
}

impl Pool {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Mixed => "mixed",
        }
    }

    /// The pods' profiles, with a cache of the size that the traffic is told with.
    #[must_use]
    pub fn profiles(self, pods: usize, traffic: &Traffic) -> Vec<Profile> {
        (0..pods)
            .filter_map(|at| {
                let name = if self == Self::Mixed && at % 2 == 1 { "a100" } else { "h100" };
                let profile = Profile::built_in(name)?;
                let kv_blocks = traffic.kv_tokens / profile.block_tokens;
                Some(Profile {
                    kv_blocks,
                    max_batched_tokens: traffic.max_batched_tokens,
                    max_model_len_tokens: profile.max_model_len_tokens.min(traffic.kv_tokens),
                    ..profile
                })
            })
            .collect()
    }
}
