use std::rc::Rc;

use foretoken_core::sample::{Ending, TokenSource};

use super::Flow;
use crate::host::mock::World;
use crate::host::{Buffer, Headers, HostError};
use crate::testing::{ANSWER, PICK, Worker, body, config, good_model};

const EXPLAIN: &str = "x-foretoken-explain";
const ALLOW: &str = r#","explain":{"allow":true}"#;
const SAMPLES: &str = r#","samples":{"cluster":"trainer","token":"secret"}"#;

fn world() -> Rc<World> {
    let world = World::default();
    world.now_us.set(1_000_000);
    Rc::new(world)
}

fn reasons(worker: &Worker, reason: &str) -> u64 {
    worker.host.counter(&format!("foretoken_fallback_total;reason={reason}"))
}

#[test]
fn a_request_is_held_until_its_body_is_whole_and_then_picked_for() {
    let worker = Worker::new(&world(), &config(""));
    let (mut stream, flow) = worker.open(&[("content-length", "4096")]);
    assert_eq!(flow, Flow::Hold);
    let text = body("hello");
    worker.host.set_buffer(Buffer::RequestBody, &text.as_bytes()[..10]);
    assert_eq!(stream.request_body(10, false), Flow::Hold);
    assert_eq!(worker.picked(), None);
    worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
    assert_eq!(stream.request_body(text.len(), true), Flow::Continue);
    let mut picked: Vec<String> = worker.picked().unwrap().split(',').map(str::to_owned).collect();
    picked.sort();
    assert_eq!(picked, ["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!(worker.host.counter("foretoken_requests_total"), 1);
    assert_eq!(worker.host.counter("foretoken_picks_total;rung=prior"), 1);
    assert_eq!(worker.inflight(), 1);
    assert!(worker.host.property_text("foretoken").unwrap().starts_with("pod=10.0.0."));
}

#[test]
fn a_body_that_ends_with_trailers_is_picked_for_when_they_come() {
    let worker = Worker::new(&world(), &config(""));
    let (mut stream, _) = worker.open(&[]);
    let text = body("hello");
    worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
    assert_eq!(stream.request_body(text.len(), false), Flow::Hold);
    stream.request_trailers();
    assert!(worker.picked().is_some());
}

#[test]
fn what_a_client_sends_in_the_filters_own_headers_goes_no_further() {
    let worker = Worker::new(&world(), &config(""));
    let forged =
        [(PICK, "10.6.6.6:80"), (PICK, "10.6.6.7:80"), ("x-foretoken-anything", "1"), (EXPLAIN, "1")];
    worker.open(&forged);
    assert_eq!(worker.picked(), None);
    assert_eq!(worker.host.header_text(Headers::Request, "x-foretoken-anything"), None);
    assert_eq!(worker.host.header_text(Headers::Request, EXPLAIN), None);
    // Also on a request that is not read.
    let (_, flow) = worker.open(&[(PICK, "10.6.6.6:80"), (":path", "/v1/models")]);
    assert_eq!((flow, worker.picked()), (Flow::Continue, None));
    // Also when the headers cannot be listed.
    worker.host.fail("proxy_get_header_map_pairs");
    let (_, flow) = worker.open(&[(PICK, "10.6.6.6:80")]);
    assert_eq!((flow, worker.picked()), (Flow::Continue, None));
}

#[test]
fn a_request_that_is_not_read_passes_at_once_with_its_reason() {
    let worker = Worker::new(&world(), &config(r#","request":{"max_body_bytes":2000}"#));
    for (header, reason) in [
        ((":path", "/health"), "unknown_path"),
        ((":method", "GET"), "method"),
        (("content-length", "0"), "no_body"),
        (("content-encoding", "gzip"), "body_encoded"),
        (("content-length", "2001"), "body_too_large"),
    ] {
        let (mut stream, flow) = worker.open(&[header]);
        assert_eq!((flow, reasons(&worker, reason)), (Flow::Continue, 1), "{header:?}");
        assert_eq!(stream.request_body(100, true), Flow::Continue);
        stream.response_headers(true);
        worker.close(stream);
    }
    for (bytes, reason) in
        [("{nope", "body_not_json"), ("{\"a\":1}", "body_not_request"), ("[]", "body_not_request")]
    {
        let (mut stream, _) = worker.open(&[("content-encoding", "identity")]);
        worker.host.set_buffer(Buffer::RequestBody, bytes.as_bytes());
        assert_eq!(stream.request_body(bytes.len(), true), Flow::Continue);
        assert!(reasons(&worker, reason) >= 1, "{bytes}");
    }
    let (mut stream, _) = worker.open(&[]);
    assert_eq!(stream.request_body(1500, false), Flow::Hold);
    assert_eq!(stream.request_body(2001, false), Flow::Continue, "it has grown too large");
    assert_eq!(stream.request_body(3000, true), Flow::Continue);
    assert_eq!(reasons(&worker, "body_too_large"), 2);
    let (mut stream, _) = worker.open(&[]);
    worker.host.set_buffer(Buffer::RequestBody, b"");
    assert_eq!(stream.request_body(0, true), Flow::Continue);
    assert_eq!(reasons(&worker, "no_body"), 2);
    assert_eq!(worker.picked(), None);
}

#[test]
fn without_a_configuration_everything_passes() {
    let worker = Worker::unconfigured(&world());
    let (mut stream, flow) = worker.open(&[]);
    assert_eq!(flow, Flow::Continue);
    assert_eq!(stream.request_body(100, true), Flow::Continue);
    stream.response_headers(false);
    stream.response_body(10, true);
    worker.close(stream);
}

#[test]
fn another_worker_sees_a_request_before_it_is_answered() {
    let world = world();
    let (one, mut two) =
        (Worker::new(&world, &config(&good_model(1))), Worker::new(&world, &config(&good_model(1))));
    let mut first = one.root.stream();
    drop(first);
    // Two ticks, so that each has seen the other's slot.
    let mut one = one;
    for _ in 0..5 {
        one.tick();
        two.tick();
    }
    first = one.send("alpha", &[]);
    let head = |worker: &Worker| worker.picked().unwrap().split(',').next().unwrap().to_owned();
    let taken = head(&one);
    two.send("beta", &[]);
    assert_ne!(head(&two), taken, "the model avoids a pod with a request in flight");

    // When the first has ended, its pod is free again for the others.
    one.answer_head(&mut first, &taken, 1);
    one.answer_part(&mut first, ANSWER, true);
    two.send("gamma", &[]);
    assert_eq!(head(&two), taken);
}

#[test]
fn a_streamed_answer_is_measured_and_becomes_one_sample() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    let mut stream = worker.send("hello", &[]);
    let pod = worker.picked().unwrap().split(',').next().unwrap().to_owned();
    let (first, rest) = ANSWER.split_at(ANSWER.find("\n\n").unwrap() + 2);
    let (second, rest) = rest.split_at(rest.find("\n\n").unwrap() + 2);
    worker.answer_head(&mut stream, &pod, 1);
    worker.answer_part(&mut stream, first, false);
    worker.answer_part(&mut stream, second, false);
    assert_eq!(worker.inflight(), 1);
    worker.answer_part(&mut stream, rest, true);
    assert_eq!(worker.inflight(), 0);
    worker.close(stream);
    assert_eq!(worker.host.metric("foretoken_ttft_ms"), [10]);
    assert_eq!(worker.host.metric("foretoken_tpot_ms"), [10]);
    assert_eq!(worker.host.metric("foretoken_token_estimate_error_permille").len(), 1);

    let samples = worker.samples();
    assert_eq!(samples.len(), 1);
    let sample = &samples[0];
    assert!(sample.is_clean());
    assert_eq!((sample.ttft_ms, sample.tpot_ms, sample.output_tokens), (Some(10.0), Some(10.0), 2));
    assert_eq!((sample.pod.as_str(), sample.picked.as_str()), (pod.as_str(), pod.as_str()));
    assert!(sample.at_ms >= 1_700_000_000_000, "time of day, not the monotonic clock");
}

#[test]
fn an_embedding_is_picked_for_and_its_sample_has_an_end_and_no_token() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    let (mut stream, flow) = worker.open(&[(":path", "/v1/embeddings")]);
    assert_eq!(flow, Flow::Hold);
    let text = r#"{"model":"e","input":["one text","another"]}"#;
    worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
    assert_eq!(stream.request_body(text.len(), true), Flow::Continue);
    assert!(worker.picked().is_some());
    worker.host.set_headers(Headers::Response, &[(":status", "200"), ("content-type", "application/json")]);
    worker.host.put_property(&["upstream", "address"], b"10.0.0.1:80");
    stream.response_headers(false);
    let vectors =
        r#"{"object":"list","data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":6,"total_tokens":6}}"#;
    worker.answer_part(&mut stream, vectors, true);
    worker.close(stream);
    let samples = worker.samples();
    let [sample] = samples.as_slice() else { panic!("{samples:?}") };
    assert_eq!((sample.ttft_ms, sample.tpot_ms, sample.output_tokens), (None, None, 0));
    assert!(sample.e2e_ms.is_some_and(|ms| ms > 0.0), "{sample:?}");
    assert_eq!((sample.prompt_tokens, sample.ending), (Some(6), Ending::Complete));
    assert!(!sample.is_clean(), "it has no TTFT to learn");
    assert_eq!(worker.inflight(), 0);
}

#[test]
fn without_usage_tokens_are_counted_and_timed_only_where_an_event_is_a_token() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    let event = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    for text in ["abcd", "a whole sentence in one event"] {
        let mut stream = worker.send("hello", &[]);
        worker.answer_head(&mut stream, "10.0.0.1:80", 1);
        for _ in 0..3 {
            worker.answer_part(&mut stream, &event(text), false);
        }
        worker.answer_part(&mut stream, "data: [DONE]\n\n", true);
        worker.close(stream);
    }
    let samples = worker.samples();
    let seen: Vec<_> = samples
        .iter()
        .map(|sample| (sample.tokens_from, sample.is_clean(), sample.ttft_ms.is_some(), sample.tpot_ms))
        .collect();
    let events = TokenSource::Events;
    assert_eq!(seen, [(events, true, true, Some(10.0)), (events, true, true, None)]);
    assert!(worker.host.metric("foretoken_token_estimate_error_permille").is_empty(), "no truth came");
}

#[test]
fn samples_carry_the_token_and_are_settled_by_the_answer() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    let mut stream = worker.send("hello", &[]);
    worker.answer_head(&mut stream, "10.0.0.1:80", 1);
    worker.answer_part(&mut stream, ANSWER, true);
    for _ in 0..6 {
        worker.tick();
    }
    let calls = worker.calls_to("trainer");
    assert_eq!(
        (calls.len(), calls[0].header(":path"), calls[0].header("authorization")),
        (1, "/v1/samples", "Bearer secret")
    );
    worker.answer(&calls[0], 204, "");
    assert_eq!(worker.host.counter("foretoken_samples_sent_total"), 1);
    assert_eq!(worker.host.counter("foretoken_samples_dropped_total"), 0);
}

