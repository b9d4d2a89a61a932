//! What this Envoy has sent to each pod and not yet seen answered.
//!
//! A scrape is a snapshot of the past; the request that was dispatched a microsecond ago is in no snapshot.
//! Each worker keeps its own ledger, is its only writer, and shares it as one blob with a heartbeat.
//! Readers add the blobs up ([`crate::load`]). Nothing is counted by increments in shared data: a VM that
//! traps never gives back what it counted, but a blob whose heartbeat stopped is simply ignored.
//!
//! Every request leaves exactly once, whatever ends it. Requests that ended stay visible for a moment, so
//! that a scrape taken before their end is not read as somebody else's traffic.

use std::collections::VecDeque;

use crate::codec::{Reader, Writer};
use crate::hash::KeyMap;
use crate::health::PodHealth;
use crate::lengths::OutputLengths;
use crate::num::{f32_of_f64, f32_of_u64, f64_of_u64};
use crate::occupancy::Occupancy;
use crate::placements::LogPosition;
use crate::prefix::Survival;
use crate::residual::Residual;
use crate::speed::{SpeedSums, Work};

/// Requests that one worker tracks at a time; further ones are routed but not tracked.
pub const MAX_INFLIGHT: usize = 8192;

/// Ended requests that stay visible: at most this many, for at most [`ENDED_KEPT_US`].
const MAX_ENDED: usize = 512;

/// A scrape older than this is too old to tell foreign traffic by it anyway.
const ENDED_KEPT_US: u64 = 2_000_000;

/// Pods with activity kept by one worker.
const MAX_ACTIVITY: usize = crate::fleet::MAX_PODS;

/// Time constant of the arrival rates: longer than the gaps between requests to one pod, shorter than a change of
/// load. A shorter one makes pods look different that are not: a prompt of seconds of work is a flood for a moment.
const RATE_MEMORY_S: f64 = 30.0;

/// First byte of the blob.
const FORMAT: u8 = 5;

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No token yet.
    Prefill,
    /// Tokens are coming.
    Decode,
    /// Over; kept for a moment.
    Ended,
}

/// One request at a pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// The pod.
    pub pod_key: u64,
    /// When it was dispatched.
    pub sent_us: u64,
    /// When it ended; 0 before.
    pub ended_us: u64,
    /// Where it stands.
    pub phase: Phase,
    /// Uncached prompt tokens expected at dispatch.
    pub prefill_tokens: f32,
    /// Prompt tokens.
    pub prompt_tokens: f32,
    /// Output tokens seen.
    pub output_tokens: f32,
    /// Output tokens expected in all.
    pub expected_output_tokens: f32,
}

impl Entry {
    /// The prefill that it takes.
    #[must_use]
    pub fn work(&self) -> Work {
        Work::of(self.prefill_tokens, self.prompt_tokens)
    }

    /// Prompt and output tokens that it holds.
    #[must_use]
    pub fn context_tokens(&self) -> f32 {
        self.prompt_tokens + self.output_tokens
    }

    /// Output tokens still expected; a request past its expectation is taken to go on for a little.
    #[must_use]
    pub fn output_left_tokens(&self) -> f32 {
        (self.expected_output_tokens - self.output_tokens).max(1.0)
    }
}

/// A rate with exponential forgetting. Additive over workers after [`Rate::at`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    per_s: f64,
    at_us: u64,
}

impl Rate {
    /// The rate at `now_us`, per second.
    #[must_use]
    pub fn at(&self, now_us: u64) -> f32 {
        let age_s = f64_of_u64(now_us.saturating_sub(self.at_us)) / 1e6;
        f32_of_f64(self.per_s * (-age_s / RATE_MEMORY_S).exp())
    }

    /// Counts `amount` at `now_us`.
    pub fn count(&mut self, amount: f32, now_us: u64) {
        self.per_s = f64::from(self.at(now_us)) + f64::from(amount) / RATE_MEMORY_S;
        self.at_us = self.at_us.max(now_us);
    }

    /// Takes back at `now_us` what was counted at `counted_us`.
    pub fn take_back(&mut self, amount: f32, counted_us: u64, now_us: u64) {
        let counted = Self { per_s: f64::from(amount) / RATE_MEMORY_S, at_us: counted_us };
        self.per_s = f64::from((self.at(now_us) - counted.at(now_us)).max(0.0));
        self.at_us = self.at_us.max(now_us);
    }
}

