//! The loop as a whole: order, conservation, the same run twice, pools that change, the router's view.

use super::workload::Listed;
use super::*;
use crate::engine::profile::Profile;

fn profile() -> Profile {
    Profile { jitter_sigma: 0.0, ..Profile::built_in("h100").unwrap() }
}

fn request(tag: u64, shared: u32, private: u32, output_tokens: u32) -> Request {
    let mut content = Content::default();
    content.push(1, shared);
    content.push(1000 + tag, private);
    let prompt_tokens = content.tokens();
    content.push(2000 + tag, output_tokens);
    Request {
        prompt_tokens,
        output_tokens,
        blocks: content.blocks(),
        max_tokens: None,
        tag,
        slo: None,
        priority: 0,
    }
}

/// `count` requests every `gap_us`, in `groups` families of prompts.
fn arrivals(count: u64, gap_us: u64, groups: u64) -> Vec<Arrival> {
    (0..count)
        .map(|at| Arrival { at_us: at * gap_us, request: request(at % groups, 640, 1000, 20) })
        .collect()
}

struct Rotate(usize, usize);

impl Policy for Rotate {
    fn name(&self) -> &str {
        "rotate"
    }

    fn pick(&mut self, ask: &Ask<'_>) -> Pick {
        self.0 += 1;
        Pick { pods: (0..self.1).map(|at| (self.0 + at) % ask.pods.len()).collect(), decision: None }
    }
}

fn run(policy: &mut dyn Policy, pods: usize, arrivals: Vec<Arrival>) -> Run {
    let mut workload = Listed::new(arrivals);
    Simulation::new(vec![profile(); pods], policy, &mut workload, &mut (), 1).unwrap().run().unwrap()
}

fn foretoken(pods: usize, workers: usize) -> Foretoken {
    let options = ForetokenOptions { workers, shown: 1, ..ForetokenOptions::default() };
    Foretoken::new(pods, options, None).unwrap()
}

#[test]
fn every_request_ends_once_with_all_its_tokens() {
    let run = run(&mut Rotate(0, 1), 3, arrivals(200, 20_000, 50));
    assert_eq!(run.records.len(), 200);
    assert!(run.records.iter().zip(0..).all(|(record, number)| record.number == number));
    for record in &run.records {
        assert_eq!((record.ending, record.output_tokens), (record::Ending::Complete, 20));
        assert!(record.arrived_us < record.first_us && record.first_us < record.last_us);
    }
    assert_eq!((0..3).map(|pod| run.pods.engine(pod).stats().finished).sum::<u64>(), 200);
}

#[test]
fn a_lone_request_takes_what_the_profile_says() {
    let run = run(&mut Rotate(0, 1), 1, vec![Arrival { at_us: 5, request: request(1, 0, 1024, 3) }]);
    let record = &run.records[0];
    // floor + prefill + attention of one chunk of 1,024 tokens, as in the profile's own test.
    assert!((record.ttft_ms() - 83.2).abs() < 0.1, "{}", record.ttft_ms());
    assert!((record.tpot_ms().unwrap() - 31.3).abs() < 0.1, "{:?}", record.tpot_ms());
    assert_eq!(record.arrived_us, 5);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || {
        let mut policy = foretoken(3, 2);
        run(&mut policy, 3, arrivals(150, 15_000, 40)).records
    };
    assert_eq!(once(), once());
}

