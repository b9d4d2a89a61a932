use super::*;
use crate::fallback::Rung;
use crate::sample::TokenSource;
use proptest::prelude::*;

fn predicted(ttft_ms: f32, tpot_ms: f32) -> Prediction {
    Prediction {
        ttft_ms_p50: ttft_ms,
        ttft_ms_p90: ttft_ms * 1.5,
        tpot_ms_p50: tpot_ms,
        tpot_ms_p90: tpot_ms * 1.5,
    }
}

fn terms(ttft_ms: f32, tpot_ms: f32, policy: SloPolicy, quantile: SloQuantile) -> Terms {
    Terms { targets: Targets::new(ttft_ms, tpot_ms), policy, quantile, ..Terms::default() }
}

/// Ranks pods given as (TTFT, TPOT, cost to others).
fn rank(terms: &Terms, pods: &[(f32, f32, f32)]) -> Vec<usize> {
    let predictions: Vec<Prediction> = pods.iter().map(|pod| predicted(pod.0, pod.1)).collect();
    let costs: Vec<Cost> = pods
        .iter()
        .map(|pod| Cost { own_ms: pod.0 + 100.0 * pod.1, others_ms: pod.2, ..Cost::default() })
        .collect();
    let totals: Vec<f32> = costs.iter().map(|cost| cost.own_ms + cost.others_ms).collect();
    terms.rank(&predictions, &costs, &totals, 100.0, 0.0, 1).unwrap()
}

const PODS: [(f32, f32, f32); 4] =
    [(100.0, 10.0, 900.0), (400.0, 12.0, 10.0), (3000.0, 10.0, 0.0), (50.0, 90.0, 5.0)];

#[test]
fn pack_takes_the_pod_where_it_costs_others_least_and_spread_the_fastest() {
    let p50 = SloQuantile::P50;
    assert_eq!(rank(&terms(1000.0, 20.0, SloPolicy::Pack, p50), &PODS)[..2], [1, 0]);
    assert_eq!(rank(&terms(1000.0, 20.0, SloPolicy::Spread, p50), &PODS)[..2], [0, 1]);
    // One target alone leaves the other open.
    assert_eq!(rank(&terms(0.0, 20.0, SloPolicy::Pack, p50), &PODS), [2, 1, 0, 3]);
}

#[test]
fn those_that_miss_come_after_by_what_they_miss_in_all() {
    let none_meets = terms(10.0, 5.0, SloPolicy::Pack, SloQuantile::P50);
    // 90 + 500 and 900 to others, 390 + 700 and 10, 2990 + 500, 40 + 8500 and 5.
    assert_eq!(rank(&none_meets, &PODS), [1, 0, 2, 3]);
    let ttft_only = terms(10.0, 0.0, SloPolicy::Pack, SloQuantile::P50);
    assert_eq!(rank(&ttft_only, &PODS), [3, 1, 0, 2]);
}

#[test]
fn the_ninetieth_percentile_is_asked_more_than_the_median() {
    let pods = [(90.0, 1.0, 0.0), (60.0, 1.0, 50.0)];
    assert_eq!(rank(&terms(100.0, 0.0, SloPolicy::Pack, SloQuantile::P50), &pods), [0, 1]);
    assert_eq!(rank(&terms(100.0, 0.0, SloPolicy::Pack, SloQuantile::P90), &pods), [1, 0]);
    let median_only = Prediction { ttft_ms_p90: f32::NAN, ..predicted(90.0, 1.0) };
    assert!(Miss::of(&median_only, Targets::new(100.0, 0.0), SloQuantile::P90).is_none());
}

#[test]
fn without_targets_nothing_is_ranked_here() {
    let without = Terms { priority: -3, ..Terms::default() };
    assert!(without.rank(&[predicted(1.0, 1.0)], &[Cost::default()], &[1.0], 1.0, 0.0, 1).is_none());
}

