//! What goes into the next step: vLLM's first-come-first-served scheduler with chunked prefill.
//!
//! Per step, within the token budget: every sequence that decodes gets one token; then prompts that are
//! partly computed go on, oldest first; then waiting requests are admitted in order of arrival, and none
//! overtakes one that does not fit. A prompt's blocks are taken whole at admission (its cached blocks
//! are reused, and at least its last token is computed). When a decoding sequence needs a block and none
//! is free, the youngest running sequence loses its blocks, goes back to the head of the queue and is
//! recomputed later; in such a step nobody is admitted.
//!
//! Speculative decoding gives a decoding sequence several tokens a step; how many is drawn from its id and
//! position, so that a run repeats. Blocks that host memory kept are loaded at admission instead of computed.
//!
//! What it is not: priorities, LoRA, prefill and decode on different pods.

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
    /// Tokens that the running step brings: 1, or more by speculation.
    pub(super) gain: u32,
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
            gain: 1,
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

    /// Tokens that the next decode step brings.
    fn draw_gain(&self, tokens_per_step: f64) -> u32 {
        let whole = tokens_per_step.floor();
        let mut gain = whole as u32;
        if tokens_per_step > whole {
            let drawn = foretoken_core::hash::chain(self.id, &self.produced.to_le_bytes());
            // 53 bits make a number from 0 to below 1.
            let share = (drawn >> 11) as f64 / (1_u64 << 53) as f64;
            gain += u32::from(share < tokens_per_step - whole);
        }
        gain.clamp(1, (self.max_output_tokens - self.produced).max(1))
    }

    /// Takes in the step's result; the number of tokens that it brought.
    pub(super) fn advance(&mut self) -> u32 {
        self.computed += self.chunk;
        let scheduled = std::mem::take(&mut self.chunk) > 0;
        let gain = std::mem::replace(&mut self.gain, 1);
        if !scheduled || self.pending() > 0 {
            return 0;
        }
        for _ in 0..gain {
            self.tokens.push_generated(self.prompt_digest, self.produced);
            self.produced += 1;
        }
        // What was accepted was computed in the same step, all but the last.
        self.computed += gain - 1;
        gain
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
    pub(super) host_hit_tokens: u64,
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
            let gain = sequence.draw_gain(profile.tokens_per_step);
            let blocks = (sequence.computed + gain).div_ceil(profile.block_tokens);
            let missing = blocks.saturating_sub(sequence.blocks.len() as u32);
            if missing > kv.free_blocks() {
                preempted = true;
                // The youngest may be the one that needs the block; then the loop ends with it.
                self.preempt_youngest(kv);
                continue;
            }
            let sequence = &mut self.running[at];
            kv.hold_new(missing, &mut sequence.blocks);
            work.add_decode(sequence.computed + 1);
            sequence.chunk = 1;
            sequence.gain = gain;
            *budget -= gain.min(*budget);
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
            // By the field, not by the method: the blocks are written beside it.
            let hashes = sequence.tokens.hashes();
            let whole = ((sequence.tokens.len() - 1) / profile.block_tokens) as usize;
            let reusable = &hashes[..whole.min(hashes.len())];
            kv.hold_hits(&reusable[..hits as usize], &mut sequence.blocks);
            let loaded = kv.host_hits(&reusable[hits as usize..]);
            let from_host = &reusable[hits as usize..(hits + loaded) as usize];
            kv.touch_host(from_host);
            kv.hold_new(new, &mut sequence.blocks);
            let here = sequence.blocks.get(hits as usize..).unwrap_or_default();
            here.iter().zip(from_host).for_each(|(block, hash)| kv.publish(*block, *hash));
            work.host_tokens += u64::from(loaded * profile.block_tokens);
            self.host_hit_tokens += u64::from(loaded * profile.block_tokens);
            let hits = hits + loaded;
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
