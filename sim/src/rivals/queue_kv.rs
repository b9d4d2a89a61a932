//! The plain scorer of queue and KV memory: Gateway API Inference Extension's default with the prefix scorer
//! off, weights 2 and 2. Source: its queue-scorer and kv-cache-utilization-scorer; 50 ms scrapes.

use super::books::{Books, Rule, min_max};
use crate::virtual_time::policy::Ask;

/// Scrape interval of the endpoint picker.
pub(super) const SCRAPE_US: u64 = 50_000;

/// Weighted queue and free memory.
#[derive(Debug)]
pub struct QueueKv;

/// Least and greatest scraped queue.
pub(super) fn queue_range(books: &Books) -> (f64, f64) {
    let queues = books.up().map(|pod| waiting(books, pod));
    queues.fold((f64::INFINITY, 0.0), |(least, greatest), queue| (queue.min(least), queue.max(greatest)))
}

/// Scraped queue; an unread pod counts as idle.
pub(super) fn waiting(books: &Books, pod: usize) -> f64 {
    books.pods[pod].scraped.map_or(0.0, |scraped| f64::from(scraped.waiting))
}

impl Rule for QueueKv {
    fn name(&self) -> &'static str {
        "queue-kv"
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        Some(SCRAPE_US)
    }

    fn choose(&mut self, _ask: &Ask<'_>, books: &mut Books) -> usize {
        let (least, greatest) = queue_range(books);
        books.highest(|book, _| {
            let (queue, usage) = book.scraped.map_or((0.0, 0.0), |s| (f64::from(s.waiting), s.kv_usage()));
            2.0 * min_max(queue, least, greatest) + 2.0 * (1.0 - usage)
        })
    }
}