#[test]
fn a_conversation_finds_its_answer_in_the_cache() {
    struct Turns(u32);
    impl Workload for Turns {
        fn next(&mut self) -> Option<Arrival> {
            (self.0 == 0).then(|| self.turn(0))
        }
        fn follow_up(&mut self, ended: &Record, now_us: u64) -> Option<Arrival> {
            assert_eq!(ended.output_tokens, 100);
            (self.0 < 3).then(|| self.turn(now_us + 1000))
        }
    }
    impl Turns {
        fn turn(&mut self, at_us: u64) -> Arrival {
            let mut content = Content::default();
            for turn in 0..=u64::from(self.0) {
                if turn > 0 {
                    content.push(200 + turn, 100);
                }
                content.push(100 + turn, 640);
            }
            self.0 += 1;
            let prompt_tokens = content.tokens();
            content.push(200 + u64::from(self.0), 100);
            let blocks = content.blocks();
            let request = Request { prompt_tokens, output_tokens: 100, blocks, ..request(0, 0, 1, 1) };
            Arrival { at_us, request }
        }
    }
    let mut workload = Turns(0);
    let run = Simulation::new(vec![profile()], &mut Rotate(0, 1), &mut workload, &mut (), 1)
        .unwrap()
        .run()
        .unwrap();
    let cached: Vec<u32> = run.records.iter().map(|record| record.cached_tokens).collect();
    // After turn 1: 640 + 100 tokens, of which the last was never computed: 11 blocks. Then 740 more.
    assert_eq!(cached, [0, 11 * 64, 23 * 64]);
}

#[test]
fn the_observer_sees_view_and_truth_at_the_same_moment() {
    #[derive(Default)]
    struct Compare {
        decisions: usize,
        agree: usize,
        expected: std::collections::HashMap<u64, u32>,
        hits: usize,
    }
    impl Observer for Compare {
        fn decided(&mut self, ask: &Ask<'_>, pick: &Pick) {
            let decision = pick.decision.as_ref().unwrap();
            assert_eq!(decision.choices.len(), 2, "all candidates are listed");
            self.decisions += 1;
            for choice in &decision.choices {
                let pod = (0..2).find(|pod| foretoken::address(*pod) == choice.address).unwrap();
                let truth = ask.pods.cached_tokens(pod, ask.request);
                let view = decision.prompt_tokens - choice.uncached_tokens;
                self.agree += usize::from((view - truth as f32).abs() <= 64.0);
            }
            self.expected.insert(ask.id, ask.pods.cached_tokens(pick.pods[0], ask.request));
        }
        fn ended(&mut self, id: u64, record: &Record) {
            self.hits += usize::from(self.expected[&id] == record.cached_tokens);
        }
    }
    let mut policy = foretoken(2, 1);
    let mut workload = Listed::new(arrivals(100, 400_000, 10));
    let mut compare = Compare::default();
    Simulation::new(vec![profile(); 2], &mut policy, &mut workload, &mut compare, 1).unwrap().run().unwrap();
    assert_eq!(compare.decisions, 100);
    // Far from eviction and with time between requests the index knows the cache, and nothing changes in a queue.
    assert_eq!((compare.agree, compare.hits), (200, 100));
}

#[test]
fn a_pod_that_dies_costs_only_what_it_had_begun_to_answer() {
    let mut policy = Rotate(0, 2);
    let mut workload = Listed::new(arrivals(100, 50_000, 100));
    let changes = vec![
        PoolChange { at_us: 2_000_000, pod: 0, change: Change::Kill },
        PoolChange { at_us: 4_000_000, pod: 0, change: Change::Join },
    ];
    let run = Simulation::new(vec![profile(); 2], &mut policy, &mut workload, &mut (), 1)
        .unwrap()
        .with_changes(changes)
        .run()
        .unwrap();
    let failed = run.records.iter().filter(|record| record.ending == record::Ending::Failed).count();
    assert!(failed > 0 && failed < 25, "{failed}");
    for record in run.records.iter().filter(|record| record.ending == record::Ending::Complete) {
        let dead = 2_000_000..4_000_000;
        assert!(record.pod != 0 || !dead.contains(&record.arrived_us), "{record:?}");
    }
    assert!(run.records.iter().any(|record| record.pod == 0 && record.arrived_us > 4_000_000));
}