/// What a worker has seen of one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Activity {
    /// When the pod last produced a first token.
    pub last_first_token_us: u64,
    /// Requests sent.
    pub arrivals: Rate,
    /// Uncached prompt tokens sent.
    pub prefill_tokens: Rate,
    /// Of these, pairs of a token and one before it.
    pub prefill_token2: Rate,
    /// What it was busy with.
    pub occupancy: Occupancy,
    /// Its failures and ejections.
    pub health: PodHealth,
    /// Its speed.
    pub speed: SpeedSums,
    /// How far the model is off on it.
    pub residual: Residual,
    /// What its cache keeps.
    pub survival: Survival,
    /// Tokens, prompt and output, that ended requests had it compute, since this worker began.
    pub computed_tokens: f64,
}

/// A worker's ledger as others read it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerView {
    /// Random per VM: two blobs of one slot with different incarnations are different workers.
    pub incarnation: u64,
    /// Rises with every write.
    pub version: u64,
    /// When it was written.
    pub heartbeat_us: u64,
    /// How far its placement log is.
    pub log: LogPosition,
    /// Requests at pods.
    pub entries: Vec<Entry>,
    /// What was seen of pods.
    pub activity: Vec<(u64, Activity)>,
    /// Output lengths seen.
    pub lengths: OutputLengths,
}

/// This worker's own ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: KeyMap<Entry>,
    ended: VecDeque<Entry>,
    activity: KeyMap<Activity>,
    /// Output lengths seen by this worker.
    pub lengths: OutputLengths,
    version: u64,
    next_ticket: u64,
}

impl Ledger {
    /// Takes a request in. `None` when [`MAX_INFLIGHT`] are tracked already.
    pub fn admit(&mut self, entry: Entry) -> Option<u64> {
        self.note_arrival(entry.pod_key, entry.work(), entry.sent_us);
        if self.entries.len() >= MAX_INFLIGHT {
            return None;
        }
        self.next_ticket += 1;
        self.entries.insert(self.next_ticket, entry);
        Some(self.next_ticket)
    }

    fn note_arrival(&mut self, pod_key: u64, work: Work, now_us: u64) {
        if let Some(activity) = self.activity_mut(pod_key) {
            activity.arrivals.count(1.0, now_us);
            activity.prefill_tokens.count(work.tokens, now_us);
            activity.prefill_token2.count(work.token2, now_us);
        }
    }

    fn activity_mut(&mut self, pod_key: u64) -> Option<&mut Activity> {
        if self.activity.len() >= MAX_ACTIVITY && !self.activity.contains_key(&pod_key) {
            return None;
        }
        Some(self.activity.entry(pod_key).or_default())
    }

