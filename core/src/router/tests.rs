//! A router's life without a proxy: decisions, two workers that hear of each other, outcomes.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Dispatch, Outcome, Router};
use crate::config::Config;
use crate::fallback::{Reason, Rung};
use crate::features::Feature;
use crate::fleet::{Fleet, Served};
use crate::hash::{chain, pod_key};
use crate::request::{Api, LlmRequest, Prompt};
use crate::response::{Summary, Usage};
use crate::sample::{Ending, TokenSource};
use crate::served::ServedModels;
use crate::telemetry::{Dialect, Scrape};

pub(super) const A: &str = "10.0.0.1:8000";
const B: &str = "10.0.0.2:8000";

pub(super) fn config() -> Arc<Config> {
    Arc::new(
        Config::from_json(
            br#"{"cluster":"pods","endpoints":{"addresses":["10.0.0.1:8000","10.0.0.2:8000"]}}"#,
        )
        .unwrap(),
    )
}

pub(super) fn router(incarnation: u64) -> Router {
    let mut router = Router::new(config(), incarnation);
    let mut fleet = Fleet::default();
    fleet.set_members([(A.to_owned(), true), (B.to_owned(), true)]);
    router.set_fleet(fleet);
    router
}

/// A request whose prompt is `blocks` blocks of 256 bytes, of the conversation `seed`.
pub(super) fn request(seed: u64, blocks: u32) -> LlmRequest {
    let mut state = seed;
    let hashes = (0..blocks)
        .map(|i| {
            state = chain(state, &i.to_le_bytes());
            state
        })
        .collect();
    LlmRequest {
        api: Api::Completions,
        model: "m".to_owned(),
        stream: true,
        include_usage: true,
        max_tokens: Some(100),
        prompt: Prompt { text_bytes: blocks * 256, blocks: hashes, ..Prompt::default() },
    }
}

pub(super) fn summary(start_us: u64, ttft_ms: u64, tpot_ms: u64, tokens: u32) -> Summary {
    let first_us = start_us + ttft_ms * 1000;
    Summary {
        first_token_us: Some(first_us),
        last_token_us: Some(first_us + tpot_ms * 1000 * u64::from(tokens - 1)),
        output_tokens: tokens,
        tokens_from: TokenSource::Usage,
        usage: Usage { completion_tokens: Some(tokens), ..Usage::default() },
        complete: true,
        ..Summary::default()
    }
}

pub(super) const OK: Outcome =
    Outcome { status: 200, attempts: 1, streamed: true, ending: Ending::Complete, summary: None };

/// Sends a request to wherever the router picks and ends it; returns the pod.
fn serve(
    router: &mut Router,
    request: &LlmRequest,
    now_us: u64,
    times: impl Fn(&str) -> (u64, u64),
) -> String {
    let decision = router.decide(request, now_us).unwrap();
    let (mut dispatch, _) = router.dispatch(&decision, request, now_us, now_us);
    let (ttft_ms, tpot_ms) = times(dispatch.pod());
    let outcome = Outcome { summary: Some(summary(now_us, ttft_ms, tpot_ms, 100)), ..OK };
    router.end(&mut dispatch, &outcome, now_us + 1_000).unwrap();
    dispatch.pod().to_owned()
}

#[test]
fn without_pods_envoy_decides() {
    let mut router = Router::new(config(), 1);
    assert_eq!(router.decide(&request(1, 4), 0).unwrap_err(), Reason::NoCandidates);
}

#[test]
fn a_prompt_goes_back_to_the_pod_that_holds_it() {
    let mut router = router(1);
    let first = serve(&mut router, &request(1, 40), 1_000, |_| (500, 10));
    for turn in 1..10 {
        assert_eq!(
            serve(&mut router, &request(1, 40 + turn), u64::from(turn) * 10_000_000, |_| (500, 10)),
            first
        );
    }
}

