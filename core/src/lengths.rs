//! Output lengths to expect, per model.
//!
//! True lengths would add only 0-3 % to routing quality (a clairvoyant comparison, DESIGN section 6), so a
//! decayed mean per model is enough; the request's own maximum bounds it.

use crate::codec::{Reader, Writer};

/// Models kept apart; further ones share the mean of all.
const MAX_MODELS: usize = 32;

/// Weight of a new answer once many were seen.
const FORGET: f32 = 1.0 / 200.0;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Mean {
    model_key: u64,
    count: f32,
    sum_tokens: f32,
}

impl Mean {
    fn observe(&mut self, tokens: f32) {
        self.count = self.count * (1.0 - FORGET) + 1.0;
        self.sum_tokens = self.sum_tokens * (1.0 - FORGET) + tokens;
    }
}

/// Decayed mean output length by model. Additive over workers.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputLengths {
    all: Mean,
    models: Vec<Mean>,
}

impl Default for OutputLengths {
    fn default() -> Self {
        Self { all: Mean { model_key: 0, count: 0.0, sum_tokens: 0.0 }, models: Vec::new() }
    }
}

impl OutputLengths {
    /// Takes the length of one complete answer.
    pub fn observe(&mut self, model_key: u64, output_tokens: u32) {
        let tokens = crate::num::f32_of_u64(u64::from(output_tokens));
        self.all.observe(tokens);
        if let Some(mean) = self.models.iter_mut().find(|mean| mean.model_key == model_key) {
            mean.observe(tokens);
        } else if self.models.len() < MAX_MODELS {
            self.models.push(Mean { model_key, count: 1.0, sum_tokens: tokens });
        }
    }

    /// Count and sum for a model, for adding up over workers.
    fn sums(&self, model_key: u64) -> (f32, f32) {
        let mean = self.models.iter().find(|mean| mean.model_key == model_key).unwrap_or(&self.all);
        (mean.count, mean.sum_tokens)
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.u8(u8::try_from(self.models.len()).unwrap_or(u8::MAX));
        for mean in core::iter::once(&self.all).chain(&self.models) {
            out.u64(mean.model_key);
            out.f32(mean.count);
            out.f32(mean.sum_tokens);
        }
    }

    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let models = input.u8()?;
        let mut mean =
            || Some(Mean { model_key: input.u64()?, count: input.f32()?, sum_tokens: input.f32()? });
        let all = mean()?;
        let models = (0..models).map(|_| mean()).collect::<Option<Vec<_>>>()?;
        Some(Self { all, models })
    }
}

/// Output tokens to expect of a model, from what all workers saw; `default_tokens` counts as one answer.
#[must_use]
pub fn expected_output_tokens<'a>(
    workers: impl Iterator<Item = &'a OutputLengths>,
    model_key: u64,
    max_tokens: Option<u32>,
    default_tokens: f32,
) -> f32 {
    let (count, sum) = workers
        .map(|lengths| lengths.sums(model_key))
        .fold((1.0, default_tokens), |total, one| (total.0 + one.0, total.1 + one.1));
    let mean = sum / count;
    max_tokens.map_or(mean, |max| mean.min(crate::num::f32_of_u64(u64::from(max)))).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_per_model_and_bounded_by_the_request() {
        let mut lengths = OutputLengths::default();
        for _ in 0..500 {
            lengths.observe(1, 300);
            lengths.observe(2, 20);
        }
        let expect = |model, max| expected_output_tokens(core::iter::once(&lengths), model, max, 128.0);
        assert!((expect(1, None) - 300.0).abs() < 3.0);
        assert!((expect(2, None) - 20.0).abs() < 2.0);
        assert!((expect(1, Some(64)) - 64.0).abs() < f32::EPSILON);
        // A model never seen takes the mean of all.
        assert!((expect(3, None) - 160.0).abs() < 5.0);
    }

    #[test]
    fn before_any_answer_the_default_is_expected() {
        assert!((expected_output_tokens(core::iter::empty(), 1, None, 128.0) - 128.0).abs() < f32::EPSILON);
    }

    #[test]
    fn a_table_is_written_and_read_back() {
        let mut lengths = OutputLengths::default();
        lengths.observe(7, 12);
        let mut out = Writer::default();
        lengths.write(&mut out);
        let bytes = out.finish();
        assert_eq!(OutputLengths::read(&mut Reader::new(&bytes)), Some(lengths));
    }
}