    /// Moves a request to the pod that really serves it (Envoy retried, or its policy chose).
    pub fn move_to(&mut self, ticket: u64, pod_key: u64, prefill_tokens: f32, now_us: u64) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        if entry.pod_key == pod_key {
            return;
        }
        if entry.phase == Phase::Decode
            && let Some(activity) = self.activity.get_mut(&entry.pod_key)
        {
            activity.occupancy.finish(entry.context_tokens(), now_us);
        }
        entry.pod_key = pod_key;
        entry.prefill_tokens = prefill_tokens;
        let entry = *entry;
        self.note_arrival(pod_key, entry.work(), now_us);
        if entry.phase == Phase::Decode
            && let Some(activity) = self.activity_mut(pod_key)
        {
            activity.occupancy.begin(entry.context_tokens(), Work::default(), now_us);
        }
    }

    /// The pod produced this request's first token.
    pub fn first_token(&mut self, ticket: u64, now_us: u64) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        if entry.phase == Phase::Decode {
            return;
        }
        entry.phase = Phase::Decode;
        let entry = *entry;
        if let Some(activity) = self.activity_mut(entry.pod_key) {
            activity.last_first_token_us = activity.last_first_token_us.max(now_us);
            activity.occupancy.begin(entry.context_tokens(), entry.work(), now_us);
        }
    }

    /// Output tokens seen so far.
    pub fn progress(&mut self, ticket: u64, output_tokens: u32, now_us: u64) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let before = core::mem::replace(&mut entry.output_tokens, f32_of_u64(u64::from(output_tokens)));
        if entry.phase == Phase::Decode
            && let Some(activity) = self.activity.get_mut(&entry.pod_key)
        {
            activity.occupancy.grow(entry.output_tokens - before, now_us);
        }
    }

    /// The request is over, however it ended. Further calls for the ticket do nothing.
    ///
    /// A prompt that never got a token (refused, cancelled) is taken out of the pod's prefill rate: it was
    /// not computed, and one of millions of tokens would pass for a flood.
    pub fn end(&mut self, ticket: u64, now_us: u64) -> Option<Entry> {
        let mut entry = self.entries.remove(&ticket)?;
        if let Some(activity) = self.activity.get_mut(&entry.pod_key) {
            match entry.phase {
                Phase::Prefill => {
                    let work = entry.work();
                    activity.prefill_tokens.take_back(work.tokens, entry.sent_us, now_us);
                    activity.prefill_token2.take_back(work.token2, entry.sent_us, now_us);
                }
                Phase::Decode => activity.occupancy.finish(entry.context_tokens(), now_us),
                Phase::Ended => {}
            }
        }
        entry.phase = Phase::Ended;
        entry.ended_us = now_us;
        self.ended.push_back(entry);
        while self.ended.len() > MAX_ENDED
            || self.ended.front().is_some_and(|oldest| oldest.ended_us + ENDED_KEPT_US < now_us)
        {
            self.ended.pop_front();
        }
        Some(entry)
    }

    /// Learns from an answer of a pod. What is known of the others fades a little, so that a pod that was
    /// slow once, and gets no requests for it, is taken for a typical one again and tried.
    pub fn observe_speed(&mut self, pod_key: u64, learn: impl FnOnce(&mut SpeedSums)) {
        for (key, activity) in &mut self.activity {
            if *key != pod_key {
                activity.speed.fade();
            }
        }
        if let Some(activity) = self.activity_mut(pod_key) {
            learn(&mut activity.speed);
        }
    }

    /// What this worker knows of a pod, to learn into; nothing when it follows too many pods.
    pub fn learn(&mut self, pod_key: u64, learn: impl FnOnce(&mut Activity)) {
        if let Some(activity) = self.activity_mut(pod_key) {
            learn(activity);
        }
    }

    /// A pod restarted: what was learned of its cache is void.
    pub fn forget_cache(&mut self, pod_key: u64) {
        if let Some(activity) = self.activity.get_mut(&pod_key) {
            activity.survival = Survival::default();
        }
    }

    /// A pod's record of failures, to note an answer in.
    pub fn health_mut(&mut self, pod_key: u64) -> Option<&mut PodHealth> {
        self.activity_mut(pod_key).map(|activity| &mut activity.health)
    }

    /// Drops what is known of pods that `keep` does not name.
    pub fn retain_pods(&mut self, keep: impl Fn(u64) -> bool) {
        self.activity.retain(|key, _| keep(*key));
    }

    /// Drops what is known of a pod.
    pub fn forget_pod(&mut self, pod_key: u64) {
        self.activity.remove(&pod_key);
    }

    /// Requests in flight.
    #[must_use]
    pub fn inflight(&self) -> usize {
        self.entries.len()
    }

    /// All entries, ended ones included.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().chain(&self.ended)
    }

    /// What was seen of pods.
    pub fn activity(&self) -> impl Iterator<Item = (u64, &Activity)> {
        self.activity.iter().map(|(key, activity)| (*key, activity))
    }

    /// What was seen of one pod.
    #[must_use]
    pub fn activity_of(&self, pod_key: u64) -> Option<&Activity> {
        self.activity.get(&pod_key)
    }

    /// Packs the ledger for the other workers.
    pub fn write(&mut self, out: &mut Writer, incarnation: u64, log: LogPosition, now_us: u64) {
        self.version += 1;
        out.u8(FORMAT);
        out.u64(incarnation);
        out.u64(self.version);
        out.u64(now_us);
        out.u64(log.placements);
        out.u64(log.segment);
        self.lengths.write(out);
        out.u16(u16::try_from(self.activity.len()).unwrap_or(u16::MAX));
        for (key, activity) in &self.activity {
            out.u64(*key);
            out.u64(activity.last_first_token_us);
            for rate in [activity.arrivals, activity.prefill_tokens, activity.prefill_token2] {
                out.f64(rate.per_s);
                out.u64(rate.at_us);
            }
            activity.occupancy.write(out);
            activity.health.write(out);
            activity.speed.write(out);
            activity.residual.write(out);
            activity.survival.write(out);
            out.f64(activity.computed_tokens);
        }
        out.u16(u16::try_from(self.entries.len() + self.ended.len()).unwrap_or(u16::MAX));
        for entry in self.entries() {
            out.u64(entry.pod_key);
            out.u64(entry.sent_us);
            out.u64(entry.ended_us);
            out.u8(match entry.phase {
                Phase::Prefill => 0,
                Phase::Decode => 1,
                Phase::Ended => 2,
            });
            out.f32(entry.prefill_tokens);
            out.f32(entry.prompt_tokens);
            out.f32(entry.output_tokens);
            out.f32(entry.expected_output_tokens);
        }
    }
}