#[test]
fn a_request_in_flight_is_seen_by_the_next_decision() {
    let mut router = router(1);
    let big = request(1, 200);
    let decision = router.decide(&big, 1_000).unwrap();
    let (_dispatch, _) = router.dispatch(&decision, &big, 1_000, 1_000);
    let busy = decision.choices[0].address.clone();
    // A microsecond later no scrape can know of it.
    let next = router.decide(&request(2, 200), 1_001).unwrap();
    assert_ne!(next.choices[0].address, busy);
    let row = next.choices.iter().find(|choice| choice.address == busy).unwrap().row;
    assert_eq!(row.get(Feature::InflightRequests), 1.0);
    assert_eq!(row.get(Feature::PrefillTokens), 200.0 * 64.0);
}

#[test]
fn two_workers_hear_of_each_others_requests_and_prompts() {
    let (mut one, mut two) = (router(1), router(2));
    let mut ring: HashMap<u64, Vec<u8>> = HashMap::new();
    let long = request(1, 200);
    let decision = one.decide(&long, 1_000).unwrap();
    let (mut dispatch, segment) = one.dispatch(&decision, &long, 1_000, 1_000);
    ring.extend(segment);
    let pod = dispatch.pod().to_owned();
    let blob = one.export(Vec::new(), 1_001);
    assert!(two.import_peer(0, &blob, |place| ring.get(&place).cloned()));

    // Another prompt avoids the busy pod.
    assert_ne!(two.decide(&request(2, 200), 1_002).unwrap().choices[0].address, pod);

    // Once it is idle, the same conversation comes back to it, through the other worker.
    let outcome = Outcome { summary: Some(summary(1_000, 900, 10, 50)), ..OK };
    let (_, segment) = one.end(&mut dispatch, &outcome, 2_000_000).unwrap();
    ring.extend(segment);
    let blob = one.export(Vec::new(), 2_000_001);
    assert!(two.import_peer(0, &blob, |place| ring.get(&place).cloned()));
    let decision = two.decide(&request(1, 210), 2_000_002).unwrap();
    assert_eq!(decision.choices[0].address, pod);
    assert!(decision.choices[0].row.get(Feature::CachedShare) > 0.9);
}

#[test]
fn a_worker_whose_heartbeat_stopped_counts_no_more() {
    let (mut one, mut two) = (router(1), router(2));
    let long = request(1, 200);
    let decision = one.decide(&long, 1_000).unwrap();
    let (dispatch, _) = one.dispatch(&decision, &long, 1_000, 1_000);
    let blob = one.export(Vec::new(), 1_000);
    two.import_peer(0, &blob, |_| None);
    let inflight = |router: &mut Router, now_us| {
        let decision = router.decide(&request(2, 8), now_us).unwrap();
        let choice = decision.choices.iter().find(|choice| choice.address == dispatch.pod()).unwrap();
        choice.row.get(Feature::InflightRequests)
    };
    assert_eq!(inflight(&mut two, 2_000), 1.0);
    assert_eq!(inflight(&mut two, 1_000 + super::PEER_STALE_US + 1), 0.0);
}

#[test]
fn the_prior_learns_which_pod_is_slow() {
    let mut router = router(1);
    for i in 0..60 {
        serve(&mut router, &request(100 + i, 16), i * 1_000_000, |pod| {
            if pod == A { (800, 40) } else { (100, 10) }
        });
    }
    let decision = router.decide(&request(1000, 16), 61_000_000).unwrap();
    assert_eq!(
        (decision.choices[0].address.as_str(), decision.rung, decision.reason),
        (B, Rung::Prior, Some(Reason::NoModel))
    );
    let ttft_ms = |address: &str| {
        decision.choices.iter().find(|choice| choice.address == address).unwrap().prediction.ttft_ms_p50
    };
    assert!((ttft_ms(B) - 100.0).abs() < 15.0, "{}", ttft_ms(B));
    assert!(ttft_ms(A) > 3.0 * ttft_ms(B));
}

