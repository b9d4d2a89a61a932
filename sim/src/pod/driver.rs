//! Runs one engine in real time: one task per pod.
//!
//! Steps are laid end to end on the clock by their planned ends, so a timer that wakes up a millisecond
//! late delays that step's tokens but not the next step's. Only when the machine falls far behind (a
//! starved CPU) is the plan moved to now, and counted, since a pod that races through missed steps would
//! serve requests before they came.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Shared;
use crate::engine::{Engine, Submission, TokenEvent};

/// Lag beyond which the plan is moved instead of caught up with.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

/// One token on its way to a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    pub(super) position: u32,
    pub(super) finished: bool,
    pub(super) cached_tokens: u32,
}

/// What the HTTP side tells the engine.
#[derive(Debug)]
pub(super) enum Command {
    /// Queue a request; its tokens go to `deliveries`, at most one per output token.
    Submit { submission: Submission, arrived: Instant, deliveries: mpsc::UnboundedSender<Delivery> },
    /// The client is gone.
    Abort(u64),
    /// Forget everything, then say so.
    Reset(oneshot::Sender<()>),
}

/// A request whose tokens somebody waits for.
struct Waiter {
    deliveries: mpsc::UnboundedSender<Delivery>,
    arrived: Instant,
    last_token: Instant,
    prompt_tokens: u32,
}

struct Driver {
    shared: Arc<Shared>,
    engine: Engine,
    waiters: HashMap<u64, Waiter>,
}

/// Drives the pod's engine until the pod is killed or all handles to it are gone.
pub(super) async fn drive(shared: Arc<Shared>, commands: mpsc::UnboundedReceiver<Command>) {
    let killed = shared.clone();
    let engine = Engine::new(shared.options.profile.clone(), shared.options.seed);
    let driver = Driver { shared, engine, waiters: HashMap::new() };
    tokio::select! {
        () = driver.run(commands) => {}
        () = killed.faults.killed() => {}
    }
}

impl Driver {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut events = Vec::new();
        let mut planned = Instant::now();
        loop {
            while let Ok(command) = commands.try_recv() {
                self.apply(command);
            }
            self.engine.set_slow_factor(self.shared.faults.slow_factor());
            let step = self.engine.start_step();
            self.show();
            let Some(step) = step else {
                match commands.recv().await {
                    Some(command) => self.apply(command),
                    None => return,
                }
                planned = Instant::now();
                continue;
            };
            planned += Duration::from_micros(step.duration_us);
            tokio::time::sleep_until(planned).await;
            let now = Instant::now();
            self.engine.finish_step(&mut events);
            self.deliver(&mut events, now);
            let lag = now.saturating_duration_since(planned);
            if lag > MAX_CATCH_UP {
                planned = now;
            }
            self.note_lag(lag);
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Submit { submission, arrived, deliveries } => {
                let (id, prompt_tokens) = (submission.id, submission.prompt.len());
                // The size was checked against the same profile before it came here; should it fail all
                // the same, dropping `deliveries` breaks the response off.
                if self.engine.submit(submission).is_ok() {
                    self.waiters
                        .insert(id, Waiter { deliveries, arrived, last_token: arrived, prompt_tokens });
                }
            }
            Command::Abort(id) => {
                self.waiters.remove(&id);
                self.engine.abort(id);
            }
            Command::Reset(done) => {
                self.waiters.clear();
                self.engine = Engine::new(self.shared.options.profile.clone(), self.shared.options.seed);
                *self.shared.board() = super::board::Board::new();
                // Whoever asked may have gone.
                let _ = done.send(());
            }
        }
    }

    fn show(&self) {
        self.shared.board().engine = self.engine.stats();
    }

    fn note_lag(&self, lag: Duration) {
        let mut board = self.shared.board();
        board.late_steps += u64::from(lag > MAX_CATCH_UP);
        board.worst_lag = board.worst_lag.max(lag);
    }

    fn deliver(&mut self, events: &mut Vec<TokenEvent>, now: Instant) {
        let mut board = self.shared.board();
        board.engine = self.engine.stats();
        for TokenEvent { id, position, finished, cached_tokens } in events.drain(..) {
            let Some(waiter) = self.waiters.get_mut(&id) else { continue };
            if position == 0 {
                board.ttft.observe(now - waiter.arrived);
                board.prompt_tokens += u64::from(waiter.prompt_tokens);
                board.cached_tokens += u64::from(cached_tokens);
            } else {
                board.itl.observe(now - waiter.last_token);
            }
            waiter.last_token = now;
            // A closed channel means that the client left; its abort is on the way.
            let _ = waiter.deliveries.send(Delivery { position, finished, cached_tokens });
            if finished {
                board.e2e.observe(now - waiter.arrived);
                self.waiters.remove(&id);
            }
        }
    }
}
