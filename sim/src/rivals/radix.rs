//! Cache-aware routing of SGLang's gateway: when loads are far apart (by 64 requests and by 1.5 times) the least
//! loaded; else the pod that holds most of the prompt, if that is above 0.3 of it, and otherwise the one that
//! holds least at all. Source: its `cache_aware` policy with default thresholds; its tree hardly ever evicts.

use super::books::{Books, Rule};
use crate::virtual_time::policy::Ask;

const THRESHOLD: f64 = 0.3;
const BALANCE_ABS: u32 = 64;
const BALANCE_REL: f64 = 1.5;
/// Its tree holds 2^26 characters; at 4 a token and 64 tokens a block.
const TREE_BLOCKS: usize = 1 << 18;

/// Best match unless unbalanced.
#[derive(Debug)]
pub struct Radix;

impl Rule for Radix {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn index_blocks(&self, _pod_blocks: usize) -> Option<usize> {
        Some(TREE_BLOCKS)
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        let loads = || books.up().map(|pod| books.pods[pod].requests);
        let (least, greatest) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        if greatest - least > BALANCE_ABS && f64::from(greatest) > BALANCE_REL * f64::from(least) {
            return books.highest(|book, _| -f64::from(book.requests));
        }
        let blocks = ask.request.prompt_blocks();
        let best = books.highest(|book, _| book.index.matched(blocks) as f64);
        if books.matched_share(ask, best) > THRESHOLD {
            return best;
        }
        books.highest(|book, _| -(book.index.len() as f64))
    }
}
