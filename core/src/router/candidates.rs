//! The candidates of a decision: which pods they are, what is at each, what the request asks of each, and the row that
//! the model sees.
//!
//! Not the choice between them: that is [`super::decide`].

use super::Router;
use crate::fallback::Reason;
use crate::features::{Feature, Row};
use crate::fleet::{Pod, PodScrape, Served};
use crate::load::PodLoad;
use crate::prefix::PrefixMatch;
use crate::prior::{Demand, Memory, Prior, prior};
use crate::request::LlmRequest;
use crate::speed::{PodSpeed, Work};

/// How large a request is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) prompt_tokens: f32,
    pub(super) block_tokens: f32,
    pub(super) expected_output_tokens: f32,
}

impl Size {
    /// Tokens that it holds while it decodes, in the mean.
    pub(super) fn context_tokens(&self) -> f32 {
        self.prompt_tokens + self.expected_output_tokens / 2.0
    }

    /// What it asks of a pod with this load and page, where so much of its prompt must be computed.
    fn demand(
        &self,
        uncached_tokens: f32,
        host_tokens: f32,
        load: &PodLoad,
        scrape: Option<&PodScrape>,
    ) -> Demand {
        let whole = Work::of(self.prompt_tokens, self.prompt_tokens);
        let own = Work::of(uncached_tokens, self.prompt_tokens);
        let foreign = scrape.map_or(0.0, |scrape| foreign_requests(scrape, load).max(0.0));
        let waiting = scrape.map_or(0.0, |scrape| foreign.min(scrape.waiting_requests));
        Demand {
            work: Work { tokens: own.tokens + HOST_LOAD_SHARE * host_tokens, ..own },
            context_tokens: self.context_tokens(),
            foreign_requests: foreign,
            // Of strangers' prompts nothing is known: they are taken to be like this one.
            foreign_context_tokens: foreign * self.prompt_tokens,
            foreign_work: whole.share(waiting),
            memory: scrape.and_then(|scrape| self.memory(uncached_tokens, scrape, load)).unwrap_or_default(),
        }
    }

    /// The request beside what is in the pod's KV cache: what was in use at the scrape, what waited then, and what was
    /// sent since. `None` where the page does not tell.
    fn memory(&self, uncached_tokens: f32, scrape: &PodScrape, load: &PodLoad) -> Option<Memory> {
        let waiting = scrape.waiting_requests * load.prefill_context_tokens / load.prefill_requests.max(1.0);
        let in_use = scrape.kv_usage * scrape.kv_capacity_tokens;
        let booked = load.context_tokens - load.unscraped_context_tokens - waiting;
        // Prefixes that requests share are there once: of what they were expected to find there, this share is not
        // in use by another.
        let cached = booked * load.cached_tokens / load.context_tokens;
        let alone = if cached > 0.0 { ((in_use - (booked - cached)) / cached).clamp(0.0, 1.0) } else { 1.0 };
        let once = if booked > 0.0 { (in_use / booked).clamp(LEAST_ONCE, 1.0) } else { 1.0 };
        let need =
            uncached_tokens + (self.prompt_tokens - uncached_tokens) * alone + self.expected_output_tokens;
        let of_size = |tokens: f32| tokens / scrape.kv_capacity_tokens;
        let memory = Memory {
            in_use: of_size(in_use + (waiting + load.unscraped_context_tokens) * once),
            need: of_size(need),
        };
        (memory.in_use.is_finite() && memory.need.is_finite()).then_some(memory)
    }
}

/// Requests at the pod that this Envoy did not send; NaN where the page does not tell.
fn foreign_requests(scrape: &PodScrape, load: &PodLoad) -> f32 {
    let foreign = scrape.waiting_requests + scrape.running_requests - load.scraped_requests;
    if foreign < 0.0 { 0.0 } else { foreign }
}

/// A pod that the request may go to.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) at: usize,
    pub(super) load: PodLoad,
    pub(super) speed: PodSpeed,
    pub(super) demand: Demand,
    pub(super) prior: Prior,
    pub(super) uncached_tokens: f32,
    pub(super) seen: PrefixMatch,
    /// Tokens that the request pushes out of its cache.
    pub(super) evicted_tokens: f32,
}

/// Share of the time to compute a token that it takes to load it from host memory: a PCIe 5.0 x16 link carries
/// the 70B-class KV of some 100,000 tokens a second, where prefill makes some 10,000.
const HOST_LOAD_SHARE: f32 = 0.1;

/// Requests share at most so much of what they hold that this share is left of it.
const LEAST_ONCE: f32 = 0.05;

