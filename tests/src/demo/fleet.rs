//! The pods of one phase: fresh, so that no phase finds another's caches warm.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use foretoken_sim::pod::LivePod;

use super::Engine;
use crate::llama_cpp::{self, LlamaCpp};
use crate::pods;

/// Running pods; dropping them ends them.
#[derive(Debug)]
pub(super) enum Fleet {
    Sim(Vec<LivePod>),
    LlamaCpp(Vec<LlamaCpp>),
}

impl Fleet {
    /// Starts `count` pods, every other one slower.
    pub(super) async fn start(engine: Engine, count: usize, phase: &str, dir: &Path) -> Result<Self> {
        match engine {
            Engine::Sim => {
                let profiles: Vec<&str> = ["fast", "slow"].into_iter().cycle().take(count).collect();
                Ok(Self::Sim(pods::start(&profiles).await?))
            }
            Engine::Llamacpp => {
                let mut engines = Vec::new();
                for (index, layers) in [2, 4].into_iter().cycle().take(count).enumerate() {
                    let options = llama_cpp::Options { layers, threads: 1, slots: 4, prompt_cache_mib: 0 };
                    engines.push(LlamaCpp::start(&format!("{phase}-pod-{index}"), options, dir).await?);
                }
                Ok(Self::LlamaCpp(engines))
            }
        }
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Sim(pods) => pods::addresses(pods),
            Self::LlamaCpp(engines) => engines.iter().map(LlamaCpp::address).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Sim(pods) => pods.len(),
            Self::LlamaCpp(engines) => engines.len(),
        }
    }
}
