//! Targets and priorities in a router's life.

use std::sync::Arc;

use super::tests::{A, OK, config, request, router, summary};
use super::{Decision, Dispatch, Outcome, Router};
use crate::config::{Config, SloPolicy};
use crate::fallback::Refusal;
use crate::fleet::Fleet;
use crate::slo::{Targets, Terms};

/// Settings that say nothing to requests without targets and priority.
fn other_settings() -> Arc<Config> {
    let mut config = (*config()).clone();
    config.slo.policy = SloPolicy::Spread;
    config.slo.forward_headers = false;
    config.priority.weight = 50.0;
    config.shed.ttft_ms = 1.0;
    Arc::new(config)
}

#[test]
fn without_targets_and_priority_every_decision_is_the_same_to_the_last_bit() {
    let mut router = router(1);
    let terms = Terms::of_route(&other_settings().route(Some("any")));
    let mut flying: Vec<(Dispatch, u64)> = Vec::new();
    for i in 0..300_u64 {
        let now_us = 1_000_000 + i * 37_000;
        let asked = request(i % 17, 40 + (i % 17) as u32 * 3);
        let random = router.random;
        let plain = router.decide(&asked, now_us).unwrap();
        router.random = random;
        router.set_config(other_settings());
        let other = router.decide_on(&asked, &terms, now_us).unwrap();
        router.set_config(config());
        assert_eq!((other.in_time, other.shed), (None, None));
        // Rows hold NaN, which equals nothing: their text is compared, which tells floats apart to the last bit.
        let other = Decision { terms: plain.terms, ..other };
        assert_eq!(format!("{plain:?}"), format!("{other:?}"));

        let (dispatch, _) = router.dispatch(&plain, &asked, now_us, now_us);
        flying.push((dispatch, now_us));
        if flying.len() > 12 {
            let (mut dispatch, started_us) = flying.remove(0);
            let ttft_ms = if dispatch.pod() == A { 400 } else { 200 };
            router.progress(&mut dispatch, 1, now_us);
            let outcome = Outcome { summary: Some(summary(started_us, ttft_ms, 12, 80)), ..OK };
            router.end(&mut dispatch, &outcome, now_us).unwrap();
        }
    }
}

fn busy_router() -> Router {
    let mut router = router(1);
    for i in 0..40 {
        let asked = request(100 + i, 400);
        let decision = router.decide(&asked, 1_000_000 + i).unwrap();
        router.dispatch(&decision, &asked, 1_000_000 + i, 1_000_000 + i);
    }
    router
}

fn terms(priority: i32, ttft_ms: f32) -> Terms {
    let targets = Targets::new(ttft_ms, 0.0);
    Terms { targets, priority, shed_by: targets, ..Terms::default() }
}

#[test]
fn choices_have_percentiles_however_many_pods_there_are() {
    for pods in [2, 30] {
        let mut router = router(1);
        let mut fleet = Fleet::default();
        fleet.set_members((0..pods).map(|pod| (format!("10.0.0.{pod}:80"), true)));
        router.set_fleet(fleet);
        let model = crate::model::Model::from_onnx(&crate::model::testing::model(3, 20, 5)).unwrap();
        let model = Arc::new(model);
        router.set_model(Some(Arc::clone(&model)), 1);
        let decision = router.decide(&request(1, 16), 1_000_100).unwrap();
        assert_eq!((decision.rung, decision.candidates), (crate::fallback::Rung::Model, pods));
        let mut whole = Vec::new();
        for choice in &decision.choices {
            assert!(choice.prediction.ttft_ms_p90 >= choice.prediction.ttft_ms_p50, "{choice:?}");
            model.predict(&[choice.row], &mut whole);
            assert_eq!(whole, [choice.prediction]);
        }
    }
}

