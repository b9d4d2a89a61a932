//! The event loop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::content::BLOCK_TOKENS;
use super::pods::{Change, Pods, PoolChange, prompt_of};
use super::policy::{Ask, Pick, Policy, Token};
use super::record::{Ending, Record};
use super::scrape::PodMetrics;
use super::workload::{Arrival, Request, Workload};
use crate::engine::profile::Profile;
use crate::engine::{Engine, Submission, SubmitError, TokenEvent};

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No pods.
    #[error("the pool is empty; give at least one profile")]
    NoPods,
    /// The workload's blocks are not the profile's.
    #[error("profile `{name}`: `block_tokens` is {block_tokens}; virtual time needs {BLOCK_TOKENS}")]
    BlockTokens {
        /// The profile.
        name: String,
        /// Its block size.
        block_tokens: u32,
    },
    /// A request that no engine takes.
    #[error("request {number} of {prompt_tokens} prompt and {output_tokens} output tokens: {source}")]
    Request {
        /// Its number in order of arrival.
        number: u64,
        /// Prompt tokens.
        prompt_tokens: u32,
        /// Output tokens.
        output_tokens: u32,
        /// Why.
        source: SubmitError,
    },
    /// A policy named a pod that does not exist.
    #[error("policy `{policy}` picked pod {pod} of {pods}")]
    NoSuchPod {
        /// The policy.
        policy: String,
        /// Its pick.
        pod: usize,
        /// Number of pods.
        pods: usize,
    },
}

/// Looks at a run from outside, with the router's view and the truth side by side.
pub trait Observer {
    /// The policy has chosen, and nothing has happened yet: `ask.pods` is the truth at this moment
    /// ([`Pods::cached_tokens`]), `pick.decision` the router's view, where it has one.
    fn decided(&mut self, _ask: &Ask<'_>, _pick: &Pick) {}

    /// A request is over. [`Record::cached_tokens`] is what its pod really found when it was scheduled.
    fn ended(&mut self, _id: u64, _record: &Record) {}
}

/// An observer that does not look.
impl Observer for () {}

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// All requests in order of arrival.
    pub records: Vec<Record>,
    /// When the last one ended.
    pub end_us: u64,
    /// The pods as the run left them.
    pub pods: Pods,
    /// Whether it was broken off because too many requests were in flight.
    pub overloaded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Pool(usize),
    StepEnds { pod: usize, life: u32 },
    Scrape(usize),
    FollowUp(usize),
}

struct Live {
    request: Request,
    record: Record,
    /// Pods of the pick that have not been tried.
    rest: Vec<usize>,
}

/// A run to be: pods, a policy and a workload.
pub struct Simulation<'a> {
    pods: Pods,
    policy: &'a mut dyn Policy,
    workload: &'a mut dyn Workload,
    observer: &'a mut dyn Observer,
    changes: Vec<PoolChange>,
    max_live: usize,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    live: Vec<Option<Live>>,
    free: Vec<usize>,
    live_count: usize,
    follow_ups: Vec<Option<Request>>,
    waiting_follow_ups: usize,
    records: Vec<Record>,
    arrived: u64,
    tokens: Vec<TokenEvent>,
    now_us: u64,
}

impl<'a> Simulation<'a> {
    /// A pool of these pods.
    ///
    /// # Errors
    /// [`RunError::NoPods`], [`RunError::BlockTokens`].
    pub fn new(
        profiles: Vec<Profile>,
        policy: &'a mut dyn Policy,
        workload: &'a mut dyn Workload,
        observer: &'a mut dyn Observer,
        seed: u64,
    ) -> Result<Self, RunError> {
        if profiles.is_empty() {
            return Err(RunError::NoPods);
        }
        if let Some(odd) = profiles.iter().find(|profile| profile.block_tokens != BLOCK_TOKENS) {
            return Err(RunError::BlockTokens { name: odd.name.clone(), block_tokens: odd.block_tokens });
        }
        Ok(Self {
            pods: Pods::new(profiles, seed),
            policy,
            workload,
            observer,
            changes: Vec::new(),
            max_live: usize::MAX,
            events: BinaryHeap::new(),
            sequence: 0,
            live: Vec::new(),
            free: Vec::new(),
            live_count: 0,
            follow_ups: Vec::new(),
            waiting_follow_ups: 0,
            records: Vec::new(),
            arrived: 0,
            tokens: Vec::new(),
            now_us: 0,
        })
    }

