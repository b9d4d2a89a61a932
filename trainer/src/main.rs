//! `foretoken-trainer`: fits models from samples and publishes them to Envoy.

#![forbid(unsafe_code)]

mod cli;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    foretoken_trainer::xgb::wait_without_spinning();
    // Usage errors end with 2 inside `parse`.
    let command = cli::Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match cli::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foretoken-trainer: {error:#}");
            ExitCode::FAILURE
        }
    }
}
