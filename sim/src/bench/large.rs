//! One large run: a million requests over 256 pods, routed by foretoken with the models that it fits on the way.
//!
//! It says whether the simulator and the decision keep pace with a large fleet. Not a comparison: rivals at that
//! size would take as long each, and the matrix has them on fewer requests.

use std::time::Instant;

use super::cell::{Cell, CellError, CellSpec, run_cell};
use super::policies::{FORETOKEN, Models};
use super::pool::Pool;
use super::traffic::{Traffic, synthetic};
use crate::workloads::Shape;

/// Pods of the large run.
pub const PODS: usize = 256;
/// Its requests.
pub const REQUESTS: usize = 1_000_000;
/// Its load, as a share of what a pod of this traffic sustains about.
const LOAD: f64 = 0.8;

/// The traffic of the large run: conversations that come back, from the generator, so that everybody's is the same.
#[must_use]
pub fn traffic() -> Traffic {
    synthetic(Shape::MooncakeLike)
}

/// Runs it. Returns its figures and how long it took, s.
///
/// # Errors
/// [`CellError`].
pub fn run(models: &Models, pods: usize, requests: usize) -> Result<(Cell, f64), CellError> {
    let traffic = traffic();
    let start = Instant::now();
    let spec = CellSpec {
        traffic: &traffic,
        load: LOAD,
        rate: traffic.pod_rate * pods as f64 * LOAD,
        requests,
        pods,
        pool: Pool::Equal,
        policy: FORETOKEN.to_owned(),
        seed: 1,
        judged: 0,
        event: None,
    };
    let cell = run_cell(&spec, models)?;
    Ok((cell, start.elapsed().as_secs_f64()))
}
