//! foretoken-sim: inference pods without a GPU, and the load that makes them queue.
//!
//! * [`engine`]: one model of an engine that steps as vLLM does, as a pure state machine. Time is an
//!   argument, so the same model runs live here and in virtual time elsewhere.
//! * [`pod`]: that engine behind an OpenAI-compatible HTTP server with vLLM's bytes and metric names.
//! * [`load`]: seeded workloads, a client that measures TTFT, TPOT and E2E, and its report.
//! * [`virtual_time`]: that engine, routers and workloads as discrete events.
//! * [`bench`]: all policies on all traffic, and the report.
//! * [`calibrate`]: the step time fitted to published measurements.
//! * [`lessons`]: samples of runs on many kinds of hardware, from which a model learns before there is traffic.
//! * [`rivals`]: the routers that foretoken is measured against.
//! * [`workloads`]: public traces and synthetic traffic for it.
//! * [`tokenizer`], [`answer`]: what a token is here, and the text that a pod answers with.
//!
//! What it is not: a router (nothing here decides where a request goes, the client's own spreading over
//! several addresses aside) and not a source of absolute truth about hardware. Profiles are calibrated
//! to published measurements; ratios between policies carry over, milliseconds only roughly.
//!
//! TPOT excludes the first token everywhere: (last token - first token) / (output tokens - 1).

#![forbid(unsafe_code)]

pub mod answer;
pub mod bench;
pub mod calibrate;
pub mod engine;
pub mod lessons;
pub mod load;
pub mod pod;
pub mod rivals;
pub mod tokenizer;
pub mod virtual_time;
pub mod workloads;
