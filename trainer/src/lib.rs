//! .
pub mod convert;
pub mod dataset;
pub mod export;
pub mod fit;
pub mod gate;
pub mod ingest;
pub mod live;
pub mod metrics;
pub mod parity;
pub mod publish;
pub mod registry;
pub mod score;
pub mod serve;
pub mod store;
#[doc(hidden)]
pub mod synthetic;
pub mod xgb;
