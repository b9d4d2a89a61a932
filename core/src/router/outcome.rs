//! From dispatch to sample: what a request does to the router's state on its way, and what is learned.
//!
//! Only a clean outcome teaches: one attempt, complete, status 200. Anything else still leaves the ledger and
//! still yields a sample, flagged.

use std::sync::Arc;

use super::{Choice, Decision, Router};
use crate::fallback::{Reason, Rung};
use crate::features::Feature;
use crate::hash::pod_key;
use crate::ledger::{Entry, Phase};
use crate::num::{f32_of_f64, f32_of_u64, f32_of_usize, f64_of_u64, ms_between};
use crate::occupancy::{Company, Occupancy};
use crate::placements::Placement;
use crate::request::{LlmRequest, PromptShape};
use crate::response::Summary;
use crate::sample::{Ending, Sample, TokenSource};
use crate::slo::Targets;
use crate::speed::Work;

/// A value for the placement ring in shared data: its place and its bytes.
pub type SegmentWrite = (u64, Vec<u8>);

/// A request on its way. Held by the caller until [`Router::end`].
#[derive(Debug, Clone)]
pub struct Dispatch {
    ticket: Option<u64>,
    choices: Vec<Choice>,
    /// Index into `choices` of the pod that serves; `None` when it is none of them.
    served: Option<usize>,
    served_address: String,
    started_us: u64,
    model: String,
    model_key: u64,
    /// What the number of prompt tokens was estimated from; `None` for token ids, which are counted.
    estimated: Option<Estimated>,
    /// The prompt's blocks, until it is known which pod serves.
    blocks: Vec<u64>,
    /// The last of them, and the tokens in a block.
    last_block: Option<u64>,
    block_tokens: f32,
    prompt_tokens: f32,
    /// What the pod had been busy with by the first token.
    at_first_token: Option<Occupancy>,
    /// Which rung decided.
    pub rung: Rung,
    /// Why it was not the model.
    pub reason: Option<Reason>,
    targets: Targets,
    model_id: Arc<str>,
    generation: u64,
    first_token_seen: bool,
    ended: bool,
}

/// An estimate of prompt tokens, and what it was made from.
#[derive(Debug, Clone, Copy)]
struct Estimated {
    text_bytes: u32,
    shape: PromptShape,
    tokens: f32,
}

/// How a request ended, as the caller saw it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// HTTP status of the response; 0 when there was none.
    pub status: u16,
    /// Upstream attempts; 0 when unknown.
    pub attempts: u32,
    /// Whether the response was an event stream.
    pub streamed: bool,
    /// How it ended.
    pub ending: Ending,
    /// What the body said; `None` when it was not read.
    pub summary: Option<Summary>,
}

impl Router {
    /// Enters the decision into the books. From here on every other decision sees it.
    ///
    /// `started_us` is the time of the request's first byte. Store the returned segment in the placement ring,
    /// then [`Router::export`] the ledger.
    pub fn dispatch(
        &mut self,
        decision: &Decision,
        request: &LlmRequest,
        started_us: u64,
        now_us: u64,
    ) -> (Dispatch, Option<SegmentWrite>) {
        let mut dispatch = Dispatch {
            ticket: None,
            choices: decision.choices.clone(),
            served: Some(0),
            served_address: String::new(),
            started_us,
            model: request.model.clone(),
            model_key: decision.model_key,
            estimated: request.prompt.exact_tokens.is_none().then_some(Estimated {
                text_bytes: request.prompt.text_bytes,
                shape: request.prompt.shape,
                tokens: decision.prompt_tokens,
            }),
            blocks: Vec::new(),
            last_block: request.prompt.blocks.last().copied(),
            block_tokens: decision.block_tokens,
            prompt_tokens: decision.prompt_tokens,
            at_first_token: None,
            rung: decision.rung,
            reason: decision.reason,
            targets: decision.terms.targets,
            model_id: Arc::clone(&decision.model_id),
            generation: decision.generation,
            first_token_seen: false,
            ended: false,
        };
        let Some(pick) = decision.choices.first() else { return (dispatch, None) };
        dispatch.served_address.clone_from(&pick.address);
        self.reuse.observe(decision.lost_tokens, pick.evicted_tokens);
        dispatch.ticket = self.ledger.admit(Entry {
            pod_key: pick.key,
            sent_us: now_us,
            ended_us: 0,
            phase: Phase::Prefill,
            prefill_tokens: pick.uncached_tokens,
            prompt_tokens: decision.prompt_tokens,
            output_tokens: 0.0,
            expected_output_tokens: decision.expected_output_tokens,
        });
        if request.prompt.blocks.is_empty() {
            return (dispatch, None);
        }
        let placement = Placement {
            pod_key: pick.key,
            after: None,
            block_tokens: decision.block_tokens,
            nameless_tokens: 0.0,
            blocks: request.prompt.blocks.clone(),
        };
        let segment = self.place(&placement);
        dispatch.blocks = placement.blocks;
        (dispatch, Some(segment))
    }