    /// Changes the pool on the way. A pod whose first change is [`Change::Join`] is not there before it.
    #[must_use]
    pub fn with_changes(mut self, changes: Vec<PoolChange>) -> Self {
        let mut seen = vec![false; self.pods.len()];
        for change in &changes {
            if let Some(seen) = seen.get_mut(change.pod)
                && !std::mem::replace(seen, true)
                && change.change == Change::Join
            {
                self.pods.pods[change.pod].up = false;
            }
        }
        self.changes = changes;
        self
    }

    /// Breaks the run off once more requests than this are in flight: it will not recover.
    #[must_use]
    pub fn with_max_live(mut self, max_live: usize) -> Self {
        self.max_live = max_live;
        self
    }

    /// Runs until everything that arrives has ended.
    ///
    /// # Errors
    /// [`RunError`] when a request or a pick cannot be.
    pub fn run(mut self) -> Result<Run, RunError> {
        for at in 0..self.changes.len() {
            self.at(self.changes[at].at_us, Event::Pool(at));
        }
        self.tell_pool();
        if let Some(interval_us) = self.policy.scrape_interval_us() {
            // Pods are read one after the other, not all in the same instant.
            for pod in 0..self.pods.len() {
                self.at(interval_us * pod as u64 / self.pods.len() as u64, Event::Scrape(pod));
            }
        }
        let mut next = self.workload.next();
        let mut overloaded = false;
        loop {
            let event_us = self.events.peek().map(|Reverse((at_us, ..))| *at_us);
            let idle = next.is_none() && self.live_count == 0 && self.waiting_follow_ups == 0;
            if idle {
                break;
            }
            if let Some(arrival) = next.take_if(|arrival| event_us.is_none_or(|at_us| arrival.at_us <= at_us))
            {
                self.now_us = self.now_us.max(arrival.at_us);
                self.arrive(arrival.request)?;
                next = self.workload.next();
                if self.live_count > self.max_live {
                    overloaded = true;
                    break;
                }
                continue;
            }
            let Some(Reverse((at_us, _, event))) = self.events.pop() else { break };
            self.now_us = at_us;
            self.happen(event)?;
        }
        self.records.sort_unstable_by_key(|record| record.number);
        Ok(Run { records: self.records, end_us: self.now_us, pods: self.pods, overloaded })
    }

