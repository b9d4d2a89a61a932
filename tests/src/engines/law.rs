//! The simulator's step time, fitted to probes of a real engine.
//!
//! A probe is one prompt on an idle engine (time to the only token) or several streams that only decode (time per
//! token). Both are linear in the coefficients of [`Profile::step_ms`], and in one more: what lies between the engine
//! and the client for each request (HTTP, reading the body, cutting it into tokens), which the simulator has not.
//!
//! ```text
//! first  ms = outside + floor + a·P + b·P·(K + P/2)      P computed tokens behind K cached ones
//! decode ms = floor + c·B + d·B·C                        B streams behind C tokens each
//! ```
//!
//! Least squares of relative errors under non-negative coefficients, by the solver that fits published tables.

use anyhow::{Result, ensure};
use foretoken_sim::calibrate::nnls::{UNKNOWNS, solve};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::virtual_time::BLOCK_TOKENS;
use serde::Serialize;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// One prompt alone.
    First {
        /// Prompt tokens computed.
        tokens: u32,
        /// Prompt tokens that were cached.
        cached: u32,
    },
    /// Streams that decode together.
    Decode {
        /// How many.
        streams: u32,
        /// Tokens behind each in the middle of the measurement.
        context: u32,
    },
}

/// A probe and its times, of several repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    /// What was done.
    pub probe: Probe,
    /// Milliseconds: to the token, or per token.
    pub times_ms: Vec<f64>,
}

impl Probed {
    fn terms(&self) -> [f64; UNKNOWNS] {
        match self.probe {
            Probe::First { tokens, cached } => {
                let (tokens, cached) = (f64::from(tokens), f64::from(cached));
                [1.0, tokens, tokens * (cached + tokens / 2.0), 0.0, 0.0, 1.0]
            }
            Probe::Decode { streams, context } => {
                let streams = f64::from(streams);
                [1.0, 0.0, 0.0, streams, streams * f64::from(context), 0.0]
            }
        }
    }

    fn median_ms(&self) -> f64 {
        median(&self.times_ms)
    }
}

/// How large an engine is, which is known and not measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Requests served at once.
    pub slots: u32,
    /// Tokens computed in one step at most.
    pub batch_tokens: u32,
    /// Tokens that it keeps for requests to come.
    pub kept_tokens: u32,
}

/// A fitted engine.
#[derive(Debug, Clone, Serialize)]
pub struct Law {
    /// For the simulator.
    pub profile: Profile,
    /// Of each request, between engine and client.
    pub outside_ms: f64,
    /// Median absolute relative error over the probes of one prompt.
    pub first_error: f64,
    /// The same over the probes that decode.
    pub decode_error: f64,
    /// The largest of both.
    pub worst_error: f64,
    /// Each probe.
    pub probes: Vec<Met>,
}

/// How the law meets a probe.
#[derive(Debug, Clone, Serialize)]
pub struct Met {
    /// What was done.
    pub probe: Probe,
    /// Median of the repeats.
    pub measured_ms: f64,
    /// By the law.
    pub fitted_ms: f64,
}

/// Fits a profile.
///
/// # Errors
/// When the probes say too little.
pub fn fit(name: &str, probed: &[Probed], size: Size) -> Result<Law> {
    ensure!(probed.len() >= 2 * UNKNOWNS, "{} probes are too few for {UNKNOWNS} unknowns", probed.len());
    let rows: Vec<([f64; UNKNOWNS], f64)> = probed
        .iter()
        .map(|one| (one.terms().map(|term| term / one.median_ms()), 1.0))
        .filter(|(terms, _)| terms.iter().all(|term| term.is_finite()))
        .collect();
    ensure!(rows.len() == probed.len(), "a probe took no time: {probed:?}");
    let solved = solve(&rows);
    let [floor_ms, prefill, attention, decode, context, outside_ms] = solved;
    let probes: Vec<Met> = probed
        .iter()
        .map(|one| Met {
            probe: one.probe,
            measured_ms: one.median_ms(),
            fitted_ms: one.terms().iter().zip(solved).map(|(term, x)| term * x).sum(),
        })
        .collect();
    let error = |one: &Met| (one.fitted_ms / one.measured_ms - 1.0).abs();
    let errors = |first: bool| -> Vec<f64> {
        let wanted = |one: &&Met| matches!(one.probe, Probe::First { .. }) == first;
        probes.iter().filter(wanted).map(error).collect()
    };
    let kv_blocks = (f64::from(size.kept_tokens) / f64::from(BLOCK_TOKENS)).round().max(1.0) as u32;
    let profile = Profile {
        name: name.to_owned(),
        // Every step takes some time, or virtual time would stand still.
        floor_ms: floor_ms.max(0.01),
        prefill_ms_per_token: prefill,
        attention_ms_per_token2: attention,
        decode_ms_per_seq: decode,
        decode_ms_per_context_token: context,
        jitter_sigma: jitter(probed).min(1.0),
        max_num_seqs: size.slots,
        max_batched_tokens: size.batch_tokens,
        max_model_len_tokens: kv_blocks * BLOCK_TOKENS,
        block_tokens: BLOCK_TOKENS,
        kv_blocks,
        tokens_per_step: 1.0,
        host_kv_blocks: 0,
        host_load_ms_per_token: 0.0,
    };
    profile.check()?;
    Ok(Law {
        profile,
        outside_ms,
        first_error: median(&errors(true)),
        decode_error: median(&errors(false)),
        worst_error: probes.iter().map(error).fold(0.0, f64::max),
        probes,
    })
}