    /// Enters a placement into the index and the log that the other workers read.
    fn place(&mut self, placement: &Placement) -> SegmentWrite {
        self.prefix.take(placement);
        self.log.append(placement)
    }

    /// Response headers came from this pod. Moves the books if it is not the one that was picked; then store the
    /// returned segment in the placement ring.
    pub fn served_by(&mut self, dispatch: &mut Dispatch, address: &str, now_us: u64) -> Option<SegmentWrite> {
        let blocks = core::mem::take(&mut dispatch.blocks);
        if dispatch.served_address == address {
            return None;
        }
        address.clone_into(&mut dispatch.served_address);
        dispatch.served = dispatch.choices.iter().position(|choice| choice.address == address);
        let uncached = dispatch.served_choice().map(|choice| choice.uncached_tokens);
        let first = dispatch.choices.first().map_or(1.0, |choice| choice.uncached_tokens);
        let pod_key = pod_key(address);
        if let Some(ticket) = dispatch.ticket {
            self.ledger.move_to(ticket, pod_key, uncached.unwrap_or(first), now_us);
        }
        if blocks.is_empty() {
            return None;
        }
        let block_tokens = dispatch.block_tokens;
        Some(self.place(&Placement { pod_key, after: None, block_tokens, nameless_tokens: 0.0, blocks }))
    }

    /// The body's reader has seen this many output tokens. Returns whether this was the first.
    pub fn progress(&mut self, dispatch: &mut Dispatch, output_tokens: u32, now_us: u64) -> bool {
        let Some(ticket) = dispatch.ticket else { return false };
        self.ledger.progress(ticket, output_tokens, now_us);
        let first = !dispatch.first_token_seen && output_tokens > 0;
        if first {
            dispatch.first_token_seen = true;
            self.ledger.first_token(ticket, now_us);
            dispatch.at_first_token = Some(self.occupancy(pod_key(&dispatch.served_address), now_us));
        }
        first
    }

    /// What all workers' requests kept a pod busy with up to now.
    fn occupancy(&self, pod_key: u64, now_us: u64) -> Occupancy {
        let mut all = Occupancy::default();
        let own = self.ledger.activity_of(pod_key).into_iter();
        for activity in
            own.chain(Self::live_peers(&self.peers, now_us).filter_map(|view| view.activity_of(pod_key)))
        {
            all.add(&activity.occupancy, now_us);
        }
        all
    }

    /// The request is over. Takes it off the books, learns from it, and gives its sample.
    ///
    /// The second call for a dispatch gives nothing. Store the returned segment in the placement ring.
    pub fn end(
        &mut self,
        dispatch: &mut Dispatch,
        outcome: &Outcome,
        now_us: u64,
    ) -> Option<(Sample, Option<SegmentWrite>)> {
        if core::mem::replace(&mut dispatch.ended, true) {
            return None;
        }
        let company = dispatch
            .at_first_token
            .and_then(|first| self.occupancy(pod_key(&dispatch.served_address), now_us).since(&first));
        let entry = dispatch.ticket.and_then(|ticket| self.ledger.end(ticket, now_us));
        self.requests += 1;
        self.note_answers(
            dispatch,
            outcome,
            entry.map_or(dispatch.started_us, |entry| entry.sent_us),
            now_us,
        );
        let sample = self.sample(dispatch, outcome);
        if sample.status == 200 && sample.attempts <= 1 && sample.ending == Ending::Complete {
            self.learn(dispatch, &sample, company);
        }
        let blocks =
            outcome.summary.as_ref().map(|summary| summary.answer_blocks.clone()).unwrap_or_default();
        let segment = self.answered(dispatch, &sample, blocks);
        let served = pod_key(&dispatch.served_address);
        if self.fleet.find(served).is_none() {
            // It left while it was answering: another pod may get its address.
            self.ledger.forget_pod(served);
        }
        Some((sample, segment))
    }

