//! Gateway API Inference Extension's and llm-d's heuristic default: queue 2, KV 2, prefix 3, the highest score
//! wins. Source: the chart's scheduling profile; approximate prefix index of 64-token blocks, LRU for each pod,
//! sized from `cache_config_info`; 50 ms scrapes.

use super::books::{Books, Rule, min_max};
use super::queue_kv::{SCRAPE_US, queue_range};
use crate::virtual_time::policy::Ask;

/// Weighted queue, free memory and prefix.
#[derive(Debug)]
pub struct GieDefault {
    scrape_us: u64,
}

impl Default for GieDefault {
    fn default() -> Self {
        Self { scrape_us: SCRAPE_US }
    }
}

impl Rule for GieDefault {
    fn name(&self) -> &'static str {
        "gie-default"
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        Some(self.scrape_us)
    }

    fn index_blocks(&self, pod_blocks: usize) -> Option<usize> {
        Some(pod_blocks)
    }

    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize {
        let (least, greatest) = queue_range(books);
        let blocks = ask.request.prompt_blocks();
        books.highest(|book, _| {
            let (queue, usage) = book.scraped.map_or((0.0, 0.0), |s| (f64::from(s.waiting), s.kv_usage()));
            let prefix = book.index.matched(blocks) as f64 / blocks.len().max(1) as f64;
            2.0 * min_max(queue, least, greatest) + 2.0 * (1.0 - usage) + 3.0 * prefix
        })
    }
}
