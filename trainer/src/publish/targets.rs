//! What is known of the objects in Kubernetes that carry the publication: which generation they hold, what the API
//! server said.
//!
//! It is there in builds without Kubernetes too, and then always empty. An applied object means that the API server
//! holds it; whether proxies run it shows in the filter's own generation gauge.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Longest error text that is kept.
const MAX_ERROR_CHARS: usize = 500;

/// One object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TargetStatus {
    /// `WasmPlugin` or `EnvoyFilter`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Generation of the model that the API server confirmed to hold; absent before the first, 0 for none.
    pub applied_generation: Option<u64>,
    /// The object's own generation, which counts changes of its `spec`, as the API server told.
    pub object_generation: Option<i64>,
    /// Applications that succeeded.
    pub applied: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Why the newest attempt failed; absent after a success.
    pub last_error: Option<String>,
}

/// Where an object is: kind, namespace, name.
pub type Key = (&'static str, String, String);

/// All objects.
#[derive(Debug, Default)]
pub struct Targets(Mutex<BTreeMap<Key, TargetStatus>>);

impl Targets {
    /// Changes what is known of an object; it is listed from then on.
    pub fn update(&self, key: &Key, change: impl FnOnce(&mut TargetStatus)) {
        let mut targets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (kind, namespace, name) = key.clone();
        let fresh = || TargetStatus { kind, namespace, name, ..TargetStatus::default() };
        change(targets.entry(key.clone()).or_insert_with(fresh));
    }

    /// Notes a failure.
    pub fn failed(&self, key: &Key, error: &str) {
        self.update(key, |status| {
            status.failed += 1;
            status.last_error = Some(error.chars().take(MAX_ERROR_CHARS).collect());
        });
    }

    /// Every object, in the order of kind, namespace and name.
    #[must_use]
    pub fn list(&self) -> Vec<TargetStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
