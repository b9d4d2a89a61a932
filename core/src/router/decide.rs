//! The decision: a row, a prediction and a cost for every candidate, and the order that follows.
//!
//! The ladder: model → prior → fewest tokens in flight. A rung that cannot be stood on names its reason, and
//! the next one carries the whole request, never some of its candidates: mixed rungs would compare what
//! cannot be compared.

use std::sync::Arc;

use super::Router;
use crate::fallback::{Reason, Rung};
use crate::features::{Feature, Row};
use crate::fleet::{Pod, Served};
use crate::load::PodLoad;
use crate::model::Prediction;
use crate::policy::{Cost, Placing, cost, order, tpot_level};
use crate::prefix::{PrefixMatch, Survival};
use crate::prior::{Demand, Prior, prior};
use crate::request::{LlmRequest, model_key};
use crate::shed::{Place, Shed};
use crate::slo::{Miss, Terms};
use crate::speed::{PodSpeed, Work};

/// Spread of the prior's own 90th percentile over its median. It only matters to latency targets; costs are made of
/// medians.
const PRIOR_P90: f32 = 1.5;

/// One candidate of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// `ip:port`.
    pub address: String,
    /// The pod's key.
    pub key: u64,
    /// The row that the model saw.
    pub row: Row,
    /// What was predicted.
    pub prediction: Prediction,
    /// The cost's parts.
    pub cost: Cost,
    /// Their weighted sum.
    pub total_ms: f32,
    /// Prompt tokens to prefill there.
    pub uncached_tokens: f32,
    /// What the prior made of it.
    pub prior: Prior,
    /// By this speed…
    pub speed: PodSpeed,
    /// …and for this demand.
    pub demand: Demand,
    /// Tokens that the request pushes out of its cache.
    pub evicted_tokens: f32,
    /// What its cache was expected to hold of the prompt…
    pub seen: PrefixMatch,
    /// …by this estimate of what it keeps.
    pub survival: Survival,
    /// What the model's prediction was multiplied by for this pod: TTFT and TPOT.
    pub corrected: (f32, f32),
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The best candidates, best first: at least one, at most `pick.count`.
    pub choices: Vec<Choice>,
    /// The second best, where it is not among `choices`.
    pub runner_up: Option<(String, f32)>,
    /// Prompt tokens that some pod held once and none holds now.
    pub lost_tokens: f32,
    /// Number of candidates.
    pub candidates: usize,
    /// Which rung of the ladder decided.
    pub rung: Rung,
    /// Why it was not the model.
    pub reason: Option<Reason>,
    /// Why pods are among the candidates that should not be.
    pub widened: Option<Reason>,
    /// Id of the model that predicted; empty for the prior.
    pub model_id: Arc<str>,
    /// Generation of that model.
    pub generation: u64,
    /// Prompt tokens, estimated or exact.
    pub prompt_tokens: f32,
    /// Prompt tokens in one block of the prefix index.
    pub block_tokens: f32,
    /// Output tokens expected.
    pub expected_output_tokens: f32,
    /// Key of the LLM asked for.
    pub model_key: u64,
    /// What was asked for besides.
    pub terms: Terms,
    /// Whether the best candidate meets the targets, by its prediction; `None` without targets.
    pub in_time: Option<bool>,
    /// The request is to be answered with this and sent nowhere.
    pub shed: Option<Shed>,
}

/// How large a request is.
struct Size {
    prompt_tokens: f32,
    block_tokens: f32,
    expected_output_tokens: f32,
}

impl Size {
    /// Tokens that it holds while it decodes, in the mean.
    fn context_tokens(&self) -> f32 {
        self.prompt_tokens + self.expected_output_tokens / 2.0
    }
}

#[derive(Debug)]
pub(super) struct Candidate {
    at: usize,
    load: PodLoad,
    speed: PodSpeed,
    demand: Demand,
    prior: Prior,
    uncached_tokens: f32,
    seen: PrefixMatch,
    /// Tokens that the request pushes out of its cache.
    evicted_tokens: f32,
}

