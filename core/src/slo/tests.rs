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

fn terms(ttft_ms: f32, tpot_ms: f32, policy: SloPolicy) -> Terms {
    Terms { targets: Targets::new(ttft_ms, tpot_ms), policy, miss_ms: 20_000.0, ..Terms::default() }
}

/// Prices of pods given as (TTFT, TPOT, cost to others), for 100 output tokens.
fn price(terms: &Terms, pods: &[(f32, f32, f32)]) -> Vec<f32> {
    let predictions: Vec<Prediction> = pods.iter().map(|pod| predicted(pod.0, pod.1)).collect();
    let costs: Vec<Cost> = pods
        .iter()
        .map(|pod| Cost { own_ms: pod.0 + 100.0 * pod.1, others_ms: pod.2, ..Cost::default() })
        .collect();
    let policy = PolicyConfig { ttft: 1.0, ..PolicyConfig::default() };
    let totals: Vec<f32> = costs.iter().map(|cost| cost.own_ms + cost.others_ms).collect();
    terms.price(&policy, &predictions, &costs, &totals).unwrap()
}

fn first(prices: &[f32]) -> usize {
    prices.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

#[test]
fn the_chance_of_a_miss_follows_the_percentiles() {
    let chance =
        |ttft_ms: f32, tpot_ms: f32| miss_chance(&predicted(100.0, 10.0), Targets::new(ttft_ms, tpot_ms));
    assert!((chance(100.0, 0.0) - 0.5).abs() < 1e-4, "at the median");
    assert!((chance(150.0, 0.0) - 0.1).abs() < 1e-3, "at the 90th percentile");
    assert!((chance(150.0, 15.0) - 0.19).abs() < 1e-3, "either of two");
    assert!(chance(1e6, 1e5) < 1e-3 && chance(1.0, 0.0) > 0.999);
    assert_eq!(chance(0.0, 0.0), 0.0);
    let median_only = Prediction { ttft_ms_p90: f32::NAN, ..predicted(100.0, 10.0) };
    assert!((miss_chance(&median_only, Targets::new(150.0, 0.0)) - 0.1).abs() < 0.01);
}

#[test]
fn pack_spares_others_and_spread_the_request_where_both_are_in_time() {
    let pods = [(100.0, 10.0, 900.0), (400.0, 12.0, 10.0)];
    assert_eq!(first(&price(&terms(9000.0, 200.0, SloPolicy::Pack), &pods)), 1);
    assert_eq!(first(&price(&terms(9000.0, 200.0, SloPolicy::Spread), &pods)), 0);
    assert_eq!(
        first(&price(&terms(9000.0, 200.0, SloPolicy::Balance), &pods)),
        1,
        "1510 and 410 against 1600 and 10"
    );
}

#[test]
fn a_miss_is_avoided_for_its_price_and_no_more() {
    // The first is late for certain; the second is in time and costs others much.
    let pods = |others_ms: f32| [(3000.0, 10.0, 0.0), (100.0, 10.0, others_ms)];
    let terms = terms(500.0, 0.0, SloPolicy::Balance);
    assert_eq!(first(&price(&terms, &pods(15_000.0))), 1);
    assert_eq!(first(&price(&terms, &pods(30_000.0))), 0);
}

#[test]
fn the_ninetieth_percentile_is_asked_more_than_the_median() {
    let targets = Targets::new(100.0, 0.0);
    assert!(Miss::of(&predicted(90.0, 1.0), targets, SloQuantile::P50).is_none());
    assert!(!Miss::of(&predicted(90.0, 1.0), targets, SloQuantile::P90).is_none());
    let median_only = Prediction { ttft_ms_p90: f32::NAN, ..predicted(90.0, 1.0) };
    assert!(Miss::of(&median_only, targets, SloQuantile::P90).is_none());
}

#[test]
fn without_targets_nothing_is_priced_here() {
    let without = Terms { priority: -3, ..Terms::default() };
    assert!(
        without.price(&PolicyConfig::default(), &[predicted(1.0, 1.0)], &[Cost::default()], &[1.0]).is_none()
    );
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
    fn a_price_is_finite_and_no_looser_target_costs_more(
        ttft in 0.1_f32..5000.0, tpot in 0.1_f32..200.0, p90 in 0.5_f32..9.0,
        target in 1.0_f32..3000.0, looser in 1.0_f32..10.0,
    ) {
        let prediction = Prediction {
            ttft_ms_p50: ttft, ttft_ms_p90: ttft * p90, tpot_ms_p50: tpot, tpot_ms_p90: tpot * p90,
        };
        let tight = miss_chance(&prediction, Targets::new(target, target / 20.0));
        let loose = miss_chance(&prediction, Targets::new(target * looser, target * looser / 20.0));
        prop_assert!((0.0..=1.0).contains(&tight) && loose <= tight + 1e-5, "{tight} {loose}");
    }
}