    /// What the answer left in the pod's cache: `blocks` continue the prompt's chain, as the next turn of the
    /// conversation will repeat them.
    fn answered(&mut self, dispatch: &Dispatch, sample: &Sample, blocks: Vec<u64>) -> Option<SegmentWrite> {
        let pod_key = pod_key(&dispatch.served_address);
        if sample.status == 0 {
            match sample.ending {
                // Nothing answered: the pod may have restarted with an empty cache.
                Ending::Failed => self.forget_cache(pod_key),
                // It may well have computed the prompt by then; else it would be taken for somebody else's.
                _ => self.ledger.learn(pod_key, |activity| {
                    activity.computed_tokens += f64::from(dispatch.prompt_tokens);
                }),
            }
            return None;
        }
        let output_tokens = f32_of_u64(u64::from(sample.output_tokens));
        let prompt_tokens = tokens_or(sample.prompt_tokens, dispatch.prompt_tokens);
        if sample.status != 200 {
            // A refusal computes nothing.
            return None;
        }
        let expected = dispatch.served_choice().map_or(prompt_tokens, |choice| choice.uncached_tokens);
        let computed = match sample.cached_tokens {
            Some(cached) => prompt_tokens - f32_of_u64(u64::from(cached)),
            None => expected,
        };
        self.ledger.learn(pod_key, |activity| {
            activity.computed_tokens += f64::from(computed.max(0.0) + output_tokens);
        });
        let known = f32_of_usize(blocks.len()) * dispatch.block_tokens;
        Some(self.place(&Placement {
            pod_key,
            after: dispatch.last_block,
            block_tokens: dispatch.block_tokens,
            nameless_tokens: (output_tokens - known).max(0.0),
            blocks,
        }))
    }

    /// Who answered well, and who failed: the pod that served, and those that Envoy tried before it.
    fn note_answers(&mut self, dispatch: &Dispatch, outcome: &Outcome, sent_us: u64, now_us: u64) {
        let retries = usize::try_from(outcome.attempts.saturating_sub(1)).unwrap_or(usize::MAX);
        for tried in dispatch.choices.iter().take(retries) {
            if tried.address != dispatch.served_address {
                self.note_failure(tried.key, sent_us, now_us);
            }
        }
        let key = pod_key(&dispatch.served_address);
        match (outcome.status, outcome.ending) {
            (200..=299, Ending::Complete) if self.fleet.find(key).is_some() => {
                if let Some(health) = self.ledger.health_mut(key) {
                    health.note_good(sent_us, now_us);
                }
            }
            (0 | 500.., _) | (_, Ending::Failed | Ending::Truncated)
                if outcome.ending != Ending::Cancelled =>
            {
                self.note_failure(key, sent_us, now_us);
            }
            // A client that left, or asked for what cannot be, says nothing about the pod.
            _ => {}
        }
    }

    fn note_failure(&mut self, key: u64, sent_us: u64, now_us: u64) {
        if self.fleet.find(key).is_none() {
            return;
        }
        let peers = Self::live_peers(&self.peers, now_us)
            .filter_map(|view| view.activity.iter().find(|(pod, _)| *pod == key))
            .map(|(_, activity)| &activity.health);
        let ejected = self
            .ledger
            .health_mut(key)
            .is_some_and(|health| health.note_failure(peers, sent_us, now_us, &self.config.health));
        if ejected {
            self.ejections += 1;
        }
    }

