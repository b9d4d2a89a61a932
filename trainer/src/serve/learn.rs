//! The loop that learns: waits for samples, watches the model that serves, fits on a thread of its own, judges,
//! publishes.
//!
//! When to fit: as soon as there are as many clean samples as the first fit needs, then again when the
//! interval has passed and enough new samples have come to judge a model by; at once on drift. A fit starts at
//! the earliest four times its own duration after the last one ended: the trainer often shares a machine with
//! the proxy it serves, and must not take more than a fifth of one core from it. Its thread is nice besides.
//!
//! How to fit: on top of the live boosters, which takes a fraction of the time; from nothing on schedule, on
//! drift, when the boosters have grown too many trees, and when there are none of this feature schema.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foretoken_core::features::Row;
use foretoken_core::model::Model;
use tokio::sync::oneshot;

use super::State;
use super::status::{FitResult, LastFit};
use crate::dataset::Example;
use crate::fit::{FitError, Fitted, MIN_HOLDOUT, can_continue, fit};
use crate::gate::{cost, judge};
use crate::half::{Half, Halves, assemble};
use crate::ingest::MAX_AHEAD_MS;
use crate::metrics::Metrics;
use crate::registry::{Content, HalfCards, Origin, RegistryError, Version};
use crate::watch::{Drift, MIN_NEW, drift, regret};
use crate::xgb::{XgbError, Xgboost};

/// Rest after a fit, as a multiple of its duration.
const REST: u32 = 4;

/// Shortest time between two fits when there is drift, or when much has come since the last.
const HURRIED_INTERVAL: Duration = Duration::from_secs(5);

/// How many times as many samples as the last fit had are much: a young model is soon outdone by what comes in.
const GROWTH: u64 = 2;

/// Weight of the oldest example when errors have changed: what was before hardly counts.
const DRIFT_OLDEST_WEIGHT: f32 = 0.02;

/// New clean samples after which the live model is looked at again.
const WATCH_SAMPLES: u64 = 50;

/// How nice the thread of a fit is.
const NICE: i32 = 10;

/// The last attempt, from which the next is timed. Times are since the service's start.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    started: Duration,
    took: Duration,
    /// Clean samples that there had been.
    clean: u64,
}

/// When the loop does what: the part of it that is neither a task nor a thread.
#[derive(Debug, Default)]
pub(super) struct Plan {
    last: Option<Attempt>,
    last_full: Option<Duration>,
    /// Clean samples when the live model was last looked at.
    watched: u64,
}

impl Plan {
    /// Whether the live model is to be looked at; if so, that is noted.
    pub(super) fn is_watch_due(&mut self, state: &State) -> bool {
        let clean = state.store().counts().clean;
        let due = clean >= self.watched + WATCH_SAMPLES;
        if due {
            self.watched = clean;
        }
        due
    }

    /// Earliest start of the next fit; `None` when there has been none.
    fn next_fit_at(&self, state: &State) -> Option<Duration> {
        let Attempt { started, took, clean } = self.last?;
        let urgent = state.drift().urgent;
        let hurried = urgent || state.store().counts().clean >= GROWTH * clean;
        let interval =
            if hurried { state.refit_interval.min(HURRIED_INTERVAL) } else { state.refit_interval };
        Some(started + interval.max((1 + REST) * took))
    }

    /// Whether to fit now.
    pub(super) fn is_fit_due(&self, state: &State) -> bool {
        let trained_through_ms = state
            .registry()
            .current()
            .map(|(version, _)| version.trained_through_ms)
            .filter(|&through_ms| is_believable(through_ms, state.clock.now_ms()));
        let (window, clean) = {
            let store = state.store();
            (store.window_len(), store.counts().clean)
        };
        if window < state.min_samples {
            return false;
        }
        match (&self.last, trained_through_ms) {
            (Some(last), _) => {
                clean >= last.clean + MIN_HOLDOUT as u64
                    && self.next_fit_at(state).is_none_or(|at| state.clock.elapsed() >= at)
            }
            // The first since the start, with a model from before: something must be new to it.
            (None, Some(through_ms)) => state.store().newer_than(through_ms) >= MIN_HOLDOUT,
            (None, None) => true,
        }
    }

    /// Whether the next fit is one from nothing by schedule.
    pub(super) fn is_full_due(&self, state: &State) -> bool {
        self.last_full.is_none_or(|at| state.clock.elapsed() >= at + state.full_refit_interval)
    }

