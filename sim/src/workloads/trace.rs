//! From the rows of a trace to requests: scaled, spread and sped up.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::virtual_time::{Arrival, Content, Request};

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TraceRow {
    /// Arrival, microseconds from some start.
    pub arrival_us: u64,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Output tokens.
    pub output_tokens: u32,
    /// Ids of the prompt's blocks; equal ids at the same place mean equal content up to there. Empty when the
    /// trace does not say.
    pub block_ids: Vec<u64>,
    /// Tokens in one of those blocks.
    pub block_tokens: u32,
}

/// How a trace is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceOptions {
    /// Token counts (and block sizes) are divided by this. Truncating instead would keep only what prompts
    /// share and flatter whoever routes by prefix.
    pub scale: u32,
    /// Time is divided by this.
    pub speed: f64,
    /// At most this many requests.
    pub limit: usize,
    /// Sets where in its step an arrival falls, when the trace's clock is coarse.
    pub seed: u64,
    /// Prompt and output tokens beyond this, after scaling, are cut: no engine takes them.
    pub max_tokens: u32,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { scale: 1, speed: 1.0, limit: usize::MAX, seed: 1, max_tokens: 120_000 }
    }
}

/// Rows of one instant, on average, from which a trace's clock counts as coarse…
const COARSE_ROWS: usize = 2;
/// …when its ticks are at least this long.
const COARSE_STEP_US: u64 = 500_000;

/// The step of a coarse clock: Mooncake's conversation trace ticks every 3 s, and played as it is every test
/// of it would be a test of bursts.
fn coarse_step_us(rows: &[TraceRow]) -> Option<u64> {
    let mut times: Vec<u64> = rows.iter().map(|row| row.arrival_us).collect();
    times.sort_unstable();
    times.dedup();
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let step_us = *gaps.get(gaps.len() / 2)?;
    (rows.len() >= COARSE_ROWS * times.len() && step_us >= COARSE_STEP_US).then_some(step_us)
}

/// The requests of a trace, in order of time, the first at 0.
#[must_use]
pub fn arrivals(rows: &[TraceRow], options: &TraceOptions) -> Vec<Arrival> {
    let step_us = coarse_step_us(rows);
    let start_us = rows.iter().map(|row| row.arrival_us).min().unwrap_or(0);
    let mut rng = StdRng::seed_from_u64(options.seed);
    let mut timed: Vec<(f64, usize)> = rows
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let spread_us = step_us.map_or(0, |step_us| rng.random_range(0..step_us));
            ((row.arrival_us - start_us + spread_us) as f64 / options.speed.max(1e-9), at)
        })
        .collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    timed.truncate(options.limit);
    timed
        .into_iter()
        .map(|(at_us, at)| Arrival { at_us: at_us as u64, request: request(&rows[at], at as u64, options) })
        .collect()
}

fn request(row: &TraceRow, at: u64, options: &TraceOptions) -> Request {
    let scale = options.scale.max(1);
    let output_tokens = row.output_tokens.div_ceil(scale).clamp(1, options.max_tokens / 2);
    let prompt_tokens = row.input_tokens.div_ceil(scale).clamp(1, options.max_tokens - output_tokens);
    // Beyond any id of a trace.
    let private = u64::MAX / 2 + at * 2;
    let mut content = Content::default();
    let run = (row.block_tokens / scale).max(1);
    for id in &row.block_ids {
        content.push(*id, run.min(prompt_tokens - content.tokens()));
    }
    content.push(private, prompt_tokens - content.tokens());
    content.push(private + 1, output_tokens);
    Request {
        prompt_tokens,
        output_tokens,
        blocks: content.blocks(),
        max_tokens: None,
        tag: at,
        slo: None,
        priority: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(arrival_us: u64, input_tokens: u32, block_ids: Vec<u64>) -> TraceRow {
        TraceRow { arrival_us, input_tokens, output_tokens: 80, block_ids, block_tokens: 512 }
    }

    #[test]
    fn scaled_blocks_become_blocks_of_the_engine() {
        let rows = [row(0, 1500, vec![0, 1, 2]), row(0, 2000, vec![0, 1, 5, 6])];
        let arrivals = arrivals(&rows, &TraceOptions { scale: 8, ..TraceOptions::default() });
        let (one, two) = (&arrivals[0].request, &arrivals[1].request);
        assert_eq!((one.prompt_tokens, one.output_tokens, one.prompt_blocks().len()), (188, 10, 2));
        assert_eq!(one.prompt_blocks(), &two.prompt_blocks()[..2]);
        assert_eq!(two.prompt_blocks().len(), 3);
    }

    #[test]
    fn small_blocks_of_a_trace_are_put_together() {
        let of = |ids: Vec<u64>| TraceRow { block_tokens: 16, ..row(0, 128, ids) };
        let rows = [of((0..8).collect()), of(vec![0, 1, 2, 3, 4, 5, 6, 99])];
        let arrivals = arrivals(&rows, &TraceOptions::default());
        let (one, two) = (arrivals[0].request.prompt_blocks(), arrivals[1].request.prompt_blocks());
        assert_eq!((one.len(), one[0] == two[0], one[1] == two[1]), (2, true, false));
    }

    #[test]
    fn a_coarse_clock_is_spread_within_its_step_and_a_fine_one_is_left() {
        let coarse: Vec<TraceRow> = (0..100).map(|at| row(at / 10 * 3_000_000, 100, vec![])).collect();
        let spread = arrivals(&coarse, &TraceOptions::default());
        let distinct: std::collections::HashSet<u64> = spread.iter().map(|arrival| arrival.at_us).collect();
        assert!(distinct.len() > 95);
        for (at, arrival) in spread.iter().enumerate() {
            assert_eq!(arrival.at_us / 3_000_000, at as u64 / 10);
        }
        assert_eq!(spread, arrivals(&coarse, &TraceOptions::default()));
        let fine: Vec<TraceRow> = (0..100).map(|at| row(at * 1000, 100, vec![])).collect();
        let played = arrivals(&fine, &TraceOptions { speed: 2.0, ..TraceOptions::default() });
        assert_eq!(played[99].at_us, 49_500);
    }

    #[test]
    fn what_no_engine_takes_is_cut() {
        let rows = [row(0, 4_000_000, vec![])];
        let arrivals = arrivals(&rows, &TraceOptions { max_tokens: 1000, ..TraceOptions::default() });
        assert_eq!(arrivals[0].request.prompt_tokens + arrivals[0].request.output_tokens, 1000);
    }
}
