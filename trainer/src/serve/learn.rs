//! The loop that learns: waits for samples, fits on a thread of its own, judges, publishes.
//!
//! When to fit: as soon as there are as many clean samples as the first fit needs, then again when the
//! interval has passed and enough new samples have come to judge a model by. A fit starts at the earliest
//! four times its own duration after the last one ended: the trainer often shares a machine with the proxy it
//! serves, and must not take more than a fifth of one core from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foretoken_core::model::Model;

use super::State;
use super::status::{FitResult, LastFit, Pending};
use crate::dataset::Example;
use crate::export::now_ms;
use crate::fit::{FitError, Fitted, MIN_HOLDOUT, fit};
use crate::gate::{Verdict, judge};
use crate::ingest::MAX_AHEAD_MS;
use crate::metrics::Metrics;
use crate::registry::RegistryError;

/// Rest after a fit, as a multiple of its duration.
const REST: u32 = 4;

/// The last attempt, from which the next is timed.
struct Attempt {
    /// Earliest start of the next.
    next_at: Instant,
    /// Clean samples that there had been.
    clean: u64,
}

/// Runs until the service ends. A fit that is under way then is given up.
pub async fn run(state: Arc<State>) {
    let mut last: Option<Attempt> = None;
    loop {
        if !state.held() {
            publish_pending(&state).await;
        }
        if due(&state, last.as_ref()) {
            let started = Instant::now();
            let clean = state.store().counts().clean;
            let stop = Arc::new(AtomicBool::new(false));
            let mut fitting = tokio::task::spawn_blocking({
                let (state, stop) = (state.clone(), stop.clone());
                move || attempt(&state, &stop)
            });
            tokio::select! {
                _ = &mut fitting => {}
                () = state.stopped() => {
                    stop.store(true, Ordering::SeqCst);
                    // It ends after the round that it is in.
                    let _ = fitting.await;
                    return;
                }
            }
            let took = started.elapsed();
            last = Some(Attempt { next_at: started + state.refit_interval.max((1 + REST) * took), clean });
            continue;
        }
        let rest = last.as_ref().map(|last| last.next_at.saturating_duration_since(Instant::now()));
        tokio::select! {
            () = state.news.notified() => {}
            () = tokio::time::sleep(rest.unwrap_or_default()), if rest.is_some_and(|rest| !rest.is_zero()) => {}
            () = state.stopped() => return,
        }
    }
}

fn due(state: &State, last: Option<&Attempt>) -> bool {
    let trained_through_ms = state
        .registry()
        .current()
        .map(|(version, _)| version.trained_through_ms)
        .filter(|&through_ms| is_believable(through_ms, now_ms()));
    let store = state.store();
    if store.window_len() < state.min_samples {
        return false;
    }
    match (last, trained_through_ms) {
        (Some(last), _) => {
            Instant::now() >= last.next_at && store.counts().clean >= last.clean + MIN_HOLDOUT as u64
        }
        // The first since the start, with a model from before: something must be new to it.
        (None, Some(through_ms)) => store.newer_than(through_ms) >= MIN_HOLDOUT,
        (None, None) => true,
    }
}

/// Whether a model can have learned through this time. One that took a sample from the future in is treated
/// as if it said nothing: by its word, no sample would ever be new to it.
fn is_believable(through_ms: u64, now_ms: u64) -> bool {
    through_ms <= now_ms.saturating_add(MAX_AHEAD_MS)
}

/// One fit from examples to its result, on a blocking thread.
fn attempt(state: &State, stop: &AtomicBool) {
    let started = Instant::now();
    let examples = state.store().examples();
    let live = live_model(state);
    let live_through_ms = live
        .as_ref()
        .map(|(_, through_ms)| *through_ms)
        .filter(|&through_ms| is_believable(through_ms, now_ms()));
    let mut progress = || !stop.load(Ordering::SeqCst);
    let fitted = fit(&state.xgboost, &examples, live_through_ms, &state.fit_options, &mut progress);
    if matches!(fitted, Err(FitError::Stopped)) {
        return;
    }
    let took = started.elapsed();
    state.metrics.fit_seconds.observe(took.as_secs_f64());
    let last = match fitted {
        Ok(fitted) => judge_and_publish(state, &examples, fitted, live.as_ref().map(|(model, _)| model)),
        Err(error) => {
            tracing::error!(%error, samples = examples.len(), "no model");
            LastFit::failed(error.to_string())
        }
    };
    finish(state, LastFit { samples: examples.len(), ..last }, took);
}

/// The model that serves, and the newest sample that it learned from.
fn live_model(state: &State) -> Option<(Model, u64)> {
    let registry = state.registry();
    let (version, onnx) = registry.current()?;
    Some((Model::from_onnx_lean(onnx).ok()?, version.trained_through_ms))
}

