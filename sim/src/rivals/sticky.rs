//! Sticky until saturated: llm-d's default since v0.9. Pods that hold at least 0.8 of the prompt are kept as
//! candidates unless waiting there costs 5 s more than elsewhere; among the candidates the least uncached
//! tokens in flight. Source: prefix-cache-affinity-filter and token-load-scorer with max-score picker.

use super::books::{Books, Rule};
use crate::virtual_time::policy::Ask;

const AFFINITY: f64 = 0.8;
const MAX_PENALTY_MS: f64 = 5000.0;

/// Affinity, then token load.
#[derive(Debug)]
pub struct Sticky {
    /// Peak prefill rate; calibrated by hand there, here that of the `h100` profile.
    tokens_per_ms: f64,
}

impl Default for Sticky {
    fn default() -> Self {
        Self { tokens_per_ms: 20.0 }
    }
}

impl Rule for Sticky {
    fn name(&self) -> &'static str {
        "sticky"
    }

    fn index_blocks(&self, pod_blocks: usize) -> Option<usize> {
        Some(pod_blocks)
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        let holders: Vec<usize> =
            books.up().filter(|pod| books.matched_share(ask, *pod) >= AFFINITY).collect();
        let wait_ms = |pod: usize| {
            (books.pods[pod].prefill_tokens + books.uncached(ask, pod)) as f64 / self.tokens_per_ms
        };
        let least = |pods: &mut dyn Iterator<Item = usize>| pods.map(wait_ms).fold(f64::INFINITY, f64::min);
        let kept = !holders.is_empty()
            && least(&mut holders.iter().copied()) <= least(&mut books.up()) + MAX_PENALTY_MS;
        books.highest(|book, pod| {
            if kept && !holders.contains(&pod) { f64::NEG_INFINITY } else { -(book.prefill_tokens as f64) }
        })
    }
}
