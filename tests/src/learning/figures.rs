//! Errors and coverage over requests.

use serde::Serialize;

/// One request, as it was predicted when it was routed and as it went.
#[derive(Debug, Clone)]
pub struct Seen {
    /// When it was routed, seconds.
    pub at_s: f64,
    /// Clean samples that the trainer had then.
    pub known: u64,
    /// Generation of the model; 0 for the prior.
    pub generation: u64,
    /// Requests without a first token at its pod then.
    pub queued: f32,
    /// Index of the pod.
    pub pod: usize,
    /// TTFT: predicted median, predicted 90th percentile, measured, ms.
    pub ttft_ms: [f32; 3],
    /// The same of TPOT; the last is absent for one token.
    pub tpot_ms: ([f32; 2], Option<f32>),
}

impl Seen {
    fn ttft_ape(&self) -> f64 {
        f64::from((self.ttft_ms[0] - self.ttft_ms[2]).abs() / self.ttft_ms[2])
    }

    fn tpot_ape(&self) -> Option<f64> {
        let actual = self.tpot_ms.1?;
        Some(f64::from((self.tpot_ms.0[0] - actual).abs() / actual))
    }
}

/// Over a set of requests.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Errors {
    /// Requests.
    pub n: usize,
    /// Median absolute percentage error of TTFT, 0.1 is 10 %.
    pub ttft_mdape: f64,
    /// The same of TPOT.
    pub tpot_mdape: f64,
    /// Share of requests whose TTFT is at or below the predicted 90th percentile.
    pub ttft_p90_coverage: f64,
    /// The same of TPOT.
    pub tpot_p90_coverage: f64,
}

/// Median; 0 of none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn share(flags: impl Iterator<Item = bool>) -> f64 {
    let (mut yes, mut all) = (0_u32, 0_u32);
    for flag in flags {
        all += 1;
        yes += u32::from(flag);
    }
    f64::from(yes) / f64::from(all.max(1))
}

impl Errors {
    /// Of these requests.
    #[must_use]
    pub fn of<'a>(seen: impl Iterator<Item = &'a Seen>) -> Self {
        let seen: Vec<&Seen> = seen.collect();
        let tpot = |one: &&Seen| one.tpot_ms.1.map(|actual| actual <= one.tpot_ms.0[1]);
        Self {
            n: seen.len(),
            ttft_mdape: median(seen.iter().map(|one| one.ttft_ape()).collect()),
            tpot_mdape: median(seen.iter().filter_map(|one| one.tpot_ape()).collect()),
            ttft_p90_coverage: share(seen.iter().map(|one| one.ttft_ms[2] <= one.ttft_ms[1])),
            tpot_p90_coverage: share(seen.iter().filter_map(tpot)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_coverage_are_those_counted_by_hand() {
        let seen = |predicted: f32, p90: f32, actual: f32| Seen {
            at_s: 0.0,
            known: 0,
            generation: 1,
            queued: 0.0,
            pod: 0,
            ttft_ms: [predicted, p90, actual],
            tpot_ms: ([10.0, 20.0], (actual > 100.0).then_some(20.0)),
        };
        let all = [seen(110.0, 120.0, 100.0), seen(100.0, 150.0, 200.0), seen(90.0, 120.0, 120.0)];
        let errors = Errors::of(all.iter());
        assert_eq!(errors.n, 3);
        assert!((errors.ttft_mdape - 0.25).abs() < 1e-6, "{errors:?}");
        assert!((errors.ttft_p90_coverage - 2.0 / 3.0).abs() < 1e-9);
        assert!((errors.tpot_mdape - 0.5).abs() < 1e-6);
        assert_eq!(errors.tpot_p90_coverage, 1.0);
        assert_eq!(Errors::of([].iter()).n, 0);
    }
}
