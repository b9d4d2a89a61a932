//! foretoken-trainer: learns TTFT and TPOT from what filters measured, and sends them what it learned.
//!
//! The way of a sample, one module a step:
//!
//! * [`ingest`] reads it, [`store`] keeps it, [`dataset`] makes a row, a label and a weight of it;
//! * [`fit`] drives XGBoost ([`xgb`], the only unsafe code) over the newest of them;
//! * [`convert`] and [`export`] make an ONNX file of the boosters, [`parity`] proves bit by bit that it is them;
//! * [`score`] and [`gate`] decide whether it may replace what serves, [`registry`] keeps every version;
//! * [`publish`] sends it to Envoys as an extension configuration.
//!
//! [`serve`] runs all this as a service, with [`metrics`] and [`live`] errors; the binary adds the command line.
//!
//! What it is not: it is never in the path of a request, and it recomputes no feature: the row in a sample is the
//! row that the router saw.

pub mod clock;
pub mod convert;
pub mod dataset;
pub mod export;
pub mod fit;
pub mod gate;
pub mod half;
pub mod ingest;
pub mod live;
pub mod metrics;
pub mod parity;
pub mod plot;
pub mod publish;
pub mod registry;
pub mod score;
pub mod serve;
pub mod store;
#[doc(hidden)]
pub mod synthetic;
pub mod table;
pub mod tls;
pub mod trust;
pub mod watch;
pub mod xgb;
