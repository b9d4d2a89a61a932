//! foretoken-tests: a real Envoy with the real filter, the real trainer, and pods, driven from Rust.
//!
//! The end-to-end tests (`tests/`) and the demo (`src/bin/demo.rs`) share this harness. It starts
//! processes, waits for what they say of themselves, and reads their figures; it fakes nothing.
//!
//! * [`paths`]: where scripts/setup and scripts/build put things, and what to run when they are missing.
//! * [`process`]: child processes that never outlive their parent.
//! * [`http`]: a small client; also raw bytes, for what no client would send.
//! * [`envoy`]: Envoy with `envoy/local/envoy.yaml`, its ports and pods replaced; its statistics.
//! * [`trainer`]: the trainer process and its status.
//! * [`pods`]: simulated pods in this process; [`llama_cpp`]: real engines.
//! * [`dns`]: a DNS server whose answers a test changes; [`load`]: clients that send until they are stopped.
//! * [`samples`]: takes samples in the trainer's place; [`measure`]: the filter's times against a client's.
//! * [`models`]: models made by hand, whose predictions are known.
//! * [`completion`]: requests, and what the filter explains about them.
//! * [`browser`]: a headless Chromium.
//! * [`recorder`]: a pod that keeps what reaches it, for tests about bytes and headers.
//! * [`stepped`]: a pod of the newer APIs that sends an event when it is told to.
//! * [`demo`]: three phases of one workload, measured and shown.
//! * [`learning`]: how well and how soon the loop learns, in virtual time.
//! * [`engines`]: the simulator held against real engines: the same requests, the same policies.
//! * [`crash`]: a trainer that is killed while an Envoy serves.
//! * [`wait`]: waiting for a condition, with a message that says what was seen last.

pub mod browser;
pub mod completion;
pub mod crash;
pub mod demo;
pub mod dns;
pub mod engines;
pub mod envoy;
pub mod http;
pub mod learning;
pub mod llama_cpp;
pub mod load;
pub mod measure;
pub mod models;
pub mod paths;
pub mod pods;
pub mod process;
pub mod recorder;
pub mod samples;
pub mod stepped;
pub mod trainer;
pub mod wait;

/// Does a program's work until it ends or somebody presses Ctrl-C, says what went wrong, and gives the status to exit with.
pub async fn to_exit_code(
    program: &str,
    work: impl Future<Output = anyhow::Result<()>>,
) -> std::process::ExitCode {
    let outcome = tokio::select! {
        outcome = work => outcome,
        // Dropping the future ends all that it started.
        _ = tokio::signal::ctrl_c() => return std::process::ExitCode::from(130),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
