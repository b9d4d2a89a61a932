//! Several workers as one router: whatever happens in whatever order, traps included, the books end at zero.

use std::collections::HashMap;

use super::tests::{OK, config, request, summary};
use super::{Dispatch, Outcome, PEER_STALE_US, Router};
use crate::features::Feature;
use crate::fleet::Fleet;
use crate::sample::Ending;
use proptest::prelude::*;

const PODS: [&str; 2] = ["10.0.0.1:8000", "10.0.0.2:8000"];

struct Worker {
    router: Router,
    live: Vec<(Dispatch, u32)>,
}

/// The workers of one Envoy and what they store in shared data.
struct Envoy {
    workers: Vec<Worker>,
    ledgers: HashMap<usize, Vec<u8>>,
    segments: HashMap<(usize, u64), Vec<u8>>,
    now_us: u64,
    incarnations: u64,
}

impl Envoy {
    fn new(workers: usize) -> Self {
        let mut envoy = Self {
            workers: Vec::new(),
            ledgers: HashMap::new(),
            segments: HashMap::new(),
            now_us: 1_000_000,
            incarnations: 0,
        };
        for _ in 0..workers {
            let worker = envoy.fresh();
            envoy.workers.push(worker);
        }
        envoy
    }

    fn fresh(&mut self) -> Worker {
        self.incarnations += 1;
        let mut router = Router::new(config(), self.incarnations);
        let mut fleet = Fleet::default();
        fleet.set_members(PODS.map(|pod| (pod.to_owned(), true)));
        router.set_fleet(fleet);
        Worker { router, live: Vec::new() }
    }

    /// What the filter does before a decision.
    fn sync(&mut self, at: usize) {
        for (slot, blob) in &self.ledgers {
            if *slot != at {
                let segments = &self.segments;
                self.workers[at].router.import_peer(u32::try_from(*slot).unwrap(), blob, |place| {
                    segments.get(&(*slot, place)).cloned()
                });
            }
        }
    }

    /// What it does after a change.
    fn publish(&mut self, at: usize, segment: Option<(u64, Vec<u8>)>) {
        if let Some((place, bytes)) = segment {
            self.segments.insert((at, place), bytes);
        }
        let blob = self.workers[at].router.export(Vec::new(), self.now_us);
        self.ledgers.insert(at, blob);
    }

    fn send(&mut self, at: usize, seed: u64) {
        self.sync(at);
        let asked = request(seed % 5, 8 + u32::try_from(seed % 40).unwrap());
        let worker = &mut self.workers[at];
        let decision = worker.router.decide(&asked, self.now_us).unwrap();
        let (dispatch, segment) = worker.router.dispatch(&decision, &asked, self.now_us, self.now_us);
        worker.live.push((dispatch, 0));
        self.publish(at, segment);
    }

    fn happen(&mut self, at: usize, event: u8, which: usize) {
        let now_us = self.now_us;
        let worker = &mut self.workers[at];
        if worker.live.is_empty() {
            return;
        }
        let which = which % worker.live.len();
        let (dispatch, tokens) = &mut worker.live[which];
        let segment = match event {
            // Envoy went to the other pod.
            0 => worker.router.served_by(dispatch, PODS[which % 2], now_us),
            1 | 2 => {
                *tokens += 3;
                worker.router.progress(dispatch, *tokens, now_us);
                None
            }
            _ => {
                let (mut dispatch, _) = worker.live.swap_remove(which);
                let ending = [Ending::Complete, Ending::Cancelled, Ending::Failed, Ending::Truncated]
                    [usize::from(event) % 4];
                let outcome = Outcome {
                    status: if ending == Ending::Failed { 0 } else { 200 },
                    attempts: 1 + u32::from(event % 2),
                    ending,
                    summary: (event > 5).then(|| summary(now_us - 1, 0, 0, 5)),
                    ..OK
                };
                let (_, segment) = worker.router.end(&mut dispatch, &outcome, now_us).unwrap();
                assert!(worker.router.end(&mut dispatch, &outcome, now_us).is_none());
                segment
            }
        };
        self.publish(at, segment);
    }

