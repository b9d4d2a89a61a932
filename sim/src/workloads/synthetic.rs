//! Traffic that needs no trace, drawn from the shapes that the field tests routers with.
//!
//! | shape | what |
//! | --- | --- |
//! | `churn` | 150 groups with 6,000 shared tokens each, 1,200 of a question, 1,000 out (llm-d's precise-prefix benchmark): more prefixes than one pod keeps |
//! | `multi-turn` | a system prompt of 3,000, then 15,000-100,000 of the conversation's own, about 6 turns of 1,500 in and 800 out, back to back (llm-d's predicted-latency benchmark) |
//! | `document-burst` | short chat, and now and then a document of 40 pages with a handful of short requests right behind it, before any scrape can show it |
//! | `mooncake-like` | one system block, conversations that come back with a longer context; lengths and reuse as Mooncake's conversation trace has them, divided by 8 |
//! | `code-like` | long prompts, answers of a few tokens, arrivals in bursts, as Azure's code trace |
//! | `chat-like` | steady arrivals, medium prompts and answers, as Azure's conversation trace: decode is the bottleneck |
//! | `slo-mix` | chat with tight targets, agents with long contexts and looser ones, and batch that may be shed |
//!
//! Rates are requests a second; of `multi-turn` that of its conversations' first turns times the mean number of
//! turns.

use std::collections::{HashMap, VecDeque};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1, LogNormal, Normal};

use crate::virtual_time::{Arrival, Content, Record, Request, Slo, Workload};

/// Names of the shapes.
pub const SHAPES: [(&str, Shape); 7] = [
    ("churn", Shape::Churn),
    ("multi-turn", Shape::MultiTurn),
    ("document-burst", Shape::DocumentBurst),
    ("mooncake-like", Shape::MooncakeLike),
    ("code-like", Shape::CodeLike),
    ("chat-like", Shape::ChatLike),
    ("slo-mix", Shape::SloMix),
];

/// Which traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Many shared prefixes.
    Churn,
    /// Conversations with long private contexts.
    MultiTurn,
    /// Short chat and sudden documents.
    DocumentBurst,
    /// Conversations that come back.
    MooncakeLike,
    /// Bursts of prefill.
    CodeLike,
    /// Steady decode.
    ChatLike,
    /// Classes with targets.
    SloMix,
}

impl Shape {
    /// The shape of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape)
    }
}

const MEAN_TURNS: f64 = 6.0;
/// A conversation ends before its context outgrows the model.
const MAX_CONTEXT_TOKENS: u32 = 120_000;
const CHURN_GROUPS: u64 = 150;

struct Conversation {
    id: u64,
    /// Its own: what it says does not depend on when others are answered, so that policies get the same requests.
    rng: StdRng,
    content: Content,
    turn: u64,
    turns_left: u32,
    context_tokens: u32,
    output_tokens: u32,
}

/// One run of a shape.
pub struct Synthetic {
    shape: Shape,
    rate: f64,
    seed: u64,
    left: usize,
    rng: StdRng,
    now_s: f64,
    serial: u64,
    /// Arrivals of the same burst that are still to come, last first.
    burst: Vec<Arrival>,
    /// Conversations whose request is in the pool, by tag.
    talking: HashMap<u64, Conversation>,
    /// Conversations that may come back.
    idle: VecDeque<Conversation>,
}

/// Log-normal with this mean and standard deviation.
fn log_normal(rng: &mut StdRng, mean: f64, sd: f64) -> f64 {
    let sigma2 = (1.0 + sd * sd / (mean * mean)).ln();
    LogNormal::new(mean.ln() - sigma2 / 2.0, sigma2.sqrt()).map_or(mean, |law| law.sample(rng))
}

fn tokens(value: f64, low: u32, high: u32) -> u32 {
    (value.round() as u32).clamp(low, high)
}

/// A turn of `multi-turn`.
fn turn_lengths(rng: &mut StdRng) -> (u32, u32) {
    let input = tokens(log_normal(rng, 1500.0, 1200.0), 16, 8000);
    let output = tokens(log_normal(rng, 800.0, 600.0), 8, 4000);
    (input, output)
}