#[test]
fn without_a_trainer_nothing_is_kept_for_one() {
    let mut worker = Worker::new(&world(), &config(""));
    let mut stream = worker.send("hello", &[]);
    worker.answer_head(&mut stream, "10.0.0.1:80", 1);
    worker.answer_part(&mut stream, ANSWER, true);
    assert!(worker.samples().is_empty());
}

#[test]
fn how_a_request_ended_is_told_apart() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    let part = &ANSWER[..ANSWER.find("\n\n").unwrap() + 2];

    let mut truncated = worker.send("a", &[]);
    worker.answer_head(&mut truncated, "10.0.0.1:80", 1);
    worker.answer_part(&mut truncated, part, true);
    worker.close(truncated);

    let mut broken = worker.send("b", &[]);
    worker.answer_head(&mut broken, "10.0.0.1:80", 1);
    worker.answer_part(&mut broken, part, false);
    worker.host.put_property(&["response", "flags"], &64_u64.to_le_bytes());
    worker.close(broken);

    let mut left = worker.send("c", &[]);
    worker.answer_head(&mut left, "10.0.0.1:80", 2);
    worker.answer_part(&mut left, part, false);
    worker.host.put_property(&["response", "flags"], &16384_u64.to_le_bytes());
    worker.close(left);

    let early = worker.send("d", &[]);
    worker.host.put_property(&["response", "flags"], &0_u64.to_le_bytes());
    worker.host.put_property(&["response", "code_details"], b"downstream_remote_disconnect");
    worker.close(early);

    let mut refused = worker.send("e", &[]);
    worker.host.set_headers(Headers::Response, &[(":status", "503"), ("content-type", "text/plain")]);
    refused.response_headers(true);
    worker.close(refused);

    assert_eq!(worker.inflight(), 0);
    let ends: Vec<_> = worker
        .samples()
        .iter()
        .map(|sample| (sample.ending, sample.status, sample.attempts, sample.is_clean()))
        .collect();
    let expected = [
        (Ending::Truncated, 200, 1, false),
        (Ending::Failed, 200, 1, false),
        (Ending::Cancelled, 200, 2, false),
        (Ending::Cancelled, 0, 0, false),
        (Ending::Complete, 503, 2, false),
    ];
    assert_eq!(ends, expected);
}

