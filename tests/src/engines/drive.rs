//! The same requests to real pods: a policy of the simulator chooses and is told what it would be told there, or a
//! real Envoy with the real filter chooses.
//!
//! What a policy hears comes from the engines: first tokens and ends when the client sees them, metrics pages when
//! they are read. Times are the wall clock's. Requests go out at their times, whatever has been answered.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use foretoken_core::telemetry::{Dialect, read_metrics};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::virtual_time::policy::Token;
use foretoken_sim::virtual_time::record::Ending;
use foretoken_sim::virtual_time::scrape::PodMetrics;
use foretoken_sim::virtual_time::{Ask, Pods, Policy, Record};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::probe::Asker;
use super::traffic::Traffic;
use crate::completion::Explain;
use crate::http;

/// Who chooses.
pub enum Router<'a> {
    /// This policy, here.
    Policy(&'a mut dyn Policy),
    /// An Envoy at this address.
    Envoy(SocketAddr),
}

enum News {
    First { number: usize, at: Instant },
    Ended { number: usize, answered: Result<Answered> },
    Page { pod: usize, metrics: Result<PodMetrics> },
}

struct Answered {
    ttft: Duration,
    e2e: Duration,
    cached_tokens: u32,
    /// The pod that Envoy's filter says it picked.
    explained: Option<SocketAddr>,
}

/// Sends the traffic to pods of these profiles and returns what became of each request, in order.
///
/// # Errors
/// When a request fails: engines that are alone on a machine answer everything.
pub async fn drive(
    mut router: Router<'_>,
    pods: &[SocketAddr],
    profiles: &[Profile],
    traffic: &Traffic,
) -> Result<Vec<Record>> {
    let known = Pods::new(profiles.to_vec(), 0);
    let asker = match router {
        Router::Policy(_) => Asker::new(&[])?,
        Router::Envoy(_) => Asker::new(&["x-foretoken-explain: 1"])?,
    };
    let prompts: Vec<String> = traffic.asked.iter().map(super::traffic::Asked::prompt).collect();
    let (sender, mut news) = unbounded_channel();
    let mut records: Vec<Option<Record>> = vec![None; prompts.len()];
    let mut read_every = None;
    if let Router::Policy(policy) = &mut router {
        policy.pool_changed(&vec![true; pods.len()], 0);
        read_every = policy.scrape_interval_us().map(Duration::from_micros);
    }
    let begun = Instant::now();
    let since =
        |at: Instant| u64::try_from(at.saturating_duration_since(begun).as_micros()).unwrap_or(u64::MAX);
    let mut pages = tokio::time::interval(read_every.unwrap_or(Duration::from_secs(3600)));
    // A page is asked for again when it has come: an engine that computes answers late.
    let mut asked_page = vec![false; pods.len()];
    let (mut next, mut ended) = (0, 0);
    while ended < prompts.len() {
        let due = traffic.asked.get(next).map(|one| begun + Duration::from_micros(one.arrival.at_us));
        tokio::select! {
            () = sleep_until(due.unwrap_or(begun)), if due.is_some() => {
                let request = &traffic.asked[next].arrival.request;
                let now_us = since(Instant::now());
                let (id, number) = ((next as u64) << 32, next);
                let mut pod = 0;
                let address = match &mut router {
                    Router::Envoy(address) => *address,
                    Router::Policy(policy) => {
                        let ask = Ask { id, request, now_us, pods: &known };
                        pod = *policy.pick(&ask).pods.first().context("the policy picked no pod")?;
                        policy.sent(&ask, pod, 1);
                        *pods.get(pod).context("the policy picked a pod that does not exist")?
                    }
                };
                records[number] = Some(Record {
                    number: number as u64,
                    tag: request.tag,
                    pod,
                    arrived_us: now_us,
                    first_us: 0,
                    last_us: 0,
                    prompt_tokens: request.prompt_tokens,
                    cached_tokens: 0,
                    output_tokens: request.output_tokens,
                    attempts: 1,
                    ending: Ending::Failed,
                    slo: None,
                });
                let (asker, prompt, sender) = (asker.clone(), prompts[number].clone(), sender.clone());
                let max_tokens = request.output_tokens;
                tokio::spawn(async move { send(&asker, address, &prompt, max_tokens, number, &sender).await });
                next += 1;
            }
            Some(heard) = news.recv() => match heard {
                News::First { number, at } => {
                    if let (Router::Policy(policy), Some(Some(record))) = (&mut router, records.get(number)) {
                        let token = Token { id: (number as u64) << 32, pod: record.pod, tokens: 1 };
                        policy.token(&token, since(at));
                    }
                }
                News::Ended { number, answered } => {
                    let answered = answered.with_context(|| format!("request {number}"))?;
                    ended += 1;
                    let Some(Some(record)) = records.get_mut(number) else { continue };
                    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                    record.first_us = record.arrived_us + us(answered.ttft);
                    record.last_us = record.arrived_us + us(answered.e2e);
                    record.cached_tokens = answered.cached_tokens;
                    record.ending = Ending::Complete;
                    match &mut router {
                        Router::Policy(policy) => {
                            policy.ended((number as u64) << 32, record, since(Instant::now()));
                        }
                        Router::Envoy(_) => {
                            let explained = answered.explained.context("the filter did not route a request")?;
                            let served = pods.iter().position(|pod| *pod == explained);
                            record.pod = served.context("the filter picked a pod that does not exist")?;
                        }
                    }
                }
                News::Page { pod, metrics } => {
                    asked_page[pod] = false;
                    if let Router::Policy(policy) = &mut router {
                        policy.scraped(pod, &metrics?, since(Instant::now()));
                    }
                }
            },
            _ = pages.tick(), if read_every.is_some() => {
                for (pod, asked) in asked_page.iter_mut().enumerate() {
                    if !std::mem::replace(asked, true) {
                        tokio::spawn(read_page(pods[pod], pod, profiles[pod].clone(), sender.clone()));
                    }
                }
            }
        }
    }
    records.into_iter().collect::<Option<_>>().context("a request was never sent")
}