    /// The VM is gone with all its streams; a new one takes its slot. Its last blob stays in shared data.
    fn trap(&mut self, at: usize) {
        self.workers[at] = self.fresh();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_interleaving_of_events_on_one_to_eight_workers_traps_included_ends_at_zero(
        workers in 1_usize..=8,
        events in proptest::collection::vec((0_usize..8, 0_u8..14, 0_usize..64, 0_u64..400_000), 1..150),
    ) {
        let mut envoy = Envoy::new(workers);
        for (at, event, which, pause_us) in events {
            let at = at % workers;
            envoy.now_us += pause_us;
            match event {
                0..=4 => envoy.send(at, u64::try_from(which).unwrap()),
                5 if which < 8 => envoy.trap(at),
                _ => envoy.happen(at, event - 5, which),
            }
            // No router ever believes in more requests than there are, or were at VMs that trapped lately.
            let all: usize = envoy.workers.iter().map(|worker| worker.live.len()).sum();
            prop_assert_eq!(envoy.workers.iter().map(|worker| worker.router.inflight()).sum::<usize>(), all);
        }
        for at in 0..workers {
            while !envoy.workers[at].live.is_empty() {
                envoy.happen(at, 8, 0);
            }
        }
        // A VM that trapped and did not come back to write is believed until its heartbeat is too old.
        envoy.now_us += PEER_STALE_US + 1;
        for at in 0..workers {
            envoy.publish(at, None);
        }
        for at in 0..workers {
            envoy.sync(at);
            prop_assert_eq!(envoy.workers[at].router.inflight(), 0);
            let now_us = envoy.now_us;
            let decision = envoy.workers[at].router.decide(&request(99, 8), now_us).unwrap();
            for choice in &decision.choices {
                for feature in [
                    Feature::InflightRequests,
                    Feature::PrefillRequests,
                    Feature::PrefillTokens,
                    Feature::DecodingRequests,
                    Feature::DecodeTokensLeft,
                    Feature::ContextTokens,
                    Feature::UnscrapedRequests,
                ] {
                    prop_assert_eq!(choice.row.get(feature), 0.0, "{:?} of {}", feature, choice.address);
                }
            }
        }
    }
}

#[test]
fn what_one_worker_sent_is_in_the_other_ones_index_and_ledger() {
    let mut envoy = Envoy::new(2);
    envoy.send(0, 20);
    envoy.sync(1);
    let asked = request(0, 28);
    let decision = envoy.workers[1].router.decide(&asked, envoy.now_us).unwrap();
    let pod = envoy.workers[0].live[0].0.pod().to_owned();
    let there = decision.choices.iter().find(|choice| choice.address == pod).unwrap();
    assert_eq!(there.row.get(Feature::InflightRequests), 1.0);
    assert!(there.seen.surviving_tokens > 1000.0, "{:?}", there.seen);
}

#[test]
fn a_worker_that_trapped_is_believed_until_its_heartbeat_is_too_old() {
    let mut envoy = Envoy::new(2);
    envoy.send(0, 20);
    let pod = envoy.workers[0].live[0].0.pod().to_owned();
    envoy.workers[0].live.clear();
    let inflight = |envoy: &mut Envoy| {
        envoy.sync(1);
        let now_us = envoy.now_us;
        let decision = envoy.workers[1].router.decide(&request(3, 8), now_us).unwrap();
        let choice = decision.choices.iter().find(|choice| choice.address == pod).unwrap();
        choice.row.get(Feature::InflightRequests)
    };
    assert_eq!(inflight(&mut envoy), 1.0);
    envoy.now_us += PEER_STALE_US + 1;
    assert_eq!(inflight(&mut envoy), 0.0);
}
