//! Number conversions that cannot surprise: saturating, and named for what they do.
//!
//! `as` truncates or wraps without a word, so core denies it where it could; these few functions are
//! the places where a conversion is meant.

/// `u64` to `f32`, rounded to nearest (a count of tokens or bytes in a feature row).
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn f32_of_u64(value: u64) -> f32 {
    value as f32
}

/// `usize` to `f32`, rounded to nearest.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn f32_of_usize(value: usize) -> f32 {
    value as f32
}

/// `f64` to `f32`, rounded to nearest; out of range becomes infinity.
#[must_use]
#[allow(clippy::cast_possible_truncation)]
pub fn f32_of_f64(value: f64) -> f32 {
    value as f32
}

/// `u64` to `f64`, rounded to nearest above 2^53.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn f64_of_u64(value: u64) -> f64 {
    value as f64
}

/// `f64` to `u64`, rounded down; NaN and negatives become 0, too large becomes the maximum.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn u64_of_f64(value: f64) -> u64 {
    value as u64
}

/// `f32` to `u32`, rounded down; NaN and negatives become 0, too large becomes the maximum.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn u32_of_f32(value: f32) -> u32 {
    value as u32
}

/// `usize` to `u32`; too large becomes the maximum.
#[must_use]
pub fn u32_of_usize(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Milliseconds between two microsecond stamps; 0 when the clock went back.
#[must_use]
pub fn ms_between(from_us: u64, to_us: u64) -> f32 {
    f32_of_f64(f64_of_u64(to_us.saturating_sub(from_us)) / 1000.0)
}
