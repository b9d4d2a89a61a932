//! The answer to "why this pod": one JSON object for the explain header.
//!
//! It names pods and costs, so it is only given where the configuration allows it.

use serde::Serialize;

use crate::policy::Cost;
use crate::router::Decision;

#[derive(Debug, Serialize)]
struct RunnerUp<'a> {
    pod: &'a str,
    cost_ms: f32,
}

/// Targets in ms, priority, and whether the prediction of the pick is within the targets.
#[derive(Debug, Serialize)]
struct Asked {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tpot_ms: Option<f32>,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_time: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Explain<'a> {
    pod: &'a str,
    rung: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    model_id: &'a str,
    generation: u64,
    ttft_ms: [f32; 2],
    tpot_ms: [f32; 2],
    corrected: [f32; 2],
    cost_ms: Cost,
    total_ms: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    runner_up: Option<RunnerUp<'a>>,
    candidates: usize,
    decision_us: u64,
    prompt_tokens: f32,
    cached_tokens: f32,
    expected_output_tokens: f32,
    prior_ttft_ms: f32,
    prior_tpot_ms: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<Asked>,
}

/// The explain header's value. Pairs are median and 90th percentile; `corrected` is what the model's TTFT and TPOT
/// were multiplied by for this pod ([`crate::residual`]); costs are in ms and unweighted, the total
/// is weighted. Empty for a decision without choices.
#[must_use]
pub fn explain(decision: &Decision, decision_us: u64) -> String {
    let Some(pick) = decision.choices.first() else { return String::new() };
    let round = |value: f32| (value * 1000.0).round() / 1000.0;
    let explain = Explain {
        pod: &pick.address,
        rung: decision.rung.name(),
        reason: decision.reason.map(crate::fallback::Reason::name),
        model_id: &decision.model_id,
        generation: decision.generation,
        ttft_ms: [round(pick.prediction.ttft_ms_p50), round(pick.prediction.ttft_ms_p90)],
        tpot_ms: [round(pick.prediction.tpot_ms_p50), round(pick.prediction.tpot_ms_p90)],
        corrected: [pick.corrected.0, pick.corrected.1],
        cost_ms: Cost {
            own_ms: round(pick.cost.own_ms),
            ttft_ms: round(pick.cost.ttft_ms),
            others_ms: round(pick.cost.others_ms),
            future_ms: round(pick.cost.future_ms),
            crowding_ms: round(pick.cost.crowding_ms),
            evicted_ms: round(pick.cost.evicted_ms),
        },
        total_ms: round(pick.total_ms),
        runner_up: decision
            .runner_up
            .as_ref()
            .map(|(pod, cost_ms)| RunnerUp { pod, cost_ms: round(*cost_ms) }),
        candidates: decision.candidates,
        decision_us,
        prompt_tokens: decision.prompt_tokens.round(),
        cached_tokens: (decision.prompt_tokens - pick.uncached_tokens).max(0.0).round(),
        expected_output_tokens: decision.expected_output_tokens.round(),
        prior_ttft_ms: round(pick.row.get(crate::features::Feature::PriorTtftMs)),
        prior_tpot_ms: round(pick.row.get(crate::features::Feature::PriorTpotMs)),
        asked: (decision.terms.targets.any() || decision.terms.priority != 0).then_some(Asked {
            ttft_ms: decision.terms.targets.ttft_ms,
            tpot_ms: decision.terms.targets.tpot_ms,
            priority: decision.terms.priority,
            in_time: decision.in_time,
        }),
    };
    serde_json::to_string(&explain).unwrap_or_default()
}
