//! What rivals keep about pods between decisions.

use std::collections::VecDeque;

use hashbrown::HashMap;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::virtual_time::content::BLOCK_TOKENS;
use crate::virtual_time::policy::{Ask, Pick, Policy, Token};
use crate::virtual_time::record::Record;
use crate::virtual_time::scrape::PodMetrics;

/// How a rival chooses.
pub trait Rule {
    /// Name in reports.
    fn name(&self) -> &'static str;

    /// How often it reads metrics pages.
    fn scrape_interval_us(&self) -> Option<u64> {
        None
    }

    /// Blocks that its index keeps for a pod of this size; `None`: it has no index.
    fn index_blocks(&self, _pod_blocks: usize) -> Option<usize> {
        None
    }

    /// The pod for this request, one of `books.up()`, which is not empty.
    fn choose(&mut self, ask: &Ask<'_>, books: &mut Books) -> usize;

    /// The request was sent to this pod.
    fn sent(&mut self, _ask: &Ask<'_>, _pod: usize, _books: &Books) {}

    /// A request is over.
    fn ended(&mut self, _id: u64, _record: &Record, _now_us: u64) {}
}

/// Least recently used blocks, of one pod.
#[derive(Debug, Default)]
pub struct LruIndex {
    used: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    stamp: u64,
}

impl LruIndex {
    /// Blocks kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Leading blocks of the prompt that are kept.
    #[must_use]
    pub fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.used.contains_key(*block)).count()
    }

    fn touch(&mut self, blocks: &[u64], capacity: usize) {
        // The tail first, so that it is the first to go.
        for block in blocks.iter().rev() {
            self.stamp += 1;
            self.used.insert(*block, self.stamp);
            self.order.push_back((*block, self.stamp));
        }
        while self.used.len() > capacity || self.order.len() > 4 * capacity.max(1024) {
            let Some((block, stamp)) = self.order.pop_front() else { break };
            if self.used.get(&block) == Some(&stamp) {
                if self.used.len() > capacity {
                    self.used.remove(&block);
                } else {
                    self.order.push_back((block, stamp));
                }
            }
        }
    }
}

/// One pod, as the rival knows it.
#[derive(Debug, Default)]
pub struct PodBook {
    /// Requests in flight.
    pub requests: u32,
    /// Of those, the ones without a first token.
    pub prefilling: u32,
    /// Prompt tokens not matched in the index, of requests without a first token.
    pub prefill_tokens: u64,
    /// Distinct blocks of the requests in flight, with how many of them hold each.
    pub active: HashMap<u64, u32>,
    /// Blocks of answers, which nothing shares.
    pub answer_blocks: u64,
    /// The last scrape.
    pub scraped: Option<PodMetrics>,
    /// Requests sent since then.
    pub sent_since_scrape: u32,
    /// Prompts that were sent there.
    pub index: LruIndex,
}

struct Flight {
    pod: usize,
    uncached: u64,
    first: bool,
    blocks: std::sync::Arc<[u64]>,
    prompt_blocks: usize,
    answer_blocks: u64,
}

/// All pods, and what is in flight.
pub struct Books {
    /// By index of the pod.
    pub pods: Vec<PodBook>,
    up: Vec<bool>,
    flights: HashMap<u64, Flight>,
    rng: StdRng,
    count_blocks: bool,
}

impl Books {
    /// Pods in the pool.
    pub fn up(&self) -> impl Iterator<Item = usize> + '_ {
        self.up.iter().enumerate().filter(|(_, up)| **up).map(|(at, _)| at)
    }

    /// A pod drawn from all that are up.
    pub fn any(&mut self) -> usize {
        let count = self.up().count().max(1);
        let at = self.rng.random_range(0..count);
        self.up().nth(at).unwrap_or(0)
    }

    /// A number from 0 to below 1.
    pub fn draw(&mut self) -> f64 {
        self.rng.random()
    }

    /// The pod of the highest score; ties are drawn.
    pub fn highest(&mut self, score: impl Fn(&PodBook, usize) -> f64) -> usize {
        let scores: Vec<(usize, f64)> = self.up().map(|pod| (pod, score(&self.pods[pod], pod))).collect();
        let best = scores.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
        let ties: Vec<usize> =
            scores.iter().filter(|(_, score)| *score >= best).map(|(pod, _)| *pod).collect();
        match ties.len() {
            0 => self.any(),
            count => ties[self.rng.random_range(0..count)],
        }
    }

    /// Prompt tokens that the index does not know for this pod.
    #[must_use]
    pub fn uncached(&self, ask: &Ask<'_>, pod: usize) -> u64 {
        let matched = self.pods[pod].index.matched(ask.request.prompt_blocks()) as u64;
        u64::from(ask.request.prompt_tokens).saturating_sub(matched * u64::from(BLOCK_TOKENS))
    }

    /// Share of the prompt's full blocks that the index knows for this pod.
    #[must_use]
    pub fn matched_share(&self, ask: &Ask<'_>, pod: usize) -> f64 {
        let blocks = ask.request.prompt_blocks();
        self.pods[pod].index.matched(blocks) as f64 / blocks.len().max(1) as f64
    }
}

