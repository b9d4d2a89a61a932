//! What lives as long as the VM: the host, the metrics, and the state of each scope.
//!
//! A VM sees many root contexts: Envoy makes a new one for every new configuration and lets the old one live
//! until its last stream has ended. What was learned must not go with them, so it is kept here by scope
//! (plugin name and cluster), for as long as any root or stream of the scope lives.

use core::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::host::Host;
use crate::metrics::Metrics;
use crate::state::State;

/// State shared by the roots and streams of one scope. A VM has one thread; callbacks never nest.
pub type SharedState = Rc<RefCell<State>>;

/// One VM.
pub struct Vm {
    host: Rc<dyn Host>,
    metrics: Metrics,
    scopes: RefCell<Vec<(String, Weak<RefCell<State>>)>>,
}

impl Vm {
    /// A VM without state.
    #[must_use]
    pub fn new(host: Rc<dyn Host>) -> Self {
        Self { host, metrics: Metrics::default(), scopes: RefCell::default() }
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The scope's state, if a root or a stream of it lives.
    #[must_use]
    pub fn state(&self, scope: &str) -> Option<SharedState> {
        let scopes = self.scopes.try_borrow().ok()?;
        scopes.iter().find(|(name, _)| name == scope).and_then(|(_, state)| state.upgrade())
    }

    /// Keeps a new scope's state findable.
    pub fn add_state(&self, scope: &str, state: &SharedState) {
        if let Ok(mut scopes) = self.scopes.try_borrow_mut() {
            scopes.retain(|(name, state)| name != scope && state.strong_count() > 0);
            scopes.push((scope.to_owned(), Rc::downgrade(state)));
        }
    }
}