    fn sample(&self, dispatch: &Dispatch, outcome: &Outcome) -> Sample {
        let choice = dispatch.served_choice();
        let summary = outcome.summary.as_ref();
        let since_start = |at_us: u64| ms_between(dispatch.started_us, at_us);
        let output_tokens = summary.map_or(0, |summary| summary.output_tokens);
        // JSON has no NaN; a sample without a prior or a prediction says 0, which no model learns from.
        let of_choice =
            |value: fn(&Choice) -> f32| choice.map(value).filter(|ms| ms.is_finite()).unwrap_or(0.0);
        let first = summary.and_then(|summary| summary.first_token_us);
        let last = summary.and_then(|summary| summary.last_token_us);
        // An embedding has no token: it is there when its body is.
        let end = last.or_else(|| summary.filter(|_| !outcome.streamed).and_then(|summary| summary.end_us));
        // Where only events were counted, a time per token is a time per event.
        let counted = summary.is_some_and(|summary| {
            summary.tokens_from != TokenSource::Events
                || summary.events.counts_tokens(self.tokens.bytes_per_token(dispatch.model_key))
        });
        let tpot_ms = match (first, last) {
            (Some(first_us), Some(last_us)) if counted && output_tokens >= 2 && outcome.streamed => {
                Some(ms_between(first_us, last_us) / f32_of_u64(u64::from(output_tokens - 1)))
            }
            _ => None,
        };
        Sample {
            id: format!("{:016x}-{:x}", self.incarnation, self.requests),
            at_ms: dispatch.started_us / 1000,
            schema: crate::features::SCHEMA_ID.to_owned(),
            model: dispatch.model.clone(),
            pod: dispatch.served_address.clone(),
            picked: dispatch.choices.first().map(|choice| choice.address.clone()).unwrap_or_default(),
            features: choice.map(|choice| choice.row.0.to_vec()).unwrap_or_default(),
            prior_ttft_ms: of_choice(|choice| choice.row.get(Feature::PriorTtftMs)),
            prior_tpot_ms: of_choice(|choice| choice.row.get(Feature::PriorTpotMs)),
            predicted_ttft_ms: of_choice(|choice| choice.prediction.ttft_ms_p50),
            predicted_tpot_ms: of_choice(|choice| choice.prediction.tpot_ms_p50),
            model_id: dispatch.model_id.as_ref().to_owned(),
            rung: dispatch.rung,
            ttft_ms: first.map(since_start),
            tpot_ms,
            e2e_ms: end.map(since_start),
            prompt_tokens: summary.and_then(|summary| summary.usage.prompt_tokens),
            cached_tokens: summary.and_then(|summary| summary.usage.cached_tokens),
            output_tokens,
            tokens_from: summary.map_or(TokenSource::Events, |summary| summary.tokens_from),
            streamed: outcome.streamed,
            status: outcome.status,
            attempts: outcome.attempts,
            ending: outcome.ending,
        }
    }

