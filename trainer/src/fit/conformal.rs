//! The correction that makes the 90th percentile cover 90 %: conformalised quantile regression, one-sided
//! (Romano, Patterson and Candès 2019).
//!
//! On samples that the booster has not learned from, the shift is the smallest that leaves the right share of
//! them below: the `ceil((n + 1) × 0.9)`-th smallest of actual minus predicted. It corrects what a fit on its own
//! samples cannot see: that it was too sure of itself.

/// The quantile that is corrected.
const ALPHA: f64 = 0.9;

/// Fewest samples from which a correction is taken: with fewer the order statistic is noise.
const MIN_SAMPLES: usize = 50;

/// What to add to the predicted 90th percentile, from actual minus predicted of unseen samples.
#[must_use]
pub fn shift(mut excesses: Vec<f32>) -> f32 {
    excesses.retain(|excess| excess.is_finite());
    if excesses.len() < MIN_SAMPLES {
        return 0.0;
    }
    let rank = ((excesses.len() + 1) as f64 * ALPHA).ceil() as usize;
    let index = rank.clamp(1, excesses.len()) - 1;
    let (_, shift, _) = excesses.select_nth_unstable_by(index, f32::total_cmp);
    *shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_shift_nine_of_ten_lie_below() {
        let excesses: Vec<f32> = (0u16..1000).map(|i| f32::from(i * 7 % 1000) / 100.0 - 4.0).collect();
        let shift = shift(excesses.clone());
        let below = excesses.iter().filter(|excess| **excess <= shift).count();
        assert!((900..=903).contains(&below), "{below}");
    }

    #[test]
    fn too_few_or_unknown_values_correct_nothing() {
        assert_eq!(shift(vec![1.0; MIN_SAMPLES - 1]), 0.0);
        assert_eq!(shift(vec![f32::NAN; 500]), 0.0);
    }
}
