//! The load of every candidate pod, added up over all workers' ledgers.
//!
//! One pass over the entries of all ledgers per decision, into a table indexed by candidate. Ledger and
//! telemetry overlap: what was sent before a pod's last scrape is in both. So the table also counts, per
//! pod, what that scrape must have seen of us; the rest of the scrape is foreign traffic.

use crate::hash::KeyMap;
use crate::health::Standing;
use crate::ledger::{Activity, Entry, Phase};
use crate::num::ms_between;
use crate::prefix::Survival;
use crate::residual::Residual;
use crate::speed::{SpeedSums, Work};

/// What is at one pod, by this Envoy's own books.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodLoad {
    /// Requests sent and not ended.
    pub inflight_requests: f32,
    /// Of these, without a first token.
    pub prefill_requests: f32,
    /// What they take to prefill.
    pub prefill: Work,
    /// Requests past their first token.
    pub decoding_requests: f32,
    /// Output tokens expected still, of all in flight.
    pub decode_left_tokens: f32,
    /// Of each of these at most as many as the request asked about is expected to produce: the tokens that they
    /// would decode beside it.
    pub common_tokens: f32,
    /// Prompt and output tokens held.
    pub context_tokens: f32,
    /// Of these, prompt tokens that the pod was expected to have when they were sent.
    pub cached_tokens: f32,
    /// Requests sent since the pod's last scrape.
    pub unscraped_requests: f32,
    /// Tokens that those hold or will hold.
    pub unscraped_context_tokens: f32,
    /// Prompt tokens of the requests without a first token.
    pub prefill_context_tokens: f32,
    /// Requests of ours that the last scrape must have seen.
    pub scraped_requests: f32,
    /// How long the pod has been at work on its oldest request without a first token.
    pub head_elapsed_ms: f32,
    /// Requests sent per second.
    pub arrivals_per_s: f32,
    /// Prefill work sent per second.
    pub prefill_per_s: Work,
    /// Whether it is left alone for its failures.
    pub ejected: bool,
    /// How far the model is off on it, by all workers.
    pub residual: Residual,
    /// What its cache keeps, by all workers.
    pub survival: Survival,
}

#[derive(Debug, Default)]
struct Slot {
    load: PodLoad,
    scraped_us: Option<u64>,
    oldest_prefill_us: Option<u64>,
    last_first_token_us: u64,
    standing: Standing,
    /// When the newest request was sent that has no token yet, and the newest that has one.
    newest_prefill_us: u64,
    newest_decode_us: u64,
    /// When a worker of those added so far last had a token from it.
    last_answer_us: u64,
}

/// Time in which what a worker learned loses two thirds of its weight to what others learn.
const LEARNING_KEPT_S: f32 = 60.0;

fn still_counts(behind_us: u64) -> f32 {
    (-ms_between(0, behind_us) / 1000.0 / LEARNING_KEPT_S).exp()
}

/// Adds ledgers up.
#[derive(Debug, Default)]
pub struct LoadTable {
    /// Where each pod's slot is; stands while the pods stay the same.
    index: KeyMap<usize>,
    keys: Vec<u64>,
    slots: Vec<Slot>,
    /// What all workers learned of each pod's speed; empty when nobody asked.
    speeds: Vec<SpeedSums>,
    expected_output_tokens: f32,
    /// The oldest of the pods' last scrapes: what ended before it is in none of them.
    oldest_scrape_us: Option<u64>,
}

impl LoadTable {
    /// Starts a table for these pods (key and time of the last scrape, in the order of the candidates) and a
    /// request that is expected to produce so many tokens. Speeds are large and seldom needed: they are added up
    /// only for `with_speeds`.
    pub fn start(
        &mut self,
        pods: impl Iterator<Item = (u64, Option<u64>)>,
        expected_output_tokens: f32,
        with_speeds: bool,
    ) {
        self.expected_output_tokens = expected_output_tokens;
        self.speeds.clear();
        self.slots.clear();
        self.oldest_scrape_us = None;
        let mut same_pods = true;
        for (key, scraped_us) in pods {
            self.oldest_scrape_us = [self.oldest_scrape_us, scraped_us].into_iter().flatten().min();
            if self.keys.get(self.slots.len()) != Some(&key) {
                same_pods = false;
                self.keys.truncate(self.slots.len());
                self.keys.push(key);
            }
            let load = PodLoad { survival: Survival::belief(), ..PodLoad::default() };
            self.slots.push(Slot { load, scraped_us, ..Slot::default() });
        }
        if !same_pods || self.keys.len() != self.slots.len() {
            self.keys.truncate(self.slots.len());
            self.index.clear();
            self.index.extend(self.keys.iter().copied().zip(0..));
        }
        if with_speeds {
            self.speeds.resize(self.slots.len(), SpeedSums::default());
        }
    }

