//! Prints the time to read a metrics page of the size of vLLM's, as one line of JSON.
//!
//! For wasm under V8, where criterion does not build:
//!
//! ```text
//! cargo build --profile wasm --target wasm32-wasip1 -p foretoken-core --example page_cost
//! node scripts/lib/run-wasi.mjs target/wasm32-wasip1/wasm/examples/page_cost.wasm
//! ```

#[path = "../benches/pages/mod.rs"]
mod pages;

use std::hint::black_box;
use std::time::Instant;

use foretoken_core::telemetry::read_metrics;

/// Rounds of [`PAGES_PER_ROUND`] pages; the median round is told, so that a busy machine disturbs little.
const ROUNDS: usize = 41;
const PAGES_PER_ROUND: u32 = 200;

fn main() {
    let page = pages::vllm_page();
    let mut round_us: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..PAGES_PER_ROUND {
                let _ = black_box(read_metrics(black_box(page.as_bytes()), None));
            }
            began.elapsed().as_secs_f64() * 1e6 / f64::from(PAGES_PER_ROUND)
        })
        .collect();
    round_us.sort_by(f64::total_cmp);
    let median_us = round_us.get(ROUNDS / 2).copied().unwrap_or(f64::NAN);
    println!(
        r#"{{"page_bytes":{},"page_lines":{},"read_us_p50":{median_us:.2},"read_us_min":{:.2}}}"#,
        page.len(),
        page.lines().count(),
        round_us.first().copied().unwrap_or(f64::NAN)
    );
}