impl Router {
    /// Load, speed and prior of every pod that serves the model, is healthy and is not ejected. A condition that
    /// no pod meets is waived, the model's the last: a sick pod may answer, one without the model cannot. The
    /// reason says which was.
    pub(super) fn candidates(
        &mut self,
        request: &LlmRequest,
        model_key: u64,
        size: &Size,
        now_us: u64,
    ) -> (Vec<Candidate>, Option<Reason>) {
        let Size { prompt_tokens, block_tokens, expected_output_tokens } = *size;
        let stale_after_ms = self.config.telemetry.stale_after_ms;
        let scraped_us = |pod: &Pod| {
            pod.scrape.and_then(|scrape| scrape.fresh(now_us, stale_after_ms)).map(|scrape| scrape.taken_us)
        };
        let table = &mut self.scratch.table;
        let pods = self.fleet.pods();
        let speeds_due = self.scratch.speeds.is_due(pods.len(), now_us);
        table.start(pods.iter().map(|pod| (pod.key, scraped_us(pod))), expected_output_tokens, speeds_due);
        for entry in self.ledger.entries() {
            table.add_entry(entry);
        }
        for (key, activity) in self.ledger.activity() {
            table.add_activity(key, activity, now_us);
        }
        for view in Self::live_peers(&self.peers, now_us) {
            for entry in &view.entries {
                table.add_entry(entry);
            }
            for (key, activity) in &view.activity {
                table.add_activity(*key, activity, now_us);
            }
        }
        let mut loads = core::mem::take(&mut self.scratch.loads);
        loads.clear();
        loads.extend(table.finish(now_us).copied());
        self.ablation.apply(pods, &mut loads, expected_output_tokens, |pod| scraped_us(pod).is_some());
        if speeds_due {
            self.scratch.speeds.refresh(pods, self.scratch.table.speeds(), now_us);
        }
        let has_model = |pod: &Pod| request.model.is_empty() || pod.may_serve(model_key);
        // One that has not said yet what it serves comes before one that has said that it is not this.
        let may_have_it = |pod: &Pod| pod.served == Served::Awaited;
        let some_has_model = pods.iter().any(has_model);
        let none_has_model = !some_has_model && !pods.iter().any(may_have_it);
        let fits =
            |pod: &Pod| none_has_model || if some_has_model { has_model(pod) } else { may_have_it(pod) };
        let is_well = |pod: &Pod, load: &PodLoad| pod.healthy && !load.ejected;
        let none_is_well = !pods.iter().zip(&loads).any(|(pod, load)| fits(pod) && is_well(pod, load));
        let widened = if none_has_model {
            Some(Reason::ModelNotServed)
        } else {
            none_is_well.then_some(Reason::NoneHealthy)
        };
        let mut guess = 1;
        let found = self
            .fleet
            .pods()
            .iter()
            .zip(loads.iter().copied())
            .enumerate()
            .filter(|(_, (pod, load))| fits(pod) && (none_is_well || is_well(pod, load)))
            .map(|(at, (pod, load))| {
                let speed = self.scratch.speeds.of(at, pod);
                let blocks = &request.prompt.blocks;
                let mut seen = self.prefix.look(pod.key, blocks, block_tokens, &load.survival, &mut guess);
                // Engines reuse whole blocks of their own, which may be larger than the index's.
                let engine_block = pod.scrape.map_or(f32::NAN, |scrape| scrape.block_tokens);
                if engine_block > block_tokens {
                    seen.surviving_tokens = (seen.surviving_tokens / engine_block).floor() * engine_block;
                }
                // The last token is always computed: its logits are what the first output token is drawn from.
                let uncached_tokens = (prompt_tokens - seen.surviving_tokens - seen.host_tokens).max(1.0);
                let scrape = pod.scrape.and_then(|scrape| scrape.fresh(now_us, stale_after_ms));
                let demand = size.demand(uncached_tokens, seen.host_tokens, &load, scrape.as_ref());
                Candidate {
                    at,
                    load,
                    speed,
                    demand,
                    prior: prior(&load, &speed, &demand),
                    uncached_tokens,
                    seen,
                    evicted_tokens: (uncached_tokens + expected_output_tokens
                        - self.prefix.room_tokens(pod.key))
                    .max(0.0),
                }
            });
        let mut candidates = core::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        candidates.extend(found);
        self.scratch.loads = loads;
        (candidates, widened)
    }