    /// Notes a fit that started then, from that many clean samples, and whether it was one from nothing.
    pub(super) fn fitted(&mut self, started: Duration, clean: u64, took: Duration, full: bool) {
        self.last = Some(Attempt { started, took, clean });
        if full {
            self.last_full = Some(started);
        }
    }

    /// When to look again if nothing happens; `None`: then not at all.
    fn wake_at(&self, state: &State) -> Option<Duration> {
        let now = state.clock.elapsed();
        let times = [self.next_fit_at(state), state.next_publish_at()];
        times.into_iter().flatten().filter(|at| *at > now).min()
    }
}

/// Runs until the service ends. A fit that is under way then is given up.
pub async fn run(state: Arc<State>) {
    let mut plan = Plan::default();
    loop {
        let publisher = state.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || publish_pending(&publisher)).await {
            tracing::error!(%error, "cannot publish");
        }
        if plan.is_watch_due(&state) {
            let watching = state.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || watch(&watching)).await {
                tracing::error!(%error, "cannot watch the live model");
            }
        }
        if plan.is_fit_due(&state) {
            let (started, clean) = (state.clock.elapsed(), state.store().counts().clean);
            let full = plan.is_full_due(&state);
            let stop = Arc::new(AtomicBool::new(false));
            let (done, mut fitting) = oneshot::channel();
            let thread = std::thread::Builder::new().name("fit".to_owned()).spawn({
                let (state, stop) = (state.clone(), stop.clone());
                move || {
                    // The caller may be gone: the service ends.
                    let _ = done.send(nicely(|| attempt(&state, full, &stop)));
                }
            });
            if let Err(error) = thread {
                tracing::error!(%error, "no thread to fit on");
            }
            let was_full = tokio::select! {
                // An error is a panic of the thread, which has printed itself.
                fitted = &mut fitting => fitted == Ok(true),
                () = state.stopped() => {
                    stop.store(true, Ordering::SeqCst);
                    // It ends after the round that it is in.
                    let _ = fitting.await;
                    return;
                }
            };
            plan.fitted(started, clean, state.clock.elapsed().saturating_sub(started), was_full);
            continue;
        }
        let rest = plan.wake_at(&state).map(|at| at.saturating_sub(state.clock.elapsed()));
        tokio::select! {
            () = state.news.notified() => {}
            () = tokio::time::sleep(rest.unwrap_or_default()), if rest.is_some() => {}
            () = state.stopped() => return,
        }
    }
}

/// Runs with a lower priority; it ends with the thread.
fn nicely<T>(work: impl FnOnce() -> T) -> T {
    // On Linux this is the calling thread alone, and the threads that XGBoost starts from it.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of a fit");
    }
    work()
}

/// Whether a model can have learned through this time. One that took a sample from the future in is treated
/// as if it said nothing: by its word, no sample would ever be new to it.
fn is_believable(through_ms: u64, now_ms: u64) -> bool {
    through_ms <= now_ms.saturating_add(MAX_AHEAD_MS)
}

/// The version that serves.
struct Live {
    version: Version,
    model: Model,
    halves: Option<Halves>,
}

impl Live {
    fn of(state: &State) -> Option<Self> {
        let (version, onnx, boosters) = {
            let registry = state.registry();
            let (version, onnx) = registry.current()?;
            (version.clone(), onnx.to_vec(), registry.boosters(version.generation))
        };
        let model = Model::from_onnx_lean(&onnx).ok()?;
        let halves = boosters.zip(version.halves.clone()).and_then(|(boosters, cards)| {
            match load_halves(&state.xgboost, boosters, cards) {
                Ok(halves) => Some(halves),
                Err(error) => {
                    tracing::warn!(%error, "the live boosters cannot be read; fitting from nothing");
                    None
                }
            }
        });
        Some(Self { version, model, halves })
    }

    /// The newest sample that it learned from, unless it says one that cannot be.
    fn through_ms(&self, now_ms: u64) -> Option<u64> {
        Some(self.version.trained_through_ms).filter(|&through_ms| is_believable(through_ms, now_ms))
    }
}

fn load_halves(xgboost: &Xgboost, boosters: [Vec<u8>; 2], cards: HalfCards) -> Result<Halves, XgbError> {
    let [ttft, tpot] = boosters;
    Ok(Halves {
        ttft: Half { booster: xgboost.load_booster(&ttft)?, card: cards.ttft },
        tpot: Half { booster: xgboost.load_booster(&tpot)?, card: cards.tpot },
    })
}

