//! When no pod can serve a request in time, a sheddable one is told when to come back and others are served late.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use foretoken_sim::pod::{DEFAULT_MODEL, LivePod};
use foretoken_tests::completion::{Request, complete_all};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::http::{Answer, EventStream};
use foretoken_tests::recorder::Recorder;
use foretoken_tests::{http, paths, pods, wait};
use serde_json::{Value, json};

/// Requests before the test proper.
const HELLOS: usize = 30;

/// Some 10,000 tokens that no other prompt shares: two seconds for a slow pod.
fn long_prompt(number: usize) -> String {
    format!("{number} {}", "and some more of the same words ".repeat(1400))
}

fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": DEFAULT_MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": true})
}

async fn ask(envoy: SocketAddr, headers: &[(&str, &str)]) -> Result<Answer> {
    let headers = [headers, &[("x-foretoken-explain", "1")]].concat();
    http::post_json(envoy, "/v1/completions", &headers, &completion("hello there", 2)).await
}

/// Long prompts, sent all at once.
fn backlog(envoy: SocketAddr, count: usize) -> Vec<tokio::task::JoinHandle<Result<EventStream>>> {
    (0..count)
        .map(|number| {
            let body = completion(&long_prompt(number), 4);
            tokio::spawn(async move { EventStream::open(envoy, "/v1/completions", &body).await })
        })
        .collect()
}

/// VMs look for each other a few times a second; this traffic takes longer than that.
async fn introduce_workers(envoy: &Envoy) -> Result<()> {
    let hellos = (0..HELLOS).map(|index| Request::new(format!("hello {index}"), 2)).collect();
    complete_all(envoy.llm(), hellos, 1).await?;
    Ok(())
}

async fn wait_for_picks(envoy: &Envoy, count: u64) -> Result<()> {
    wait::until(&format!("{count} picks"), Duration::from_secs(30), async || {
        let picks: u64 = envoy.stats().await?.by_label("foretoken_picks_total", "rung").values().sum();
        if picks < count {
            bail!("{picks} were made");
        }
        Ok(Some(()))
    })
    .await
}