/// Sigma of the logarithm of a step's time: the median over the long prompts' probes of the middle deviation from each
/// one's median. The middle one, so that a moment when the machine did something else does not count.
fn jitter(probed: &[Probed]) -> f64 {
    /// Of a normal distribution: sigma over the median absolute deviation.
    const SIGMA_OF_MEDIAN: f64 = 1.4826;
    let long = probed.iter().filter(|one| matches!(one.probe, Probe::First { tokens, .. } if tokens >= 256));
    let deviations: Vec<f64> = long
        .map(|one| {
            let middle = one.median_ms();
            median(&one.times_ms.iter().map(|time_ms| (time_ms / middle).ln().abs()).collect::<Vec<_>>())
        })
        .filter(|deviation| deviation.is_finite())
        .collect();
    if deviations.is_empty() { 0.0 } else { SIGMA_OF_MEDIAN * median(&deviations) }
}

/// The middle value; of an even number the mean of the two. NaN of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (sorted.get(half), half.checked_sub(1).and_then(|below| sorted.get(below))) {
        (Some(middle), Some(below)) if sorted.len().is_multiple_of(2) => f64::midpoint(*middle, *below),
        (Some(middle), _) => *middle,
        (None, _) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { slots: 4, batch_tokens: 2048, kept_tokens: 6400 };

    /// Probes of an engine of this law, each time off by what `noise` says.
    fn probes(noise: impl Fn(usize) -> f64) -> Vec<Probed> {
        let (floor, a, b, c, d, outside) = (0.2, 0.06, 5e-5, 0.15, 3e-4, 1.5);
        let mut all = Vec::new();
        for tokens in [32, 128, 256, 512, 1024, 1536, 2000] {
            let p = f64::from(tokens);
            all.push((Probe::First { tokens, cached: 0 }, outside + floor + a * p + b * p * p / 2.0));
        }
        for cached in [512, 1536] {
            let (p, k) = (100.0, f64::from(cached));
            all.push((Probe::First { tokens: 100, cached }, outside + floor + a * p + b * p * (k + p / 2.0)));
        }
        for streams in [1, 2, 4] {
            for context in [100, 1000] {
                let (s, k) = (f64::from(streams), f64::from(context));
                all.push((Probe::Decode { streams, context }, floor + c * s + d * s * k));
            }
        }
        let repeats = |at: usize, ms: f64| (0..5).map(|repeat| ms * noise(at * 5 + repeat)).collect();
        all.into_iter()
            .enumerate()
            .map(|(at, (probe, ms))| Probed { probe, times_ms: repeats(at, ms) })
            .collect()
    }

    #[test]
    fn the_law_behind_the_probes_is_found() {
        let law = fit("made", &probes(|_| 1.0), SIZE).unwrap();
        let profile = &law.profile;
        for (found, real) in [
            (profile.floor_ms, 0.2),
            (profile.prefill_ms_per_token, 0.06),
            (profile.attention_ms_per_token2, 5e-5),
            (profile.decode_ms_per_seq, 0.15),
            (profile.decode_ms_per_context_token, 3e-4),
            (law.outside_ms, 1.5),
        ] {
            assert!((found / real - 1.0).abs() < 1e-6, "{found} for {real}");
        }
        assert!(law.worst_error < 1e-6 && profile.jitter_sigma < 1e-9);
        assert_eq!((profile.kv_blocks, profile.max_num_seqs), (100, 4));
    }

    #[test]
    fn noise_is_reported_and_one_bad_repeat_of_five_is_not_believed() {
        let noisy =
            |at: usize| if at.is_multiple_of(5) { 3.0 } else { [0.0, 0.97, 0.99, 1.01, 1.03][at % 5] };
        let law = fit("noisy", &probes(noisy), SIZE).unwrap();
        assert!(law.first_error < 0.02 && law.decode_error < 0.02, "{law:?}");
        assert!((0.01..0.05).contains(&law.profile.jitter_sigma), "{}", law.profile.jitter_sigma);
        assert!(fit("few", &probes(|_| 1.0)[..8], SIZE).is_err());
    }
}