/// Looks at the live model: drift, and whether to go back to the one before it.
pub(super) fn watch(state: &State) {
    let Some((version, onnx)) = state.registry().current().map(|(v, onnx)| (v.clone(), onnx.to_vec())) else {
        return;
    };
    if !is_believable(version.trained_through_ms, state.clock.now_ms()) {
        return;
    }
    let examples = {
        let store = state.store();
        if store.newer_than(version.trained_through_ms) < MIN_NEW {
            return;
        }
        store.examples()
    };
    let Ok(model) = Model::from_onnx_lean(&onnx) else { return };
    let expected = ["/candidate/ttft/ape_median", "/candidate/tpot/ape_median"]
        .map(|place| version.scores.pointer(place).and_then(serde_json::Value::as_f64));
    let found = drift(&model, &examples, version.trained_through_ms, expected);
    state.metrics.drifted.set(found.drifted.into());
    if found.drifted && !state.drift().drifted {
        tracing::warn!(drift = ?found, "drift");
    }
    *state.drift_mut() = found;

    if state.held() || state.next_publish_at().is_some() {
        return;
    }
    let before = {
        let registry = state.registry();
        registry.before().and_then(|generation| registry.again(generation, Origin::RolledBackByItself).ok())
    };
    let Some(before) = before else { return };
    let Ok(model_before) = Model::from_onnx_lean(&before.onnx) else { return };
    let reasons = regret(&model, &model_before, &examples, version.published_ms);
    if reasons.is_empty() {
        return;
    }
    tracing::warn!(generation = version.generation, ?reasons, "going back to the version before");
    match publish(state, before) {
        Ok(()) => state.rolled_back(reasons),
        Err(error) => tracing::error!(%error, "cannot go back"),
    }
}

/// One fit from examples to its result; whether it was one from nothing.
pub(super) fn attempt(state: &State, full: bool, stop: &AtomicBool) -> bool {
    let started = Instant::now();
    let examples = state.store().examples();
    let live = Live::of(state);
    let drift: Drift = state.drift().clone();
    let mut options = state.fit_options.clone();
    if drift.urgent {
        options.oldest_weight = DRIFT_OLDEST_WEIGHT;
    }
    let continued = live
        .as_ref()
        .and_then(|live| live.halves.as_ref())
        .filter(|halves| !full && !drift.drifted && can_continue(halves, examples.len(), &options));
    let mut progress = || !stop.load(Ordering::SeqCst);
    let through_ms = live.as_ref().and_then(|live| live.through_ms(state.clock.now_ms()));
    let fitted = fit(&state.xgboost, &examples, continued, through_ms, &options, &mut progress);
    if matches!(fitted, Err(FitError::Stopped)) {
        return false;
    }
    let last = match fitted.and_then(|fitted| judge_and_publish(state, &examples, &fitted, live.as_ref())) {
        Ok(last) => last,
        Err(error) => {
            tracing::error!(%error, samples = examples.len(), "no model");
            LastFit::failed(error.to_string())
        }
    };
    let took = started.elapsed();
    state.metrics.fit_seconds.observe(took.as_secs_f64());
    finish(state, LastFit { samples: examples.len(), ..last }, took);
    continued.is_none()
}