#[test]
fn a_sheddable_request_that_no_pod_serves_in_time_is_shed_until_the_backlog_is_gone() {
    let mut router = busy_router();
    let asked = request(1, 16);
    let decision = router.decide_on(&asked, &terms(-1, 500.0), 1_000_100).unwrap();
    let shed = decision.shed.unwrap();
    assert_eq!((shed.refusal, shed.target_ms, decision.in_time), (Refusal::ShedTtft, 500.0, Some(false)));
    // Twenty prompts of 25,600 tokens are ahead.
    let predicted_s = decision.choices[0].prediction.ttft_ms_p90 / 1000.0;
    assert!(predicted_s > 10.0, "{predicted_s}");
    assert!(
        f64::from(shed.retry_after_s) >= 0.8 * f64::from(predicted_s.min(60.0)),
        "{shed:?}, {predicted_s}"
    );
    // What is not sheddable goes, whatever its chances.
    for priority in [0, 1] {
        let decision = router.decide_on(&asked, &terms(priority, 500.0), 1_000_100).unwrap();
        assert_eq!((decision.shed, decision.in_time), (None, Some(false)));
    }
    // A target that can be kept is kept.
    assert!(router.decide_on(&asked, &terms(-1, 3_600_000.0), 1_000_100).unwrap().shed.is_none());
}

#[test]
fn an_idle_pod_takes_a_sheddable_request_whatever_is_predicted() {
    let mut router = router(1);
    let decision = router.decide_on(&request(1, 4000), &terms(-1, 1.0), 1_000_000).unwrap();
    assert_eq!((decision.shed, decision.in_time), (None, Some(false)));
}

#[test]
fn spread_takes_the_fastest_pod_in_time_and_pack_leaves_it_to_others() {
    let mut router = router(1);
    // B, the faster, has a decode under way that a prefill would hold up.
    for i in 0..60 {
        let asked = request(100 + i, 16);
        let now_us = i * 1_000_000;
        let decision = router.decide(&asked, now_us).unwrap();
        let (mut dispatch, _) = router.dispatch(&decision, &asked, now_us, now_us);
        let (ttft_ms, tpot_ms) = if dispatch.pod() == A { (300, 20) } else { (100, 10) };
        let outcome = Outcome { summary: Some(summary(now_us, ttft_ms, tpot_ms, 100)), ..OK };
        router.end(&mut dispatch, &outcome, now_us + 1000).unwrap();
    }
    let mut fleet = Fleet::default();
    fleet.set_members(router.fleet().pods().iter().map(|pod| (pod.address.to_string(), *pod.address != *A)));
    let whole = router.fleet().clone();
    router.set_fleet(fleet);
    let asked = request(500, 16);
    let decision = router.decide(&asked, 61_000_000).unwrap();
    let (mut decoding, _) = router.dispatch(&decision, &asked, 61_000_000, 61_000_000);
    router.progress(&mut decoding, 1, 61_100_000);
    router.set_fleet(whole);
    let mut pick = |policy, ttft_ms| {
        let terms = Terms { policy, miss_ms: 20_000.0, ..terms(0, ttft_ms) };
        let decision = router.decide_on(&request(501, 16), &terms, 61_200_000).unwrap();
        (decision.choices[0].address == A, decision.in_time)
    };
    assert_eq!(pick(SloPolicy::Spread, 10_000.0), (false, Some(true)));
    assert_eq!(pick(SloPolicy::Pack, 10_000.0), (true, Some(true)));
    // Too tight for the slow one: both send it to the fast one.
    assert_eq!(pick(SloPolicy::Pack, 250.0), (false, Some(true)));
}

#[test]
fn the_explanation_tells_targets_and_priority_only_where_there_are_any() {
    let mut router = router(1);
    let plain = router.decide(&request(1, 16), 0).unwrap();
    assert!(!crate::explain::explain(&plain, 1).contains("asked"));
    let asked = router.decide_on(&request(1, 16), &terms(-2, 10_000.0), 0).unwrap();
    let value: serde_json::Value = serde_json::from_str(&crate::explain::explain(&asked, 1)).unwrap();
    assert_eq!(value["asked"], serde_json::json!({"ttft_ms": 10_000.0, "priority": -2, "in_time": true}));
}
