//! Probes of one engine: prompts alone, prompts behind a cached beginning, and streams that only decode.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use foretoken_sim::load::client::{Client, Outcome};
use futures_util::future::try_join_all;
use serde_json::json;

use super::law::{Probe, Probed};
use super::traffic::text;

/// A request that takes longer fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Repeats of each probe.
const REPEATS: u64 = 5;
/// Prompt lengths, all within one step of the engine.
const PROMPTS: [u32; 8] = [32, 96, 256, 512, 768, 1024, 1536, 2000];
/// Cached beginnings, and what comes behind.
const CACHED: [u32; 3] = [512, 1024, 1536];
const BEHIND: [u32; 3] = [64, 128, 192];
/// Streams at a time, and what they stand behind.
const STREAMS: [u32; 4] = [1, 2, 4, 8];
const CONTEXTS: [u32; 4] = [64, 512, 1024, 1536];
/// Tokens of each stream.
const DECODED: u32 = 64;

/// Asks an engine of one model.
#[derive(Debug, Clone)]
pub struct Asker {
    client: Client,
}

impl Asker {
    /// A client that adds these headers and opens a connection for each request: llama.cpp closes it after a stream
    /// without saying so.
    ///
    /// # Errors
    /// When a header is not one.
    pub fn new(headers: &[&str]) -> Result<Self> {
        let headers: Vec<String> =
            ["connection: close"].iter().chain(headers).map(|line| (*line).to_owned()).collect();
        Ok(Self { client: Client::new(&headers)? })
    }

    /// One streamed completion; `at_first` is called at its first token.
    ///
    /// # Errors
    /// When it is not whole, or not of the length asked for.
    pub async fn ask(
        &self,
        address: SocketAddr,
        prompt: &str,
        max_tokens: u32,
        at_first: impl FnOnce() + Send,
    ) -> Result<Outcome> {
        let body = json!({
            "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "stream": true, "ignore_eos": true,
            "temperature": 0, "stream_options": {"include_usage": true},
        });
        let url = format!("http://{address}");
        let body = serde_json::to_vec(&body)?;
        let outcome = self.client.send_and_tell(&url, "/v1/completions", body, PATIENCE, at_first).await;
        if let Some(failure) = &outcome.failure {
            bail!("{address}: {failure}: {:?}", outcome.error_body);
        }
        let got = outcome.output_tokens;
        ensure!(got == max_tokens, "{address}: {got} tokens instead of {max_tokens}");
        Ok(outcome)
    }

    async fn quiet(&self, address: SocketAddr, prompt: &str, max_tokens: u32) -> Result<Outcome> {
        self.ask(address, prompt, max_tokens, || {}).await
    }
}

fn ms(duration: Option<Duration>) -> Result<f64> {
    Ok(duration.context("no token")?.as_secs_f64() * 1000.0)
}

/// Takes the texts of one probe after the other: none is ever sent twice but where that is the point.
struct Texts(u64);

impl Texts {
    fn next(&mut self, tokens: u32) -> String {
        self.0 += 1;
        text(self.0, tokens)
    }
}

/// Measures an engine that does nothing else, `slots` at a time at most.
///
/// # Errors
/// When it does not answer as it should.
pub async fn probe(address: SocketAddr, slots: u32) -> Result<Vec<Probed>> {
    let asker = Asker::new(&[])?;
    // Above all sources of traffic, whose seeds are small.
    let mut texts = Texts(1 << 60);
    for _ in 0..4 {
        asker.quiet(address, &texts.next(512), 16).await?;
    }
    let mut probed = Vec::new();
    for tokens in PROMPTS {
        let mut times_ms = Vec::new();
        for _ in 0..REPEATS {
            times_ms.push(ms(asker.quiet(address, &texts.next(tokens), 1).await?.ttft)?);
        }
        probed.push(Probed { probe: Probe::First { tokens, cached: 0 }, times_ms });
    }
    for cached in CACHED {
        let beginning = texts.next(cached);
        asker.quiet(address, &beginning, 1).await?;
        for tokens in BEHIND {
            let mut times_ms = Vec::new();
            for _ in 0..REPEATS {
                let prompt = beginning.clone() + &texts.next(tokens);
                let outcome = asker.quiet(address, &prompt, 1).await?;
                let found = outcome.cached_tokens.unwrap_or(0);
                ensure!(found.abs_diff(cached) <= 8, "{address}: {found} cached tokens instead of {cached}");
                times_ms.push(ms(outcome.ttft)?);
            }
            probed.push(Probed { probe: Probe::First { tokens, cached }, times_ms });
        }
    }
    for streams in STREAMS.into_iter().filter(|streams| *streams <= slots) {
        for context in CONTEXTS {
            let prompts: Vec<String> = (0..streams).map(|_| texts.next(context)).collect();
            // All of them cached first, so that no stream waits for another one's prompt.
            try_join_all(prompts.iter().map(|prompt| asker.quiet(address, prompt, 1))).await?;
            let mut times_ms = Vec::new();
            for _ in 0..REPEATS {
                let all = prompts.iter().map(|prompt| asker.quiet(address, prompt, DECODED));
                let mut sum_ms = 0.0;
                for outcome in try_join_all(all).await? {
                    sum_ms += (ms(outcome.e2e)? - ms(outcome.ttft)?) / f64::from(DECODED - 1);
                }
                times_ms.push(sum_ms / f64::from(streams));
            }
            probed
                .push(Probed { probe: Probe::Decode { streams, context: context + DECODED / 2 }, times_ms });
        }
    }
    Ok(probed)
}