#[test]
fn the_pod_that_really_answered_is_the_one_that_is_learned() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    let mut stream = worker.send("hello", &[]);
    let picked: Vec<String> = worker.picked().unwrap().split(',').map(str::to_owned).collect();
    worker.answer_head(&mut stream, &picked[1], 2);
    worker.answer_part(&mut stream, ANSWER, true);
    let samples = worker.samples();
    assert_eq!((&samples[0].picked, &samples[0].pod, samples[0].attempts), (&picked[0], &picked[1], 2));
}

#[test]
fn the_terms_of_a_decision_are_told_only_when_asked_for_and_allowed() {
    for (settings, asked, told) in
        [(ALLOW, Some("1"), true), (ALLOW, Some("0"), false), (ALLOW, None, false), ("", Some("1"), false)]
    {
        let worker = Worker::new(&world(), &config(settings));
        let more: Vec<(&str, &str)> = asked.iter().map(|value| (EXPLAIN, *value)).collect();
        let mut stream = worker.send("hello", &more);
        worker.answer_head(&mut stream, "10.0.0.1:80", 1);
        let answer = worker.host.header_text(Headers::Response, EXPLAIN);
        assert_eq!(answer.is_some(), told, "{settings:?} {asked:?}");
        if let Some(answer) = answer {
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            assert_eq!((answer["rung"].as_str(), answer["candidates"].as_u64()), (Some("prior"), Some(2)));
        }
    }
}

