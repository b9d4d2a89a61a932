//! The policy bench: every policy on every traffic, load and pool, in virtual time, and what comes of it.
//!
//! * [`traffic`]: what is sent. [`pool`]: to what. [`policies`]: by whom, ablations included.
//! * [`cell`]: one run. [`capacity`]: what load 1 is. [`matrix`]: all of them, on all cores; [`plan`]: what beside
//!   the core of it. [`event`]: what happens to a pool on the way.
//! * [`large`]: a million requests on 256 pods.
//! * [`judge`]: predictions against what would have been on each pod. [`fit`]: models as the trainer makes them.
//! * [`summary`]: the ratios that are claimed. [`html`]: one page of it.
//!
//! What it is not: a benchmark of the filter's speed (`scripts/bench` has that) nor of a GPU.

pub mod capacity;
pub mod cell;
pub mod event;
pub mod fit;
pub mod html;
pub mod judge;
pub mod large;
pub mod matrix;
pub mod plan;
pub mod policies;
pub mod pool;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod traffic;

pub use cell::{Cell, CellError, CellSpec};
pub use matrix::{Matrix, Report};