impl Synthetic {
    /// `count` requests (of `multi-turn`: turns, about) at `rate` a second.
    #[must_use]
    pub fn new(shape: Shape, rate: f64, count: usize, seed: u64) -> Self {
        Self {
            shape,
            rate: rate.max(1e-6),
            seed,
            left: count,
            rng: StdRng::seed_from_u64(seed),
            now_s: 0.0,
            serial: 0,
            burst: Vec::new(),
            talking: HashMap::new(),
            idle: VecDeque::new(),
        }
    }

    fn gap_s(&mut self, rate: f64) -> f64 {
        let gap: f64 = Exp1.sample(&mut self.rng);
        gap / rate
    }

    /// A source number that no other content has.
    fn fresh(&mut self) -> u64 {
        self.serial += 1;
        (1 << 40) + self.serial
    }

    fn at(&self, request: Request) -> Arrival {
        Arrival { at_us: (self.now_s * 1e6) as u64, request }
    }

    fn ask(&mut self, mut content: Content, output_tokens: u32, tag: u64) -> Request {
        let prompt_tokens = content.tokens();
        content.push(self.fresh(), output_tokens);
        Request {
            prompt_tokens,
            output_tokens,
            blocks: content.blocks(),
            max_tokens: None,
            tag,
            slo: None,
            priority: 0,
        }
    }

    fn plain(&mut self, prompt_tokens: u32, output_tokens: u32) -> Request {
        let mut content = Content::default();
        let source = self.fresh();
        content.push(source, prompt_tokens);
        self.ask(content, output_tokens, source)
    }

    fn churn(&mut self) -> Arrival {
        self.now_s += self.gap_s(self.rate);
        let group = self.rng.random_range(0..CHURN_GROUPS);
        let mut content = Content::default();
        content.push(group + 1, 6000);
        let question = self.fresh();
        content.push(question, 1200);
        let request = self.ask(content, 1000, group);
        self.at(request)
    }

    /// A request of a conversation's next turn; the conversation waits among those that talk.
    fn turn(&mut self, mut conversation: Conversation, input_tokens: u32, output_tokens: u32) -> Request {
        conversation.turn += 1;
        let source = (conversation.id << 16) + conversation.turn * 2;
        conversation.content.push(source, input_tokens);
        let prompt_tokens = conversation.content.tokens();
        let mut whole = conversation.content.clone();
        whole.push(source + 1, output_tokens);
        let request = Request {
            prompt_tokens,
            output_tokens,
            blocks: whole.blocks(),
            max_tokens: None,
            tag: conversation.id,
            slo: None,
            priority: 0,
        };
        conversation.content = whole;
        conversation.context_tokens = prompt_tokens + output_tokens;
        conversation.output_tokens = output_tokens;
        conversation.turns_left = conversation.turns_left.saturating_sub(1);
        self.talking.insert(conversation.id, conversation);
        request
    }

    fn new_conversation(&mut self, shared: u32, own: u32, turns: u32) -> Conversation {
        let id = self.fresh();
        let mut content = Content::default();
        content.push(1, shared);
        content.push(id << 16, own);
        let rng = StdRng::seed_from_u64((self.seed << 48) ^ id);
        Conversation { id, rng, content, turn: 0, turns_left: turns, context_tokens: 0, output_tokens: 0 }
    }

    fn multi_turn(&mut self) -> Arrival {
        self.now_s += self.gap_s(self.rate / MEAN_TURNS);
        let own = self.rng.random_range(15_000..=100_000);
        let turns = Normal::new(MEAN_TURNS, 3.0).map_or(MEAN_TURNS, |law| law.sample(&mut self.rng));
        let mut conversation = self.new_conversation(3000, own, tokens(turns, 2, 20));
        let (input, output) = turn_lengths(&mut conversation.rng);
        let request = self.turn(conversation, input, output);
        self.at(request)
    }

