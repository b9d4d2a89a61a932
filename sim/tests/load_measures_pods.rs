//! The load client against live pods.

mod common;

use std::time::Duration;

use common::{quick_profile, start};
use foretoken_sim::engine::profile::Profile;
use foretoken_sim::load::workload::{Api, Constant, Lengths, Multiturn, Shape};
use foretoken_sim::load::{Balance, Progress, RunOptions, Workload, run};
use foretoken_sim::pod::{LivePod, PodOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

fn constant(rate: f64, prompt_tokens: u32, output_tokens: u32) -> Workload {
    let shape = Shape::Constant(Constant { requests_per_second_per_pod: rate, prompt_tokens, output_tokens });
    Workload { name: "test".to_owned(), model: "tiny".to_owned(), api: Api::Chat, shape }
}

fn conversations(api: Api) -> Workload {
    let short = |mean_tokens| Lengths { mean_tokens, sigma: 0.3, min_tokens: 10, max_tokens: 400 };
    Workload {
        name: "test".to_owned(),
        model: "tiny".to_owned(),
        api,
        shape: Shape::Multiturn(Multiturn {
            conversations_per_second_per_pod: 6.0,
            groups: 3,
            group_skew: 0.0,
            system_tokens: 100,
            document_tokens: short(200.0),
            question_tokens: short(30.0),
            min_output_tokens: 20,
            max_output_tokens: 40,
            min_turns: 3,
            max_turns: 3,
            think_mean_ms: 100.0,
            assumed_answer_ms: 60.0,
        }),
    }
}

fn options(pods: &[&LivePod], seconds: f64) -> RunOptions {
    RunOptions { targets: pods.iter().map(|pod| pod.url()).collect(), seconds, ..RunOptions::new("") }
}

#[tokio::test]
async fn ttft_tpot_and_e2e_are_the_pods_own_times() {
    let profile =
        Profile { floor_ms: 10.0, decode_ms_per_seq: 2.0, prefill_ms_per_token: 0.1, ..quick_profile() };
    let pod = start(profile).await;
    let report = run(&constant(2.0, 500, 11), &options(&[&pod], 2.0), |_| {}).await.unwrap();
    assert_eq!((report.requests, report.failed), (4, 0));
    // Alone: about 503 tokens cost 60 ms, each further token 12 ms; a busy machine may add to it.
    assert!((59.0..150.0).contains(&report.ttft_ms.p50), "{:?}", report.ttft_ms);
    assert!((11.5..20.0).contains(&report.tpot_ms.p50), "{:?}", report.tpot_ms);
    for record in &report.records {
        let (ttft, tpot, e2e) = (record.ttft_ms.unwrap(), record.tpot_ms.unwrap(), record.e2e_ms.unwrap());
        assert_eq!(record.output_tokens, 11);
        assert!((ttft + 10.0 * tpot - e2e).abs() < 1e-6);
        assert_eq!(record.pod.as_deref(), Some(pod.addr().to_string().as_str()));
    }
}

#[tokio::test]
async fn conversations_go_on_with_the_real_answers_and_hit_the_cache() {
    for api in [Api::Chat, Api::Completions] {
        let pod = start(quick_profile()).await;
        let mut seen: Vec<Progress> = Vec::new();
        let report =
            run(&conversations(api), &options(&[&pod], 2.0), |progress| seen.push(progress)).await.unwrap();
        assert_eq!(report.failed, 0, "{:?}", report.failures);
        assert!(report.requests > 20, "{}", report.requests);
        // A second live turn finds all before its own question; 16 tokens to a block.
        let mut second_turns = 0;
        for record in &report.records {
            let former = report
                .records
                .iter()
                .find(|other| (other.conversation, other.turn + 1) == (record.conversation, record.turn));
            if let Some(former) = former {
                let known = former.prompt_tokens.unwrap() + former.output_tokens - 1;
                assert!(record.cached_tokens.unwrap() >= known / 16 * 16, "{former:?} {record:?}");
                second_turns += 1;
            }
        }
        assert!(second_turns > 5);
        let last = seen.last().unwrap();
        assert_eq!((last.done, last.total, last.in_flight), (report.requests, report.requests, 0));
        assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    }
}

#[tokio::test]
async fn a_slower_pod_gets_fewer_requests_by_least_request_and_as_many_in_turn() {
    // So much slower that it is the slower one on a machine that is busy with other things, too.
    let slow = Profile { floor_ms: 60.0, ..quick_profile() };
    let mut shares = Vec::new();
    for balance in [Balance::RoundRobin, Balance::LeastRequest] {
        let (one, two) = (start(quick_profile()).await, start(slow.clone()).await);
        let options = RunOptions { balance, ..options(&[&one, &two], 1.5) };
        let report = run(&constant(60.0, 50, 30), &options, |_| {}).await.unwrap();
        assert_eq!(report.failed, 0);
        shares.push(report.by_pod[&two.addr().to_string()].requests as f64 / report.requests as f64);
    }
    assert!((shares[0] - 0.5).abs() < 0.02, "{shares:?}");
    assert!(shares[1] < 0.4, "{shares:?}");
}

#[tokio::test]
async fn failures_are_counted_by_reason() {
    let pod = start(quick_profile()).await;
    pod.fail_next(503, 3);
    let report = run(&constant(10.0, 20, 3), &options(&[&pod], 1.0), |_| {}).await.unwrap();
    assert_eq!((report.requests, report.failed, report.failures["status_503"]), (10, 3, 3));
    assert!(report.records[0].error_body.as_ref().unwrap().contains("InternalServerError"));
    assert_eq!(report.ttft_ms.count, 7);

    let address = pod.addr();
    drop(pod);
    common::eventually("the pod is gone", || std::net::TcpStream::connect(address).is_err()).await;
    let options = RunOptions { seconds: 0.5, ..RunOptions::new(format!("http://{address}")) };
    let report = run(&constant(10.0, 20, 3), &options, |_| {}).await.unwrap();
    assert_eq!(report.failures["connect"], report.requests);
}

#[tokio::test]
async fn a_stream_that_is_cut_and_one_that_hangs_are_failures_of_their_own_kind() {
    let pod = start(Profile { floor_ms: 20.0, ..quick_profile() }).await;
    let workload = constant(4.0, 20, 200);
    let options = RunOptions { timeout: Duration::from_millis(300), ..options(&[&pod], 0.2) };
    let report = run(&workload, &options, |_| {}).await.unwrap();
    assert_eq!((report.requests, report.failures["timeout"]), (1, 1));

    let options = RunOptions { timeout: Duration::from_secs(30), ..options };
    let pod = &pod;
    let (report, ()) = tokio::join!(run(&workload, &options, |_| {}), async {
        let aborted = pod.stats().engine.aborted;
        common::eventually("the abandoned request is aborted", || {
            pod.stats().engine.aborted >= aborted.max(1)
        })
        .await;
        common::eventually("tokens flow", || pod.stats().first_tokens >= 2).await;
        pod.kill();
    });
    assert_eq!(report.unwrap().failures["broken_amid_answer"], 1);
}

#[tokio::test]
async fn extra_headers_are_sent_and_the_explanation_is_kept() {
    // A server of one answer: shows what was asked and explains itself.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !String::from_utf8_lossy(&asked).contains("include_usage") {
            stream.read_buf(&mut asked).await.unwrap();
        }
        let body = "data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\ndata: [DONE]\n\n";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-foretoken-explain: {\"rung\":\"model\"}\r\n";
        let response = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(response.as_bytes()).await.unwrap();
        String::from_utf8(asked).unwrap()
    });
    let options = RunOptions {
        seconds: 0.1,
        headers: vec!["x-foretoken-explain: 1".to_owned()],
        ..RunOptions::new(url)
    };
    let report = run(&constant(1.0, 20, 1), &options, |_| {}).await.unwrap();
    assert_eq!(report.records[0].explain, Some(serde_json::json!({"rung": "model"})));
    assert_eq!(report.records[0].tpot_ms, None);
    let asked = server.await.unwrap();
    assert!(asked.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("x-foretoken-explain: 1\r\n"), "{asked}");
}

