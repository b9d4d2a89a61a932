//! The decision: a row, a prediction and a cost for every candidate, and the order that follows.
//!
//! The ladder: model → prior → fewest tokens in flight. A rung that cannot be stood on names its reason, and
//! the next one carries the whole request, never some of its candidates: mixed rungs would compare what
//! cannot be compared.

use std::sync::Arc;

use super::Router;
use super::candidates::{Candidate, Size};
use crate::fallback::{Reason, Rung};
use crate::features::Row;
use crate::load::PodLoad;
use crate::model::Prediction;
use crate::model::kernel::LANES;
use crate::policy::{Cost, Placing, cost, order, tpot_level};
use crate::prefix::{PrefixMatch, Survival};
use crate::prior::{Demand, Prior};
use crate::request::{LlmRequest, model_key};
use crate::shed::{Place, Shed};
use crate::slo::{Miss, Terms};
use crate::speed::PodSpeed;

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

/// What the model's TTFT and TPOT are multiplied by on this pod.
fn corrections(load: &PodLoad, generation: u64) -> (f32, f32) {
    load.residual.factors(generation)
}

/// Corrects what the model says of this pod.
fn correct(prediction: &mut Prediction, load: &PodLoad, generation: u64) {
    let (ttft, tpot) = corrections(load, generation);
    prediction.ttft_ms_p50 *= ttft;
    prediction.ttft_ms_p90 *= ttft;
    prediction.tpot_ms_p50 *= tpot;
    prediction.tpot_ms_p90 *= tpot;
}

/// Whose 90th percentiles are predicted. An order of pods needs them only where a request asks for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tails {
    All,
    OfChoices,
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
        self.fill_rows(&candidates, &size, model_key, now_us);
        let count = if self.lists_all {
            candidates.len()
        } else {
            usize::try_from(self.config.pick.count).unwrap_or(1).max(1)
        };
        let asks = terms.targets.any() || terms.is_sheddable();
        // Few pods are one block for the kernel: to come back for the choices' tails costs more than all at once.
        let tails =
            if asks || candidates.len() <= LANES.max(2 * count) { Tails::All } else { Tails::OfChoices };
        let (rung, reason) = self.predict(&candidates, tails);

        let policy = &terms.weigh(&self.config.policy, &self.config.priority);
        let reuse_share = self.reuse.share();
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
                    reuse_share,
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
        let random = self.next_random();
        let predicted = matches!(rung, Rung::Model | Rung::Prior);
        let priced =
            if predicted { terms.price(policy, &self.scratch.predictions, &costs, &totals) } else { None };
        let ranked = order(priced.as_ref().unwrap_or(&totals), tie_share, random);
        let shed = if predicted { self.judge(terms, &candidates, random) } else { None };
        let chosen = ranked.get(..count.min(ranked.len())).unwrap_or_default();
        if rung == Rung::Model && tails == Tails::OfChoices {
            self.add_tails(&candidates, chosen);
        }
        let choice = |at: usize| -> Option<Choice> {
            let (candidate, total_ms) = (candidates.get(at)?, *totals.get(at)?);
            let pod = self.fleet.pods().get(candidate.at)?;
            Some(Choice {
                address: pod.address.to_string(),
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
        let choices: Vec<Choice> = chosen.iter().filter_map(|at| choice(*at)).collect();
        if choices.is_empty() {
            return Err(Reason::NoCandidates);
        }
        let runner_up = ranked.get(1).and_then(|at| {
            let pod = self.fleet.pods().get(candidates.get(*at)?.at)?;
            Some((pod.address.to_string(), *totals.get(*at)?))
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
        let places = candidates.iter().zip(&self.scratch.predictions).map(|(candidate, prediction)| Place {
            prediction,
            load: &candidate.load,
            speed: &candidate.speed,
            prefill_share: candidate.prior.prefill_share,
            has_others: candidate.demand.foreign_requests > 0.0,
        });
        crate::shed::judge(terms, places, &self.config.shed, random)
    }

    /// Fills the predictions by the highest rung that gives usable ones for every candidate, their 90th percentiles
    /// as answers of late would have it.
    fn predict(&mut self, candidates: &[Candidate], tails: Tails) -> (Rung, Option<Reason>) {
        let (rung, reason) = self.predict_by_rung(candidates, tails);
        for (prediction, candidate) in self.scratch.predictions.iter_mut().zip(candidates) {
            self.coverage.correct(rung, candidate.load.prefill_requests, prediction);
        }
        (rung, reason)
    }

    fn predict_by_rung(&mut self, candidates: &[Candidate], tails: Tails) -> (Rung, Option<Reason>) {
        let predictions = &mut self.scratch.predictions;
        let mut reason = Reason::NoModel;
        if let Some(model) = &self.model {
            match tails {
                Tails::All => model.predict(&self.scratch.rows, predictions),
                Tails::OfChoices => model.predict_medians(&self.scratch.rows, predictions),
            }
            for (prediction, candidate) in predictions.iter_mut().zip(candidates) {
                correct(prediction, &candidate.load, self.generation);
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

    /// The model's whole predictions for those that were chosen by their medians.
    fn add_tails(&mut self, candidates: &[Candidate], chosen: &[usize]) {
        let Some(model) = &self.model else { return };
        let scratch = &mut self.scratch;
        // A graph gives all of its outputs at once, and a model without percentiles has none to add.
        let lacks = |one: &Prediction| one.ttft_ms_p90.is_nan() || one.tpot_ms_p90.is_nan();
        if !chosen.iter().filter_map(|at| scratch.predictions.get(*at)).any(lacks) {
            return;
        }
        scratch.chosen_rows.clear();
        scratch.chosen_rows.extend(chosen.iter().filter_map(|at| scratch.rows.get(*at)).copied());
        model.predict(&scratch.chosen_rows, &mut scratch.chosen_predictions);
        for (at, whole) in chosen.iter().zip(&scratch.chosen_predictions) {
            if let (Some(candidate), Some(prediction)) =
                (candidates.get(*at), scratch.predictions.get_mut(*at))
            {
                *prediction = *whole;
                correct(prediction, &candidate.load, self.generation);
                self.coverage.correct(Rung::Model, candidate.load.prefill_requests, prediction);
            }
        }
    }
}