    fn document_burst(&mut self) -> Arrival {
        // One burst a minute of eight pods' traffic or so: of seven requests in forty.
        self.now_s += self.gap_s(self.rate);
        let (input, output) = self.chat_lengths(0.6);
        if self.rng.random_bool(0.03) {
            let at_us = (self.now_s * 1e6) as u64;
            let followers = self.rng.random_range(4..=8_u64);
            for follower in (1..=followers).rev() {
                let (input, output) = self.chat_lengths(0.6);
                let request = self.plain(input, output);
                // Within 40 ms: faster than any scrape.
                let delay_us = follower * 40_000 / followers;
                self.burst.push(Arrival { at_us: at_us + delay_us, request });
            }
            let pages = self.rng.random_range(20_000..40_000);
            let request = self.plain(pages, 300);
            return self.at(request);
        }
        let request = self.plain(input, output);
        self.at(request)
    }

    fn chat_lengths(&mut self, share: f64) -> (u32, u32) {
        // Medians and tails of Azure's conversation trace.
        let input = tokens(log_normal(&mut self.rng, 1155.0 * share, 1100.0 * share), 16, 14_000);
        let output = tokens(log_normal(&mut self.rng, 211.0, 170.0), 2, 1500);
        (input, output)
    }

    fn mooncake_like(&mut self) -> Arrival {
        self.now_s += self.gap_s(self.rate);
        let output = tokens(log_normal(&mut self.rng, 45.0, 30.0), 2, 250);
        // Mooncake's own reuse beyond the common block comes to about a third of all tokens.
        if self.idle.len() > 8 && self.rng.random_bool(0.45) {
            // Whoever spoke recently is likelier to speak again.
            let back = (self.idle.len() as f64 * self.rng.random::<f64>().powi(3)) as usize;
            let at = self.idle.len() - 1 - back.min(self.idle.len() - 1);
            if let Some(conversation) =
                self.idle.remove(at).filter(|conversation| conversation.context_tokens < 14_000)
            {
                let input = tokens(log_normal(&mut self.rng, 350.0, 700.0), 4, 8000);
                let request = self.turn(conversation, input, output);
                return self.at(request);
            }
        }
        let own = tokens(log_normal(&mut self.rng, 1250.0, 1900.0), 64, 14_000);
        let conversation = self.new_conversation(64, 0, 8);
        let request = self.turn(conversation, own, output);
        self.at(request)
    }

    fn code_like(&mut self) -> Arrival {
        // Bursts: a quarter of the requests start one, and its others follow within milliseconds.
        self.now_s += self.gap_s(self.rate / 4.0);
        let more = (log_normal(&mut self.rng, 3.0, 9.0) as usize).min(60);
        let lengths = |rng: &mut StdRng| {
            (tokens(log_normal(rng, 2050.0, 2100.0), 32, 7400), tokens(log_normal(rng, 28.0, 60.0), 2, 1000))
        };
        let mut at_us = (self.now_s * 1e6) as u64;
        let mut followers = Vec::with_capacity(more);
        for _ in 0..more {
            at_us += (self.gap_s(60.0) * 1e6) as u64;
            let (input, output) = lengths(&mut self.rng);
            let request = self.plain(input, output);
            followers.push(Arrival { at_us, request });
        }
        followers.reverse();
        self.burst = followers;
        let (input, output) = lengths(&mut self.rng);
        let request = self.plain(input, output);
        self.at(request)
    }

    fn chat_like(&mut self) -> Arrival {
        self.now_s += self.gap_s(self.rate);
        let (input, output) = self.chat_lengths(1.0);
        let request = self.plain(input, output);
        self.at(request)
    }

    fn slo_mix(&mut self) -> Arrival {
        self.now_s += self.gap_s(self.rate);
        let kind: f64 = self.rng.random();
        let request = if kind < 0.6 {
            let (input, output) = self.chat_lengths(0.5);
            let slo = Slo { ttft_ms: 1000.0, tpot_ms: 100.0 };
            Request { slo: Some(slo), ..self.plain(input, output) }
        } else if kind < 0.85 {
            let group = self.rng.random_range(0..60_u64);
            let mut content = Content::default();
            content.push(group + 1, 5000);
            let question = self.fresh();
            content.push(question, 800);
            let output = tokens(log_normal(&mut self.rng, 300.0, 200.0), 8, 1500);
            let slo = Slo { ttft_ms: 3000.0, tpot_ms: 150.0 };
            Request { slo: Some(slo), ..self.ask(content, output, group) }
        } else {
            let input = tokens(log_normal(&mut self.rng, 6000.0, 5000.0), 256, 40_000);
            let output = tokens(log_normal(&mut self.rng, 500.0, 300.0), 32, 2000);
            let slo = Slo { ttft_ms: 30_000.0, tpot_ms: 400.0 };
            Request { slo: Some(slo), priority: -1, ..self.plain(input, output) }
        };
        self.at(request)
    }
}

