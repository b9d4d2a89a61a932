//! One streamed completion through Envoy, and what the filter explains about it.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use foretoken_sim::pod::{DEFAULT_MODEL, POD_HEADER};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;

use crate::http;

/// What a request asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Prompt text; about four bytes are a token for a simulated pod.
    pub prompt: String,
    /// Output tokens.
    pub max_tokens: u32,
    /// Model name.
    pub model: String,
}

impl Request {
    /// A request for the simulated pods' model.
    #[must_use]
    pub fn new(prompt: impl Into<String>, max_tokens: u32) -> Self {
        Self { prompt: prompt.into(), max_tokens, model: DEFAULT_MODEL.to_owned() }
    }
}

/// The costs in an explanation, unweighted.
#[derive(Debug, Clone, Deserialize)]
pub struct CostMs {
    /// Own completion.
    pub own: f64,
    /// Delay to what the pod holds.
    pub others: f64,
    /// Delay to what it will soon get.
    pub future: f64,
}

/// The second choice in an explanation.
#[derive(Debug, Clone, Deserialize)]
pub struct RunnerUp {
    /// Its address.
    pub pod: String,
    /// Its weighted cost.
    pub cost_ms: f64,
}

/// The `x-foretoken-explain` header.
#[derive(Debug, Clone, Deserialize)]
pub struct Explain {
    /// The picked pod.
    pub pod: String,
    /// Which rung of the ladder picked.
    pub rung: String,
    /// Why it was not the model's.
    pub reason: Option<String>,
    /// The model that predicted.
    #[serde(default)]
    pub model_id: String,
    /// Its generation.
    pub generation: u64,
    /// Predicted TTFT, median and 90th percentile.
    pub ttft_ms: [f64; 2],
    /// Predicted TPOT, median and 90th percentile.
    pub tpot_ms: [f64; 2],
    /// What the model's TTFT and TPOT were multiplied by for this pod.
    pub corrected: [f64; 2],
    /// The cost's terms.
    pub cost_ms: CostMs,
    /// Their weighted sum.
    pub total_ms: f64,
    /// The second choice.
    pub runner_up: Option<RunnerUp>,
    /// Pods that were compared.
    pub candidates: u64,
    /// Time from features to pick.
    pub decision_us: u64,
    /// Length of the prompt.
    pub prompt_tokens: f64,
    /// What of it the pod is expected to hold.
    pub cached_tokens: f64,
    /// The prior's TTFT.
    pub prior_ttft_ms: f64,
    /// The prior's TPOT.
    pub prior_tpot_ms: f64,
    /// Targets and priority, where the request has any.
    pub asked: Option<Asked>,
}

/// What a request asked for, or its route for it, in an explanation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Asked {
    /// TTFT target.
    pub ttft_ms: Option<f64>,
    /// TPOT target.
    pub tpot_ms: Option<f64>,
    /// Priority.
    pub priority: i64,
    /// Whether the pick's prediction is within the targets.
    pub in_time: Option<bool>,
}

/// A finished completion.
#[derive(Debug, Clone)]
pub struct Completed {
    /// HTTP status.
    pub status: u16,
    /// The simulated pod that answered, by its own word.
    pub pod: String,
    /// Why it was picked, when the filter says so.
    pub explain: Option<Explain>,
    /// Whether the stream came to its proper end.
    pub whole: bool,
}

impl Completed {
    /// The explanation, which the test's configuration must allow.
    ///
    /// # Errors
    /// When there is none: the filter did not route the request.
    pub fn explained(&self) -> Result<&Explain> {
        self.explain.as_ref().with_context(|| format!("the filter did not route the request: {self:?}"))
    }
}

/// Sends one request and reads the whole stream.
///
/// # Errors
/// When there is no answer, or its explanation is not what the documentation says.
pub async fn complete(address: SocketAddr, request: &Request) -> Result<Completed> {
    complete_with(address, "/v1/completions", &[], request).await
}

/// The same on another path or with more headers.
///
/// # Errors
/// As for [`complete`].
pub async fn complete_with(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    request: &Request,
) -> Result<Completed> {
    let mut headers = headers.to_vec();
    headers.push(("x-foretoken-explain", "1"));
    let body = json!({
        "model": request.model, "prompt": request.prompt, "max_tokens": request.max_tokens, "stream": true,
        "ignore_eos": true, "stream_options": {"include_usage": true},
    });
    let answer = http::post_json(address, path, &headers, &body).await?;
    let explain = match answer.header("x-foretoken-explain") {
        Some(text) => Some(serde_json::from_str(text).with_context(|| format!("explain header: {text}"))?),
        None => None,
    };
    Ok(Completed {
        status: answer.status.as_u16(),
        pod: answer.header(POD_HEADER).unwrap_or_default().to_owned(),
        explain,
        whole: answer.text().trim_end().ends_with("data: [DONE]"),
    })
}

/// Sends all requests, `concurrency` at a time, and returns their outcomes in order of completion.
///
/// # Errors
/// With the first request that had no answer, or an answer that was not whole.
pub async fn complete_all(
    address: SocketAddr,
    requests: Vec<Request>,
    concurrency: usize,
) -> Result<Vec<Completed>> {
    stream::iter(requests)
        .map(|request| async move {
            let completed = complete(address, &request).await?;
            if completed.status != 200 || !completed.whole {
                bail!("a request failed: {completed:?}");
            }
            Ok(completed)
        })
        .buffer_unordered(concurrency)
        .try_collect()
        .await
}

/// Prompts of mixed lengths, each different from its first byte on, so that none finds another's cache.
#[must_use]
pub fn mixed_requests(count: u32, seed: u32) -> Vec<Request> {
    (0..count)
        .map(|index| {
            // Multiplying by an odd number visits all residues: lengths are mixed and the same every run.
            let length = 100 + (index.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) % 2000;
            let words = format!("{seed} {index} ").repeat(length as usize / 8 + 1);
            Request::new(words, 4 + index % 24)
        })
        .collect()
}