    /// What all workers learned of the pods' speeds, in their order.
    #[must_use]
    pub fn speeds(&self) -> &[SpeedSums] {
        &self.speeds
    }

    fn slot(&mut self, pod_key: u64) -> Option<&mut Slot> {
        let at = *self.index.get(&pod_key)?;
        self.slots.get_mut(at)
    }

    /// Adds one request. Entries of pods that are no candidates are skipped.
    pub fn add_entry(&mut self, entry: &Entry) {
        if entry.phase == Phase::Ended && self.oldest_scrape_us.is_none_or(|oldest| entry.ended_us <= oldest)
        {
            return;
        }
        let own_tokens = self.expected_output_tokens;
        let Some(slot) = self.slot(entry.pod_key) else { return };
        let load = &mut slot.load;
        let seen_by_scrape = slot.scraped_us.is_some_and(|scraped_us| entry.sent_us <= scraped_us);
        if entry.phase == Phase::Ended {
            if seen_by_scrape && slot.scraped_us.is_some_and(|scraped_us| entry.ended_us > scraped_us) {
                load.scraped_requests += 1.0;
            }
            return;
        }
        load.inflight_requests += 1.0;
        load.decode_left_tokens += entry.output_left_tokens();
        load.common_tokens += entry.output_left_tokens().min(own_tokens);
        load.context_tokens += entry.context_tokens();
        load.cached_tokens += (entry.prompt_tokens - entry.prefill_tokens).max(0.0);
        if seen_by_scrape {
            load.scraped_requests += 1.0;
        } else {
            load.unscraped_requests += 1.0;
            load.unscraped_context_tokens += entry.context_tokens();
        }
        if entry.phase == Phase::Prefill {
            load.prefill_requests += 1.0;
            load.prefill = load.prefill.plus(entry.work());
            load.prefill_context_tokens += entry.prompt_tokens;
            let oldest = slot.oldest_prefill_us.unwrap_or(u64::MAX).min(entry.sent_us);
            slot.oldest_prefill_us = Some(oldest);
            slot.newest_prefill_us = slot.newest_prefill_us.max(entry.sent_us);
        } else {
            load.decoding_requests += 1.0;
            slot.newest_decode_us = slot.newest_decode_us.max(entry.sent_us);
        }
    }

    /// Adds what one worker saw of a pod.
    pub fn add_activity(&mut self, pod_key: u64, activity: &Activity, now_us: u64) {
        let Some(&at) = self.index.get(&pod_key) else { return };
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.load.arrivals_per_s += activity.arrivals.at(now_us);
        slot.load.prefill_per_s = slot.load.prefill_per_s.plus(Work {
            tokens: activity.prefill_tokens.at(now_us),
            token2: activity.prefill_token2.at(now_us),
        });
        slot.standing.merge(&activity.health);
        // What a worker saw last long before another did is old, whatever it has seen: its own clock of answers
        // stands still while it gets none.
        let known_us = slot.last_answer_us;
        slot.last_answer_us = known_us.max(activity.last_first_token_us);
        let behind = still_counts(known_us.saturating_sub(activity.last_first_token_us));
        let ahead = if known_us > 0 {
            still_counts(activity.last_first_token_us.saturating_sub(known_us))
        } else {
            1.0
        };
        let (mut residual, mut survival) = (activity.residual, activity.survival);
        residual.age(behind);
        survival.answers *= behind;
        slot.load.residual.age(ahead);
        slot.load.survival.answers *= ahead;
        slot.load.residual.absorb(&residual);
        slot.load.survival.absorb(&survival);
        if let Some(sums) = self.speeds.get_mut(at) {
            let mut speed = activity.speed;
            speed.scale(behind);
            sums.scale(ahead);
            sums.add(&speed);
        }
        slot.last_first_token_us = slot.last_first_token_us.max(activity.last_first_token_us);
    }

