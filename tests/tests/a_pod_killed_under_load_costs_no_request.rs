//! A pod dies with requests in hand. Those that have had no byte of an answer go to the next pod of the
//! filter's list; those whose stream was cut are the client's to see; later requests are sent elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use foretoken_tests::completion::{Completed, complete, mixed_requests};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::{paths, pods, wait};

const CLIENTS: u32 = 12;

/// What the clients are told.
const ALL_ALIVE: u8 = 0;
const ONE_JUST_DEAD: u8 = 1;
const DEATH_KNOWN: u8 = 2;
const ALIVE_AGAIN: u8 = 3;
const STOP: u8 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_on_while_a_pod_dies_and_comes_back() -> Result<()> {
    let dir = paths::run_dir("killed")?;
    let mut pods = pods::start(&["fast", "fast", "fast"]).await?;
    let envoy = Envoy::start("killed", &Options::new(&pods::addresses(&pods))?, &dir).await?;
    envoy.wait_for_pods(3, Duration::from_secs(20)).await?;

    let phase = Arc::new(AtomicU8::new(ALL_ALIVE));
    let finished = Arc::new(AtomicU64::new(0));
    // Requests in a row that were not sent to the pod that is to die.
    let elsewhere = Arc::new(AtomicU64::new(0));
    let doomed = Arc::new(std::sync::OnceLock::<String>::new());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (phase, finished, elsewhere) =
                (Arc::clone(&phase), Arc::clone(&finished), Arc::clone(&elsewhere));
            let (doomed, llm) = (Arc::clone(&doomed), envoy.llm());
            tokio::spawn(async move {
                let mut seen: Vec<(u8, Result<Completed>)> = Vec::new();
                for request in mixed_requests(100_000, client) {
                    let now = phase.load(Ordering::SeqCst);
                    if now == STOP {
                        break;
                    }
                    let outcome = complete(llm, &request).await;
                    let picked = outcome
                        .as_ref()
                        .ok()
                        .and_then(|done| done.explain.as_ref())
                        .map(|explain| &explain.pod);
                    if picked.is_some() && picked == doomed.get() {
                        elsewhere.store(0, Ordering::SeqCst);
                    } else {
                        elsewhere.fetch_add(1, Ordering::SeqCst);
                    }
                    seen.push((now, outcome));
                    finished.fetch_add(1, Ordering::SeqCst);
                }
                seen
            })
        })
        .collect();
    let more = async |count: u64| {
        let target = finished.load(Ordering::SeqCst) + count;
        wait::until(&format!("{count} more requests"), Duration::from_secs(60), async || {
            Ok((finished.load(Ordering::SeqCst) >= target).then_some(()))
        })
        .await
    };

    more(100).await?;
    // Kill a pod at a moment when it is at work.
    let dead = wait::until("a pod to be busy", Duration::from_secs(20), async || {
        Ok(pods.iter().position(|pod| pod.stats().engine.running > 1))
    })
    .await?;
    let dead_address = pods[dead].addr();
    doomed.set(dead_address.to_string()).expect("one pod dies");
    phase.store(ONE_JUST_DEAD, Ordering::SeqCst);
    pods[dead].kill();
    envoy.wait_for_pod_health(dead_address, false, Duration::from_secs(20)).await?;
    // The filter reads Envoy's listing once a second; the picks say when it has.
    wait::until("picks to leave the dead pod out", Duration::from_secs(30), async || {
        Ok((elsewhere.load(Ordering::SeqCst) >= 100).then_some(()))
    })
    .await?;
    phase.store(DEATH_KNOWN, Ordering::SeqCst);
    more(100).await?;

    phase.store(ALIVE_AGAIN, Ordering::SeqCst);
    pods[dead] = pods::restart(&pods[dead]).await?;
    wait::until("the pod to be used again", Duration::from_secs(30), async || {
        Ok((pods[dead].stats().first_tokens > 0).then_some(()))
    })
    .await?;
    phase.store(STOP, Ordering::SeqCst);

    let mut seen = Vec::new();
    for client in clients {
        seen.extend(client.await?);
    }
    let mut cut = 0;
    for (phase, outcome) in &seen {
        match outcome {
            Ok(completed) if completed.status == 200 && completed.whole => {
                let picked = &completed.explained()?.pod;
                assert!(
                    *phase != DEATH_KNOWN || *picked != dead_address.to_string(),
                    "a pod known to be dead was picked"
                );
            }
            Ok(completed) if completed.status != 200 => panic!("answered with an error: {completed:?}"),
            // The connection ended within the body, or the body within the stream.
            Ok(_) | Err(_) => {
                cut += 1;
                assert_eq!(*phase, ALL_ALIVE, "a request sent after the pod's death was lost: {outcome:?}");
            }
        }
    }
    // Only streams that the pod was sending when it died can be cut: at most one for each client.
    assert!(cut <= CLIENTS, "{cut} streams were cut");
    println!("{} requests, {cut} cut in mid-stream by the pod's death", seen.len());
    Ok(())
}
