//! What load 1 is: the highest rate at which a policy's waits stay bounded.
//!
//! A policy sustains a rate when its p90 TTFT is within 2 s of what the same prompts take on idle pods with empty
//! caches; traffic whose requests name targets, when nine of ten of them meet theirs: there, long waits of those that
//! have the time are no fault. The best of the policies sets the scale for all.

use super::cell::{CellError, CellSpec, simulate};
use super::policies::{Made, Models, make};
use super::pool::Pool;
use super::traffic::Traffic;
use crate::engine::profile::{Profile, StepWork};
use crate::virtual_time::Figures;
use crate::virtual_time::record::Spread;

/// The wait that is bearable beyond that of an idle cold pod.
const BEARABLE_MS: f64 = 2000.0;
/// Share of the requests with targets that must meet them.
const IN_TIME: f64 = 0.9;
/// The search stops when the highest good and the lowest bad rate are this close.
const TOLERANCE: f64 = 0.03;
const MAX_PROBES: usize = 14;
/// In flight for each pod, beyond which a run is given up: no profile runs more at once, let alone in time.
const MAX_LIVE_PER_POD: usize = 400;

/// p90 of the time that the traffic's prompts take on an idle pod with an empty cache.
fn idle_p90_ms(traffic: &Traffic, profile: &Profile, seed: u64) -> f64 {
    let mut source = traffic.requests(1.0, 400, seed);
    let times = std::iter::from_fn(|| source.next()).map(|arrival| {
        let (mut computed, mut total_ms) = (0, 0.0);
        while computed < arrival.request.prompt_tokens {
            let chunk = profile.max_batched_tokens.min(arrival.request.prompt_tokens - computed);
            let mut work = StepWork::default();
            work.add_prefill(computed, chunk);
            total_ms += profile.step_ms(&work);
            computed += chunk;
        }
        total_ms
    });
    Spread::of(times.collect()).p90
}

/// Requests a second that the policy sustains on this pool.
///
/// # Errors
/// [`CellError`].
pub fn sustained_rate(
    traffic: &Traffic,
    pods: usize,
    pool: Pool,
    policy: &str,
    models: &Models,
    requests: usize,
    seed: u64,
) -> Result<f64, CellError> {
    let profiles = pool.profiles(pods, traffic);
    let Some(first) = profiles.first() else { return Ok(0.0) };
    let bound_ms = idle_p90_ms(traffic, first, seed) + BEARABLE_MS;
    let holds = |rate: f64| -> Result<bool, CellError> {
        let spec = CellSpec {
            traffic,
            load: 1.0,
            rate,
            requests,
            pods,
            pool,
            policy: policy.to_owned(),
            seed,
            judged: 0,
            event: None,
        };
        let (mut ours, mut other);
        let policy = match make(policy, pods, seed, models, 0)? {
            Made::Foretoken(made) => {
                ours = made;
                &mut *ours as &mut dyn crate::virtual_time::Policy
            }
            Made::Other(made) => {
                other = made;
                &mut *other
            }
        };
        let run = simulate(&spec, policy, &mut (), MAX_LIVE_PER_POD * pods)?;
        let figures = Figures::of(&run.records, 0.25, 0.05);
        let has_targets = run.records.iter().any(|record| record.slo.is_some());
        let waits_are_bounded =
            if has_targets { figures.slo_attainment >= IN_TIME } else { figures.ttft_ms.p90 <= bound_ms };
        Ok(!run.overloaded && waits_are_bounded)
    };
    let (mut good, mut bad) = (0.0, f64::INFINITY);
    let mut rate = traffic.pod_rate * pods as f64 * if pool == Pool::Mixed { 0.75 } else { 1.0 };
    for _ in 0..MAX_PROBES {
        if holds(rate)? {
            good = rate;
        } else {
            bad = rate;
        }
        if good > 0.0 && bad.is_finite() && bad / good <= 1.0 + TOLERANCE {
            break;
        }
        rate = match (good > 0.0, bad.is_finite()) {
            (true, true) => (good * bad).sqrt(),
            (true, false) => good * 1.3,
            _ => bad / 1.3,
        };
    }
    Ok(good)
}