#[test]
fn an_unhealthy_pod_is_no_candidate_unless_all_are() {
    let mut router = router(1);
    let mut fleet = Fleet::default();
    fleet.set_members([(A.to_owned(), false), (B.to_owned(), true)]);
    router.set_fleet(fleet.clone());
    let decision = router.decide(&request(1, 8), 0).unwrap();
    assert_eq!((decision.candidates, decision.choices[0].address.as_str()), (1, B));
    fleet.set_members([(A.to_owned(), false), (B.to_owned(), false)]);
    router.set_fleet(fleet);
    assert_eq!(router.decide(&request(1, 8), 0).unwrap().candidates, 2);
}

#[test]
fn unknown_telemetry_is_unknown_in_the_row_and_stale_telemetry_too() {
    let mut router = router(1);
    let mut fleet = router.fleet().clone();
    let scrape = Scrape {
        waiting_requests: 5.0,
        running_requests: 3.0,
        kv_capacity_tokens: 4096.0,
        ..Scrape::unknown(Dialect::Vllm)
    };
    fleet.set_scrape(pod_key(A), &scrape, 1_000_000);
    router.set_fleet(fleet);
    let row = |router: &mut Router, now_us, pod: &str| {
        let decision = router.decide(&request(1, 8), now_us).unwrap();
        decision.choices.iter().find(|choice| choice.address == pod).unwrap().row
    };
    let fresh = row(&mut router, 1_100_000, A);
    assert_eq!(fresh.get(Feature::WaitingRequests), 5.0);
    assert_eq!(fresh.get(Feature::ForeignRequests), 8.0);
    assert_eq!(fresh.get(Feature::TelemetryAgeMs), 100.0);
    assert!(fresh.get(Feature::KvUsage).is_nan());
    assert!(row(&mut router, 1_100_000, B).get(Feature::WaitingRequests).is_nan());
    let stale = row(&mut router, 60_000_000, A);
    assert!(stale.get(Feature::WaitingRequests).is_nan() && stale.get(Feature::TelemetryAgeMs) > 50_000.0);
}

#[test]
fn the_sample_tells_the_row_of_the_pod_that_answered() {
    let mut router = router(1);
    let asked = request(1, 16);
    let decision = router.decide(&asked, 5_000).unwrap();
    let (mut dispatch, _): (Dispatch, _) = router.dispatch(&decision, &asked, 4_000, 5_000);
    let second = decision.choices[1].clone();
    assert!(router.served_by(&mut dispatch, &second.address, 6_000).is_some(), "the prompt is there now");
    assert!(router.progress(&mut dispatch, 1, 104_000));
    assert!(!router.progress(&mut dispatch, 2, 114_000));
    let outcome = Outcome { attempts: 2, summary: Some(summary(4_000, 100, 10, 11)), ..OK };
    let (sample, segment) = router.end(&mut dispatch, &outcome, 205_000).unwrap();
    assert!(router.end(&mut dispatch, &outcome, 206_000).is_none());
    assert_eq!(
        (sample.pod.as_str(), sample.picked.as_str()),
        (second.address.as_str(), decision.choices[0].address.as_str())
    );
    assert_eq!(sample.features.len(), crate::features::COUNT);
    assert_eq!((sample.ttft_ms, sample.tpot_ms, sample.e2e_ms), (Some(100.0), Some(10.0), Some(200.0)));
    assert!(!sample.is_clean(), "two attempts");
    assert!(segment.is_some(), "what it generated takes room all the same");
    assert_eq!(router.inflight(), 0);
}

