//! One configuration's callbacks: read it, tick, take the answers to callouts, make streams.
//!
//! Envoy tries every configuration in a throw-away VM first, with the same shared data. So reading one has no
//! effect outside the VM but its log line and, when it is bad, one count; the rest waits for the first tick, and
//! that VM never ticks. A refused configuration leaves the old one serving.

use std::rc::Rc;
use std::sync::Arc;

use core::cell::RefCell;

use foretoken_core::config::{Config, ConfigError};
use foretoken_core::model::{Model, ModelError};

use crate::host::{Buffer, HostError};
use crate::keys::Keys;
use crate::metrics::Metric;
use crate::state::{Loaded, ModelTag, State};
use crate::stream::Stream;
use crate::vm::{SharedState, Vm};

/// Bounds of the tick: fine enough for 20 ms scrapes, and never so coarse that samples or heartbeats lag.
const MIN_TICK_MS: u32 = 20;
const MAX_TICK_MS: u32 = 50;

/// Scrapes happen at ticks; so many of them in an interval spread the pods over it.
const TICKS_PER_INTERVAL: u32 = 5;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("generation {generation}: {error}")]
    Model { generation: u64, error: ModelError },
    #[error("it could not be read: {0}")]
    Host(#[from] HostError),
    #[error("it came while another callback of the same VM was running")]
    Busy,
}

/// A root context.
pub struct Root {
    id: u32,
    vm: Rc<Vm>,
    configured: Option<(SharedState, Loaded)>,
}

impl Root {
    /// A root without configuration.
    #[must_use]
    pub fn new(id: u32, vm: Rc<Vm>) -> Self {
        Self { id, vm, configured: None }
    }

    /// Takes the configuration of `size` bytes. False refuses it.
    pub fn configure(&mut self, size: usize) -> bool {
        match self.try_configure(size) {
            Ok(()) => true,
            Err(refused) => {
                log::error!("configuration refused: {refused}");
                if matches!(refused, Refused::Model { .. }) {
                    self.vm.metrics().add(self.vm.host(), Metric::ModelsRefused, 1);
                }
                false
            }
        }
    }

    fn try_configure(&mut self, size: usize) -> Result<(), Refused> {
        let host = self.vm.host();
        let mut config = Config::from_json(&host.bytes(Buffer::Configuration, size)?)?;
        let plugin = host.property(&["plugin_name"]).ok().flatten().unwrap_or_default();
        let keys = Keys::new(&String::from_utf8_lossy(&plugin), &config.cluster);
        let existing = self.vm.state(keys.scope());

        let model = match &mut config.model {
            None => None,
            Some(packed) => {
                let tag = ModelTag::of(packed);
                // The same model under other settings is not parsed again.
                let in_use = existing.as_ref().and_then(|state| state.try_borrow().ok()?.model_tagged(tag));
                let model = match in_use {
                    Some(model) => model,
                    None => Model::from_packed(&packed.onnx_deflate_base64)
                        .map(Arc::new)
                        .map_err(|error| Refused::Model { generation: packed.generation, error })?,
                };
                packed.onnx_deflate_base64 = String::new();
                Some((tag, model))
            }
        };
        let tick_ms = (config.telemetry.interval_ms / TICKS_PER_INTERVAL).clamp(MIN_TICK_MS, MAX_TICK_MS);
        host.set_tick_period(tick_ms)?;
        let loaded = Loaded { config: Arc::new(config), model };
        let state = existing.unwrap_or_else(|| {
            let scope = keys.scope().to_owned();
            let state = Rc::new(RefCell::new(State::new(host, keys, loaded.clone())));
            self.vm.add_state(&scope, &state);
            state
        });
        state.try_borrow_mut().map_err(|_| Refused::Busy)?.adopt(self.id, loaded.clone());
        log::debug!(
            "configured: cluster {:?}, model {}",
            loaded.config.cluster,
            loaded.model.as_ref().map_or("none", |(_, model)| model.card().model_id.as_str())
        );
        self.configured = Some((state, loaded));
        Ok(())
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        let Some((state, loaded)) = &self.configured else { return };
        let Ok(mut state) = state.try_borrow_mut() else { return };
        if state.active_root().is_none() {
            state.adopt(self.id, loaded.clone());
        }
        if state.active_root() == Some(self.id) {
            state.tick(self.vm.host(), self.vm.metrics());
        }
    }

    /// The answer to a callout.
    pub fn call_response(&mut self, token: u32, num_headers: usize, body_size: usize) {
        let Some((state, _)) = &self.configured else { return };
        if let Ok(mut state) = state.try_borrow_mut() {
            state.call_response(self.vm.host(), self.vm.metrics(), token, num_headers, body_size);
        }
    }

    /// A new request.
    #[must_use]
    pub fn stream(&self) -> Stream {
        let routing =
            self.configured.as_ref().map(|(state, loaded)| (Rc::clone(state), Arc::clone(&loaded.config)));
        Stream::new(Rc::clone(&self.vm), routing)
    }

    /// This configuration is over. Returns whether it may be deleted now.
    pub fn done(&mut self) -> bool {
        if let Some((state, _)) = &self.configured
            && let Ok(mut state) = state.try_borrow_mut()
        {
            state.leave(self.id);
        }
        self.vm.host().leave(self.id)
    }
}

#[cfg(test)]
mod tests;
