//! The engine model: a pure state machine that steps as vLLM does.
//!
//! A caller with any clock drives it: [`Engine::submit`] and [`Engine::abort`] at any time,
//! [`Engine::start_step`] to learn how long the next step takes, [`Engine::finish_step`] at its end to
//! learn what it brought. There is no clock, no thread and no I/O in here, and one seed always gives the
//! same run.
//!
//! * [`profile`]: hardware speed and size, and the step time.
//! * [`forecast`]: what becomes of it if nothing more arrives.
//! * [`kv`]: the block cache. [`prompt`]: tokens as hashed blocks. `scheduler`: what a step computes.

pub mod forecast;
pub mod kv;
pub mod profile;
pub mod prompt;
mod scheduler;
#[cfg(test)]
mod tests;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, LogNormal};

use kv::KvCache;
use profile::{Profile, StepWork};
use prompt::TokenBlocks;
use scheduler::{Scheduler, Sequence};

/// A request for the engine.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The caller's name for it, unique among those in the engine.
    pub id: u64,
    /// The prompt, in blocks of the profile's size.
    pub prompt: TokenBlocks,
    /// Tokens to generate; the pseudo model never stops earlier.
    pub max_output_tokens: u32,
}

/// Why a request can never run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing to compute.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("no output was asked for; use max_tokens of 1 or more")]
    NoOutput,
    /// Prompt and output exceed the model's length.
    #[error(
        "{tokens} tokens of prompt and output exceed the model's {limit}; shorten the prompt or max_tokens"
    )]
    TooLong {
        /// Prompt and output tokens.
        tokens: u64,
        /// `max_model_len_tokens` of the profile.
        limit: u32,
    },
}

/// One generated token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenEvent {
    /// The request.
    pub id: u64,
    /// Position in the answer, from 0; 0 is the first token.
    pub position: u32,
    /// Whether it is the last.
    pub finished: bool,
    /// Prompt tokens that were found in the cache when the request was first admitted.
    pub cached_tokens: u32,
}

/// A step that has begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepStart {
    /// How long it takes, microseconds.
    pub duration_us: u64,
    /// What it computes.
    pub work: StepWork,
}

/// State and counters, as a metrics page shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Requests in the queue.
    pub waiting: u32,
    /// Requests admitted.
    pub running: u32,
    /// KV blocks held by requests.
    pub kv_held_blocks: u32,
    /// Cached blocks given away for new content.
    pub kv_evicted_blocks: u64,
    /// Prompt tokens looked up in the cache.
    pub prefix_query_tokens: u64,
    /// Prompt tokens found there.
    pub prefix_hit_tokens: u64,
    /// Of those, the ones that were loaded from host memory.
    pub host_hit_tokens: u64,
    /// Prompt tokens computed, recomputation after preemption included.
    pub prefill_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests that lost their blocks and started over.
    pub preemptions: u64,
    /// Requests that got their last token.
    pub finished: u64,
    /// Requests that were aborted.
    pub aborted: u64,
    /// Steps finished.
    pub steps: u64,
}

/// One pod's engine.
#[derive(Debug)]
pub struct Engine {
    profile: Profile,
    kv: KvCache,
    scheduler: Scheduler,
    rng: StdRng,
    jitter: Option<LogNormal<f64>>,
    slow_factor: f64,
    in_step: bool,
    stats: EngineStats,
}

impl Engine {
    /// An idle engine with an empty cache. The profile should have passed [`Profile::check`].
    #[must_use]
    pub fn new(profile: Profile, seed: u64) -> Self {
        let sigma = profile.jitter_sigma;
        // Mean 1: the location is minus half the variance.
        let jitter = (sigma > 0.0).then(|| LogNormal::new(-sigma * sigma / 2.0, sigma).ok()).flatten();
        Self {
            kv: KvCache::new(profile.kv_blocks).with_host(profile.host_kv_blocks),
            scheduler: Scheduler::default(),
            rng: StdRng::seed_from_u64(seed),
            jitter,
            slow_factor: 1.0,
            in_step: false,
            stats: EngineStats::default(),
            profile,
        }
    }

    /// The hardware.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Multiplies the time of later steps; 1 is the profile's own speed.
    pub fn set_slow_factor(&mut self, factor: f64) {
        self.slow_factor = factor;
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`SubmitError`] when it could never run.
    pub fn submit(&mut self, submission: Submission) -> Result<(), SubmitError> {
        self.check(submission.prompt.len(), submission.max_output_tokens)?;
        let Submission { id, prompt, max_output_tokens } = submission;
        self.scheduler.waiting.push_back(Sequence::new(id, prompt, max_output_tokens));
        Ok(())
    }