    fn learn(&mut self, dispatch: &Dispatch, sample: &Sample, company: Option<Company>) {
        if let (Some(estimated), Some(prompt_tokens)) = (&dispatch.estimated, sample.prompt_tokens) {
            let Estimated { text_bytes, shape, .. } = estimated;
            self.tokens.observe(dispatch.model_key, *text_bytes, shape, prompt_tokens);
        }
        // An embedding has no output, and no answer worth learning a length from is empty.
        if sample.output_tokens > 0 {
            self.ledger.lengths.observe(dispatch.model_key, sample.output_tokens);
        }
        let Some(choice) = dispatch.served_choice() else { return };
        if self.fleet.find(choice.key).is_none() {
            return;
        }
        let prompt_tokens = tokens_or(sample.prompt_tokens, dispatch.prompt_tokens);
        let cached_tokens = sample.cached_tokens.map(|cached| f32_of_u64(u64::from(cached)));
        if let Some(memory) = self.pods.get_mut(&choice.key) {
            memory.hits.answered(prompt_tokens, &choice.seen, &choice.survival, cached_tokens.is_some());
        }
        // Where prompts were being computed, what is expected may be a twin's that was not there yet: a hit
        // says something, a miss nothing.
        let twins = choice.row.get(Feature::PrefillRequests) > 0.0;
        if let Some(cached_tokens) =
            cached_tokens.filter(|cached| !twins || *cached >= choice.seen.surviving_tokens)
        {
            self.ledger.learn(choice.key, |activity| {
                activity.survival.observe(&choice.survival, &choice.seen, cached_tokens);
            });
        }
        self.coverage.observe(
            dispatch.rung,
            choice.row.get(Feature::PrefillRequests),
            &choice.prediction,
            sample.ttft_ms.filter(|_| sample.streamed),
            sample.tpot_ms,
        );
        if dispatch.rung == Rung::Model {
            let (ttft, tpot) = choice.corrected;
            self.ledger.learn(choice.key, |activity| {
                let Some(residual) = activity.residual.under(dispatch.generation) else { return };
                if let Some(ttft_ms) = sample.ttft_ms.filter(|_| sample.streamed) {
                    residual.ttft.observe(choice.prediction.ttft_ms_p50 / ttft, ttft_ms);
                }
                if let Some(tpot_ms) = sample.tpot_ms {
                    residual.tpot.observe(choice.prediction.tpot_ms_p50 / tpot, tpot_ms);
                }
            });
        }
        // What the engine says it had to prefill is truer than what the index expected.
        let prefilled = match cached_tokens {
            Some(cached) => (prompt_tokens - cached).max(0.0),
            None => choice.uncached_tokens,
        };
        let Choice { key, speed, prior, demand, .. } = choice;
        // A wait for memory tells of others' answers, not of this pod's speed.
        let prompt_only = sample.streamed && prior.memory_ms <= 0.0;
        let (ttft_ms, tpot_ms) = (sample.ttft_ms.filter(|_| prompt_only), sample.tpot_ms.zip(company));
        if ttft_ms.is_none() && tpot_ms.is_none() {
            return;
        }
        self.ledger.observe_speed(*key, |sums| {
            if let Some(ttft_ms) = ttft_ms {
                let work = prior.ahead.plus(Work::of(prefilled, prompt_tokens));
                sums.observe_ttft(speed, work, prior.step_ms, ttft_ms);
            }
            if let Some((tpot_ms, company)) = tpot_ms {
                let steps = f32_of_u64(u64::from(sample.output_tokens)) - 1.0;
                // Prompts that were computed meanwhile stood in between. What only seems so leaves half at least.
                let alone_ms =
                    (tpot_ms - speed.prefill.work_ms(company.prefilled) / steps).max(tpot_ms / 2.0);
                let requests = company.requests + demand.foreign_requests;
                let context_tokens = company.context_tokens + demand.foreign_context_tokens;
                sums.observe_tpot(speed, requests, context_tokens, alone_ms);
            }
        });
    }
}

/// What the engine counted, else the estimate.
fn tokens_or(counted: Option<u32>, estimated: f32) -> f32 {
    counted.map_or(estimated, |tokens| f32_of_u64(u64::from(tokens)))
}

impl Dispatch {
    /// `ip:port` of the pod that serves, as far as known.
    #[must_use]
    pub fn pod(&self) -> &str {
        &self.served_address
    }

    fn served_choice(&self) -> Option<&Choice> {
        self.served.and_then(|at| self.choices.get(at))
    }

    /// The request's latency targets.
    #[must_use]
    pub fn targets(&self) -> Targets {
        self.targets
    }

    /// The pods picked, best first.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Prompt tokens as they were estimated at the pick; `None` when they were counted (token ids).
    #[must_use]
    pub fn estimated_prompt_tokens(&self) -> Option<f32> {
        self.estimated.map(|estimated| estimated.tokens)
    }

    /// Milliseconds from the request's first byte to `now_us`.
    #[must_use]
    pub fn age_ms(&self, now_us: u64) -> f32 {
        f32_of_f64(f64_of_u64(now_us.saturating_sub(self.started_us)) / 1000.0)
    }
}