#[test]
fn priority_changes_what_the_delay_to_others_weighs() {
    let (policy, priority) = (PolicyConfig::default(), PriorityConfig::default());
    let weight = |of: i32| Terms { priority: of, ..Terms::default() }.weigh(&policy, &priority);
    assert_eq!(weight(0), policy);
    assert_eq!(weight(-7).delay_to_others, policy.delay_to_others * priority.weight);
    assert_eq!(weight(1).delay_to_others, policy.delay_to_others / priority.weight);
    assert_eq!(weight(9).tie_share, policy.tie_share);
}

fn sample(status: u16, streamed: bool, ending: Ending, ttft_ms: Option<f32>, tpot_ms: Option<f32>) -> Sample {
    Sample {
        id: String::new(),
        at_ms: 0,
        schema: String::new(),
        model: String::new(),
        pod: String::new(),
        picked: String::new(),
        features: Vec::new(),
        prior_ttft_ms: 0.0,
        prior_tpot_ms: 0.0,
        predicted_ttft_ms: 0.0,
        predicted_tpot_ms: 0.0,
        model_id: String::new(),
        rung: Rung::Prior,
        ttft_ms,
        tpot_ms,
        e2e_ms: None,
        prompt_tokens: None,
        cached_tokens: None,
        output_tokens: 0,
        tokens_from: TokenSource::Events,
        streamed,
        status,
        attempts: 1,
        ending,
    }
}

#[test]
fn a_target_is_met_missed_or_unknown() {
    let targets = Targets::new(100.0, 10.0);
    let of = |sample: &Sample| {
        let attained = Attained::of(targets, sample);
        (attained.ttft, attained.tpot)
    };
    let complete = Ending::Complete;
    assert_eq!(of(&sample(200, true, complete, Some(100.0), Some(11.0))), (Some(true), Some(false)));
    assert_eq!(of(&sample(200, true, complete, Some(99.0), None)), (Some(true), None));
    assert_eq!(of(&sample(200, false, complete, Some(99.0), Some(1.0))), (None, None), "not streamed");
    assert_eq!(of(&sample(200, true, Ending::Failed, Some(99.0), Some(1.0))), (Some(false), Some(false)));
    assert_eq!(of(&sample(503, false, complete, None, None)), (Some(false), Some(false)));
    assert_eq!(of(&sample(400, false, complete, None, None)), (None, None), "the client's own mistake");
    assert_eq!(of(&sample(0, false, Ending::Cancelled, None, None)), (None, None));
    assert_eq!(of(&sample(200, true, Ending::Cancelled, Some(150.0), None)), (Some(false), None));
    let only = Attained::of(Targets::new(100.0, 0.0), &sample(503, false, complete, None, None));
    assert_eq!((only.ttft, only.tpot), (Some(false), None));
}

proptest! {
    #[test]
    fn every_candidate_is_ranked_once_and_no_miss_before_a_hit(
        pods in prop::collection::vec((0.1_f32..5000.0, 0.1_f32..200.0, 0.0_f32..1e4), 1..40),
        ttft in 0.0_f32..3000.0, tpot in 0.0_f32..100.0, spread: bool, p90: bool, tie in 0.0_f32..0.5, random: u64,
    ) {
        let policy = if spread { SloPolicy::Spread } else { SloPolicy::Pack };
        let quantile = if p90 { SloQuantile::P90 } else { SloQuantile::P50 };
        let terms = terms(ttft.max(1.0), tpot, policy, quantile);
        let predictions: Vec<Prediction> = pods.iter().map(|pod| predicted(pod.0, pod.1)).collect();
        let costs: Vec<Cost> = pods
            .iter()
            .map(|pod| Cost { own_ms: pod.0 + 50.0 * pod.1, others_ms: pod.2, ..Cost::default() })
            .collect();
        let totals: Vec<f32> = costs.iter().map(|cost| cost.own_ms + cost.others_ms).collect();
        let ranked = terms.rank(&predictions, &costs, &totals, 50.0, tie, random).unwrap();
        let mut sorted = ranked.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..pods.len()).collect::<Vec<_>>());
        let meets: Vec<bool> =
            ranked.iter().map(|at| Miss::of(&predictions[*at], terms.targets, quantile).is_none()).collect();
        prop_assert!(meets.is_sorted_by(|one, other| one >= other), "{:?}", meets);
    }
}
