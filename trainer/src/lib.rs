//! .
pub mod convert;
pub mod dataset;
pub mod export;
pub mod fit;
pub mod parity;
pub mod score;
#[doc(hidden)]
pub mod synthetic;
pub mod xgb;
