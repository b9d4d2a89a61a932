//! `foretoken-sim`: pods without a GPU, and load to send at them or at a proxy before them.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Usage errors end with 2 inside `parse`.
    let command = cli::Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match cli::run(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("foretoken-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
