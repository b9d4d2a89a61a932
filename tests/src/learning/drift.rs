//! Hardware that slows down by two on half of the pods, and samples that lie: how soon predictions are right again,
//! and whether a lie is ever learned.

use std::path::Path;

use anyhow::Result;
use foretoken_sim::lessons::paced::Paced;
use foretoken_sim::virtual_time::{Change, ForetokenOptions, PoolChange, Simulation};
use foretoken_sim::workloads::Shape;
use foretoken_trainer::serve::stepped::Stepped;
use foretoken_trainer::xgb::Xgboost;
use serde::Serialize;

use super::figures::{Errors, Seen};
use super::taught::{Poison, Push, Taught};
use super::{profile, serve_options};

/// Requests a second.
const RATE: f64 = 50.0;

/// Pods of the small fast card: enough that the slow half still keeps up.
const PODS: usize = 16;

/// When things happen, seconds.
const SLOW_AT_S: f64 = 240.0;
const LIES_AT_S: [f64; 2] = [420.0, 470.0];
const END_S: f64 = 540.0;

/// Samples of a lie, and what their times are multiplied by.
const LIE: (usize, f32) = (600, 10.0);

/// The bound that live errors are to come back under.
pub const BOUND: f64 = 0.12;

/// Errors are taken over this long, seconds…
const SPAN_S: f64 = 10.0;
/// …and must stay under the bound for as long.
const STAYS_S: f64 = 60.0;

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Drift {
    /// From the slowdown until the live median error of TTFT over 10 s is under 12 % and stays there for a minute, s:
    /// 0 when it never was above. Absent when it never is.
    pub recovered_s: Option<f64>,
    /// Live TTFT error in the second minute after the slowdown.
    pub mdape: f64,
    /// The same of requests that went to the slow half alone.
    pub slow_half: Recovery,
    /// The same of TPOT, all requests.
    pub tpot_recovered_s: Option<f64>,
    /// In the minute before the slowdown.
    pub before: Errors,
    /// In the first 10 s after it.
    pub at_once: Errors,
    /// In the third minute after it.
    pub after: Errors,
    /// The lies.
    pub poison: Poisoning,
    /// Every 10 s from the slowdown on: TTFT and TPOT error.
    pub curve: Vec<(f64, f64)>,
    /// Publications: when, samples, why.
    pub pushes: Vec<(f64, usize, String)>,
}

/// How soon errors were under the bound again.
#[derive(Debug, Serialize)]
pub struct Recovery {
    /// Seconds; absent when never.
    pub recovered_s: Option<f64>,
    /// TTFT error in the first 10 s after the slowdown.
    pub at_once_mdape: f64,
    /// TTFT error in the second minute after it.
    pub mdape: f64,
}

/// What came of the lies.
#[derive(Debug, Serialize)]
pub struct Poisoning {
    /// Samples with times ten times as long, sent in two batches: by a sender that has been believed, and by a new one.
    pub sent: u64,
    /// Of those, not believed.
    pub quarantined: u64,
    /// Publications whose fit had any that was believed.
    pub published: usize,
    /// Live TTFT error in the minute before and in the minute after the first.
    pub before_mdape: f64,
    /// The same after.
    pub after_mdape: f64,
}