    /// A row for each candidate, in their order.
    pub(super) fn fill_rows(&mut self, candidates: &[Candidate], size: &Size, model_key: u64, now_us: u64) {
        let Size { prompt_tokens, expected_output_tokens, .. } = *size;
        let stale_after_ms = self.config.telemetry.stale_after_ms;
        self.scratch.rows.clear();
        for candidate in candidates {
            let Candidate { load, speed, prior, .. } = candidate;
            let mut row = Row::default();
            row.set(Feature::PromptTokens, prompt_tokens);
            row.set(Feature::UncachedTokens, candidate.uncached_tokens);
            row.set(Feature::CachedShare, 1.0 - candidate.uncached_tokens / prompt_tokens);
            row.set(Feature::MatchedTokens, candidate.seen.matched_tokens);
            row.set(Feature::SurvivingTokens, candidate.seen.surviving_tokens);
            if candidate.seen.matched_tokens > 0.0 {
                row.set(Feature::SurvivalProbability, candidate.seen.probability);
            }
            row.set(Feature::HostTokens, candidate.seen.host_tokens);
            row.set(Feature::ExpectedOutputTokens, expected_output_tokens);
            let pod = self.fleet.pods().get(candidate.at);
            let scrape = pod.and_then(|pod| pod.scrape);
            if let Some(scrape) = scrape {
                row.set(Feature::TelemetryAgeMs, scrape.age_ms(now_us));
            }
            if let Some(scrape) = scrape.and_then(|scrape| scrape.fresh(now_us, stale_after_ms)) {
                row.set(Feature::WaitingRequests, scrape.waiting_requests);
                row.set(Feature::RunningRequests, scrape.running_requests);
                row.set(Feature::KvUsage, scrape.kv_usage);
                row.set(Feature::RunningAdapters, scrape.running_adapters);
                let base_model = pod.and_then(|pod| pod.lists_adapter(model_key)) == Some(false);
                if scrape.running_adapters.is_finite() && !base_model {
                    let active = scrape.adapters.contains(model_key);
                    row.set(Feature::AdapterActive, if active { 1.0 } else { 0.0 });
                }
                row.set(Feature::ForeignRequests, foreign_requests(&scrape, load));
            }
            row.set(Feature::InflightRequests, load.inflight_requests);
            row.set(Feature::PrefillRequests, load.prefill_requests);
            row.set(Feature::PrefillTokens, load.prefill.tokens);
            row.set(Feature::DecodingRequests, load.decoding_requests);
            row.set(Feature::DecodeTokensLeft, load.decode_left_tokens);
            row.set(Feature::ContextTokens, load.context_tokens);
            row.set(Feature::UnscrapedRequests, load.unscraped_requests);
            row.set(Feature::HeadElapsedMs, load.head_elapsed_ms);
            row.set(Feature::ArrivalsPerS, load.arrivals_per_s);
            row.set(Feature::PrefillLoad, prior.prefill_share);
            row.set(Feature::PrefillMsPerToken, speed.prefill.per_token_ms);
            row.set(Feature::PriorQueueMs, prior.queue_ms);
            row.set(Feature::PriorStepMs, prior.step_ms);
            row.set(Feature::PriorTtftMs, prior.ttft_ms);
            row.set(Feature::PriorTpotMs, prior.tpot_ms);
            self.scratch.rows.push(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{Dialect, Scrape};

    #[test]
    fn a_prefix_that_others_use_takes_no_memory_again() {
        let scrape = Scrape {
            running_requests: 10.0,
            waiting_requests: 0.0,
            kv_usage: 0.18,
            kv_capacity_tokens: 100_000.0,
            ..Scrape::unknown(Dialect::Vllm)
        };
        let scrape = PodScrape::of_page(&scrape, 1);
        // Ten requests of 6,000 shared tokens and 1,200 of their own: 18,000 tokens in all.
        let load = PodLoad {
            inflight_requests: 10.0,
            context_tokens: 72_000.0,
            cached_tokens: 60_000.0,
            ..PodLoad::default()
        };
        let size = Size { prompt_tokens: 7000.0, block_tokens: 64.0, expected_output_tokens: 200.0 };
        let need = |uncached_tokens: f32, load: &PodLoad| {
            size.memory(uncached_tokens, &scrape, load).unwrap().need * 100_000.0
        };
        assert!((need(1000.0, &load) - 1800.0).abs() < 1.0, "{}", need(1000.0, &load));
        assert!((need(7000.0, &load) - 7200.0).abs() < 1.0, "all of it where it is not");
        // Conversations share nothing with each other.
        let apart = PodLoad { context_tokens: 18_000.0, cached_tokens: 15_000.0, ..load };
        assert!((need(1000.0, &apart) - 7200.0).abs() < 1.0, "{}", need(1000.0, &apart));
        let silent = PodScrape { kv_usage: f32::NAN, ..scrape };
        assert!(size.memory(1000.0, &silent, &load).is_none());
    }
}