impl Workload for Synthetic {
    fn next(&mut self) -> Option<Arrival> {
        if self.left == 0 {
            return None;
        }
        // A burst's arrivals lie behind its first; the next first may lie before the burst's end.
        if let Some(arrival) = self.burst.pop() {
            self.left -= 1;
            self.now_s = self.now_s.max(arrival.at_us as f64 / 1e6);
            return Some(arrival);
        }
        self.left -= 1;
        Some(match self.shape {
            Shape::Churn => self.churn(),
            Shape::MultiTurn => {
                // Turns that follow are of the same count.
                self.left = self.left.saturating_sub(MEAN_TURNS as usize - 1);
                self.multi_turn()
            }
            Shape::DocumentBurst => self.document_burst(),
            Shape::MooncakeLike => self.mooncake_like(),
            Shape::CodeLike => self.code_like(),
            Shape::ChatLike => self.chat_like(),
            Shape::SloMix => self.slo_mix(),
        })
    }

    fn follow_up(&mut self, ended: &Record, now_us: u64) -> Option<Arrival> {
        let mut conversation = self.talking.remove(&ended.tag)?;
        if self.shape == Shape::MooncakeLike {
            // It comes back, if it does, as an arrival of its own.
            if self.idle.len() >= 4000 {
                self.idle.pop_front();
            }
            self.idle.push_back(conversation);
            return None;
        }
        let room = conversation.context_tokens + 12_000 <= MAX_CONTEXT_TOKENS;
        if conversation.turns_left == 0 || !room {
            return None;
        }
        let (input, output) = turn_lengths(&mut conversation.rng);
        let request = self.turn(conversation, input, output);
        Some(Arrival { at_us: now_us, request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(shape: Shape, count: usize) -> Vec<Arrival> {
        let mut source = Synthetic::new(shape, 10.0, count, 5);
        std::iter::from_fn(|| source.next()).collect()
    }

    #[test]
    fn every_shape_is_drawn_in_order_of_time_and_the_same_again() {
        for (name, shape) in SHAPES {
            let arrivals = drawn(shape, 2000);
            assert_eq!(Shape::named(name), Some(shape));
            assert!(arrivals.windows(2).all(|pair| pair[0].at_us <= pair[1].at_us), "{name}");
            assert_eq!(arrivals, drawn(shape, 2000), "{name}");
            for Arrival { request, .. } in &arrivals {
                let blocks = ((request.prompt_tokens + request.output_tokens) / 64) as usize;
                assert_eq!(request.blocks.len(), blocks, "{name}");
                assert!(request.prompt_tokens + request.output_tokens <= 131_072, "{name}");
            }
        }
    }

    #[test]
    fn rates_are_what_was_asked_for() {
        for shape in [Shape::Churn, Shape::ChatLike, Shape::CodeLike, Shape::DocumentBurst, Shape::SloMix] {
            let arrivals = drawn(shape, 20_000);
            let seconds = arrivals[arrivals.len() - 1].at_us as f64 / 1e6;
            let rate = arrivals.len() as f64 / seconds;
            assert!((rate / 10.0 - 1.0).abs() < 0.25, "{shape:?}: {rate}");
        }
    }

    #[test]
    fn code_comes_in_bursts_and_chat_does_not() {
        let variation = |shape| {
            let arrivals = drawn(shape, 10_000);
            let gaps: Vec<f64> =
                arrivals.windows(2).map(|pair| (pair[1].at_us - pair[0].at_us) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt() / mean
        };
        assert!(variation(Shape::CodeLike) > 1.6, "{}", variation(Shape::CodeLike));
        assert!((variation(Shape::ChatLike) - 1.0).abs() < 0.1);
    }
}