async fn slow_pods() -> Result<Vec<LivePod>> {
    pods::start(&["slow", "slow"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_backlog_the_sheddable_get_429_and_everyone_else_an_answer() -> Result<()> {
    let dir = paths::run_dir("shed")?;
    let pods = slow_pods().await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    options.filter["priority"] = json!({"objectives": {"batch": -10}});
    let envoy = Envoy::start("shed", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;

    introduce_workers(&envoy).await?;

    // Idle pods take anything.
    let sheddable = [("x-slo-ttft-ms", "1"), ("x-foretoken-priority", "-1")];
    assert_eq!(ask(envoy.llm(), &sheddable).await?.status, 200);

    let streams = backlog(envoy.llm(), 8);
    wait_for_picks(&envoy, HELLOS as u64 + 9).await?;
    let by_name = [("x-llm-d-slo-ttft-ms", "300"), ("x-llm-d-inference-objective", "batch")];
    let old_name = [("x-slo-ttft-ms", "300"), ("x-gateway-inference-objective", "batch")];
    let number = [("x-slo-ttft-ms", "300"), ("x-foretoken-priority", "-1")];
    for headers in [by_name, old_name, number] {
        let answer = ask(envoy.llm(), &headers).await?;
        assert_eq!(answer.status, 429, "{headers:?}: {:?}", answer.header("x-foretoken-explain"));
        assert_eq!(answer.header("x-foretoken-reason"), Some("shed_ttft"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let seconds: u32 = answer.header("retry-after").expect("it says when to come back").parse()?;
        // Four prompts of seconds each are ahead on either pod.
        assert!((2..=60).contains(&seconds), "{seconds}");
        let body = answer.json()?;
        assert_eq!(body["error"]["type"], "rate_limit_error");
        assert_eq!(body["error"]["code"], "shed_ttft");
        assert!(
            body["error"]["message"].as_str().is_some_and(|message| message.contains("300 ms")),
            "{body}"
        );
    }
    let messages = http::post_json(
        envoy.llm(),
        "/v1/messages",
        &number,
        &json!({"model": DEFAULT_MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}),
    )
    .await?;
    assert_eq!((messages.status.as_u16(), &messages.json()?["type"]), (429, &json!("error")));

    // Late, but served: nobody asked for these to be shed. A client cannot raise what is nobody's to raise.
    let late = [("x-slo-ttft-ms", "300"), ("x-foretoken-priority", "7")];
    let (plain, prompt) = tokio::join!(ask(envoy.llm(), &[]), ask(envoy.llm(), &late));
    assert_eq!((plain?.status.as_u16(), prompt?.status.as_u16()), (200, 200));
    let stats = envoy.stats().await?;
    assert_eq!(stats.labelled("foretoken_refused_total", "reason", "shed_ttft"), 4);
    assert_eq!(
        stats.labelled("foretoken_targets_missed_total", "target", "ttft"),
        2,
        "the first and the last"
    );
    for stream in streams {
        assert_eq!(stream.await??.status, 200, "one of the backlog was refused or lost");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_backlog_is_gone_the_sheddable_are_served_again() -> Result<()> {
    let dir = paths::run_dir("shed-recovers")?;
    let pods = slow_pods().await?;
    let mut options = Options::new(&pods::addresses(&pods))?;
    // All requests are sheddable here, by a bound of the configuration's.
    options.filter["priority"] = json!({"default": -1});
    options.filter["shed"] = json!({"ttft_ms": 3500});
    let envoy = Envoy::start("shed-recovers", &options, &dir).await?;
    envoy.wait_for_pods(2, Duration::from_secs(20)).await?;
    introduce_workers(&envoy).await?;

    let streams = backlog(envoy.llm(), 12);
    // Those for which there is no room in time are shed at once; two idle pods take at least two.
    wait::until("a request to be shed", Duration::from_secs(30), async || {
        let shed = envoy.stats().await?.labelled("foretoken_refused_total", "reason", "shed_ttft");
        Ok((shed > 0).then_some(()))
    })
    .await?;
    let loose = [("x-slo-ttft-ms", "60000")];
    let one_more = completion(&long_prompt(99), 4);
    let answer = http::post_json(envoy.llm(), "/v1/completions", &loose, &one_more).await?;
    assert_eq!(answer.status, 429, "nobody talks itself out of it");
    let mut served = 0;
    for stream in streams {
        served += usize::from(stream.await??.status == 200);
    }
    assert!((2..12).contains(&served), "{served} of 12 were served");
    wait::until("a request to be served", Duration::from_secs(60), async || {
        let answer = ask(envoy.llm(), &[]).await?;
        if answer.status != 200 {
            bail!("{}: {}", answer.status, answer.text());
        }
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_that_cannot_be_read_are_refused_or_ignored_as_configured() -> Result<()> {
    let dir = paths::run_dir("shed-malformed")?;
    let pod = Recorder::start().await?;
    let mut options = Options::new(&[pod.address()])?;
    options.filter["models"] = json!({"discover": false});
    let lenient = Envoy::start("shed-lenient", &options, &dir).await?;
    options.filter["slo"] = json!({"malformed": "reject", "forward_headers": false});
    let strict = Envoy::start("shed-strict", &options, &dir).await?;
    for envoy in [&lenient, &strict] {
        envoy.wait_for_pods(1, Duration::from_secs(20)).await?;
    }

    let bad = [("x-slo-tpot-ms", "soon")];
    let answer = ask(strict.llm(), &bad).await?;
    assert_eq!(
        (answer.status.as_u16(), answer.header("x-foretoken-reason")),
        (400, Some("malformed_tpot_target"))
    );
    let error = &answer.json()?["error"];
    assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!("x-slo-tpot-ms")));
    assert!(pod.take().is_empty(), "it reached the pod");

    assert_eq!(ask(lenient.llm(), &bad).await?.status, 200);
    let received = pod.take();
    assert_eq!(received[0].headers["x-slo-tpot-ms"], "soon", "as the client sent it");
    let good = [("x-slo-tpot-ms", "50"), ("x-foretoken-priority", "-1")];
    assert_eq!(ask(strict.llm(), &good).await?.status, 200);
    let received = pod.take();
    assert!(
        ["x-slo-tpot-ms", "x-foretoken-priority"].iter().all(|name| !received[0].headers.contains_key(*name))
    );
    for (envoy, refused) in [(&lenient, 0), (&strict, 1)] {
        let stats = envoy.stats().await?;
        assert_eq!(stats.labelled("foretoken_malformed_total", "reason", "malformed_tpot_target"), 1);
        assert_eq!(stats.labelled("foretoken_refused_total", "reason", "malformed_tpot_target"), refused);
    }
    Ok(())
}
