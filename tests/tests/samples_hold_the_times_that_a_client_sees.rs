//! TTFT and TPOT in the filter's samples are those that the client of the same request measures, with an event
//! a token and with events that come several at a time.
//!
//! How near they are on a quiet machine is `scripts/bench state`'s to say; here a busy one must pass.

use anyhow::Result;
use foretoken_tests::measure::{Answers, agreement};
use foretoken_tests::paths;

const REQUESTS: usize = 150;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_a_token() -> Result<()> {
    check(Answers::Single).await
}

#[tokio::test(flavor = "multi_thread")]
async fn several_events_at_a_time() -> Result<()> {
    check(Answers::Coalesced).await
}

async fn check(answers: Answers) -> Result<()> {
    let found = agreement(REQUESTS, answers, &paths::run_dir("measure")?).await?;
    println!("{answers:?}: {found:?}");
    // Counting callbacks in place of tokens would put TPOT off by a factor of three with coalesced events,
    // and a clock started elsewhere would put every TTFT off.
    assert!(found.tpot_rel_p50 < 0.05 && found.ttft_abs_ms_p50 < 5.0, "{found:?}");
    assert!(found.tpot_near > 0.8, "{found:?}");
    Ok(())
}