    /// Whether a request of this size could run.
    ///
    /// # Errors
    /// [`SubmitError`] says why not.
    pub fn check(&self, prompt_tokens: u32, max_output_tokens: u32) -> Result<(), SubmitError> {
        check_size(&self.profile, prompt_tokens, max_output_tokens)
    }

    /// Drops a request and frees what it holds; while a step runs, at the step's end. Unknown ids are
    /// ignored: the request may just have finished.
    pub fn abort(&mut self, id: u64) {
        if let Some(at) = self.scheduler.waiting.iter().position(|sequence| sequence.id == id) {
            self.scheduler.waiting.remove(at);
            self.stats.aborted += 1;
        } else if let Some(at) = self.scheduler.running.iter().position(|sequence| sequence.id == id) {
            if self.in_step {
                self.scheduler.running[at].aborted = true;
            } else {
                let sequence = self.scheduler.running.remove(at);
                self.kv.release(&sequence.blocks);
                self.stats.aborted += 1;
            }
        }
    }

    /// Schedules the next step; `None` when there is nothing to do. A step that runs must be finished
    /// first: until then this is `None` too.
    pub fn start_step(&mut self) -> Option<StepStart> {
        if self.in_step || (self.scheduler.running.is_empty() && self.scheduler.waiting.is_empty()) {
            return None;
        }
        let work = self.scheduler.schedule(&mut self.kv, &self.profile);
        let jitter = self.jitter.map_or(1.0, |jitter| jitter.sample(&mut self.rng));
        let step_ms = self.profile.step_ms(&work) * jitter * self.slow_factor;
        self.in_step = true;
        self.stats.prefill_tokens += work.prefill_tokens;
        Some(StepStart { duration_us: (step_ms * 1000.0).round() as u64, work })
    }

    /// Ends the running step: appends its tokens to `events`, in order of admission, and frees what
    /// finished or was aborted.
    pub fn finish_step(&mut self, events: &mut Vec<TokenEvent>) {
        if !std::mem::take(&mut self.in_step) {
            return;
        }
        self.stats.steps += 1;
        let (kv, stats) = (&mut self.kv, &mut self.stats);
        self.scheduler.running.retain_mut(|sequence| {
            let gained = sequence.advance();
            if sequence.aborted {
                kv.release(&sequence.blocks);
                stats.aborted += 1;
                return false;
            }
            if gained == 0 {
                return true;
            }
            stats.generated_tokens += u64::from(gained);
            let finished = sequence.produced >= sequence.max_output_tokens;
            for position in sequence.produced - gained..sequence.produced {
                events.push(TokenEvent {
                    id: sequence.id,
                    position,
                    finished: finished && position + 1 == sequence.produced,
                    cached_tokens: sequence.cached_tokens.unwrap_or(0),
                });
            }
            if finished {
                kv.release(&sequence.blocks);
                stats.finished += 1;
            }
            !finished
        });
    }

    /// Leading tokens of this prompt that the cache holds right now, and that a request admitted now would not
    /// compute.
    #[must_use]
    pub fn cached_tokens(&self, prompt: &TokenBlocks) -> u32 {
        let hashes = prompt.hashes();
        let whole = (prompt.len().saturating_sub(1) / self.profile.block_tokens) as usize;
        let reusable = &hashes[..whole.min(hashes.len())];
        let (hits, _) = self.kv.leading_hits(reusable);
        (hits + self.kv.host_hits(&reusable[hits as usize..])) * self.profile.block_tokens
    }

    /// Blocks that hold nothing worth keeping.
    #[must_use]
    pub fn empty_blocks(&self) -> u32 {
        self.kv.empty_blocks()
    }

    /// State and counters now.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            waiting: self.scheduler.waiting.len() as u32,
            running: self.scheduler.running.len() as u32,
            kv_held_blocks: self.kv.held_blocks(),
            kv_evicted_blocks: self.kv.evicted_blocks(),
            prefix_query_tokens: self.scheduler.query_tokens,
            prefix_hit_tokens: self.scheduler.hit_tokens,
            host_hit_tokens: self.scheduler.host_hit_tokens,
            preemptions: self.scheduler.preemptions,
            ..self.stats
        }
    }
}

/// Whether a request of this size could run on such a pod.
///
/// # Errors
/// [`SubmitError`] says why not.
pub fn check_size(profile: &Profile, prompt_tokens: u32, max_output_tokens: u32) -> Result<(), SubmitError> {
    if prompt_tokens == 0 {
        return Err(SubmitError::EmptyPrompt);
    }
    if max_output_tokens == 0 {
        return Err(SubmitError::NoOutput);
    }
    let tokens = u64::from(prompt_tokens) + u64::from(max_output_tokens);
    if tokens > u64::from(profile.max_model_len_tokens) {
        return Err(SubmitError::TooLong { tokens, limit: profile.max_model_len_tokens });
    }
    Ok(())
}
