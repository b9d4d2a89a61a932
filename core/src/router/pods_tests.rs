//! What pages mean for the index: restarts, foreign traffic, counted hits, capacities, blocks of the engine's.

use super::tests::{A, OK, request, router, summary};
use super::{Outcome, Router};
use crate::features::Feature;
use crate::hash::pod_key;
use crate::response::Usage;
use crate::telemetry::{Dialect, Scrape};

fn page(computed: f64, queries: f64, hits: f64) -> Scrape {
    Scrape {
        waiting_requests: 0.0,
        running_requests: 0.0,
        kv_capacity_tokens: 50_000.0,
        computed_tokens_total: computed,
        prefix_query_tokens: queries,
        prefix_hit_tokens: hits,
        ..Scrape::unknown(Dialect::Vllm)
    }
}

fn scrape(router: &mut Router, page: &Scrape, now_us: u64) {
    let mut fleet = router.fleet().clone();
    fleet.set_scrape(pod_key(A), page, now_us);
    router.set_fleet(fleet);
    router.take_pages(now_us);
}

/// Sends a conversation of 100 blocks to A and has it answered; gives the prompt's tokens.
fn converse(router: &mut Router, seed: u64, cached: Option<u32>, now_us: u64) -> f32 {
    let asked = request(seed, 100);
    let mut decision = router.decide(&asked, now_us).unwrap();
    decision.choices.retain(|choice| choice.address == A);
    let (mut dispatch, _) = router.dispatch(&decision, &asked, now_us, now_us);
    let mut summary = summary(now_us, 50, 10, 100);
    summary.usage = Usage { prompt_tokens: Some(6400), completion_tokens: Some(100), cached_tokens: cached };
    router.end(&mut dispatch, &Outcome { summary: Some(summary), ..OK }, now_us + 1000).unwrap();
    decision.prompt_tokens
}

/// A feature of A's row for the conversation `seed`.
fn feature(router: &mut Router, seed: u64, feature: Feature, now_us: u64) -> f32 {
    let decision = router.decide(&request(seed, 100), now_us).unwrap();
    decision.choices.iter().find(|choice| choice.address == A).unwrap().row.get(feature)
}

#[test]
fn a_pod_that_restarted_holds_nothing() {
    let mut router = router(1);
    scrape(&mut router, &page(1000.0, 1000.0, 0.0), 1_000_000);
    let tokens = converse(&mut router, 1, None, 2_000_000);
    assert_eq!(feature(&mut router, 1, Feature::SurvivingTokens, 3_000_000), tokens);
    // Its counters start again.
    scrape(&mut router, &page(10.0, 10.0, 0.0), 4_000_000);
    assert_eq!(feature(&mut router, 1, Feature::MatchedTokens, 5_000_000), 0.0);
    assert!(feature(&mut router, 1, Feature::SurvivalProbability, 5_000_000).is_nan());
    // And what it is sent from then on it holds.
    converse(&mut router, 1, None, 6_000_000);
    assert!(feature(&mut router, 1, Feature::SurvivingTokens, 7_000_000) > 6000.0);
}

#[test]
fn what_others_send_to_a_pod_pushes_ours_out() {
    let mut router = router(1);
    scrape(&mut router, &page(0.0, 0.0, 0.0), 1_000_000);
    converse(&mut router, 1, Some(0), 2_000_000);
    // 6,500 of these tokens are ours.
    scrape(&mut router, &page(40_000.0, 6400.0, 0.0), 3_000_000);
    assert!(feature(&mut router, 1, Feature::SurvivingTokens, 3_100_000) > 6000.0, "it fits beside 33,500");
    scrape(&mut router, &page(70_000.0, 6400.0, 0.0), 4_000_000);
    assert!(feature(&mut router, 1, Feature::SurvivingTokens, 4_100_000) < 100.0, "but not beside 63,500");
    assert!(feature(&mut router, 1, Feature::MatchedTokens, 4_100_000) > 6000.0);
}

#[test]
fn answers_that_report_no_hits_where_hits_were_expected_lower_the_trust() {
    let mut router = router(1);
    scrape(&mut router, &page(0.0, 0.0, 0.0), 1_000_000);
    for turn in 0..20 {
        converse(&mut router, 1, Some(0), 2_000_000 + turn * 100_000);
    }
    let surviving = feature(&mut router, 1, Feature::SurvivingTokens, 5_000_000);
    assert!(surviving < 1500.0, "{surviving}");
}

#[test]
fn counters_that_show_no_hits_lower_the_trust_where_answers_report_nothing() {
    let mut router = router(1);
    scrape(&mut router, &page(0.0, 0.0, 0.0), 1_000_000);
    for turn in 1..=60_u32 {
        let now_us = 2_000_000 + u64::from(turn) * 1_000_000;
        converse(&mut router, 1, None, now_us);
        let tokens = f64::from(turn) * 6400.0;
        scrape(&mut router, &page(tokens + f64::from(turn) * 100.0, tokens, 0.0), now_us + 500_000);
    }
    let surviving = feature(&mut router, 1, Feature::SurvivingTokens, 70_000_000);
    assert!(surviving < 2500.0, "{surviving}");
}

#[test]
fn an_engine_reuses_whole_blocks_of_its_own() {
    let mut router = router(1);
    scrape(&mut router, &Scrape { block_tokens: 1000.0, ..page(0.0, 0.0, 0.0) }, 1_000_000);
    converse(&mut router, 1, None, 2_000_000);
    assert_eq!(feature(&mut router, 1, Feature::SurvivingTokens, 3_000_000), 6000.0);
}
