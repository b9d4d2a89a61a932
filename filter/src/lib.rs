//! foretoken-filter: the proxy-wasm filter that Envoy loads.
//!
//! Everything that decides is in foretoken-core. Here is what moves bytes and time between Envoy and it:
//!
//! * [`host`]: calls into Envoy as functions that return `Result`. The only unsafe code is in there.
//! * [`vm`]: what lives as long as the VM; [`root`]: one configuration's callbacks; [`stream`]: one request's.
//! * [`state`]: the router of one cluster with everything around it, shared by its roots and streams.
//! * [`keys`], [`slots`], [`lease`]: the workers of one Envoy, and which of them polls the pods.
//! * [`poll`]: which pods there are and what their metrics pages say; [`samples`]: outcomes to the trainer.
//! * [`metrics`]: what Envoy counts for us.
//! * `sdk` (wasm only): the callbacks' way from the SDK's traits to the above.
//!
//! Rules of this crate, each with its reason. *No panic*: one costs the VM and every stream on it; hence the
//! denied lints. *Nothing of the SDK that unwraps*: its trait methods and hostcalls panic on a status that
//! they do not expect; the SDK dispatches callbacks and tracks callouts, no more. *No request stays paused*:
//! every path out of a callback that held a request lets it go on, by Envoy's own policy if need be.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unreachable,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::string_slice,
    unsafe_code
)]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::unreachable,
        clippy::string_slice
    )
)]

pub mod host;
pub mod keys;
pub mod lease;
pub mod metrics;
pub mod poll;
pub mod root;
pub mod samples;
#[cfg(target_family = "wasm")]
mod sdk;
pub mod slots;
pub mod state;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod vm;
