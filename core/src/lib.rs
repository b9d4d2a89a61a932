//! foretoken-core: everything of foretoken that decides where a request goes.
//!
//! The filter in Envoy, the trainer and the simulator all run this code, so what a model is trained on
//! is by construction what it sees when it serves. There is no I/O here, no clock and no call into a
//! host: time comes in as an argument (`now_us`, microseconds of one clock), bytes come in as slices.
//!
//! Layout, one idea a module:
//!
//! * [`request`], [`response`], [`telemetry`]: readers of what clients, engines and metric pages say.
//! * [`ledger`], [`load`], [`occupancy`], [`prefix`], [`placements`], [`speed`] (by [`plane`]), [`residual`],
//!   [`lengths`]: what the router itself knows, and what it tells the other workers of the same Envoy; [`foreign`]: what others do.
//! * [`fleet`]: which pods there are and what their metrics said, as the polling worker shares it.
//! * [`features`], [`prior`], [`model`]: a row per candidate pod, and what is predicted from it.
//! * [`policy`]: predictions to an ordered list of pods; [`fallback`] names every way it can be less.
//! * [`asked`], [`slo`], [`shed`]: targets and priorities, what they change, who is turned away; [`refuse`]: how.
//! * [`router`]: the above put together for one VM; [`sample`]: what is learned from an outcome.
//! * [`config`]: the filter's configuration, shared with the trainer that publishes it.
//!
//! What it is not: a proxy, a trainer or a simulator. Those are the crates that depend on it.

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

pub mod asked;
#[cfg(test)]
mod captured;
pub mod codec;
pub mod config;
pub mod coverage;
pub mod explain;
pub mod fallback;
pub mod features;
pub mod fleet;
pub mod foreign;
pub mod hash;
pub mod health;
pub mod ledger;
pub mod lengths;
pub mod load;
pub mod model;
pub mod num;
pub mod occupancy;
pub mod placements;
pub mod plane;
pub mod policy;
pub mod prefix;
pub mod prior;
pub mod refuse;
pub mod request;
pub mod residual;
pub mod response;
pub mod reuse;
pub mod router;
pub mod sample;
pub mod served;
pub mod shed;
pub mod slo;
pub mod speed;
pub mod telemetry;