fn judge_and_publish(
    state: &State,
    examples: &[Example],
    fitted: &Fitted,
    live: Option<&Live>,
) -> Result<LastFit, FitError> {
    let held_out = examples.get(fitted.holdout.clone()).unwrap_or(&[]);
    let mut verdict = judge(&fitted.judged, live.map(|live| &live.model), held_out);
    for (target, model, prior) in [
        ("ttft", verdict.candidate.ttft, verdict.prior.ttft),
        ("tpot", verdict.candidate.tpot, verdict.prior.tpot),
    ] {
        Metrics::set(&state.metrics.holdout, &[target, "model"], model.map(|score| score.ape_median));
        Metrics::set(&state.metrics.holdout, &[target, "prior"], prior.map(|score| score.ape_median));
    }
    let mut last = LastFit {
        model_id: Some(fitted.model_id.clone()),
        rounds: Some(fitted.rounds()),
        reasons: verdict.refused.clone(),
        scores: Some(verdict.clone()),
        ..LastFit::failed(String::new())
    };
    let live_halves = live.and_then(|live| live.halves.as_ref());
    let ttft = if verdict.ttft_passed { Some(&fitted.ttft.half) } else { live_halves.map(|live| &live.ttft) };
    let tpot = if verdict.tpot_passed { Some(&fitted.tpot.half) } else { live_halves.map(|live| &live.tpot) };
    let (Some(ttft), Some(tpot), true) = (ttft, tpot, verdict.ttft_passed || verdict.tpot_passed) else {
        tracing::warn!(model_id = %fitted.model_id, reasons = ?verdict.refused, "the gate refused a model");
        last.result = FitResult::Refused;
        return Ok(last);
    };
    let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
    let assembled = assemble(&state.xgboost, &fitted.facts(), ttft, tpot, &rows)?;
    let newest = rows.get(rows.len().saturating_sub(64)..).unwrap_or(&rows);
    let model = Model::from_onnx_lean(&assembled.onnx)?;
    let (cost, too_much) = cost(&assembled.onnx, &model, newest, &state.model_limits);
    last.parity = Some(assembled.parity);
    last.onnx_bytes = Some(assembled.onnx.len());
    last.cost = Some(cost);
    if !too_much.is_empty() {
        tracing::warn!(model_id = %fitted.model_id, reasons = ?too_much, "the gate refused a model");
        last.result = FitResult::Refused;
        last.reasons.extend(too_much.iter().cloned());
        return Ok(last);
    }
    verdict.refused.clone_from(&last.reasons);
    let card = Version {
        parent: live.map_or(0, |live| live.version.generation),
        halves: Some(HalfCards { ttft: ttft.card.clone(), tpot: tpot.card.clone() }),
        cost: serde_json::to_value(cost).unwrap_or_default(),
        ..Version::new(
            &fitted.model_id,
            fitted.window_ms,
            fitted.samples,
            serde_json::to_value(&verdict).unwrap_or_default(),
        )
    };
    let boosters = Some([ttft.booster.to_ubj()?, tpot.booster.to_ubj()?]);
    let content = Content { card, onnx: assembled.onnx, boosters };
    if state.held() || state.next_publish_at().is_some() {
        // A newer model replaces one that waits.
        *state.pending() = Some(content);
        last.result = if state.held() { FitResult::Held } else { FitResult::Waiting };
        return Ok(last);
    }
    // One that waited is older than this.
    *state.pending() = None;
    match publish(state, content) {
        Ok(()) => last.result = FitResult::Published,
        Err(error) => {
            tracing::error!(%error, "cannot publish");
            last.reasons.push(error.to_string());
        }
    }
    Ok(last)
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
            cost: None,
        }
    }
}

fn finish(state: &State, last: LastFit, took: Duration) {
    state.metrics.fits.with_label_values(&[last.result.name()]).inc();
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(result = last.result.name(), duration_ms, samples = last.samples, "fit");
    let mut fits = state.fits();
    fits.fits += 1;
    fits.last = Some(LastFit { at_ms: state.clock.now_ms(), duration_ms, ..last });
}

/// Publishes the model that waits, if there is one and it may go now.
pub(super) fn publish_pending(state: &State) {
    if state.held() || state.next_publish_at().is_some() {
        return;
    }
    let Some(pending) = state.pending().take() else { return };
    match publish(state, pending) {
        Ok(()) => {
            if let Some(last) = &mut state.fits().last {
                last.result = FitResult::Published;
            }
        }
        Err(error) => tracing::error!(%error, "cannot publish"),
    }
}

/// Makes a model the current one: on disk first, then to everybody.
pub(super) fn publish(state: &State, content: Content) -> Result<(), RegistryError> {
    let bytes = content.onnx.len();
    let model_id = content.card.model_id.clone();
    let publication = {
        let mut registry = state.registry();
        registry.add_at(content, state.clock.now_ms())?;
        let (generation, onnx) =
            registry.current().map_or((0, None), |(version, onnx)| (version.generation, Some(onnx)));
        tracing::info!(generation, %model_id, bytes, "published");
        state.template.publication(generation, onnx)
    };
    state.metrics.generation.set(i64::try_from(publication.generation).unwrap_or(i64::MAX));
    state.metrics.model_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    state.metrics.drifted.set(0);
    *state.drift_mut() = Drift::default();
    state.fits().published += 1;
    state.published_now();
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

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_thread_of_a_fit_is_nice() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let within = std::thread::spawn(move || nicely(nice)).join().unwrap();
        assert_eq!(within, NICE.max(before));
        assert_eq!(nice(), before);
    }
}