impl LedgerView {
    /// What that worker saw of one pod.
    #[must_use]
    pub fn activity_of(&self, pod_key: u64) -> Option<&Activity> {
        self.activity.iter().find(|(key, _)| *key == pod_key).map(|(_, activity)| activity)
    }

    /// Version and incarnation at the head of a blob, to tell whether it need be read at all.
    #[must_use]
    pub fn peek(blob: &[u8]) -> Option<(u64, u64)> {
        let mut input = Reader::new(blob);
        (input.u8()? == FORMAT).then_some(())?;
        Some((input.u64()?, input.u64()?))
    }

    /// Incarnation and time of the last write, to tell whether its VM still lives.
    #[must_use]
    pub fn heartbeat(blob: &[u8]) -> Option<(u64, u64)> {
        let mut input = Reader::new(blob);
        (input.u8()? == FORMAT).then_some(())?;
        let (incarnation, _version) = (input.u64()?, input.u64()?);
        Some((incarnation, input.u64()?))
    }

    /// Unpacks a ledger; `None` when it is not one of this format.
    #[must_use]
    pub fn read(blob: &[u8]) -> Option<Self> {
        let mut input = Reader::new(blob);
        if input.u8()? != FORMAT {
            return None;
        }
        let (incarnation, version, heartbeat_us) = (input.u64()?, input.u64()?, input.u64()?);
        let log = LogPosition { placements: input.u64()?, segment: input.u64()? };
        let lengths = OutputLengths::read(&mut input)?;
        let pods = usize::from(input.u16()?).min(MAX_ACTIVITY);
        let mut activity = Vec::with_capacity(pods);
        for _ in 0..pods {
            let key = input.u64()?;
            let last_first_token_us = input.u64()?;
            let mut rate = || {
                let per_s = input.f64().filter(|per_s| per_s.is_finite())?;
                Some(Rate { per_s, at_us: input.u64()? })
            };
            let (arrivals, prefill_tokens, prefill_token2) = (rate()?, rate()?, rate()?);
            let activity_of_pod = Activity {
                last_first_token_us,
                arrivals,
                prefill_tokens,
                prefill_token2,
                occupancy: Occupancy::read(&mut input)?,
                health: PodHealth::read(&mut input)?,
                speed: SpeedSums::read(&mut input)?,
                residual: Residual::read(&mut input)?,
                survival: Survival::read(&mut input)?,
                computed_tokens: Some(input.f64()?).filter(|tokens| tokens.is_finite())?,
            };
            activity.push((key, activity_of_pod));
        }
        let count = usize::from(input.u16()?).min(MAX_INFLIGHT + MAX_ENDED);
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let (pod_key, sent_us, ended_us) = (input.u64()?, input.u64()?, input.u64()?);
            let phase = match input.u8()? {
                0 => Phase::Prefill,
                1 => Phase::Decode,
                _ => Phase::Ended,
            };
            entries.push(Entry {
                pod_key,
                sent_us,
                ended_us,
                phase,
                prefill_tokens: input.f32()?,
                prompt_tokens: input.f32()?,
                output_tokens: input.f32()?,
                expected_output_tokens: input.f32()?,
            });
        }
        Some(Self { incarnation, version, heartbeat_us, log, entries, activity, lengths })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(pod_key: u64, sent_us: u64) -> Entry {
        Entry {
            pod_key,
            sent_us,
            ended_us: 0,
            phase: Phase::Prefill,
            prefill_tokens: 100.0,
            prompt_tokens: 150.0,
            output_tokens: 0.0,
            expected_output_tokens: 50.0,
        }
    }