#[test]
fn the_session_form_names_one_pod_in_base64_and_hides_it_from_the_client() {
    let worker =
        Worker::new(&world(), &config(r#","pick":{"form":"stateful_session","header":"x-ft-host"}"#));
    let mut stream = worker.send("hello", &[]);
    let value = worker.host.header_text(Headers::Request, "x-ft-host").unwrap();
    assert!(["MTAuMC4wLjE6ODA=", "MTAuMC4wLjI6ODA="].contains(&value.as_str()), "{value}");
    worker.host.set_headers(Headers::Response, &[(":status", "200"), ("x-ft-host", "MTAuMC4wLjI6ODA=")]);
    stream.response_headers(false);
    assert_eq!(worker.host.header_text(Headers::Response, "x-ft-host"), None);
}

#[test]
fn whatever_host_call_fails_a_request_goes_on_and_leaves_the_books() {
    for call in [
        "proxy_get_header_map_pairs",
        "proxy_get_header_map_value",
        "proxy_replace_header_map_value",
        "proxy_remove_header_map_value",
        "proxy_get_buffer_bytes",
        "proxy_get_property",
        "proxy_set_property",
        "proxy_get_shared_data",
        "proxy_set_shared_data",
        "proxy_define_metric",
        "proxy_increment_metric",
        "proxy_record_metric",
        "proxy_http_call",
    ] {
        for status in [1, 2, 6, 10, HostError::CAS_MISMATCH] {
            let mut worker = Worker::new(&world(), &config(SAMPLES));
            for once in [true, false] {
                if once {
                    worker.host.fail_once(call, status);
                } else {
                    worker.host.fail(call);
                }
                let (mut stream, flow) = worker.open(&[(PICK, "10.6.6.6:80"), (EXPLAIN, "1")]);
                let text = body("hello");
                worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
                if flow == Flow::Hold {
                    assert_eq!(stream.request_body(text.len(), true), Flow::Continue, "{call} {status}");
                }
                worker.answer_head(&mut stream, "10.0.0.1:80", 1);
                worker.answer_part(&mut stream, ANSWER, true);
                worker.close(stream);
                for _ in 0..10 {
                    worker.tick();
                }
                assert_eq!(worker.inflight(), 0, "{call} {status}");
                worker.host.heal();
            }
            // And when the host is well again, so is the filter.
            worker.tick();
            worker.send("again", &[]);
            assert!(worker.picked().is_some(), "{call} {status}");
        }
    }
}

#[test]
fn the_keys_in_shared_data_are_a_fixed_set() {
    let mut worker = Worker::new(&world(), &config(SAMPLES));
    for at in 0..300 {
        let mut stream = worker.send(&format!("{at} {}", "word ".repeat(4000)), &[]);
        worker.answer_head(&mut stream, "10.0.0.1:80", 1);
        worker.answer_part(&mut stream, ANSWER, true);
        worker.tick();
    }
    let keys = worker.host.shared_keys();
    assert!(keys.iter().all(|key| key.starts_with("foretoken/foretoken/pods/")), "{keys:?}");
    let rings = keys.iter().filter(|key| key.contains("/place/0/")).count();
    assert_eq!(rings, usize::try_from(foretoken_core::placements::SEGMENTS).unwrap());
    // lease, slots, fleet, ledger/0 and the ring.
    assert_eq!(keys.len(), 4 + rings, "{keys:?}");
}

const ASKS: &str = "endpoint-load-metrics-format";
const REPORT: &str = "endpoint-load-metrics";

/// Sends a request with these headers and answers it with a load report; the pod that answered.
fn answered_with_report(worker: &Worker, more: &[(&str, &str)], report: &str) -> String {
    let mut stream = worker.send("hello", more);
    let pod = worker.picked().unwrap().split(',').next().unwrap().to_owned();
    worker.host.set_headers(
        Headers::Response,
        &[(":status", "200"), ("content-type", "application/json"), (REPORT, report)],
    );
    worker.host.put_property(&["upstream", "address"], pod.as_bytes());
    stream.response_headers(false);
    pod
}

fn waiting_at(worker: &Worker, pod: &str) -> Option<f32> {
    let state = worker.vm.state("foretoken/foretoken/pods").unwrap();
    let state = state.borrow();
    let pod = state.router.fleet().pods().iter().find(|found| *found.address == *pod)?;
    pod.scrape.map(|scrape| scrape.waiting_requests)
}

#[test]
fn a_load_report_is_taken_from_the_response_and_goes_no_further_unless_the_client_asked() {
    let worker = Worker::new(&world(), &config(""));
    let report = "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=9";
    let pod = answered_with_report(&worker, &[], report);
    assert_eq!(waiting_at(&worker, &pod), Some(9.0));
    assert_eq!(worker.host.header_text(Headers::Response, REPORT), None);
    assert_eq!(worker.host.counter("foretoken_load_reports_total"), 1);

    let pod = answered_with_report(&worker, &[(ASKS, "TEXT")], &report.replace('9', "4"));
    assert_eq!(waiting_at(&worker, &pod), Some(4.0));
    assert!(worker.host.header_text(Headers::Response, REPORT).is_some(), "the client asked for it");

    answered_with_report(&worker, &[], "TEXT cpu_utilization=0.5");
    assert_eq!(worker.host.counter("foretoken_load_reports_total"), 2);
}

#[test]
fn reports_are_asked_for_and_taken_as_configured() {
    let worker = Worker::new(&world(), &config(""));
    worker.send("hello", &[]);
    assert_eq!(worker.host.header_text(Headers::Request, ASKS), None);

    let asking = Worker::new(&world(), &config(r#","telemetry":{"orca_request":true}"#));
    asking.send("hello", &[]);
    assert_eq!(asking.host.header_text(Headers::Request, ASKS).as_deref(), Some("TEXT"));
    asking.send("hello", &[(ASKS, "JSON")]);
    assert_eq!(asking.host.header_text(Headers::Request, ASKS).as_deref(), Some("JSON"), "the client's own");

    let deaf = Worker::new(&world(), &config(r#","telemetry":{"orca":false}"#));
    let pod = answered_with_report(&deaf, &[], "TEXT named_metrics.num_requests_waiting=9");
    assert_eq!(waiting_at(&deaf, &pod), None);
    assert!(deaf.host.header_text(Headers::Response, REPORT).is_some(), "what is not read is not touched");
}

#[test]
fn a_report_stands_until_the_pods_next_page() {
    let mut worker = Worker::new(&world(), &config(""));
    let pages = worker.calls_to("pods");
    let page = |waiting: u32| format!("vllm:num_requests_running 0\nvllm:num_requests_waiting {waiting}\n");
    for call in &pages {
        worker.answer(call, 200, &page(1));
    }
    worker.tick();
    let pod = answered_with_report(&worker, &[], "TEXT named_metrics.num_requests_waiting=9");
    assert_eq!(waiting_at(&worker, &pod), Some(9.0));
    // Another pod's page makes a new table; what the response said is newer than this pod's page in it.
    for _ in 0..30 {
        worker.tick();
        for call in worker.calls_to("pods") {
            if call.header(PICK) != pod {
                worker.answer(&call, 200, &page(2));
            }
        }
    }
    worker.send("hello", &[]);
    assert_eq!(waiting_at(&worker, &pod), Some(9.0));
    for _ in 0..60 {
        worker.tick();
        for call in worker.calls_to("pods") {
            worker.answer(&call, 200, &page(3));
        }
    }
    worker.send("hello", &[]);
    assert_eq!(waiting_at(&worker, &pod), Some(3.0));
}
