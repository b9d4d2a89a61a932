//! Waiting for another process to reach a state that only asking can show.
//!
//! Every wait has a bound and, when the bound is hit, an error that says what was awaited and what was
//! seen last. Not a sleep: the state is asked for again and again, and the first yes ends the wait.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(25);

/// Asks until the answer is `Ok(Some(value))`. `Ok(None)` and errors mean: not yet.
///
/// # Errors
/// When `within` is over, with the last error seen.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        let seen = match ask().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => "not yet".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= deadline {
            bail!("waited {within:?} for {what}; last seen: {seen}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
