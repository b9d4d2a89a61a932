//! The demo's load in virtual time: engines stepped by an event queue, no clock and no sockets.
//!
//! It answers what a preset must guarantee before anyone tunes a router on it: that the pool queues under
//! a policy without foresight, that it does not diverge, and that knowing where a conversation's cache is
//! pays. Deterministic, so the figures do not depend on the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::report::Summary;
use super::script::{Conversation, Outline, outlines};
use super::workload::{Api, Workload};
use crate::answer::Word;
use crate::engine::profile::Profile;
use crate::engine::{Engine, Submission};
use crate::pod::openai;

#[derive(Debug, Clone, Copy)]
enum Policy {
    RoundRobin,
    LeastRequest,
    /// By conversation, fast pods twice as often.
    Sticky,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    StepEnds { pod: usize },
    TurnIsDue { conversation: usize },
}

struct Pod {
    engine: Engine,
    in_flight: usize,
    stepping: bool,
}

/// A request on its way.
struct Pending {
    sent_us: u64,
    first_us: u64,
    digest: u64,
    turn: usize,
}

#[derive(Debug)]
struct Figures {
    requests: u64,
    ttft_ms: Summary,
    tpot_ms: Summary,
    e2e_ms: Summary,
    cached_share: f64,
    evicted_blocks: u64,
    /// Mean TTFT of the last quarter of the sending time over that of the second.
    drift: f64,
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

fn play(policy: Policy, seed: u64, seconds: u64) -> Figures {
    let workload = Workload::preset("demo").unwrap();
    let profiles = ["fast", "slow", "fast", "slow"].map(|name| Profile::built_in(name).unwrap());
    let mut pods: Vec<Pod> = profiles
        .iter()
        .zip(0..)
        .map(|(profile, seed)| Pod {
            engine: Engine::new(profile.clone(), seed),
            in_flight: 0,
            stepping: false,
        })
        .collect();
    let plan: Vec<Outline> = outlines(&workload, seed, 4, seconds as f64);
    let mut conversations: Vec<Conversation<'_>> =
        plan.iter().map(|outline| Conversation::begin(&workload, outline, seed)).collect();
    let mut next_turn: Vec<usize> = plan.iter().map(|outline| outline.past_turns).collect();
    let mut pending: Vec<Option<Pending>> = plan.iter().map(|_| None).collect();
    let mut queue: BinaryHeap<Reverse<(u64, Event)>> = plan
        .iter()
        .enumerate()
        .map(|(conversation, outline)| Reverse((micros(outline.start), Event::TurnIsDue { conversation })))
        .collect();
    let (mut times, mut tokens, mut sent) = (Vec::new(), Vec::new(), 0);
    while let Some(Reverse((now_us, event))) = queue.pop() {
        let at = match event {
            Event::TurnIsDue { conversation } => {
                let turn = next_turn[conversation];
                conversations[conversation].ask(turn);
                let (_, body) = conversations[conversation].request(turn);
                assert_eq!(workload.api, Api::Chat);
                let request =
                    openai::read(openai::Api::Chat, &body, &workload.model, &[], &profiles[0]).unwrap();
                let at = match policy {
                    Policy::RoundRobin => sent % pods.len(),
                    Policy::LeastRequest => (0..pods.len())
                        .map(|step| (sent + step) % pods.len())
                        .min_by_key(|pod| pods[*pod].in_flight)
                        .unwrap(),
                    Policy::Sticky => [0, 0, 1, 2, 2, 3][conversation % 6],
                };
                sent += 1;
                let digest = request.prompt.digest();
                pending[conversation] = Some(Pending { sent_us: now_us, first_us: 0, digest, turn });
                pods[at].in_flight += 1;
                let (prompt, max_output_tokens) = (request.prompt, request.max_tokens);
                pods[at]
                    .engine
                    .submit(Submission { id: conversation as u64, prompt, max_output_tokens })
                    .unwrap();
                at
            }
            Event::StepEnds { pod } => {
                pods[pod].stepping = false;
                pods[pod].engine.finish_step(&mut tokens);
                for token in tokens.drain(..) {
                    let conversation = token.id as usize;
                    let request = pending[conversation].as_mut().unwrap();
                    if token.position == 0 {
                        request.first_us = now_us;
                    }
                    if !token.finished {
                        continue;
                    }
                    pods[pod].in_flight -= 1;
                    let (first_us, ms) = (request.first_us, |from, to| (to - from) as f64 / 1000.0);
                    let tpot_ms = ms(first_us, now_us) / f64::from(token.position.max(1));
                    times.push((
                        request.sent_us,
                        ms(request.sent_us, first_us),
                        tpot_ms,
                        ms(request.sent_us, now_us),
                    ));
                    let (digest, turn) = (request.digest, request.turn);
                    let answer: Vec<u8> = (0..=token.position)
                        .flat_map(|at| Word::at(digest, at).as_bytes().to_vec())
                        .collect();
                    conversations[conversation].answered(String::from_utf8(answer).unwrap());
                    if let Some(next) = plan[conversation].turns.get(turn + 1) {
                        next_turn[conversation] = turn + 1;
                        queue.push(Reverse((now_us + micros(next.pause), Event::TurnIsDue { conversation })));
                    }
                }
                pod
            }
        };
        if !pods[at].stepping
            && let Some(step) = pods[at].engine.start_step()
        {
            pods[at].stepping = true;
            queue.push(Reverse((now_us + step.duration_us, Event::StepEnds { pod: at })));
        }
    }
    let stats: Vec<_> = pods.iter().map(|pod| pod.engine.stats()).collect();
    let sum = |of: fn(&crate::engine::EngineStats) -> u64| stats.iter().map(of).sum::<u64>();
    let quarter = |number: u64| {
        let range = number * seconds * 250_000..(number + 1) * seconds * 250_000;
        Summary::of(times.iter().filter(|time| range.contains(&time.0)).map(|time| time.1)).mean
    };
    Figures {
        requests: times.len() as u64,
        ttft_ms: Summary::of(times.iter().map(|time| time.1)),
        tpot_ms: Summary::of(times.iter().map(|time| time.2)),
        e2e_ms: Summary::of(times.iter().map(|time| time.3)),
        cached_share: sum(|stats| stats.prefix_hit_tokens) as f64
            / sum(|stats| stats.prefix_query_tokens) as f64,
        evicted_blocks: sum(|stats| stats.kv_evicted_blocks),
        drift: quarter(3) / quarter(1),
    }
}

#[test]
fn the_demo_load_queues_under_least_request_without_running_away() {
    let figures = play(Policy::LeastRequest, 1, 40);
    // An idle fast pod answers the median prompt in about 250 ms.
    assert!((400.0..2000.0).contains(&figures.ttft_ms.mean), "{figures:?}");
    assert!((10.0..20.0).contains(&(figures.requests as f64 / 40.0)), "{figures:?}");
    assert!(figures.evicted_blocks > 1000, "{figures:?}");
    // Over three times the demo's length the wait does not grow.
    assert!(play(Policy::LeastRequest, 1, 120).drift < 2.0, "{figures:?}");
}

#[test]
fn on_the_demo_load_knowing_where_the_cache_is_pays() {
    let (blind, sticky) = (play(Policy::LeastRequest, 1, 40), play(Policy::Sticky, 1, 40));
    assert!(sticky.cached_share > blind.cached_share + 0.15, "{blind:?}\n{sticky:?}");
    assert!(sticky.e2e_ms.mean < 0.8 * blind.e2e_ms.mean, "{blind:?}\n{sticky:?}");
}

#[test]
fn a_virtual_run_is_the_same_every_time() {
    let runs = [play(Policy::RoundRobin, 2, 10), play(Policy::RoundRobin, 2, 10)];
    assert_eq!(format!("{:?}", runs[0]), format!("{:?}", runs[1]));
}

/// Not a check: prints the figures for whoever changes the preset
/// (`cargo test -p foretoken-sim --release -- --ignored --nocapture demo_figures`).
#[test]
#[ignore = "prints a table"]
fn demo_figures_of_simple_policies() {
    for policy in [Policy::RoundRobin, Policy::LeastRequest, Policy::Sticky] {
        for seed in 1..=5 {
            let figures = play(policy, seed, 40);
            println!(
                "{policy:?} seed {seed}: {} requests, TTFT mean {:.0} p50 {:.0} p90 {:.0} p99 {:.0}, TPOT {:.1}, E2E {:.0}, cached {:.2}",
                figures.requests,
                figures.ttft_ms.mean,
                figures.ttft_ms.p50,
                figures.ttft_ms.p90,
                figures.ttft_ms.p99,
                figures.tpot_ms.mean,
                figures.e2e_ms.mean,
                figures.cached_share
            );
        }
    }
}