#[test]
fn a_sample_survives_its_journey_as_json() {
    let mut router = router(1);
    let asked = request(1, 16);
    let decision = router.decide(&asked, 0).unwrap();
    let (mut dispatch, _) = router.dispatch(&decision, &asked, 0, 0);
    let (sample, _) =
        router.end(&mut dispatch, &Outcome { summary: Some(summary(0, 100, 10, 11)), ..OK }, 1).unwrap();
    assert!(sample.is_clean());
    let text = serde_json::to_string(&sample).unwrap();
    assert!(text.contains("null"), "unknown features travel as null: {text}");
    let back: crate::sample::Sample = serde_json::from_str(&text).unwrap();
    assert_eq!(back.features.len(), sample.features.len());
    assert!(
        back.features
            .iter()
            .zip(&sample.features)
            .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
    );
}

#[test]
fn the_explanation_is_json_that_names_pod_rung_and_reason() {
    let mut router = router(1);
    let decision = router.decide(&request(1, 16), 0).unwrap();
    let text = crate::explain::explain(&decision, 42);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["pod"], decision.choices[0].address);
    assert_eq!((value["rung"].as_str(), value["reason"].as_str()), (Some("prior"), Some("no_model")));
    assert!(value["runner_up"]["cost_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(value["decision_us"], 42);
}

#[test]
fn a_pod_that_answers_with_errors_gets_nothing_until_it_is_tried_again() {
    let mut router = router(1);
    let failed = Outcome { status: 500, ending: Ending::Complete, ..OK };
    let mut failures = 0;
    for i in 0..40 {
        let now_us = 1_000_000 + i * 50_000;
        let asked = request(100 + i, 16);
        let decision = router.decide(&asked, now_us).unwrap();
        let (mut dispatch, _) = router.dispatch(&decision, &asked, now_us, now_us);
        if dispatch.pod() == A {
            failures += 1;
            router.end(&mut dispatch, &failed, now_us + 1000).unwrap();
        } else {
            let outcome = Outcome { summary: Some(summary(now_us, 300, 20, 50)), ..OK };
            router.end(&mut dispatch, &outcome, now_us + 1000).unwrap();
        }
    }
    // Three eject it; in these two seconds it is tried once more.
    assert!((3..=4).contains(&failures), "{failures} of 40 requests went to the pod that fails");
    assert!(router.take_ejections() >= 1);
    // After the back-off it is a candidate again, for one request at a time.
    let now_us = 20_000_000;
    let trial = router.decide(&request(1, 16), now_us).unwrap();
    assert_eq!((trial.candidates, trial.widened), (2, None));
    let mut trial = trial;
    trial.choices.retain(|choice| choice.address == A);
    let (mut tries, _) = router.dispatch(&trial, &request(1, 16), now_us, now_us);
    assert_eq!(router.decide(&request(1, 16), now_us + 1).unwrap().candidates, 1);
    // A token is proof enough.
    router.progress(&mut tries, 1, now_us + 2);
    assert_eq!(router.decide(&request(1, 16), now_us + 3).unwrap().candidates, 2);
}

#[test]
fn when_every_pod_is_ejected_all_are_candidates_and_the_reason_is_named() {
    let mut router = router(1);
    for i in 0..20 {
        let asked = request(100 + i, 16);
        let decision = router.decide(&asked, 1_000_000 + i).unwrap();
        let (mut dispatch, _) = router.dispatch(&decision, &asked, 1_000_000 + i, 1_000_000 + i);
        router.end(&mut dispatch, &Outcome { status: 503, ..OK }, 1_000_000 + i).unwrap();
    }
    let decision = router.decide(&request(1, 16), 1_000_100).unwrap();
    assert_eq!((decision.candidates, decision.widened), (2, Some(Reason::NoneHealthy)));
    assert_eq!(router.take_ejections(), 2);
}

#[test]
fn a_request_goes_to_a_pod_that_lists_its_model_and_anywhere_when_none_does() {
    let mut router = router(1);
    let mut fleet = router.fleet().clone();
    fleet.set_served(pod_key(A), Served::list(ServedModels::new([("base", false), ("sql", true)])));
    fleet.set_served(pod_key(B), Served::list(ServedModels::new([("base", false)])));
    router.set_fleet(fleet.clone());
    let mut candidates = |model: &str, fleet: &Fleet| {
        router.set_fleet(fleet.clone());
        let asked = LlmRequest { model: model.to_owned(), ..request(1, 16) };
        let decision = router.decide(&asked, 0).unwrap();
        (decision.candidates, decision.choices[0].address.clone(), decision.widened)
    };
    assert_eq!(candidates("sql", &fleet), (1, A.to_owned(), None));
    assert_eq!(candidates("base", &fleet).0, 2);
    assert_eq!(candidates("", &fleet).0, 2, "no name asks for whatever is there");
    let (count, _, widened) = candidates("other", &fleet);
    assert_eq!((count, widened), (2, Some(Reason::ModelNotServed)));
    // The one pod that has the adapter is sick: it is asked all the same, the other cannot answer.
    let mut sick = fleet.clone();
    sick.set_members([(A.to_owned(), false), (B.to_owned(), true)]);
    assert_eq!(candidates("sql", &sick), (1, A.to_owned(), Some(Reason::NoneHealthy)));
    // A pod that has not said yet may have it.
    fleet.set_served(pod_key(B), Served::Awaited);
    assert_eq!(candidates("other", &fleet), (1, B.to_owned(), None));
    assert_eq!(candidates("base", &fleet), (1, A.to_owned(), None));
    // A pod of which no list is known may have it.
    fleet.set_served(pod_key(B), Served::Unknown);
    assert_eq!(candidates("other", &fleet), (1, B.to_owned(), None));
}

#[test]
fn a_pod_that_left_with_requests_in_hand_starts_afresh_when_it_comes_back() {
    let mut router = router(1);
    let (asked, members) = (request(7, 40), [(A.to_owned(), true), (B.to_owned(), true)]);
    let decision = router.decide(&asked, 1_000).unwrap();
    let (mut dispatch, _) = router.dispatch(&decision, &asked, 1_000, 1_000);
    let gone = dispatch.pod().to_owned();
    let mut fleet = router.fleet().clone();
    fleet.set_members(members.iter().filter(|(address, _)| *address != gone).cloned());
    router.set_fleet(fleet.clone());
    assert_eq!(router.decide(&asked, 2_000).unwrap().candidates, 1);
    // Its answer still comes, and is a sample like any other.
    router.progress(&mut dispatch, 1, 3_000);
    let outcome = Outcome { summary: Some(summary(1_000, 900, 90, 50)), ..OK };
    let (sample, _) = router.end(&mut dispatch, &outcome, 4_000_000).unwrap();
    assert_eq!((sample.pod.as_str(), router.inflight()), (gone.as_str(), 0));
    // Nothing of it is believed of whoever has the address next.
    fleet.set_members(members);
    router.set_fleet(fleet);
    let choices = router.decide(&asked, 9_000_000).unwrap().choices;
    // As bits: an unknown (NaN) equals nothing.
    let of = |address: &str| {
        choices.iter().find(|choice| choice.address == address).unwrap().row.0.map(f32::to_bits)
    };
    let other = if gone == A { B } else { A };
    assert_eq!(of(&gone), of(other), "like a pod of which nothing is known");
}

#[test]
fn a_request_that_the_client_gave_up_says_nothing_about_the_pod() {
    let mut router = router(1);
    for i in 0..20 {
        let asked = request(100 + i, 16);
        let decision = router.decide(&asked, i * 1000).unwrap();
        let (mut dispatch, _) = router.dispatch(&decision, &asked, i * 1000, i * 1000);
        router.end(&mut dispatch, &Outcome { status: 0, ending: Ending::Cancelled, ..OK }, i * 1000 + 500);
    }
    assert_eq!(router.decide(&request(1, 16), 50_000).unwrap().candidates, 2);
}