#[tokio::test]
async fn the_bound_on_requests_in_flight_holds_and_shows_as_lag() {
    let pod = start(Profile { floor_ms: 10.0, ..quick_profile() }).await;
    let options = RunOptions { max_in_flight: 1, ..options(&[&pod], 0.5) };
    let mut most = 0;
    let report =
        run(&constant(20.0, 20, 10), &options, |progress| most = most.max(progress.in_flight)).await.unwrap();
    assert_eq!(report.failed, 0);
    assert!(most <= 1, "{most}");
    assert!(report.send_lag_max_ms > 50.0, "{}", report.send_lag_max_ms);
}

#[tokio::test]
async fn a_run_can_be_stopped_and_still_reports() {
    let pod = start(quick_profile()).await;
    let (stop, stopped) = watch::channel(false);
    let options = RunOptions { stop: Some(stopped), ..options(&[&pod], 600.0) };
    let workload = constant(20.0, 20, 2);
    let report = tokio::time::timeout(
        Duration::from_secs(20),
        run(&workload, &options, |progress| {
            if progress.done >= 5 {
                stop.send_replace(true);
            }
        }),
    );
    let report = report.await.unwrap().unwrap();
    assert!((5..200).contains(&report.requests), "{}", report.requests);
}

#[tokio::test]
async fn what_cannot_be_played_is_refused_before_anything_is_sent() {
    let workload = constant(1.0, 20, 2);
    for target in ["127.0.0.1:80", "https://host", "http://"] {
        assert!(run(&workload, &RunOptions::new(target), |_| {}).await.is_err(), "{target}");
    }
    let options =
        RunOptions { headers: vec!["no colon".to_owned()], ..RunOptions::new("http://127.0.0.1:1") };
    assert!(run(&workload, &options, |_| {}).await.unwrap_err().to_string().contains("no colon"));
    let bad = constant(0.0, 20, 2);
    let error = run(&bad, &RunOptions::new("http://127.0.0.1:1"), |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("requests_per_second_per_pod"), "{error}");
    let pod = LivePod::start(PodOptions::new(Profile { floor_ms: 0.0, ..quick_profile() })).await;
    assert!(pod.unwrap_err().to_string().contains("floor_ms"));
}
