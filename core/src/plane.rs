//! A linear law learned online: y = θ·x with θ above zero, from decayed sums.
//!
//! Errors count relative to what was expected, so that a 10 % error counts the same on a 50 ms and on a 5 s
//! answer. What is expected depends on x alone: weighed by the answer's own time, slow answers would count less
//! and a pod that slows down would be believed late.
//!
//! The sums of several workers, and of several pods, add up. A ridge pulls the law to a belief where answers tell
//! little, or cannot tell two causes apart.
//!
//! Not here: which laws there are ([`crate::speed`]).

use crate::codec::{Reader, Writer};
use crate::num::f32_of_f64;

/// Most passes of coordinate descent. Each costs N² multiplications; laws whose causes go hand in hand need many…
const SWEEPS: usize = 60;

/// …and others few: it ends with a pass that moves no part by more than this share of its belief.
const SETTLED: f64 = 1e-4;

/// No part of a law falls below this share of the belief: a negative part is noise.
const LEAST_SHARE: f64 = 0.01;

/// Decayed sums of relative squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlaneSums<const N: usize> {
    /// Decayed number of observations.
    pub count: f32,
    yy: f64,
    xy: [f64; N],
    xx: [[f64; N]; N],
}

impl<const N: usize> Default for PlaneSums<N> {
    fn default() -> Self {
        Self { count: 0.0, yy: 0.0, xy: [0.0; N], xx: [[0.0; N]; N] }
    }
}

