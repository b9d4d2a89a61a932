//! How far the model is off on one pod, as a factor that moves slowly.
//!
//! Between two fits a pod changes: it throttles, a neighbour gets busy, a card is replaced. The model's
//! error on that pod's answers then has one sign. A factor per pod and target follows it. What matters for routing is the
//! difference between pods, and noise that is independent per pod would pick the luckiest error; so small
//! factors count as noise and correct nothing.
//!
//! Not a second model: it knows nothing of the request.

use crate::codec::{Reader, Writer};

/// Share of an error that an answer corrects: half of a lasting change within 16 answers, nearly 60 % within 20.
const STEP: f32 = 1.0 / 24.0;

/// Natural logarithm of the factor below which it is taken for noise: about twice the standard deviation of
/// the mean of 47 answers (what the step averages over) whose errors deviate by 30 %.
const NOISE_LN: f32 = 0.08;

/// One answer counts as at most this far off, in natural logarithms (a factor of 2.7): a spike is no trend.
const MOST_LN: f32 = 1.0;

/// Weight of the belief that the model is right, in answers.
const BELIEF_ANSWERS: f32 = 4.0;

/// An estimate's weight among the workers' is bounded by this many answers.
const MAX_ANSWERS: f32 = 100.0;

/// Mean natural logarithm of measured over predicted, with forgetting.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Drift {
    ln: f32,
    answers: f32,
}

impl Drift {
    /// An answer measured `actual` where the model alone said `predicted`. Ignored unless both are positive.
    pub fn observe(&mut self, predicted: f32, actual: f32) {
        let ln = (actual / predicted).ln();
        if ln.is_finite() {
            let step = STEP.max(1.0 / (self.answers + BELIEF_ANSWERS));
            self.ln += (ln.clamp(-MOST_LN, MOST_LN) - self.ln) * step;
            self.answers = (self.answers + 1.0).min(MAX_ANSWERS);
        }
    }

    /// Takes another worker's estimate in, each by the answers that it was learned from.
    pub fn absorb(&mut self, other: &Self) {
        let answers = self.answers + other.answers;
        if answers > 0.0 {
            self.ln += (other.ln - self.ln) * other.answers / answers;
            self.answers = answers;
        }
    }

    /// What to multiply the model's prediction by.
    #[must_use]
    pub fn factor(&self) -> f32 {
        let beyond = (self.ln.abs() - NOISE_LN).max(0.0);
        (beyond * self.ln.signum()).exp()
    }
}

/// Both targets of one pod, under one model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Residual {
    /// Generation of the model that is off.
    generation: u64,
    /// Of TTFT.
    pub ttft: Drift,
    /// Of TPOT.
    pub tpot: Drift,
}

impl Residual {
    /// The estimate to learn into from an answer that the model of this generation predicted; nothing where a newer
    /// model is at work already. A new model begins anew: it was fitted on what the old one missed.
    pub fn under(&mut self, generation: u64) -> Option<&mut Self> {
        if generation > self.generation {
            *self = Self { generation, ..Self::default() };
        }
        (generation == self.generation).then_some(self)
    }

    /// Takes another worker's estimate in; of two models the newer one's counts.
    pub fn absorb(&mut self, other: &Self) {
        if let Some(own) = self.under(other.generation) {
            own.ttft.absorb(&other.ttft);
            own.tpot.absorb(&other.tpot);
        }
    }

    /// What to multiply the TTFT and the TPOT of the model of this generation by.
    #[must_use]
    pub fn factors(&self, generation: u64) -> (f32, f32) {
        if generation == self.generation { (self.ttft.factor(), self.tpot.factor()) } else { (1.0, 1.0) }
    }

    /// Lets this share of the answers count.
    pub(crate) fn age(&mut self, share: f32) {
        self.ttft.answers *= share;
        self.tpot.answers *= share;
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.u64(self.generation);
        for drift in [self.ttft, self.tpot] {
            out.f32(drift.ln);
            out.f32(drift.answers);
        }
    }

    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let generation = input.u64()?;
        let mut drift = || {
            let (ln, answers) = (input.f32()?, input.f32()?);
            let sound = ln.abs() <= MOST_LN && (0.0..=MAX_ANSWERS).contains(&answers);
            sound.then_some(Drift { ln, answers })
        };
        Some(Self { generation, ttft: drift()?, tpot: drift()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_slows_down_to_half_is_noticed_within_twenty_answers() {
        let mut drift = Drift::default();
        for _ in 0..100 {
            drift.observe(100.0, 100.0);
        }
        assert_eq!(drift.factor(), 1.0);
        for _ in 0..20 {
            drift.observe(100.0, 200.0);
        }
        assert!(drift.factor() > 1.3, "{drift:?}");
        for _ in 0..60 {
            drift.observe(100.0, 200.0);
        }
        assert!(drift.factor() > 1.7, "{drift:?}");
    }

    #[test]
    fn errors_of_both_signs_correct_nothing() {
        let mut drift = Drift::default();
        for answer in 0..300_u32 {
            drift.observe(100.0, [70.0, 140.0, 95.0, 105.0][(answer % 4) as usize]);
        }
        assert_eq!(drift.factor(), 1.0, "{drift:?}");
    }

    #[test]
    fn one_spike_is_no_trend_and_nonsense_is_ignored() {
        let mut drift = Drift::default();
        for _ in 0..30 {
            drift.observe(100.0, 100.0);
        }
        drift.observe(100.0, 100_000.0);
        assert_eq!(drift.factor(), 1.0);
        let before = drift;
        drift.observe(0.0, 1.0);
        drift.observe(1.0, 0.0);
        drift.observe(f32::NAN, 1.0);
        assert_eq!(drift, before);
    }

    #[test]
    fn a_worker_without_answers_changes_nothing() {
        let mut seen = Residual::default();
        for _ in 0..40 {
            seen.under(3).unwrap().ttft.observe(100.0, 200.0);
        }
        let mut merged = Residual::default();
        merged.absorb(&seen);
        merged.absorb(&Residual::default());
        assert_eq!(merged.factors(3), (seen.ttft.factor(), 1.0));
    }

    #[test]
    fn a_new_model_is_not_corrected_for_what_the_old_one_missed() {
        let mut seen = Residual::default();
        for _ in 0..40 {
            seen.under(3).unwrap().ttft.observe(100.0, 200.0);
        }
        assert!(seen.factors(3).0 > 1.5);
        assert_eq!(seen.factors(4), (1.0, 1.0));
        let mut newer = Residual::default();
        newer.under(4).unwrap().ttft.observe(100.0, 100.0);
        seen.absorb(&newer);
        assert_eq!(seen.factors(4), (1.0, 1.0));
        assert!(seen.under(3).is_none(), "an answer of a request that the old model routed comes late");
    }
}
