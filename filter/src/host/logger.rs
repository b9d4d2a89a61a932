//! The `log` crate's macros to Envoy's log.
//!
//! The SDK has a logger; it panics when the host does not take a line.

use super::abi;

struct EnvoyLog;

static ENVOY_LOG: EnvoyLog = EnvoyLog;

/// Installs it. While a module is being initialised Envoy forbids every call but that of writing a line, so
/// the level comes later.
pub(crate) fn install() {
    // Fails only when a logger is installed already, and then there is one.
    let _ = log::set_logger(&ENVOY_LOG);
    log::set_max_level(log::LevelFilter::Info);
}

/// Makes no lines that Envoy's own wasm logger would drop.
pub(crate) fn follow_envoy() {
    log::set_max_level(match abi::log_level() {
        Some(0) => log::LevelFilter::Trace,
        Some(1) => log::LevelFilter::Debug,
        Some(2) | None => log::LevelFilter::Info,
        Some(3) => log::LevelFilter::Warn,
        Some(_) => log::LevelFilter::Error,
    });
}

impl log::Log for EnvoyLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            log::Level::Trace => 0,
            log::Level::Debug => 1,
            log::Level::Info => 2,
            log::Level::Warn => 3,
            log::Level::Error => 4,
        };
        abi::log(level, &record.args().to_string());
    }

    fn flush(&self) {}
}
