//! What a pod shows of itself: the engine's state at its last step, and latency histograms.
//!
//! As with vLLM the gauges change only when the engine steps, so a burst that has just arrived is not
//! visible yet. That lag is part of what routers have to live with and is kept on purpose.

use std::time::Duration;

use crate::engine::EngineStats;

/// Cumulative histogram with vLLM's bounds.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    pub(super) bounds: &'static [f64],
    /// Observations at or below each bound and above the one before; one more for the rest.
    pub(super) counts: Vec<u64>,
    pub(super) sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(super) fn observe(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        let slot = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[slot] += 1;
        self.sum += seconds;
    }
}

const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const ITL_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const E2E_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// State shared between the engine's driver and the metrics page.
#[derive(Debug, Clone)]
pub(super) struct Board {
    pub(super) engine: EngineStats,
    /// Request arrival to first token.
    pub(super) ttft: Histogram,
    /// Gaps between tokens.
    pub(super) itl: Histogram,
    /// Request arrival to last token.
    pub(super) e2e: Histogram,
    /// Prompt tokens of requests that got their first token.
    pub(super) prompt_tokens: u64,
    /// Those of them that came from the cache.
    pub(super) cached_tokens: u64,
    /// Steps whose end the machine noticed too late to keep the pace, and by how much at worst.
    pub(super) late_steps: u64,
    pub(super) worst_lag: Duration,
}

impl Board {
    pub(super) fn new() -> Self {
        Self {
            engine: EngineStats::default(),
            ttft: Histogram::new(TTFT_BOUNDS),
            itl: Histogram::new(ITL_BOUNDS),
            e2e: Histogram::new(E2E_BOUNDS),
            prompt_tokens: 0,
            cached_tokens: 0,
            late_steps: 0,
            worst_lag: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_below_it() {
        let mut histogram = Histogram::new(ITL_BOUNDS);
        histogram.observe(Duration::from_millis(10));
        histogram.observe(Duration::from_millis(11));
        histogram.observe(Duration::from_secs(500));
        assert_eq!((histogram.counts[0], histogram.counts[1]), (1, 1));
        assert_eq!(histogram.counts.last(), Some(&1));
    }
}
