//! Tokens as a weighted sum of what a text is made of: least squares, non-negative, forgetting.
//!
//! Kept as sums (the normal equations) and not as a running solution, because sums of several workers add up to
//! what one worker would have learned from all their answers. Rows are divided by the true number of tokens, so
//! that the relative error is what is made small, and a book weighs no more than a question.
//!
//! Solved by cyclic coordinate descent from the last solution: a few sweeps after each answer, no division by
//! what might be zero, and a bound at zero for free (no part of a text takes tokens away).

use super::PromptShape;
use crate::codec::{Reader, Writer};
use crate::num;

/// Coefficients: a constant, one a message, and one for each of [`super::TextCounts`].
const N: usize = 11;

/// Tokens per unit before anything was learned: o200k and cl100k on prose, code and Chinese, halfway between.
const USUAL: [f64; N] = [3.0, 4.0, 0.8, 0.06, 0.4, 0.35, 0.3, 0.5, 0.5, 0.75, 0.35];

/// How sure that is: as sure as of coefficients that are half wrong, seen through answers that are 5 % off.
const USUAL_PRECISION: f64 = 0.05 * 0.05 / (0.5 * 0.5);

/// Tokens at which an answer weighs half: of a short one, the template is most and chance decides the rest.
const HALF_WEIGHT_TOKENS: f64 = 50.0;

/// Sweeps after one answer, and from scratch.
const SWEEPS: usize = 4;
const SWEEPS_FROM_SCRATCH: usize = 100;

/// What answers said about tokens per unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    gram: [[f64; N]; N],
    moment: [f64; N],
    solution: [f64; N],
}

impl Default for Fit {
    fn default() -> Self {
        Self { gram: [[0.0; N]; N], moment: [0.0; N], solution: USUAL }
    }
}

fn units(shape: &PromptShape) -> [f64; N] {
    let mut units = [0.0; N];
    let messages = num::f64_of_u64(u64::from(shape.messages));
    let values = [1.0, messages].into_iter().chain(shape.text.numbers());
    for (to, from) in units.iter_mut().zip(values) {
        *to = from;
    }
    units
}

fn dot(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Fit {
    /// Tokens of the text of a prompt; media count nothing here.
    pub(super) fn tokens(&self, shape: &PromptShape) -> f64 {
        dot(&units(shape), &self.solution)
    }

    /// Learns that a prompt of this shape had `tokens` tokens, after forgetting all but `keep` of what it knew.
    pub(super) fn observe(&mut self, shape: &PromptShape, tokens: f64, keep: f64) {
        let weight = tokens / (tokens + HALF_WEIGHT_TOKENS);
        let row = units(shape).map(|value| value / tokens);
        for ((sums, moment), left) in self.gram.iter_mut().zip(&mut self.moment).zip(row) {
            for (sum, right) in sums.iter_mut().zip(row) {
                *sum = *sum * keep + weight * left * right;
            }
            *moment = *moment * keep + weight * left;
        }
        self.solve(SWEEPS);
    }

    /// Adds what another worker's answers said.
    pub(super) fn merge(&mut self, other: &Self) {
        for (sums, others) in self.gram.iter_mut().zip(&other.gram) {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum += other;
            }
        }
        for (moment, other) in self.moment.iter_mut().zip(&other.moment) {
            *moment += other;
        }
        self.solve(SWEEPS_FROM_SCRATCH);
    }

    fn solve(&mut self, sweeps: usize) {
        for _ in 0..sweeps {
            for (at, ((sums, moment), usual)) in self.gram.iter().zip(&self.moment).zip(USUAL).enumerate() {
                let precision = USUAL_PRECISION / (usual * usual);
                let (Some(own), Some(value)) = (sums.get(at).copied(), self.solution.get(at).copied()) else {
                    continue;
                };
                let others = dot(sums, &self.solution) - own * value;
                let best = (moment - others + precision * usual) / (own + precision);
                if let Some(slot) = self.solution.get_mut(at) {
                    *slot = if best > 0.0 { best } else { 0.0 };
                }
            }
        }
    }

    /// Packs the sums: they are symmetric, so half of them.
    pub(super) fn write(&self, out: &mut Writer) {
        for (at, (sums, moment)) in self.gram.iter().zip(&self.moment).enumerate() {
            for sum in sums.iter().skip(at) {
                out.f32(num::f32_of_f64(*sum));
            }
            out.f32(num::f32_of_f64(*moment));
        }
    }

    /// Reads what [`Fit::write`] packed; `None` when short or not finite.
    pub(super) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let mut fit = Self::default();
        let mut number = || input.f32().map(f64::from).filter(|number| number.is_finite());
        for at in 0..N {
            for other in at..N {
                let sum = number()?;
                *fit.gram.get_mut(at)?.get_mut(other)? = sum;
                *fit.gram.get_mut(other)?.get_mut(at)? = sum;
            }
            *fit.moment.get_mut(at)? = number()?;
        }
        fit.solve(SWEEPS_FROM_SCRATCH);
        Some(fit)
    }
}