    #[test]
    fn a_request_leaves_once_and_stays_visible_for_a_moment() {
        let mut ledger = Ledger::default();
        let ticket = ledger.admit(entry(1, 10)).unwrap();
        ledger.first_token(ticket, 20);
        assert!(ledger.end(ticket, 30).is_some());
        assert!(ledger.end(ticket, 31).is_none());
        assert_eq!(ledger.inflight(), 0);
        assert_eq!(ledger.entries().count(), 1);
        let other = ledger.admit(entry(1, 40)).unwrap();
        ledger.end(other, 30 + ENDED_KEPT_US + 1);
        assert_eq!(ledger.entries().count(), 1, "the older end is forgotten");
    }

    #[test]
    fn a_blob_is_read_as_it_was_written() {
        let mut ledger = Ledger::default();
        let ticket = ledger.admit(entry(7, 10)).unwrap();
        ledger.admit(entry(8, 11)).unwrap();
        ledger.first_token(ticket, 20);
        ledger.progress(ticket, 3, 25);
        ledger.observe_speed(7, |speed| {
            speed.observe_ttft(&crate::speed::DEFAULT_SPEED, Work::of(100.0, 100.0), 12.0, 40.0);
        });
        ledger.learn(7, |activity| activity.computed_tokens += 12.0);
        let mut out = Writer::default();
        ledger.write(&mut out, 99, LogPosition { placements: 5, segment: 1 }, 1000);
        let blob = out.finish();
        assert_eq!(LedgerView::peek(&blob), Some((99, 1)));
        assert_eq!(LedgerView::heartbeat(&blob), Some((99, 1000)));
        let view = LedgerView::read(&blob).unwrap();
        assert_eq!((view.incarnation, view.log.placements, view.heartbeat_us), (99, 5, 1000));
        let mut got = view.entries.clone();
        let mut want: Vec<Entry> = ledger.entries().copied().collect();
        got.sort_by_key(|entry| entry.sent_us);
        want.sort_by_key(|entry| entry.sent_us);
        assert_eq!(got, want);
        assert_eq!(view.activity.len(), 2);
        for cut in 0..blob.len() {
            assert!(LedgerView::read(&blob[..cut]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn a_rate_settles_at_what_arrives_and_fades() {
        let mut rate = Rate::default();
        for i in 0..3000_u64 {
            rate.count(2.0, i * 100_000);
        }
        let now = 3000 * 100_000;
        assert!((rate.at(now) - 20.0).abs() < 1.0, "{}", rate.at(now));
        assert!(rate.at(now + 300_000_000) < 0.1);
    }

    #[test]
    fn a_prompt_that_was_never_computed_leaves_no_prefill_load() {
        let mut ledger = Ledger::default();
        let ticket = ledger.admit(Entry { prefill_tokens: 2e6, ..entry(1, 1_000_000) }).unwrap();
        let load = |ledger: &Ledger, now_us| ledger.activity().next().unwrap().1.prefill_tokens.at(now_us);
        assert!(load(&ledger, 1_000_000) > 6e4);
        ledger.end(ticket, 3_000_000);
        assert!(load(&ledger, 3_000_000) < 1.0);
    }

    proptest! {
        #[test]
        fn any_interleaving_of_events_ends_at_zero(events in proptest::collection::vec((0_u8..6, 0_usize..12, 0_u64..4), 0..300)) {
            let mut ledger = Ledger::default();
            let mut tickets = Vec::new();
            for (step, (event, pick, pod)) in events.into_iter().enumerate() {
                let now_us = u64::try_from(step).unwrap() * 1000;
                let ticket = tickets.get(pick % tickets.len().max(1)).copied().unwrap_or(0);
                match event {
                    0 | 1 => tickets.extend(ledger.admit(entry(pod, now_us))),
                    2 => ledger.first_token(ticket, now_us),
                    3 => ledger.progress(ticket, 3, now_us),
                    4 => ledger.move_to(ticket, pod, 10.0, now_us),
                    _ => { ledger.end(ticket, now_us); }
                }
                prop_assert!(ledger.inflight() <= tickets.len());
            }
            for ticket in tickets {
                ledger.end(ticket, 1_000_000);
            }
            prop_assert_eq!(ledger.inflight(), 0);
        }

        #[test]
        fn any_bytes_are_read_without_harm(blob in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = LedgerView::read(&blob);
        }
    }
}
