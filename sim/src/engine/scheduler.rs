//! What goes into the next step: vLLM's first-come-first-served scheduler with chunked prefill.
//!
//! Per step, within the token budget: every sequence that decodes gets one token; then prompts that are
//! partly computed go on, oldest first; then waiting requests are admitted in order of arrival, and none
//! overtakes one that does not fit. A prompt's blocks are taken whole at admission (its cached blocks
//! are reused, and at least its last token is computed). When a decoding sequence needs a block and none
//! is free, the youngest running sequence loses its blocks, goes back to the head of the queue and is
//! recomputed later; in such a step nobody is admitted.
//!
//! What it is not: priorities, LoRA, speculative decoding, prefill and decode on different pods.

use std::collections::VecDeque;

use super::kv::{BlockId, KvCache};
use super::profile::{Profile, StepWork};
use super::prompt::TokenBlocks;

/// Share of the blocks that admission leaves free for sequences that are decoding, as vLLM's watermark
/// did; without it a new prompt takes the last blocks and is preempted at once.
const WATERMARK_SHARE: f64 = 0.01;

/// One request inside the engine.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: u64,
    /// Prompt and generated tokens.
    pub(super) tokens: TokenBlocks,
    pub(super) prompt_tokens: u32,
    pub(super) prompt_digest: u64,
    pub(super) produced: u32,
    pub(super) max_output_tokens: u32,
    /// Leading tokens whose KV is computed.
    pub(super) computed: u32,
    /// Tokens of the running step.
    pub(super) chunk: u32,
    pub(super) blocks: Vec<BlockId>,
    /// Full blocks whose content was made known.
    published: usize,
    /// Prompt tokens found in the cache at the first admission.
    pub(super) cached_tokens: Option<u32>,
    /// Aborted while its step was running.
    pub(super) aborted: bool,
}

impl Sequence {
    pub(super) fn new(id: u64, prompt: TokenBlocks, max_output_tokens: u32) -> Self {
        Self {
            id,
            prompt_tokens: prompt.len(),
            prompt_digest: prompt.digest(),
            tokens: prompt,
            produced: 0,
            max_output_tokens,
            computed: 0,
            chunk: 0,
            blocks: Vec::new(),
            published: 0,
            cached_tokens: None,
            aborted: false,
        }
    }

    /// Tokens whose KV must be computed before the next one can be generated.
    fn pending(&self) -> u32 {
        self.tokens.len() - self.computed
    }

    /// Hashes of the blocks that may come from the cache: never the last token's, whose output is the next token.
    pub(super) fn reusable(&self, block_tokens: u32) -> &[u64] {
        let hashes = self.tokens.hashes();
        let whole = (self.tokens.len().saturating_sub(1) / block_tokens) as usize;
        &hashes[..whole.min(hashes.len())]
    }

    /// Whether the next token needs only the last one computed.
    fn decodes(&self) -> bool {
        self.produced > 0 && self.pending() == 1
    }

    /// Takes in the step's result; true when it brought a token.
    pub(super) fn advance(&mut self) -> bool {
        self.computed += self.chunk;
        let scheduled = std::mem::take(&mut self.chunk) > 0;
        if !scheduled || self.pending() > 0 {
            return false;
        }
        self.tokens.push_generated(self.prompt_digest, self.produced);
        self.produced += 1;
        true
    }
}

/// Queues of one engine, and the counters that its metrics page shows.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    pub(super) waiting: VecDeque<Sequence>,
    /// In order of admission.
    pub(super) running: Vec<Sequence>,
    pub(super) preemptions: u64,
    pub(super) query_tokens: u64,
    pub(super) hit_tokens: u64,
}

impl Scheduler {
    /// Chooses the step's work and takes the blocks it needs.
    pub(super) fn schedule(&mut self, kv: &mut KvCache, profile: &Profile) -> StepWork {
        let mut work = StepWork::default();
        let mut budget = profile.max_batched_tokens;
        let preempted = self.schedule_decodes(kv, profile, &mut budget, &mut work);
        for sequence in &mut self.running {
            if sequence.chunk == 0 && sequence.pending() > 0 && !sequence.decodes() {
                schedule_chunk(sequence, kv, profile, &mut budget, &mut work);
            }
        }
        if !preempted {
            self.admit(kv, profile, &mut budget, &mut work);
        }
        work
    }

