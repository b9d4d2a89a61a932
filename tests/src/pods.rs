//! Simulated pods in this process: real HTTP servers on loopback whose latency is an engine model's.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::pod::{LivePod, PodOptions};

/// Starts one pod for each profile name (`fast`, `slow`, …), on free ports.
///
/// # Errors
/// When a profile is unknown or no port is free.
pub async fn start(profiles: &[&str]) -> Result<Vec<LivePod>> {
    let mut pods = Vec::new();
    for (index, name) in profiles.iter().enumerate() {
        let mut options =
            PodOptions::new(Profile::built_in(name).with_context(|| format!("no profile {name}"))?);
        options.seed = index as u64;
        pods.push(LivePod::start(options).await?);
    }
    Ok(pods)
}

/// Starts a pod where another one was.
///
/// # Errors
/// When the port is taken.
pub async fn restart(pod: &LivePod) -> Result<LivePod> {
    let mut options = PodOptions::new(pod.profile().clone());
    options.port = pod.addr().port();
    Ok(LivePod::start(options).await?)
}

/// Their addresses.
#[must_use]
pub fn addresses(pods: &[LivePod]) -> Vec<SocketAddr> {
    pods.iter().map(LivePod::addr).collect()
}
