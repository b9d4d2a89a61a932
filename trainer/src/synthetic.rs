//! Made-up samples with a known law, for tests, golden cases and timing.
//!
//! The law is nothing like a real engine; it has what a fit must cope with: effects of several columns, a step,
//! unknown values that mean something, noise that is not symmetric. Deterministic for a seed.

use foretoken_core::fallback::Rung;
use foretoken_core::features::{Feature, Row, SCHEMA_ID};
use foretoken_core::sample::{Ending, Sample, TokenSource};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// `count` clean samples, one every 100 ms.
#[must_use]
pub fn samples(seed: u64, count: usize) -> Vec<Sample> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(|index| sample(&mut random, seed, index)).collect()
}

/// Ratios of actual to prior for a row, before noise: the law.
#[must_use]
pub fn true_ratios(row: &Row) -> (f32, f32) {
    let waiting = row.get(Feature::WaitingRequests);
    let kv = row.get(Feature::KvUsage);
    let running = row.get(Feature::RunningRequests);
    // Unknown telemetry goes with a slow pod.
    let queue = if waiting.is_nan() { 1.8 } else { 0.7 + 0.1 * waiting.min(12.0) };
    let pressure = if kv > 0.9 { 1.6 } else { 1.0 };
    let batch = if running.is_nan() { 1.2 } else { 0.8 + running / 64.0 };
    (queue * pressure, batch * if kv > 0.9 { 1.3 } else { 1.0 })
}

fn sample(random: &mut StdRng, seed: u64, index: usize) -> Sample {
    let mut row = Row::default();
    let prompt = random.random_range(16.0..8000.0f32).floor();
    let cached = random.random_range(0.0..1.0f32).powi(2);
    let output: u32 = random.random_range(1..400);
    row.set(Feature::PromptTokens, prompt);
    row.set(Feature::UncachedTokens, prompt * (1.0 - cached));
    row.set(Feature::CachedShare, cached);
    row.set(Feature::ExpectedOutputTokens, random.random_range(50.0..250.0));
    if random.random_ratio(9, 10) {
        row.set(Feature::WaitingRequests, random.random_range(0..20u8).into());
        row.set(Feature::RunningRequests, random.random_range(0..64u8).into());
        row.set(Feature::KvUsage, random.random_range(0.0..1.0));
        row.set(Feature::TelemetryAgeMs, random.random_range(0.0..400.0));
    }
    let inflight = random.random_range(0..40u8);
    row.set(Feature::InflightRequests, inflight.into());
    row.set(Feature::PrefillTokens, random.random_range(0.0..20_000.0));
    row.set(Feature::DecodingRequests, random.random_range(0..=inflight).into());
    row.set(Feature::ArrivalsPerS, random.random_range(0.0..30.0));
    let per_token_ms = random.random_range(0.02..0.2);
    row.set(Feature::PrefillMsPerToken, per_token_ms);
    let prior_ttft_ms = 20.0 + prompt * (1.0 - cached) * per_token_ms;
    let prior_tpot_ms = random.random_range(5.0..40.0);
    row.set(Feature::PriorTtftMs, prior_ttft_ms);
    row.set(Feature::PriorTpotMs, prior_tpot_ms);
    let (ttft_ratio, tpot_ratio) = true_ratios(&row);
    // Skewed upwards, as waiting times are.
    let mut noise = |scale: f32| (scale * -random.random_range(1e-3f32..1.0).ln()).exp() * 0.9;
    let (ttft_ms, tpot_ms) =
        (prior_ttft_ms * ttft_ratio * noise(0.15), prior_tpot_ms * tpot_ratio * noise(0.1));
    Sample {
        id: format!("{seed:x}-{index:x}"),
        at_ms: 1_700_000_000_000 + 100 * index as u64,
        schema: SCHEMA_ID.to_owned(),
        model: "synthetic".to_owned(),
        pod: "127.0.0.1:8000".to_owned(),
        picked: "127.0.0.1:8000".to_owned(),
        features: row.0.to_vec(),
        prior_ttft_ms,
        prior_tpot_ms,
        predicted_ttft_ms: prior_ttft_ms,
        predicted_tpot_ms: prior_tpot_ms,
        model_id: String::new(),
        rung: Rung::Prior,
        ttft_ms: Some(ttft_ms),
        tpot_ms: (output > 1).then_some(tpot_ms),
        e2e_ms: Some(ttft_ms + tpot_ms * (output - 1) as f32),
        prompt_tokens: Some(prompt as u32),
        cached_tokens: Some((prompt * cached) as u32),
        output_tokens: output,
        tokens_from: TokenSource::Usage,
        streamed: true,
        status: 200,
        attempts: 1,
        ending: Ending::Complete,
    }
}