/// Runs it.
///
/// # Errors
/// When something cannot be run.
pub fn drift(xgboost: &Xgboost, dir: &Path, seed: u64) -> Result<Drift> {
    eprintln!("drift: half of {PODS} pods slow down by two, and lies are told");
    std::fs::create_dir_all(dir)?;
    let us = |at_s: f64| (at_s * 1e6) as u64;
    let changes: Vec<PoolChange> = (0..PODS / 2)
        .map(|pod| PoolChange { at_us: us(SLOW_AT_S), pod: pod * 2, change: Change::Slow(2.0) })
        .collect();
    let lies = LIES_AT_S.iter().zip([true, false]);
    let poison = lies.map(|(at_s, known_sender)| Poison {
        at_us: us(*at_s),
        samples: LIE.0,
        factor: LIE.1,
        known_sender,
    });
    let trainer = Stepped::open(&serve_options(&dir.join("data"))?, xgboost.clone())?;
    let options = ForetokenOptions { workers: 2, seed, ..ForetokenOptions::default() };
    let mut taught = Taught::new(PODS, options, trainer)?.with_poison(poison.collect());
    let mut workload = Paced::new(Shape::ChatLike, RATE, &[1.0], (RATE * END_S) as usize, seed);
    let pods = (0..PODS).map(|_| profile("fast")).collect::<Result<_>>()?;
    Simulation::new(pods, &mut taught, &mut workload, &mut (), seed)?.with_changes(changes).run()?;
    taught.finish()?;
    let seen = std::mem::take(&mut taught.seen);
    let over = |from_s: f64, length_s: f64| {
        Errors::of(seen.iter().filter(|one| (from_s..from_s + length_s).contains(&one.at_s)))
    };
    let ttft = |errors: &Errors| errors.ttft_mdape;
    let slow: Vec<Seen> = seen.iter().filter(|one| one.pod % 2 == 0).cloned().collect();
    let over_slow = |from_s: f64, length_s: f64| {
        Errors::of(slow.iter().filter(|one| (from_s..from_s + length_s).contains(&one.at_s)))
    };
    let believed = taught.poisoned.sent - taught.poisoned.quarantined;
    let learned_a_lie = |push: &&Push| believed > 0 && push.at_s > LIES_AT_S[0];
    Ok(Drift {
        recovered_s: recovery_s(&seen, ttft),
        mdape: over(SLOW_AT_S + 60.0, 60.0).ttft_mdape,
        slow_half: Recovery {
            recovered_s: recovery_s(&slow, ttft),
            at_once_mdape: over_slow(SLOW_AT_S, SPAN_S).ttft_mdape,
            mdape: over_slow(SLOW_AT_S + 60.0, 60.0).ttft_mdape,
        },
        tpot_recovered_s: recovery_s(&seen, |errors| errors.tpot_mdape),
        before: over(SLOW_AT_S - 60.0, 60.0),
        at_once: over(SLOW_AT_S, SPAN_S),
        after: over(SLOW_AT_S + 120.0, 60.0),
        poison: Poisoning {
            sent: taught.poisoned.sent,
            quarantined: taught.poisoned.quarantined,
            published: taught.pushes.iter().filter(learned_a_lie).count(),
            before_mdape: over(LIES_AT_S[0] - 50.0, 50.0).ttft_mdape,
            after_mdape: over(LIES_AT_S[0], 50.0).ttft_mdape,
        },
        curve: (0..18)
            .map(|step| over(SLOW_AT_S + f64::from(step) * SPAN_S, SPAN_S))
            .map(|errors| (errors.ttft_mdape, errors.tpot_mdape))
            .collect(),
        pushes: taught.pushes.iter().map(|push| (push.at_s, push.samples, push.origin.clone())).collect(),
    })
}

/// Seconds from the slowdown until errors are under the bound for good, looked at every second.
fn recovery_s(seen: &[Seen], error: impl Fn(&Errors) -> f64) -> Option<f64> {
    let fine = |from_s: f64| {
        let span = seen.iter().filter(|one| (from_s..from_s + SPAN_S).contains(&one.at_s));
        error(&Errors::of(span)) < BOUND
    };
    let spans = (STAYS_S / SPAN_S) as u32;
    // A span is known to be fine at its end; one that was never bad, at once.
    (0..120)
        .map(f64::from)
        .find(|after_s| (0..spans).all(|span| fine(SLOW_AT_S + after_s + f64::from(span) * SPAN_S)))
        .map(|after_s| if after_s > 0.0 { after_s + SPAN_S } else { 0.0 })
}