    /// One token for each decoding sequence; true when a sequence had to be preempted for it.
    fn schedule_decodes(
        &mut self,
        kv: &mut KvCache,
        profile: &Profile,
        budget: &mut u32,
        work: &mut StepWork,
    ) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &self.running[at];
            if !sequence.decodes() || *budget == 0 {
                at += 1;
                continue;
            }
            let has_room =
                sequence.blocks.len() as u64 * u64::from(profile.block_tokens) > u64::from(sequence.computed);
            if !has_room && kv.free_blocks() == 0 {
                preempted = true;
                // The youngest may be the one that needs the block; then the loop ends with it.
                self.preempt_youngest(kv);
                continue;
            }
            let sequence = &mut self.running[at];
            if !has_room {
                kv.hold_new(1, &mut sequence.blocks);
            }
            work.add_decode(sequence.computed + 1);
            sequence.chunk = 1;
            *budget -= 1;
            publish(sequence, kv, profile);
            at += 1;
        }
        preempted
    }

    fn preempt_youngest(&mut self, kv: &mut KvCache) {
        if let Some(mut sequence) = self.running.pop() {
            kv.release(&sequence.blocks);
            sequence.blocks.clear();
            sequence.published = 0;
            sequence.computed = 0;
            self.preemptions += 1;
            self.waiting.push_front(sequence);
        }
    }

    fn admit(&mut self, kv: &mut KvCache, profile: &Profile, budget: &mut u32, work: &mut StepWork) {
        let reserve = (f64::from(profile.kv_blocks) * WATERMARK_SHARE) as u32;
        while *budget > 0 && self.running.len() < profile.max_num_seqs as usize {
            let Some(sequence) = self.waiting.front() else { return };
            let needed = sequence.tokens.len().div_ceil(profile.block_tokens);
            let (hits, free_hits) = kv.leading_hits(sequence.reusable(profile.block_tokens));
            let new = needed - hits;
            let reserve = if self.running.is_empty() { 0 } else { reserve };
            if new + free_hits + reserve > kv.free_blocks() {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            kv.hold_hits(&sequence.tokens.hashes()[..hits as usize], &mut sequence.blocks);
            kv.hold_new(new, &mut sequence.blocks);
            sequence.computed = hits * profile.block_tokens;
            sequence.published = hits as usize;
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(sequence.computed);
                self.query_tokens += u64::from(sequence.prompt_tokens);
                self.hit_tokens += u64::from(sequence.computed);
            }
            schedule_chunk(&mut sequence, kv, profile, budget, work);
            self.running.push(sequence);
        }
    }
}

/// Schedules as much of a sequence's pending tokens as the budget allows.
fn schedule_chunk(
    sequence: &mut Sequence,
    kv: &mut KvCache,
    profile: &Profile,
    budget: &mut u32,
    work: &mut StepWork,
) {
    let chunk = sequence.pending().min(*budget);
    if chunk > 0 {
        work.add_prefill(sequence.computed, chunk);
        sequence.chunk = chunk;
        *budget -= chunk;
        publish(sequence, kv, profile);
    }
}

/// Makes the blocks known that this step fills. As in vLLM this happens when they are scheduled: whoever
/// is admitted behind in the same step reads them after they are written.
fn publish(sequence: &mut Sequence, kv: &mut KvCache, profile: &Profile) {
    let full = ((sequence.computed + sequence.chunk) / profile.block_tokens) as usize;
    let filled = sequence.blocks.iter().zip(sequence.tokens.hashes()).take(full);
    for (block, hash) in filled.skip(sequence.published) {
        kv.publish(*block, *hash);
    }
    sequence.published = sequence.published.max(full);
}
