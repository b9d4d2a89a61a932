//! The keys in shared data. All of them: shared data has no removal, so a key that is made stays.
//!
//! Shared data is common to every plugin with the same VM id (to all of them, where the id is left empty, as
//! in Istio), so each key starts with our name, the plugin's name and the cluster. Two filters in one Envoy
//! that route to the same cluster under the same name share what they know, by intent.

use foretoken_core::placements::SEGMENTS;

/// VMs that can share what they know: the most worker threads of an Envoy that are served.
pub const MAX_SLOTS: u8 = 128;

/// Keys of one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
    /// Who polls: see [`crate::lease`].
    pub lease: String,
    /// A VM without streams that would rather poll than the present holder.
    pub idle: String,
    /// Which VM sits in which slot: see [`crate::slots`].
    pub slots: String,
    /// The table of pods: see [`crate::poll`].
    pub fleet: String,
}

/// Keys of one slot, each written by the VM that sits there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotKeys {
    /// The slot.
    pub slot: u8,
    /// Its ledger.
    pub ledger: String,
    /// Its ring of placements.
    pub places: Vec<String>,
}

impl Keys {
    /// Keys for what the plugin of this name does for this cluster.
    #[must_use]
    pub fn new(plugin: &str, cluster: &str) -> Self {
        let prefix = format!("foretoken/{plugin}/{cluster}");
        Self {
            lease: format!("{prefix}/lease"),
            idle: format!("{prefix}/idle"),
            slots: format!("{prefix}/slots"),
            fleet: format!("{prefix}/fleet"),
            prefix,
        }
    }

    /// What tells scopes apart.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.prefix
    }

    /// Keys of a slot.
    #[must_use]
    pub fn slot(&self, slot: u8) -> SlotKeys {
        SlotKeys {
            slot,
            ledger: format!("{}/ledger/{slot}", self.prefix),
            places: (0..SEGMENTS).map(|segment| format!("{}/place/{slot}/{segment}", self.prefix)).collect(),
        }
    }
}

impl SlotKeys {
    /// Key of a place in the ring; empty, which no value has, for a place that does not exist.
    #[must_use]
    pub fn place(&self, segment: u64) -> &str {
        usize::try_from(segment).ok().and_then(|at| self.places.get(at)).map_or("", String::as_str)
    }
}
