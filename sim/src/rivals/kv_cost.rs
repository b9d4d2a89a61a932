//! Dynamo's KV router: cost in blocks, of what would be prefilled and of what would be held, both with the
//! request placed there; least cost wins (temperature 0, overlap weight 1). Source: its KV-aware cost function.
//! Its index follows the engines' KV events, so here it reads the true cache.

use super::books::{Books, Rule};
use crate::virtual_time::content::BLOCK_TOKENS;
use crate::virtual_time::policy::Ask;

pub(super) const NAME: &str = "kv-cost";

/// Potential prefill and decode blocks.
#[derive(Debug)]
pub struct KvCost {
    overlap_weight: f64,
}

impl Default for KvCost {
    fn default() -> Self {
        Self { overlap_weight: 1.0 }
    }
}

impl Rule for KvCost {
    fn name(&self) -> &'static str {
        NAME
    }

    fn index_blocks(&self, pod_blocks: usize) -> Option<usize> {
        Some(pod_blocks)
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        let block = f64::from(BLOCK_TOKENS);
        let prompt = ask.request.prompt_blocks();
        books.highest(|book, pod| {
            let cached = ask.pods.cached_tokens(pod, ask.request);
            let uncached = f64::from(ask.request.prompt_tokens.saturating_sub(cached));
            let prefill_blocks = (book.prefill_tokens as f64 + uncached) / block;
            let new = prompt.iter().filter(|block| !book.active.contains_key(*block)).count();
            let held_blocks = (book.active.len() + new) as f64 + book.answer_blocks as f64;
            -(self.overlap_weight * prefill_blocks + held_blocks)
        })
    }
}
