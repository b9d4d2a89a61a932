//! One value out of several series: their sum, or the largest.

use super::text::Series;
use crate::num::f32_of_f64;

/// A value that is unknown (NaN) until a series tells it. What is not finite tells nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gathered(pub(super) f64);

impl Default for Gathered {
    fn default() -> Self {
        Self(f64::NAN)
    }
}

impl Gathered {
    /// Adds a number.
    pub(super) fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.0 = if self.0.is_nan() { value } else { self.0 + value };
        }
    }

    /// Takes a number if it is larger.
    pub(super) fn raise(&mut self, value: f64) {
        if value.is_finite() {
            // `max` of NaN and a number is the number.
            self.0 = self.0.max(value);
        }
    }

    /// Adds a series' value.
    pub(super) fn add_series(&mut self, series: &Series<'_>) {
        self.add(series.value().unwrap_or(f64::NAN));
    }

    /// Takes a series' value if it is larger.
    pub(super) fn raise_series(&mut self, series: &Series<'_>) {
        self.raise(series.value().unwrap_or(f64::NAN));
    }

    /// Whether nothing told it.
    pub(super) fn is_unknown(self) -> bool {
        self.0.is_nan()
    }

    /// This, or the other where this is unknown.
    pub(super) fn or(self, other: Self) -> Self {
        if self.is_unknown() { other } else { self }
    }

    /// As a number of things: unknown stays unknown, and no page makes it negative.
    pub(super) fn count(self) -> f32 {
        // Not by `max`, which takes the other number for NaN.
        f32_of_f64(self.0.clamp(0.0, f64::from(f32::MAX)))
    }

    /// As a share, 0..1.
    pub(super) fn share(self) -> f32 {
        f32_of_f64(self.0.clamp(0.0, 1.0))
    }

    /// As a size: nothing has none.
    pub(super) fn size(self) -> f32 {
        let size = f32_of_f64(self.0);
        if size > 0.0 && size.is_finite() { size } else { f32::NAN }
    }

    /// As a part of a sum whose other parts are known: what is not told adds nothing.
    pub(super) fn or_zero(self) -> f64 {
        if self.0.is_nan() { 0.0 } else { self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_stays_unknown_and_is_never_zero() {
        let unknown = Gathered::default();
        assert!(unknown.count().is_nan() && unknown.share().is_nan() && unknown.size().is_nan());
        let told = |value: f64| Gathered(value);
        assert_eq!((told(-3.0).count(), told(7.0).count()), (0.0, 7.0));
        assert_eq!((told(-1.0).share(), told(2.0).share()), (0.0, 1.0));
        assert!(told(0.0).size().is_nan() && told(-1.0).size().is_nan());
        assert_eq!((unknown.or_zero(), told(2.0).or_zero()), (0.0, 2.0));
        assert_eq!(unknown.or(told(1.0)).0, 1.0);
    }

    #[test]
    fn sums_and_maxima_pass_over_what_is_not_finite() {
        let (mut sum, mut most) = (Gathered::default(), Gathered::default());
        for value in [f64::NAN, 1.0, f64::INFINITY, -4.0, f64::NEG_INFINITY, 2.0] {
            sum.add(value);
            most.raise(value);
        }
        assert_eq!((sum.0, most.0), (-1.0, 2.0));
    }
}
