//! One value out of several series: their sum, or the largest.

use super::text::Series;

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
}
