//! What the router's state costs: time per request and memory, at 64 pods with a million known blocks.
//!
//! Built for wasm32-wasip1 and run in V8 (`scripts/bench state` does both), because that is where the filter runs.
//! A request here is a decision without a model (rows, prior, costs), its dispatch, its tokens and its end, with an
//! 8k-token prompt and some hundred others in flight; reading and hashing its body is not in it.
//! Prints one JSON line: `memory_mib`, `state_us {p50, p99}` and how far the index was filled.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use foretoken_core::config::Config;
use foretoken_core::fleet::Fleet;
use foretoken_core::hash::{chain, pod_key};
use foretoken_core::request::{Api, LlmRequest, Prompt};
use foretoken_core::response::{EventCount, Summary, Usage};
use foretoken_core::router::{Dispatch, Outcome, Router};
use foretoken_core::sample::{Ending, TokenSource};
use foretoken_core::telemetry::{Dialect, Scrape};

const PODS: usize = 64;
const BLOCKS: u32 = 1_000_000;
/// 8,192 tokens of 4 bytes in blocks of 256 bytes.
const PROMPT_BLOCKS: u64 = 128;
/// A system prompt of 2,048 tokens that all conversations share.
const SHARED_BLOCKS: u64 = 32;
const CONVERSATIONS: u64 = 20_000;
const IN_FLIGHT: usize = 256;
const MEASURED: usize = 20_000;

fn memory_bytes() -> usize {
    #[cfg(target_arch = "wasm32")]
    return core::arch::wasm32::memory_size(0) * 65_536;
    #[cfg(not(target_arch = "wasm32"))]
    0
}

fn request(conversation: u64) -> LlmRequest {
    let mut state = 1;
    let blocks = (0..PROMPT_BLOCKS)
        .map(|at| {
            let own = if at < SHARED_BLOCKS { 0 } else { conversation + 1 };
            state = chain(state, &(own << 32 | at).to_le_bytes());
            state
        })
        .collect();
    LlmRequest {
        api: Api::Chat,
        model: "m".to_owned(),
        stream: true,
        include_usage: true,
        max_tokens: Some(200),
        prompt: Prompt { text_bytes: PROMPT_BLOCKS as u32 * 256, blocks, ..Prompt::default() },
    }
}

struct Bench {
    router: Router,
    in_flight: VecDeque<Dispatch>,
    now_us: u64,
    random: u64,
}

impl Bench {
    fn conversation(&mut self) -> u64 {
        self.random = chain(self.random, b"next");
        self.random % CONVERSATIONS
    }

    /// One request comes, the oldest one in flight ends. Returns the time of its decision, of its dispatch and of
    /// the rest, in µs.
    fn step(&mut self, request: &LlmRequest) -> [f64; 3] {
        self.now_us += 5_000;
        let now_us = self.now_us;
        let start = Instant::now();
        let decision = self.router.decide(request, now_us).unwrap();
        let decided = Instant::now();
        let (mut dispatch, _) = self.router.dispatch(&decision, request, now_us, now_us);
        let dispatched = Instant::now();
        self.router.progress(&mut dispatch, 1, now_us);
        self.in_flight.push_back(dispatch);
        if self.in_flight.len() > IN_FLIGHT {
            let mut oldest = self.in_flight.pop_front().unwrap();
            let summary = Summary {
                first_token_us: Some(now_us - 900_000),
                last_token_us: Some(now_us),
                output_tokens: 100,
                tokens_from: TokenSource::Usage,
                usage: Usage { prompt_tokens: Some(8192), completion_tokens: Some(100), cached_tokens: None },
                events: EventCount::default(),
                end_us: Some(now_us),
                complete: true,
                error: false,
                answer_blocks: Vec::new(),
            };
            let outcome = Outcome {
                status: 200,
                attempts: 1,
                streamed: true,
                ending: Ending::Complete,
                summary: Some(summary),
            };
            self.router.end(&mut oldest, &outcome, now_us);
        }
        let us = |from: Instant, to: Instant| (to - from).as_nanos() as f64 / 1000.0;
        [us(start, decided), us(decided, dispatched), us(dispatched, Instant::now())]
    }
}

fn main() {
    let addresses: Vec<String> = (0..PODS).map(|pod| format!("10.0.0.{pod}:8000")).collect();
    let config = serde_json::json!({
        "cluster": "pods",
        "endpoints": {"addresses": addresses},
        "prefix": {"max_blocks": BLOCKS},
    });
    let config = Arc::new(Config::from_json(config.to_string().as_bytes()).unwrap());
    let empty = memory_bytes();
    let mut fleet = Fleet::default();
    fleet.set_members(addresses.iter().map(|address| (address.clone(), true)));
    for address in &addresses {
        let scrape = Scrape {
            waiting_requests: 1.0,
            running_requests: 4.0,
            kv_capacity_tokens: 2_000_000.0,
            ..Scrape::unknown(Dialect::Vllm)
        };
        fleet.set_scrape(pod_key(address), &scrape, 1);
    }
    let mut router = Router::new(config, 7);
    router.set_fleet(fleet);
    router.take_pages(1);
    let mut bench = Bench { router, in_flight: VecDeque::new(), now_us: 1_000_000, random: 1 };
    // What is known before: conversations of all pods, until the bound is reached.
    let mut fill = 0;
    while bench.router.known_blocks() < BLOCKS as usize - 10_000 && fill < 100_000 {
        let conversation = bench.conversation();
        bench.step(&request(conversation));
        fill += 1;
    }
    let mut times_us: Vec<[f64; 4]> = Vec::with_capacity(MEASURED);
    for _ in 0..MEASURED {
        let conversation = bench.conversation();
        let request = request(conversation);
        let [decide, dispatch, rest] = bench.step(&request);
        times_us.push([decide + dispatch + rest, decide, dispatch, rest]);
    }
    let at = |part: usize, share: f64| {
        let mut times: Vec<f64> = times_us.iter().map(|times| times[part]).collect();
        times.sort_by(f64::total_cmp);
        (times[(share * (times.len() - 1) as f64) as usize] * 10.0).round() / 10.0
    };
    let memory_mib = (memory_bytes() - empty) as f64 / f64::from(1 << 20);
    println!(
        "{}",
        serde_json::json!({
            "blocks": bench.router.known_blocks(),
            "memory_mib": (memory_mib * 100.0).round() / 100.0,
            "state_us": {
                "p50": at(0, 0.5),
                "p99": at(0, 0.99),
                "parts_p50": {"decide": at(1, 0.5), "dispatch": at(2, 0.5), "tokens_and_end": at(3, 0.5)},
            },
        })
    );
}