/// How a pod's answers compare with a law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Natural logarithm of what the law must be multiplied by to fit them best.
    pub ln: f64,
    /// Mean square of the relative errors that are left then.
    pub variance: f64,
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl<const N: usize> PlaneSums<N> {
    /// Takes one observation, where `expected` was foreseen; what was known before keeps the share `keep`.
    /// Ignored when a value is not finite, an x is negative, or a y is not positive.
    pub fn observe(&mut self, x: &[f32; N], y: f32, expected: f32, keep: f32) {
        let positive = |value: f32| value.is_finite() && value > 0.0;
        let causes = x.iter().all(|x| x.is_finite() && *x >= 0.0);
        if !(causes && positive(y) && positive(expected)) {
            return;
        }
        self.scale(keep);
        self.count += 1.0;
        let y = f64::from(y / expected);
        let x = x.map(|x| f64::from(x) / f64::from(expected));
        self.yy += y * y;
        for ((xy, row), a) in self.xy.iter_mut().zip(&mut self.xx).zip(&x) {
            *xy += a * y;
            for (xx, b) in row.iter_mut().zip(&x) {
                *xx += a * b;
            }
        }
    }

    /// Lets this share of what was observed count.
    pub fn scale(&mut self, share: f32) {
        self.count *= share;
        let share = f64::from(share);
        self.yy *= share;
        self.xy.iter_mut().for_each(|xy| *xy *= share);
        self.xx.iter_mut().flatten().for_each(|xx| *xx *= share);
    }

    /// Adds other sums.
    pub fn add(&mut self, other: &Self) {
        self.add_scaled(other, 1.0);
    }

    /// Adds the sums of something that takes `factor` times as long, as if it did not.
    pub fn add_scaled(&mut self, other: &Self, factor: f64) {
        self.count += other.count;
        self.yy += other.yy;
        for (xy, add) in self.xy.iter_mut().zip(&other.xy) {
            *xy += add * factor;
        }
        for (xx, add) in self.xx.iter_mut().flatten().zip(other.xx.iter().flatten()) {
            *xx += add * factor * factor;
        }
    }

    /// How these answers compare with a law; `None` without any.
    #[must_use]
    pub fn against(&self, law: &[f32; N]) -> Option<Scale> {
        let law = law.map(f64::from);
        let xy = dot(&law, &self.xy);
        let xx: f64 = law.iter().zip(&self.xx).map(|(part, row)| part * dot(row, &law)).sum();
        let factor = xy / xx;
        let ln = factor.ln();
        let variance = (self.yy - factor * xy).max(0.0) / f64::from(self.count);
        (ln.is_finite() && variance.is_finite()).then_some(Scale { ln, variance })
    }

    /// The law of least squares with a ridge of `answers` answers towards `belief`, which is brought to the
    /// observed level first: where parts cannot be told apart, their proportions are the belief's.
    #[must_use]
    pub fn fit(&self, belief: &[f32; N], answers: f32) -> [f32; N] {
        let ridge = f64::from(answers);
        let belief = belief.map(f64::from);
        let level = {
            let xx: f64 = belief.iter().zip(&self.xx).map(|(part, row)| part * dot(row, &belief)).sum();
            (dot(&belief, &self.xy) + ridge) / (xx + ridge)
        };
        let belief = belief.map(|part| part * level);
        // In shares of the belief all parts are about 1.
        let mut shares = [1.0_f64; N];
        for _ in 0..SWEEPS {
            let mut moved = 0.0_f64;
            let rows = self.xx.iter().zip(&self.xy).zip(&belief).enumerate();
            for (at, ((row, xy), part)) in rows {
                let all: f64 =
                    row.iter().zip(&belief).zip(&shares).map(|((xx, b), share)| xx * b * share).sum();
                let own = row.get(at).copied().unwrap_or(0.0) * part * part;
                let Some(share) = shares.get_mut(at) else { continue };
                let others = all * part - own * *share;
                let next = (xy * part + ridge - others) / (own + ridge);
                let next = if next.is_finite() { next.max(LEAST_SHARE) } else { 1.0 };
                moved = moved.max((next - *share).abs());
                *share = next;
            }
            if moved < SETTLED {
                break;
            }
        }
        let mut law = [0.0_f32; N];
        for ((out, share), part) in law.iter_mut().zip(&shares).zip(&belief) {
            *out = f32_of_f64(share * part);
        }
        law
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.f32(self.count);
        out.f32(f32_of_f64(self.yy));
        self.xy.iter().for_each(|xy| out.f32(f32_of_f64(*xy)));
        for (at, row) in self.xx.iter().enumerate() {
            row.iter().take(at + 1).for_each(|xx| out.f32(f32_of_f64(*xx)));
        }
    }

    /// `None` when a value is missing or not finite.
    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let mut next = || input.f32().filter(|value| value.is_finite());
        let mut sums = Self { count: next()?, yy: f64::from(next()?), ..Self::default() };
        for xy in &mut sums.xy {
            *xy = f64::from(next()?);
        }
        for at in 0..N {
            for column in 0..=at {
                let value = f64::from(next()?);
                for (row, column) in [(at, column), (column, at)] {
                    *sums.xx.get_mut(row)?.get_mut(column)? = value;
                }
            }
        }
        Some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELIEF: [f32; 3] = [12.0, 0.2, 4e-5];

    fn observed(law: [f32; 3], answers: u16) -> PlaneSums<3> {
        let mut sums = PlaneSums::default();
        for i in 0..answers {
            let x = [1.0, f32::from(i % 31), f32::from(i % 17) * 9_000.0];
            let y: f32 = law.iter().zip(&x).map(|(a, b)| a * b).sum();
            sums.observe(&x, y, y * 1.1, 1.0);
        }
        sums
    }

    fn assert_close(got: [f32; 3], want: [f32; 3], share: f32) {
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= want * share, "got {got}, want {want}");
        }
    }

    #[test]
    fn a_law_is_found_from_its_points() {
        let law = [31.0, 0.25, 5e-5];
        assert_close(observed(law, 400).fit(&BELIEF, 0.01), law, 0.02);
    }

    #[test]
    fn without_answers_the_belief_stands() {
        assert_close(PlaneSums::<3>::default().fit(&BELIEF, 1.0), BELIEF, 1e-5);
    }

    #[test]
    fn causes_that_go_hand_in_hand_keep_the_proportions_of_the_belief() {
        let mut sums = PlaneSums::<3>::default();
        for i in 0..200_u16 {
            let x = [1.0, f32::from(i % 9), f32::from(i % 9) * 5000.0];
            // All three parts are twice the belief's.
            let y = 24.0 + x[1] * 0.4 + x[2] * 8e-5;
            sums.observe(&x, y, y, 1.0);
        }
        assert_close(sums.fit(&BELIEF, 1.0), [24.0, 0.4, 8e-5], 0.03);
    }

    #[test]
    fn no_part_is_negative() {
        let mut sums = PlaneSums::<3>::default();
        for i in 0..200_u16 {
            let x = [1.0, f32::from(i % 9), f32::from(i % 5) * 1e4];
            sums.observe(&x, 40.0 - x[1], 40.0, 1.0);
        }
        assert!(sums.fit(&BELIEF, 1.0).iter().all(|part| *part > 0.0));
    }

    #[test]
    fn a_slower_twin_adds_up_with_its_factor() {
        let law = [31.0, 0.25, 5e-5];
        let slow = observed(law.map(|part| part * 2.0), 300);
        let scale = slow.against(&law).unwrap();
        assert!((scale.ln.exp() - 2.0).abs() < 1e-3 && scale.variance < 1e-6, "{scale:?}");
        let mut all = observed(law, 300);
        all.add_scaled(&slow, 2.0);
        assert_close(all.fit(&BELIEF, 0.01), law, 0.02);
    }

    #[test]
    fn sums_survive_their_bytes_and_nonsense_is_refused() {
        let sums = observed([31.0, 0.25, 5e-5], 50);
        let mut out = Writer::reuse(Vec::new());
        sums.write(&mut out);
        let bytes = out.finish();
        let back = PlaneSums::<3>::read(&mut Reader::new(&bytes)).unwrap();
        assert_close(back.fit(&BELIEF, 1.0), sums.fit(&BELIEF, 1.0), 1e-3);
        let mut bad = bytes;
        bad[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(PlaneSums::<3>::read(&mut Reader::new(&bad)).is_none());
        let before = sums;
        let mut sums = sums;
        sums.observe(&[1.0, -1.0, 0.0], 1.0, 1.0, 0.5);
        sums.observe(&[1.0, 1.0, 0.0], f32::NAN, 1.0, 0.5);
        sums.observe(&[1.0, 1.0, 0.0], 1.0, 0.0, 0.5);
        assert_eq!(sums, before);
    }
}