/// 1 for the least value and 0 for the greatest; 1 for all when they are equal.
#[must_use]
pub fn min_max(value: f64, least: f64, greatest: f64) -> f64 {
    if greatest > least { (greatest - value) / (greatest - least) } else { 1.0 }
}

/// A rule with its books: a policy.
pub struct Ruled<R> {
    rule: R,
    books: Books,
}

impl<R: Rule> Ruled<R> {
    /// The rule with empty books.
    #[must_use]
    pub fn new(rule: R, seed: u64) -> Self {
        let books = Books {
            pods: Vec::new(),
            up: Vec::new(),
            flights: HashMap::new(),
            rng: StdRng::seed_from_u64(seed),
            count_blocks: rule.name() == super::kv_cost::NAME,
        };
        Self { rule, books }
    }
}

impl<R: Rule> Policy for Ruled<R> {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        self.rule.scrape_interval_us()
    }

    fn scraped(&mut self, pod: usize, metrics: &PodMetrics, _now_us: u64) {
        let book = &mut self.books.pods[pod];
        book.scraped = Some(*metrics);
        book.sent_since_scrape = 0;
    }

    fn pool_changed(&mut self, up: &[bool], _now_us: u64) {
        self.books.up = up.to_vec();
        self.books.pods.resize_with(up.len(), PodBook::default);
        for (book, up) in self.books.pods.iter_mut().zip(up) {
            if !up {
                book.index = LruIndex::default();
                book.scraped = None;
            }
        }
    }

    fn pick(&mut self, ask: &Ask<'_>) -> Pick {
        if self.books.up().next().is_none() {
            return Pick::default();
        }
        let best = self.rule.choose(ask, &mut self.books);
        // Envoy's retry goes wherever its own policy says.
        let next = self.books.any();
        Pick { pods: vec![best, next], decision: None }
    }

    fn sent(&mut self, ask: &Ask<'_>, pod: usize, attempts: u32) {
        if attempts > 1 {
            self.leave(ask.id);
        }
        let uncached = self.books.uncached(ask, pod);
        let pod_blocks = ask.pods.engine(pod).profile().kv_blocks as usize;
        let prompt = ask.request.prompt_blocks();
        let book = &mut self.books.pods[pod];
        book.requests += 1;
        book.prefilling += 1;
        book.prefill_tokens += uncached;
        book.sent_since_scrape += 1;
        if let Some(capacity) = self.rule.index_blocks(pod_blocks) {
            book.index.touch(prompt, capacity);
        }
        if self.books.count_blocks {
            for block in prompt {
                *book.active.entry(*block).or_default() += 1;
            }
        }
        let flight = Flight {
            pod,
            uncached,
            first: false,
            blocks: ask.request.blocks.clone(),
            prompt_blocks: prompt.len(),
            answer_blocks: 0,
        };
        self.books.flights.insert(ask.id, flight);
        self.rule.sent(ask, pod, &self.books);
    }

    fn token(&mut self, token: &Token, _now_us: u64) {
        if token.tokens > 1 && !token.tokens.is_multiple_of(BLOCK_TOKENS) {
            return;
        }
        let Some(flight) = self.books.flights.get_mut(&token.id) else { return };
        let book = &mut self.books.pods[flight.pod];
        if token.tokens.is_multiple_of(BLOCK_TOKENS) {
            flight.answer_blocks += 1;
            book.answer_blocks += 1;
        }
        if !std::mem::replace(&mut flight.first, true) {
            book.prefilling = book.prefilling.saturating_sub(1);
            book.prefill_tokens = book.prefill_tokens.saturating_sub(flight.uncached);
        }
    }

    fn ended(&mut self, id: u64, record: &Record, now_us: u64) {
        self.leave(id);
        self.rule.ended(id, record, now_us);
    }
}

impl<R> Ruled<R> {
    fn leave(&mut self, id: u64) {
        let Some(flight) = self.books.flights.remove(&id) else { return };
        let book = &mut self.books.pods[flight.pod];
        book.requests = book.requests.saturating_sub(1);
        book.answer_blocks = book.answer_blocks.saturating_sub(flight.answer_blocks);
        if !flight.first {
            book.prefilling = book.prefilling.saturating_sub(1);
            book.prefill_tokens = book.prefill_tokens.saturating_sub(flight.uncached);
        }
        if self.books.count_blocks {
            for block in &flight.blocks[..flight.prompt_blocks] {
                if let Some(holders) = book.active.get_mut(block) {
                    *holders -= 1;
                    if *holders == 0 {
                        book.active.remove(block);
                    }
                }
            }
        }
    }
}
