//! Real engines: llama.cpp servers on tiny models with random weights.
//!
//! Their text is noise; their queues, prefill and caches are real (scripts/engines/serve_llamacpp.py).

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::paths;
use crate::process::Process;

/// Starting Python and loading a few megabytes.
const START: Duration = Duration::from_secs(60);

/// What makes one pod faster than another.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Layers of the model: 2 or 4.
    pub layers: u32,
    /// Compute threads.
    pub threads: u32,
    /// Requests served at once.
    pub slots: u32,
    /// Memory for prompts whose slots were given away, MiB; without it a pod holds one prompt a slot.
    pub prompt_cache_mib: u32,
}

#[derive(Debug, Deserialize)]
struct Ready {
    listen: SocketAddr,
}

/// A running llama.cpp server; dropping it ends it.
#[derive(Debug)]
pub struct LlamaCpp {
    process: Process,
    address: SocketAddr,
}

impl LlamaCpp {
    /// Starts a server on a free port and waits until it serves.
    ///
    /// # Errors
    /// When it is not installed or does not start; quotes its log.
    pub async fn start(name: &str, options: Options, dir: &Path) -> Result<Self> {
        let mut command = Command::new(paths::engines_python()?);
        command.arg(paths::root().join("scripts/engines/serve_llamacpp.py"));
        command.arg(paths::tiny_model(options.layers)?);
        command.args(["--threads", &options.threads.to_string(), "--slots", &options.slots.to_string()]);
        command.args(["--prompt-cache-mib", &options.prompt_cache_mib.to_string()]);
        let mut process = Process::start(name, command, dir)?;
        let line = process.line(START).await?;
        let ready: Ready = serde_json::from_str(&line).with_context(|| format!("{name} said: {line}"))?;
        Ok(Self { process, address: ready.listen })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The process, for its log or to kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
