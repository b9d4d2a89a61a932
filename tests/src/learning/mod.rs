//! How well and how soon the loop learns, measured: the router of core, pods of the simulator and the trainer's own
//! service on one virtual clock.
//!
//! * [`taught`]: a router whose samples go to a trainer and whose models come from it.
//! * [`cold`]: a deployment of which nothing is known. [`drift`]: hardware that slows down, and a sender that lies.
//!
//! Every error is that of a prediction as it was made when the request was routed, with all that core itself
//! adapts. What is simulated is the hardware and the traffic, nothing else: the trainer is its real service with store,
//! doubts, gate and watch, and a fit costs the time that it really takes on this machine.

pub mod cold;
pub mod drift;
pub mod figures;
pub mod taught;

use std::path::Path;

use anyhow::{Context, Result};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::lessons::hardware::in_virtual_blocks;
use foretoken_trainer::gate::Limits;
use foretoken_trainer::publish::Template;
use foretoken_trainer::serve::ServeOptions;

/// A service with the defaults of `foretoken-trainer serve`, its data in `dir`.
///
/// # Errors
/// When the settings cannot be read.
pub fn serve_options(dir: &Path) -> Result<ServeOptions> {
    let filter = crate::envoy::filter_config()?.to_string();
    let template = Template::new("foretoken".into(), "foretoken".into(), "f.wasm".into(), filter.as_bytes())?;
    Ok(ServeOptions {
        // Times by this machine's clock are no part of a run on another one.
        model_limits: Limits { row_us: f64::INFINITY, ..Limits::default() },
        ..ServeOptions::new(template, dir.to_owned())
    })
}

/// The built-in profile of this name with the blocks of virtual time.
///
/// # Errors
/// When there is none.
pub fn profile(name: &str) -> Result<Profile> {
    Profile::built_in(name).map(in_virtual_blocks).with_context(|| format!("no profile {name}"))
}
