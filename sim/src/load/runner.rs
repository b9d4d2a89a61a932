//! Plays a workload against base URLs.
//!
//! Arrivals are open-loop: a slow server does not slow down who comes next (within a conversation the
//! next question does wait for the answer). The bound on requests in flight is only a safety net; when it
//! holds a request back, the record's `send_lag_ms` says so, so that no wait is hidden.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Client, ClientError, base_url};
use super::report::{Record, Report};
use super::script::{Conversation, Outline, outlines, planned_requests};
use super::workload::{Workload, WorkloadError};

/// How often the progress callback is called.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Why a run did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A target or header is not one.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The workload cannot be played.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Nowhere to send to.
    #[error("no target; name at least one base URL")]
    NoTarget,
}

/// How requests are spread when there are several targets. With a proxy there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// One after the other.
    RoundRobin,
    /// To the target with the fewest requests of this client in flight; among equals in turn.
    LeastRequest,
}

/// How to play a workload.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Base URLs, `http://host:port`.
    pub targets: Vec<String>,
    /// Spreading over several targets.
    pub balance: Balance,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// How long requests would be sent if answers took the workload's assumed time. All of them are sent and
    /// waited for, however long they take.
    pub seconds: f64,
    /// Pods behind the targets; multiplies the rates.
    pub pods: u32,
    /// Bound of requests in flight.
    pub max_in_flight: usize,
    /// A request that takes longer fails.
    pub timeout: Duration,
    /// `name: value` lines added to every request.
    pub headers: Vec<String>,
    /// Ends the run early when it turns true: nothing more is sent, what is in flight is dropped.
    pub stop: Option<watch::Receiver<bool>>,
}

impl RunOptions {
    /// One target, one pod, 10 seconds.
    #[must_use]
    pub fn new(target: impl Into<String>) -> Self {
        Self {
            targets: vec![target.into()],
            balance: Balance::RoundRobin,
            seed: 1,
            seconds: 10.0,
            pods: 1,
            max_in_flight: 1024,
            timeout: Duration::from_secs(120),
            headers: Vec::new(),
            stop: None,
        }
    }
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Requests that ended.
    pub done: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests in all; fewer come when a conversation ends with a failure.
    pub total: u64,
    /// Time since the start, seconds.
    pub seconds: f64,
}

/// What the conversations of a run share.
struct Run {
    client: Client,
    targets: Vec<Target>,
    balance: Balance,
    turn: AtomicU64,
    workload: Workload,
    seed: u64,
    began: Instant,
    timeout: Duration,
    permits: Semaphore,
    records: Mutex<Vec<Record>>,
    failed: AtomicU64,
}

struct Target {
    url: String,
    in_flight: AtomicU64,
}

/// Plays `workload` and reports. `progress` is called a few times a second and once at the end.
///
/// # Errors
/// [`RunError`] when it cannot start; failures of requests are in the report.
pub async fn run(
    workload: &Workload,
    options: &RunOptions,
    mut progress: impl FnMut(Progress),
) -> Result<Report, RunError> {
    workload.check()?;
    let urls = options.targets.iter().map(|target| base_url(target)).collect::<Result<Vec<_>, _>>()?;
    if urls.is_empty() {
        return Err(RunError::NoTarget);
    }
    let plan = outlines(workload, options.seed, options.pods, options.seconds);
    let expected = planned_requests(&plan);
    let began = Instant::now();
    let run = Arc::new(Run {
        client: Client::new(&options.headers)?,
        targets: urls.into_iter().map(|url| Target { url, in_flight: AtomicU64::new(0) }).collect(),
        balance: options.balance,
        turn: AtomicU64::new(0),
        workload: workload.clone(),
        seed: options.seed,
        began,
        timeout: options.timeout,
        permits: Semaphore::new(options.max_in_flight.max(1)),
        records: Mutex::new(Vec::new()),
        failed: AtomicU64::new(0),
    });

    let mut conversations = JoinSet::new();
    let mut plan = plan.into_iter().peekable();
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut stop = options.stop.clone();
    loop {
        let next = plan.peek().map(|outline| began + outline.start);
        if next.is_none() && conversations.is_empty() {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next.unwrap_or(began)), if next.is_some() => {
                if let Some(outline) = plan.next() {
                    conversations.spawn(converse(run.clone(), outline));
                }
            }
            Some(_) = conversations.join_next(), if !conversations.is_empty() => {}
            _ = ticks.tick() => progress(run.progress(expected)),
            () = stopped(&mut stop) => break,
        }
    }
    conversations.shutdown().await;
    progress(run.progress(0));
    let records = std::mem::take(&mut *run.records());
    Ok(Report::of(&workload.name, options.seed, records))
}

/// Resolves when the run shall stop; never when nobody can say so.
async fn stopped(stop: &mut Option<watch::Receiver<bool>>) {
    if let Some(stop) = stop
        && stop.wait_for(|stop| *stop).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl Run {
    fn records(&self) -> std::sync::MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self, expected: u64) -> Progress {
        let done = self.records().len() as u64;
        Progress {
            done,
            failed: self.failed.load(Ordering::Relaxed),
            in_flight: self.targets.iter().map(|target| target.in_flight.load(Ordering::Relaxed)).sum(),
            total: expected.max(done),
            seconds: self.began.elapsed().as_secs_f64(),
        }
    }

    fn pick(&self) -> &Target {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let count = self.targets.len();
        let in_turn = (0..count).map(|step| &self.targets[(turn + step) % count]);
        match self.balance {
            Balance::RoundRobin => &self.targets[turn % count],
            Balance::LeastRequest => in_turn
                .min_by_key(|target| target.in_flight.load(Ordering::Relaxed))
                .unwrap_or(&self.targets[turn % count]),
        }
    }
}

/// Counts a request as in flight for as long as it lives, however it ends.
struct InFlight<'a>(&'a Target);

impl<'a> InFlight<'a> {
    fn new(target: &'a Target) -> Self {
        target.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(target)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Plays one conversation; it ends early when a turn fails.
async fn converse(run: Arc<Run>, outline: Outline) {
    let mut conversation = Conversation::begin(&run.workload, &outline, run.seed);
    let mut due = run.began + outline.start;
    for turn in outline.past_turns..outline.turns.len() {
        tokio::time::sleep_until(due).await;
        conversation.ask(turn);
        let (path, body) = conversation.request(turn);
        let Ok(_permit) = run.permits.acquire().await else { return };
        let target = run.pick();
        let sent = Instant::now();
        let outcome = {
            let _in_flight = InFlight::new(target);
            run.client.send(&target.url, path, body, run.timeout).await
        };
        let mut record = Record {
            conversation: outline.number,
            turn: turn as u32,
            group: outline.group,
            sent_ms: (sent - run.began).as_secs_f64() * 1000.0,
            send_lag_ms: sent.saturating_duration_since(due).as_secs_f64() * 1000.0,
            target: target.url.clone(),
            pod: None,
            status: 0,
            failure: None,
            error_body: None,
            ttft_ms: None,
            tpot_ms: None,
            e2e_ms: None,
            prompt_tokens: None,
            cached_tokens: None,
            output_tokens: 0,
            explain: None,
        };
        let failed = outcome.failure.is_some();
        let mut outcome = outcome;
        conversation.answered(std::mem::take(&mut outcome.text));
        record.fill(outcome);
        run.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
        run.records().push(record);
        if failed {
            return;
        }
        if let Some(next) = outline.turns.get(turn + 1) {
            due = Instant::now() + next.pause;
        }
    }
}