/// Share of the time to compute a token that it takes to load it from host memory: a PCIe 5.0 x16 link carries
/// the 70B-class KV of some 100,000 tokens a second, where prefill makes some 10,000.
const HOST_LOAD_SHARE: f32 = 0.1;

/// What the model's TTFT and TPOT are multiplied by on this pod.
fn corrections(load: &PodLoad, generation: u64) -> (f32, f32) {
    load.residual.factors(generation)
}

fn usable(value: f32) -> bool {
    value.is_finite() && value > 0.0
}

impl Router {
    /// Decides where a request that asks for nothing in particular should go: [`Router::decide_on`] with the
    /// default terms, which never sheds.
    ///
    /// # Errors
    /// As there.
    pub fn decide(&mut self, request: &LlmRequest, now_us: u64) -> Result<Decision, Reason> {
        self.decide_on(request, &Terms::default(), now_us)
    }

    /// Decides where a request should go, or whether it should at all ([`Decision::shed`]). Changes nothing that
    /// another decision sees; [`Router::dispatch`] does.
    ///
    /// # Errors
    /// [`Reason::NoCandidates`] when no pod is known: Envoy's own policy picks.
    pub fn decide_on(
        &mut self,
        request: &LlmRequest,
        terms: &Terms,
        now_us: u64,
    ) -> Result<Decision, Reason> {
        let model_key = model_key(&request.model);
        let prompt_tokens = self.tokens.estimate(model_key, &request.prompt).max(1.0);
        let expected_output_tokens = crate::lengths::expected_output_tokens(
            core::iter::once(&self.ledger.lengths)
                .chain(Self::live_peers(&self.peers, now_us).map(|view| &view.lengths)),
            model_key,
            request.max_tokens,
            self.config.policy.default_output_tokens,
        );
        let block_tokens = self.block_tokens(request, prompt_tokens);
        let size = Size { prompt_tokens, block_tokens, expected_output_tokens };
        let (candidates, widened) = self.candidates(request, model_key, &size, now_us);
        if candidates.is_empty() {
            return Err(Reason::NoCandidates);
        }
        self.fill_rows(&candidates, prompt_tokens, expected_output_tokens, model_key, now_us);
        let (rung, reason) = self.predict(&candidates);

        let policy = &terms.weigh(&self.config.policy, &self.config.priority);
        let tpot_level = tpot_level(
            candidates.iter().zip(&self.scratch.predictions).map(|(one, said)| (&one.prior, said)),
        );
        let costs: Vec<Cost> = candidates
            .iter()
            .zip(&self.scratch.predictions)
            .map(|(candidate, prediction)| {
                cost(&Placing {
                    ttft_ms: prediction.ttft_ms_p50,
                    tpot_ms: candidate.prior.tpot_ms * tpot_level,
                    prior: &candidate.prior,
                    load: &candidate.load,
                    speed: &candidate.speed,
                    output_tokens: expected_output_tokens,
                    context_tokens: size.context_tokens(),
                    evicted_tokens: candidate.evicted_tokens,
                    reuse_share: self.reuse.share(),
                })
            })
            .collect();
        let totals: Vec<f32> = match rung {
            Rung::LeastTokens | Rung::Envoy => candidates
                .iter()
                .map(|candidate| candidate.load.prefill.tokens + candidate.load.decode_left_tokens)
                .collect(),
            Rung::Model | Rung::Prior => costs.iter().map(|cost| cost.total_ms(policy)).collect(),
        };
        let tie_share = policy.tie_share;
        let count = if self.lists_all {
            candidates.len()
        } else {
            usize::try_from(self.config.pick.count).unwrap_or(1).max(1)
        };
        let random = self.next_random();
        let predicted = matches!(rung, Rung::Model | Rung::Prior);
        let priced = if predicted { terms.price(&self.scratch.predictions, &costs, &totals) } else { None };
        let ranked = order(priced.as_ref().unwrap_or(&totals), tie_share, random);
        let shed = if predicted { self.judge(terms, &candidates, random) } else { None };
        let choice = |at: usize| -> Option<Choice> {
            let (candidate, total_ms) = (candidates.get(at)?, *totals.get(at)?);
            let pod = self.fleet.pods().get(candidate.at)?;
            Some(Choice {
                address: pod.address.clone(),
                key: pod.key,
                row: *self.scratch.rows.get(at)?,
                prediction: *self.scratch.predictions.get(at)?,
                cost: *costs.get(at)?,
                total_ms,
                uncached_tokens: candidate.uncached_tokens,
                evicted_tokens: candidate.evicted_tokens,
                prior: candidate.prior,
                speed: candidate.speed,
                demand: candidate.demand,
                seen: candidate.seen,
                survival: candidate.load.survival,
                corrected: match rung {
                    Rung::Model => corrections(&candidate.load, self.generation),
                    _ => (1.0, 1.0),
                },
            })
        };
        let choices: Vec<Choice> = ranked.iter().take(count).filter_map(|at| choice(*at)).collect();
        if choices.is_empty() {
            return Err(Reason::NoCandidates);
        }
        let runner_up = ranked.get(1).and_then(|at| {
            let pod = self.fleet.pods().get(candidates.get(*at)?.at)?;
            Some((pod.address.clone(), *totals.get(*at)?))
        });
        let (model_id, generation) = match (&self.model, rung) {
            (Some(model), Rung::Model) => (Arc::from(model.card().model_id.as_str()), self.generation),
            _ => (Arc::from(""), 0),
        };
        let most =
            |of: fn(&PrefixMatch) -> f32| candidates.iter().map(|one| of(&one.seen)).fold(0.0, f32::max);
        let lost_tokens =
            most(|seen| seen.matched_tokens) - most(|seen| seen.surviving_tokens + seen.host_tokens);
        let count = candidates.len();
        self.scratch.candidates = candidates;
        let in_time = choices
            .first()
            .filter(|_| predicted && terms.targets.any())
            .map(|pick| Miss::of(&pick.prediction, terms.targets, terms.quantile).is_none());
        Ok(Decision {
            lost_tokens,
            choices,
            runner_up,
            candidates: count,
            rung,
            reason,
            widened,
            model_id,
            generation,
            prompt_tokens,
            block_tokens,
            expected_output_tokens,
            model_key,
            terms: *terms,
            in_time,
            shed,
        })
    }