fn judge_and_publish(state: &State, examples: &[Example], fitted: Fitted, live: Option<&Model>) -> LastFit {
    let held_out = examples.get(fitted.holdout.clone()).unwrap_or(&[]);
    let verdict = judge(&fitted.judged, live, held_out);
    for (target, model, prior) in [
        ("ttft", verdict.candidate.ttft, verdict.prior.ttft),
        ("tpot", verdict.candidate.tpot, verdict.prior.tpot),
    ] {
        Metrics::set(&state.metrics.holdout, &[target, "model"], model.map(|score| score.ape_median));
        Metrics::set(&state.metrics.holdout, &[target, "prior"], prior.map(|score| score.ape_median));
    }
    let mut last = LastFit {
        model_id: Some(fitted.model_id.clone()),
        rounds: Some(fitted.rounds),
        parity: Some(fitted.parity),
        onnx_bytes: Some(fitted.onnx.len()),
        reasons: verdict.refused.clone(),
        scores: Some(verdict.clone()),
        ..LastFit::failed(String::new())
    };
    if !verdict.passed() {
        tracing::warn!(model_id = %fitted.model_id, reasons = ?verdict.refused, "the gate refused a model");
        last.result = FitResult::Refused;
        return last;
    }
    let pending = Pending::new(fitted, &verdict);
    if state.held() {
        // A newer model replaces one that waits.
        *state.pending() = Some(pending);
        last.result = FitResult::Held;
        return last;
    }
    // One that waited since a hold is older than this.
    *state.pending() = None;
    match publish(state, pending) {
        Ok(()) => last.result = FitResult::Published,
        Err(error) => {
            tracing::error!(%error, "cannot publish");
            last.reasons.push(error.to_string());
        }
    }
    last
}

impl LastFit {
    fn failed(reason: String) -> Self {
        Self {
            at_ms: 0,
            duration_ms: 0,
            samples: 0,
            result: FitResult::Failed,
            reasons: vec![reason],
            model_id: None,
            scores: None,
            rounds: None,
            parity: None,
            onnx_bytes: None,
        }
    }
}

impl Pending {
    fn new(fitted: Fitted, verdict: &Verdict) -> Self {
        Self {
            onnx: fitted.onnx,
            model_id: fitted.model_id,
            trained_through_ms: fitted.trained_through_ms,
            scores: serde_json::to_value(verdict).unwrap_or_default(),
        }
    }
}

fn finish(state: &State, last: LastFit, took: Duration) {
    state.metrics.fits.with_label_values(&[last.result.name()]).inc();
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(result = last.result.name(), duration_ms, samples = last.samples, "fit");
    let mut fits = state.fits();
    fits.fits += 1;
    fits.last = Some(LastFit { at_ms: now_ms(), duration_ms, ..last });
}

/// Publishes the model that was held back, if there is one.
async fn publish_pending(state: &Arc<State>) {
    let Some(pending) = state.pending().take() else { return };
    let publisher = state.clone();
    let published = tokio::task::spawn_blocking(move || publish(&publisher, pending)).await;
    match published {
        Ok(Ok(())) => {
            if let Some(last) = &mut state.fits().last {
                last.result = FitResult::Published;
            }
        }
        Ok(Err(error)) => tracing::error!(%error, "cannot publish"),
        Err(error) => tracing::error!(%error, "cannot publish"),
    }
}

/// Makes a model the current one: on disk first, then to everybody.
fn publish(state: &State, model: Pending) -> Result<(), RegistryError> {
    let bytes = model.onnx.len();
    let publication = {
        let mut registry = state.registry();
        let Pending { onnx, model_id, trained_through_ms, scores } = model;
        registry.add(&model_id, trained_through_ms, scores, onnx)?;
        let (generation, onnx) =
            registry.current().map_or((0, None), |(version, onnx)| (version.generation, Some(onnx)));
        tracing::info!(generation, %model_id, bytes, "published");
        state.template.publication(generation, onnx)
    };
    state.metrics.generation.set(i64::try_from(publication.generation).unwrap_or(i64::MAX));
    state.metrics.model_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    state.fits().published += 1;
    state.publications.send_replace(Arc::new(publication));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_learned_through_the_future_is_not_believed() {
        let now_ms = 1_800_000_000_000;
        assert!(is_believable(now_ms + MAX_AHEAD_MS, now_ms));
        assert!(!is_believable(now_ms + MAX_AHEAD_MS + 1, now_ms));
        assert!(!is_believable(u64::MAX, now_ms));
    }
}
