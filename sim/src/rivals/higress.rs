//! Higress's endpoint picker (alpha): the same 2 : 2 : 3 of queue, KV and prefix, in the proxy itself, every
//! score normalised over the candidates and its own dispatches counted until the next scrape. Source: its
//! filter-normalise-score-pick-feedback description.

use super::books::{Books, Rule, min_max};
use crate::virtual_time::policy::Ask;

/// Envoy's health checker reads the pods about this often there.
const SCRAPE_US: u64 = 200_000;

/// Normalised queue, memory and prefix, with feedback.
#[derive(Debug)]
pub struct Higress;

impl Rule for Higress {
    fn name(&self) -> &'static str {
        "higress"
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        Some(SCRAPE_US)
    }

    fn index_blocks(&self, pod_blocks: usize) -> Option<usize> {
        Some(pod_blocks)
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        let blocks = ask.request.prompt_blocks();
        let of = |books: &Books, pod: usize| {
            let book = &books.pods[pod];
            let (queue, usage) = book.scraped.map_or((0.0, 0.0), |s| (f64::from(s.waiting), s.kv_usage()));
            (queue + f64::from(book.sent_since_scrape), usage)
        };
        let (mut queues, mut usages) = ((f64::INFINITY, 0.0_f64), (f64::INFINITY, 0.0_f64));
        for pod in books.up() {
            let (queue, usage) = of(books, pod);
            queues = (queues.0.min(queue), queues.1.max(queue));
            usages = (usages.0.min(usage), usages.1.max(usage));
        }
        books.highest(|book, _| {
            let (queue, usage) = book.scraped.map_or((0.0, 0.0), |s| (f64::from(s.waiting), s.kv_usage()));
            let queue = queue + f64::from(book.sent_since_scrape);
            let prefix = book.index.matched(blocks) as f64 / blocks.len().max(1) as f64;
            2.0 * min_max(queue, queues.0, queues.1) + 2.0 * min_max(usage, usages.0, usages.1) + 3.0 * prefix
        })
    }
}