    fn judge(&self, terms: &Terms, candidates: &[Candidate], random: u64) -> Option<Shed> {
        let scratch = &self.scratch;
        let places = candidates.iter().zip(scratch.predictions.iter().zip(&scratch.rows)).map(
            |(candidate, (prediction, row))| Place {
                prediction,
                load: &candidate.load,
                speed: &candidate.speed,
                prefill_share: candidate.prior.prefill_share,
                has_others: row.get(Feature::ForeignRequests) > 0.0,
            },
        );
        crate::shed::judge(terms, places, &self.config.shed, random)
    }

    /// Load, speed and prior of every pod that serves the model, is healthy and is not ejected. A condition that
    /// no pod meets is waived, the model's the last: a sick pod may answer, one without the model cannot. The
    /// reason says which was.
    fn candidates(
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
        table.start(self.fleet.pods().iter().map(|pod| (pod.key, scraped_us(pod))), expected_output_tokens);
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
        let pods = self.fleet.pods();
        self.ablation.apply(pods, &mut loads, expected_output_tokens, |pod| scraped_us(pod).is_some());
        self.scratch.speeds.refresh(pods, &loads, now_us);
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
                let work = Work::of(uncached_tokens, prompt_tokens);
                let work = Work { tokens: work.tokens + HOST_LOAD_SHARE * seen.host_tokens, ..work };
                let scrape = pod.scrape.and_then(|scrape| scrape.fresh(now_us, stale_after_ms));
                let (foreign, waiting) = scrape.map_or((0.0, 0.0), |scrape| {
                    let foreign = scrape.waiting_requests + scrape.running_requests - load.scraped_requests;
                    let foreign = if foreign > 0.0 { foreign } else { 0.0 };
                    (foreign, foreign.min(scrape.waiting_requests))
                });
                // The cache in use at the scrape, what waited then, what was sent since, and this request. Prefixes
                // that requests share are there once.
                let short_share = scrape.map_or(0.0, |scrape| {
                    let waiting = scrape.waiting_requests * load.prefill_context_tokens
                        / load.prefill_requests.max(1.0);
                    let in_use = scrape.kv_usage * scrape.kv_capacity_tokens;
                    let booked = load.context_tokens - load.unscraped_context_tokens - waiting;
                    let once = (in_use / booked).clamp(0.05, 1.0);
                    let more =
                        waiting + load.unscraped_context_tokens + size.prompt_tokens + expected_output_tokens;
                    let share = (in_use + more * once) / scrape.kv_capacity_tokens - 1.0;
                    if share > 0.0 { share } else { 0.0 }
                });
                let demand = Demand {
                    short_share,
                    work,
                    context_tokens: size.context_tokens(),
                    foreign_requests: foreign,
                    // Of strangers' prompts nothing is known: they are taken to be like this one.
                    foreign_context_tokens: foreign * prompt_tokens,
                    foreign_work: Work::of(prompt_tokens, prompt_tokens).share(waiting),
                };
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

    fn fill_rows(
        &mut self,
        candidates: &[Candidate],
        prompt_tokens: f32,
        expected_output_tokens: f32,
        model_key: u64,
        now_us: u64,
    ) {
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
                let foreign = scrape.waiting_requests + scrape.running_requests - load.scraped_requests;
                row.set(Feature::RunningAdapters, scrape.running_adapters);
                let base_model = pod.and_then(|pod| pod.lists_adapter(model_key)) == Some(false);
                if scrape.running_adapters.is_finite() && !base_model {
                    let active = scrape.adapters.contains(model_key);
                    row.set(Feature::AdapterActive, if active { 1.0 } else { 0.0 });
                }
                row.set(Feature::ForeignRequests, if foreign < 0.0 { 0.0 } else { foreign });
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

    /// Fills the predictions by the highest rung that gives usable ones for every candidate, their 90th percentiles
    /// as answers of late would have it.
    fn predict(&mut self, candidates: &[Candidate]) -> (Rung, Option<Reason>) {
        let (rung, reason) = self.predict_by_rung(candidates);
        for (prediction, candidate) in self.scratch.predictions.iter_mut().zip(candidates) {
            self.coverage.correct(rung, candidate.load.prefill_requests, prediction);
        }
        (rung, reason)
    }

    fn predict_by_rung(&mut self, candidates: &[Candidate]) -> (Rung, Option<Reason>) {
        let predictions = &mut self.scratch.predictions;
        let mut reason = Reason::NoModel;
        if let Some(model) = &self.model {
            model.predict(&self.scratch.rows, predictions);
            for (prediction, candidate) in predictions.iter_mut().zip(candidates) {
                let (ttft, tpot) = corrections(&candidate.load, self.generation);
                prediction.ttft_ms_p50 *= ttft;
                prediction.ttft_ms_p90 *= ttft;
                prediction.tpot_ms_p50 *= tpot;
                prediction.tpot_ms_p90 *= tpot;
            }
            let good = |one: &Prediction| usable(one.ttft_ms_p50) && usable(one.tpot_ms_p50);
            if predictions.len() == candidates.len() && predictions.iter().all(good) {
                return (Rung::Model, None);
            }
            reason = Reason::ModelOutput;
        }
        predictions.clear();
        predictions.extend(candidates.iter().map(|candidate| Prediction {
            ttft_ms_p50: candidate.prior.ttft_ms,
            ttft_ms_p90: candidate.prior.ttft_ms * PRIOR_P90,
            tpot_ms_p50: candidate.prior.tpot_ms,
            tpot_ms_p90: candidate.prior.tpot_ms * PRIOR_P90,
        }));
        if predictions.iter().all(|one| usable(one.ttft_ms_p50) && usable(one.tpot_ms_p50)) {
            return (Rung::Prior, Some(reason));
        }
        (Rung::LeastTokens, Some(Reason::PriorOutput))
    }
}