async fn send(
    asker: &Asker,
    address: SocketAddr,
    prompt: &str,
    max_tokens: u32,
    number: usize,
    sender: &UnboundedSender<News>,
) {
    let at_first = || {
        // Nobody listens any more when the run has failed.
        let _ = sender.send(News::First { number, at: Instant::now() });
    };
    let answered = asker.ask(address, prompt, max_tokens, at_first).await.and_then(|outcome| {
        let explain = outcome.explain.as_deref().map(serde_json::from_str::<Explain>).transpose();
        Ok(Answered {
            ttft: outcome.ttft.context("no token")?,
            e2e: outcome.e2e.context("no token")?,
            cached_tokens: outcome.cached_tokens.unwrap_or(0),
            explained: explain.context("explain header")?.and_then(|explain| explain.pod.parse().ok()),
        })
    });
    let _ = sender.send(News::Ended { number, answered });
}

async fn read_page(address: SocketAddr, pod: usize, profile: Profile, sender: UnboundedSender<News>) {
    let metrics = async {
        let page = http::get(address, "/metrics").await?;
        metrics_of(&page.body, &profile)
    };
    let metrics = metrics.await;
    let _ = sender.send(News::Page { pod, metrics });
}

/// What llama.cpp's page says in the simulator's terms. It says nothing of the cache: what no router can read there
/// is as if nothing were held (`Unheld` does the same to simulated pages).
fn metrics_of(page: &[u8], profile: &Profile) -> Result<PodMetrics> {
    let scrape = read_metrics(page, Some(Dialect::LlamaCpp))?;
    let count = |value: f32| if value > 0.0 { value as u32 } else { 0 };
    Ok(PodMetrics {
        waiting: count(scrape.waiting_requests),
        running: count(scrape.running_requests),
        held_blocks: 0,
        kv_blocks: profile.kv_blocks,
        block_tokens: profile.block_tokens,
        prefix_query_tokens: scrape.prefix_query_tokens.max(0.0) as u64,
        prefix_hit_tokens: scrape.prefix_hit_tokens.max(0.0) as u64,
        prompt_tokens: 0,
        generated_tokens: 0,
        preemptions: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_llama_cpp_page_is_read() {
        let page = b"llamacpp:requests_processing 3\nllamacpp:requests_deferred 7\n";
        let metrics = metrics_of(page, &Profile::built_in("fast").unwrap()).unwrap();
        assert_eq!((metrics.running, metrics.waiting, metrics.held_blocks), (3, 7, 0));
    }
}
