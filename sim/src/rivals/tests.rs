//! Each rival does what its source says it does.

use super::*;
use crate::engine::profile::Profile;
use crate::virtual_time::workload::Listed;
use crate::virtual_time::{Arrival, Content, Figures, Request, Run, Simulation};
use crate::workloads::{Shape, Synthetic};

fn request(group: u64, shared: u32, private: u64, own: u32, output_tokens: u32) -> Request {
    let mut content = Content::default();
    content.push(group, shared);
    content.push(1_000_000 + private, own);
    let prompt_tokens = content.tokens();
    content.push(2_000_000 + private, output_tokens);
    Request {
        prompt_tokens,
        output_tokens,
        blocks: content.blocks(),
        max_tokens: None,
        tag: group,
        slo: None,
        priority: 0,
    }
}

fn run(name: &str, pods: usize, arrivals: Vec<Arrival>) -> Run {
    let mut policy = rival(name, 3).unwrap();
    let profile = Profile { jitter_sigma: 0.0, ..Profile::built_in("h100").unwrap() };
    let mut workload = Listed::new(arrivals);
    Simulation::new(vec![profile; pods], &mut *policy, &mut workload, &mut (), 1).unwrap().run().unwrap()
}

/// 41 groups in turn, three seconds between two of a group.
fn grouped() -> Vec<Arrival> {
    (0..400)
        .map(|at| Arrival { at_us: at * 75_000, request: request(at % 41 + 1, 4032, at, 256, 40) })
        .collect()
}

#[test]
fn every_name_is_a_policy_of_that_name() {
    for name in RIVALS.iter().chain(&ORACLES) {
        assert_eq!(rival(name, 1).unwrap().name(), *name);
    }
    assert!(rival("no-such", 1).is_none());
}

#[test]
fn who_knows_prefixes_finds_them_and_who_does_not_does_not() {
    let hit_rate = |name| Figures::of(&run(name, 4, grouped()).records, 0.1, 0.05).hit_rate;
    for name in ["gie-default", "sticky", "radix", "higress", "oracle-social", "oracle-full"] {
        assert!(hit_rate(name) > 0.85, "{name}: {}", hit_rate(name));
    }
    // Dynamo's cost moves prefixes when that evens out what pods hold.
    assert!(hit_rate("kv-cost") > 0.6);
    // Without, a group's prefix is found when the draw repeats, and more often as pods fill up with all of them.
    let sticky = hit_rate("sticky");
    for name in ["random", "round-robin", "least-request", "power-of-two", "queue-kv"] {
        assert!(hit_rate(name) < sticky - 0.2, "{name}: {}", hit_rate(name));
    }
}

#[test]
fn round_robin_is_even_and_least_request_avoids_the_slow_answer() {
    let mut arrivals = vec![Arrival { at_us: 0, request: request(1, 64, 0, 64, 2000) }];
    arrivals.extend((1..40).map(|at| Arrival { at_us: at * 100_000, request: request(1, 64, at, 64, 2) }));
    let per_pod = |name: &str| {
        let mut counts = [0_usize; 2];
        run(name, 2, arrivals.clone()).records.iter().for_each(|record| counts[record.pod] += 1);
        counts
    };
    assert_eq!(per_pod("round-robin"), [20, 20]);
    let [one, two] = per_pod("least-request");
    assert_eq!((one.min(two), one.max(two)), (1, 39));
}

#[test]
fn sticky_lets_go_when_waiting_there_costs_five_seconds_more() {
    // 40 prompts of one group within a moment, each with 6,000 tokens of its own behind 24,000 shared: 300 ms each.
    let arrivals: Vec<Arrival> =
        (0..60).map(|at| Arrival { at_us: at * 1000, request: request(1, 24_000, at, 6000, 4) }).collect();
    let run = run("sticky", 2, arrivals);
    let first = run.records[0].pod;
    let moved = run.records.iter().position(|record| record.pod != first).unwrap();
    // The first computes everything (1.5 s); each further one adds 0.3 s.
    assert!((8..20).contains(&moved), "{moved}");
}

#[test]
fn the_social_oracle_beats_greed_where_prefixes_are_shared() {
    let e2e_ms = |name: &str| {
        let mut policy = rival(name, 3).unwrap();
        let mut workload = Synthetic::new(Shape::Churn, 4.5, 700, 9);
        let profiles = vec![Profile::built_in("h100").unwrap(); 4];
        let run = Simulation::new(profiles, &mut *policy, &mut workload, &mut (), 1).unwrap().run().unwrap();
        Figures::of(&run.records, 0.1, 0.05).e2e_ms.mean
    };
    let (greedy, social) = (e2e_ms("oracle-greedy"), e2e_ms("oracle-social"));
    assert!(social < greedy, "{social} {greedy}");
}