    fn at(&mut self, at_us: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_us, self.sequence, event)));
    }

    fn happen(&mut self, event: Event) -> Result<(), RunError> {
        match event {
            Event::Pool(at) => self.change_pool(at)?,
            Event::StepEnds { pod, life } => {
                if self.pods.pods[pod].life == life {
                    self.step_ended(pod)?;
                }
            }
            Event::Scrape(pod) => {
                if self.pods.is_up(pod) {
                    let metrics = PodMetrics::of(&self.pods.pods[pod].engine);
                    self.policy.scraped(pod, &metrics, self.now_us);
                }
                if let Some(interval_us) = self.policy.scrape_interval_us() {
                    self.at(self.now_us + interval_us.max(1), Event::Scrape(pod));
                }
            }
            Event::FollowUp(at) => {
                self.waiting_follow_ups -= 1;
                if let Some(request) = self.follow_ups[at].take() {
                    self.arrive(request)?;
                }
            }
        }
        Ok(())
    }

    fn arrive(&mut self, request: Request) -> Result<(), RunError> {
        let number = self.arrived;
        self.arrived += 1;
        let record = Record {
            number,
            tag: request.tag,
            pod: 0,
            arrived_us: self.now_us,
            first_us: 0,
            last_us: 0,
            prompt_tokens: request.prompt_tokens,
            cached_tokens: 0,
            output_tokens: 0,
            attempts: 0,
            ending: Ending::Failed,
            slo: request.slo,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.live.push(None);
            self.live.len() - 1
        });
        // Unique for the run, and its low half finds the slot.
        let id = number << 32 | slot as u64;
        let ask = Ask { id, request: &request, now_us: self.now_us, pods: &self.pods };
        let pick = self.policy.pick(&ask);
        self.observer.decided(&ask, &pick);
        if let Some(pod) = pick.pods.iter().copied().find(|pod| *pod >= self.pods.len()) {
            return Err(RunError::NoSuchPod {
                policy: self.policy.name().to_owned(),
                pod,
                pods: self.pods.len(),
            });
        }
        let shed = pick.pods.is_empty();
        let mut rest = pick.pods;
        rest.reverse();
        self.live[slot] = Some(Live { request, record, rest });
        self.live_count += 1;
        if shed {
            return self.end(id, Ending::Shed);
        }
        self.try_next(id)
    }

    /// Sends a request to the next pod of its pick that is in the pool.
    fn try_next(&mut self, id: u64) -> Result<(), RunError> {
        loop {
            let Some(live) = self.live[slot_of(id)].as_mut() else { return Ok(()) };
            let Some(pod) = live.rest.pop() else { return self.end(id, Ending::Failed) };
            live.record.attempts += 1;
            live.record.pod = pod;
            if !self.pods.is_up(pod) {
                continue;
            }
            let submission = Submission {
                id,
                prompt: prompt_of(&live.request),
                max_output_tokens: live.request.output_tokens,
            };
            if let Err(source) = self.pods.pods[pod].engine.submit(submission) {
                return Err(RunError::Request {
                    number: live.record.number,
                    prompt_tokens: live.request.prompt_tokens,
                    output_tokens: live.request.output_tokens,
                    source,
                });
            }
            let ask = Ask { id, request: &live.request, now_us: self.now_us, pods: &self.pods };
            self.policy.sent(&ask, pod, live.record.attempts);
            self.start_step(pod);
            return Ok(());
        }
    }

    fn start_step(&mut self, pod: usize) {
        let one = &mut self.pods.pods[pod];
        if let Some(step) = one.engine.start_step() {
            let life = one.life;
            let ends_us = self.now_us + step.duration_us.max(1);
            one.step_ends_us = Some(ends_us);
            self.at(ends_us, Event::StepEnds { pod, life });
        }
    }

    fn step_ended(&mut self, pod: usize) -> Result<(), RunError> {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let one = &mut self.pods.pods[pod];
        one.step_ends_us = None;
        one.engine.finish_step(&mut tokens);
        for token in &tokens {
            if let Some(live) = self.live[slot_of(token.id)].as_mut() {
                let record = &mut live.record;
                record.output_tokens = token.position + 1;
                record.last_us = self.now_us;
                if token.position == 0 {
                    record.first_us = self.now_us;
                    record.cached_tokens = token.cached_tokens;
                }
                self.policy.token(&Token { id: token.id, pod, tokens: token.position + 1 }, self.now_us);
                if token.finished {
                    self.end(token.id, Ending::Complete)?;
                }
            }
        }
        self.tokens = tokens;
        self.start_step(pod);
        Ok(())
    }

    fn end(&mut self, id: u64, ending: Ending) -> Result<(), RunError> {
        let slot = slot_of(id);
        let Some(Live { mut record, .. }) = self.live[slot].take() else { return Ok(()) };
        self.free.push(slot);
        self.live_count -= 1;
        record.ending = ending;
        self.policy.ended(id, &record, self.now_us);
        self.observer.ended(id, &record);
        if let Some(Arrival { at_us, request }) = self.workload.follow_up(&record, self.now_us) {
            self.follow_ups.push(Some(request));
            self.waiting_follow_ups += 1;
            self.at(at_us.max(self.now_us), Event::FollowUp(self.follow_ups.len() - 1));
        }
        self.records.push(record);
        Ok(())
    }

    fn change_pool(&mut self, at: usize) -> Result<(), RunError> {
        let PoolChange { pod, change, .. } = self.changes[at];
        let Some(one) = self.pods.pods.get_mut(pod) else { return Ok(()) };
        match change {
            Change::Slow(factor) => one.engine.set_slow_factor(factor),
            Change::Join | Change::Kill => {
                one.up = change == Change::Join;
                one.engine = Engine::new(one.engine.profile().clone(), self.sequence);
                one.step_ends_us = None;
                one.life += 1;
                self.tell_pool();
                let held: Vec<u64> = self.held_by(pod);
                for id in held {
                    // As Envoy does: another try while nothing has been sent to the client.
                    let started =
                        self.live[slot_of(id)].as_ref().is_some_and(|live| live.record.first_us > 0);
                    if started {
                        self.end(id, Ending::Failed)?;
                    } else {
                        self.try_next(id)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn held_by(&self, pod: usize) -> Vec<u64> {
        self.live
            .iter()
            .enumerate()
            .filter_map(|(slot, live)| live.as_ref().map(|live| (slot, live)))
            .filter(|(_, live)| live.record.pod == pod && live.record.attempts > 0)
            .map(|(slot, live)| live.record.number << 32 | slot as u64)
            .collect()
    }

    fn tell_pool(&mut self) {
        let up: Vec<bool> = (0..self.pods.len()).map(|pod| self.pods.is_up(pod)).collect();
        self.policy.pool_changed(&up, self.now_us);
    }
}

fn slot_of(id: u64) -> usize {
    (id & 0xFFFF_FFFF) as usize
}