#[test]
fn routers_hear_of_a_dead_pod_and_of_a_new_one() {
    let mut policy = foretoken(3, 2);
    let mut workload = Listed::new(arrivals(300, 30_000, 300));
    let changes = vec![
        PoolChange { at_us: 2_000_000, pod: 0, change: Change::Kill },
        PoolChange { at_us: 4_000_000, pod: 2, change: Change::Join },
    ];
    let run = Simulation::new(vec![profile(); 3], &mut policy, &mut workload, &mut (), 1)
        .unwrap()
        .with_changes(changes)
        .run()
        .unwrap();
    let served = |pod, from_us, to_us| {
        run.records
            .iter()
            .filter(|record| record.pod == pod && (from_us..to_us).contains(&record.arrived_us))
            .count()
    };
    assert!(served(0, 0, 2_000_000) > 10);
    assert_eq!((served(0, 2_000_000, u64::MAX), served(2, 0, 4_000_000)), (0, 0));
    assert!(served(2, 4_000_000, u64::MAX) > 20);
}

#[test]
fn two_workers_route_nearly_as_well_as_one() {
    let ttft_ms = |workers| {
        let mut policy = foretoken(4, workers);
        Figures::of(&run(&mut policy, 4, arrivals(400, 12_000, 30)).records, 0.1, 0.05).ttft_ms.mean
    };
    let (one, two) = (ttft_ms(1), ttft_ms(2));
    assert!(two < 1.15 * one, "{one} {two}");
}

#[test]
fn envoys_that_hear_of_each_other_keep_prompts_where_they_are() {
    let hit_rate = |envoys, exchange_ms| {
        let options = ForetokenOptions { envoys, exchange_ms, ..ForetokenOptions::default() };
        let mut policy = Foretoken::new(4, options, None).unwrap();
        Figures::of(&run(&mut policy, 4, arrivals(600, 25_000, 40)).records, 0.3, 0.05).hit_rate
    };
    let (one, private, exchanged) = (hit_rate(1, None), hit_rate(4, None), hit_rate(4, Some(100)));
    assert!(private < 0.95 * one, "{one} {private}");
    assert!(exchanged > 0.97 * one, "{one} {exchanged}");
}

#[test]
fn a_router_that_takes_caches_for_endless_or_prompts_for_blank_routes_otherwise() {
    let pods_of = |options: ForetokenOptions| {
        let mut policy = Foretoken::new(3, options, None).unwrap();
        let records = run(&mut policy, 3, arrivals(150, 15_000, 40)).records;
        records.iter().map(|record| record.pod).collect::<Vec<_>>()
    };
    let whole = pods_of(ForetokenOptions::default());
    let no_ledger = foretoken_core::router::Ablation { no_ledger: true, ..Default::default() };
    assert_ne!(whole, pods_of(ForetokenOptions { prefixes: false, ..ForetokenOptions::default() }));
    assert_ne!(whole, pods_of(ForetokenOptions { ablation: no_ledger, ..ForetokenOptions::default() }));
}

#[test]
fn an_overloaded_run_is_broken_off() {
    let mut workload = Listed::new(arrivals(5000, 1000, 5000));
    let run = Simulation::new(vec![profile()], &mut Rotate(0, 1), &mut workload, &mut (), 1)
        .unwrap()
        .with_max_live(300)
        .run()
        .unwrap();
    assert!(run.overloaded && run.records.len() < 4000);
}

#[test]
fn odd_block_sizes_and_empty_pools_are_refused() {
    let mut workload = Listed::new(Vec::new());
    let small = Profile::built_in("fast").unwrap();
    let mut rotate = Rotate(0, 1);
    let error = Simulation::new(vec![small], &mut rotate, &mut workload, &mut (), 1).err().unwrap();
    assert!(error.to_string().contains("block_tokens"), "{error}");
    assert!(matches!(
        Simulation::new(Vec::new(), &mut rotate, &mut workload, &mut (), 1).err(),
        Some(RunError::NoPods)
    ));
}