    /// The loads, in the order of the candidates.
    pub fn finish(&mut self, now_us: u64) -> impl Iterator<Item = &PodLoad> {
        for slot in &mut self.slots {
            slot.load.head_elapsed_ms = slot
                .oldest_prefill_us
                .map_or(0.0, |oldest_us| ms_between(oldest_us.max(slot.last_first_token_us), now_us));
            slot.load.ejected = slot.standing.is_ejected(now_us, |since_us| {
                slot.newest_prefill_us >= since_us && slot.newest_decode_us < since_us
            });
        }
        self.slots.iter().map(|slot| &slot.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(phase: Phase, sent_us: u64, ended_us: u64) -> Entry {
        Entry {
            pod_key: 1,
            sent_us,
            ended_us,
            phase,
            prefill_tokens: 100.0,
            prompt_tokens: 150.0,
            output_tokens: 2.0,
            expected_output_tokens: 50.0,
        }
    }

    #[test]
    fn what_a_scrape_has_seen_is_told_from_what_it_cannot_know() {
        let mut table = LoadTable::default();
        table.start([(1, Some(1_000))].into_iter(), 30.0, true);
        table.add_entry(&entry(Phase::Decode, 500, 0));
        table.add_entry(&entry(Phase::Prefill, 1_500, 0));
        table.add_entry(&entry(Phase::Ended, 500, 1_200));
        table.add_entry(&entry(Phase::Ended, 500, 900));
        table.add_entry(&entry(Phase::Ended, 1_300, 1_400));
        let load = *table.finish(2_000).next().unwrap();
        assert_eq!(load.inflight_requests, 2.0);
        assert_eq!(load.unscraped_requests, 1.0);
        // One in flight and one that ended after the scrape.
        assert_eq!(load.scraped_requests, 2.0);
        assert_eq!((load.prefill_requests, load.prefill.tokens), (1.0, 100.0));
        assert_eq!(load.decoding_requests, 1.0);
        // 48 and 50 tokens are left, of which the next request's 30 would be decoded beside it.
        assert_eq!((load.decode_left_tokens, load.common_tokens), (96.0, 60.0));
    }

    #[test]
    fn the_head_of_the_queue_started_when_the_former_one_finished() {
        let mut table = LoadTable::default();
        table.start([(1, None)].into_iter(), 30.0, true);
        table.add_entry(&entry(Phase::Prefill, 1_000, 0));
        table.add_entry(&entry(Phase::Prefill, 3_000, 0));
        table.add_activity(1, &Activity { last_first_token_us: 2_000, ..Activity::default() }, 7_000);
        assert_eq!(table.finish(7_000).next().unwrap().head_elapsed_ms, 5.0);
    }

    #[test]
    fn what_a_worker_learned_before_it_fell_idle_gives_way_to_what_another_learns() {
        let learned = |ms_per_token: f32, last_first_token_us: u64| {
            let mut activity = Activity { last_first_token_us, ..Activity::default() };
            for i in 0..60_u16 {
                let tokens = f32::from(i % 9) * 300.0;
                let speed = crate::speed::DEFAULT_SPEED;
                activity.speed.observe_ttft(
                    &speed,
                    Work { tokens, token2: 0.0 },
                    12.0,
                    20.0 + ms_per_token * tokens,
                );
                activity.residual.under(1).unwrap().ttft.observe(1.0, 20.0 * ms_per_token);
            }
            activity
        };
        let (idle, busy) = (learned(0.05, 1_000_000), learned(0.1, 301_000_000));
        for order in [[&idle, &busy], [&busy, &idle]] {
            let mut table = LoadTable::default();
            table.start([(1, None)].into_iter(), 30.0, true);
            for activity in order {
                table.add_activity(1, activity, 301_000_000);
            }
            let load = *table.finish(301_000_000).next().unwrap();
            let (speed, _) = crate::speed::speeds(table.speeds(), &crate::speed::DEFAULT_SPEED);
            let ms = speed.prefill.ttft_ms(Work { tokens: 2000.0, token2: 0.0 }, 12.0);
            assert!((ms - 220.0).abs() < 22.0, "{ms}");
            assert!(load.residual.factors(1).0 > 1.7, "{:?}", load.residual);
        }
    }

    #[test]
    fn entries_of_pods_that_left_are_skipped() {
        let mut table = LoadTable::default();
        table.start([(2, None)].into_iter(), 30.0, true);
        table.add_entry(&entry(Phase::Prefill, 1_000, 0));
        assert_eq!(table.finish(2_000).next().unwrap().inflight_requests, 0.0);
    }
}
