//! Targets, priorities, shedding and routes, as a client and an operator see them.

use std::rc::Rc;

use super::{Flow, Stream};
use crate::host::mock::{Answered, World};
use crate::host::{Buffer, Headers};
use crate::testing::{ANSWER, PICK, Worker, body, config, good_model};

const ROUTE_NAME: [&str; 2] = ["xds", "route_name"];
const ROUTE_METADATA: [&str; 5] = ["xds", "route_metadata", "filter_metadata", "foretoken", "route"];

fn worker(more: &str) -> Worker {
    let world = World::default();
    world.now_us.set(1_000_000);
    Worker::new(&Rc::new(world), &config(more))
}

/// A worker whose every pod has a request, so that the model says 1000 ms to a first token.
fn busy_worker(more: &str) -> Worker {
    let worker = worker(&format!("{}{more}", good_model(1)));
    worker.send("one", &[]);
    worker.send("two", &[]);
    assert_eq!(worker.inflight(), 2);
    worker
}

/// Sends a request with these headers and says what became of it.
fn ask(worker: &Worker, more: &[(&str, &str)]) -> (Stream, Flow, Vec<Answered>) {
    let (mut stream, mut flow) = worker.open(more);
    if flow == Flow::Hold && worker.host.count("proxy_send_local_response") == 0 {
        let text = body("hello");
        worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
        flow = stream.request_body(text.len(), true);
    }
    (stream, flow, worker.host.take_answers())
}

fn counted(worker: &Worker, metric: &str) -> u64 {
    worker.host.counter(&format!("foretoken_{metric}"))
}

#[test]
fn a_sheddable_request_is_answered_429_when_no_pod_is_in_time() {
    let worker = busy_worker("");
    let asked = [("x-slo-ttft-ms", "100"), ("x-foretoken-priority", "-1")];
    let (mut stream, flow, answers) = ask(&worker, &asked);
    assert_eq!((flow, answers.len(), worker.picked()), (Flow::Hold, 1, None));
    let answer = &answers[0];
    assert_eq!((answer.status, answer.details.as_str()), (429, "foretoken_shed_ttft"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.header("x-foretoken-reason"), Some("shed_ttft"));
    assert!(answer.body.contains("rate_limit_error"), "{}", answer.body);
    assert_eq!(counted(&worker, "refused_total;reason=shed_ttft"), 1);
    assert!(worker.host.property_text("foretoken").unwrap().ends_with("refused=shed_ttft retry_after_s=1"));
    // It is in no book, and what Envoy still calls for it changes nothing.
    assert_eq!(stream.request_body(10, true), Flow::Hold);
    stream.response_headers(false);
    stream.response_body(10, true);
    worker.close(stream);
    assert_eq!(worker.inflight(), 2);
    assert_eq!(counted(&worker, "picks_total;rung=model"), 2);
}

#[test]
fn what_is_not_sheddable_goes_however_late_it_will_be() {
    let worker = busy_worker("");
    let (_, flow, answers) = ask(&worker, &[("x-slo-ttft-ms", "100")]);
    assert_eq!((flow, answers.len(), worker.inflight()), (Flow::Continue, 0, 3));
    assert!(worker.picked().is_some());
    assert!(worker.host.property_text("foretoken").unwrap().ends_with("in_time=false"));
}

#[test]
fn a_shed_request_that_envoy_does_not_answer_goes_on_by_its_own_policy() {
    let worker = busy_worker("");
    worker.host.fail("proxy_send_local_response");
    let (mut stream, _) = worker.open(&[("x-slo-ttft-ms", "100"), ("x-foretoken-priority", "-1")]);
    let text = body("hello");
    worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
    assert_eq!(stream.request_body(text.len(), true), Flow::Continue);
    assert_eq!(counted(&worker, "fallback_total;reason=host_call"), 1);
    assert_eq!(counted(&worker, "refused_total;reason=shed_ttft"), 0);
}

#[test]
fn a_body_that_ends_with_trailers_can_be_shed_too() {
    let worker = busy_worker(r#","priority":{"default":-1},"shed":{"ttft_ms":100}"#);
    let (mut stream, _) = worker.open(&[]);
    let text = body("hello");
    worker.host.set_buffer(Buffer::RequestBody, text.as_bytes());
    assert_eq!(stream.request_body(text.len(), false), Flow::Hold);
    assert_eq!(stream.request_trailers(), Flow::Hold);
    assert_eq!(worker.host.take_answers()[0].status, 429);
}

#[test]
fn an_unreadable_target_is_refused_or_ignored_as_configured_and_counted() {
    let bad = [("x-llm-d-slo-tpot-ms", "soon")];
    let strict = worker(r#","slo":{"malformed":"reject"}"#);
    let (_, flow, answers) = ask(&strict, &bad);
    assert_eq!((flow, answers[0].status), (Flow::Hold, 400));
    assert_eq!(answers[0].header("x-foretoken-reason"), Some("malformed_tpot_target"));
    assert!(answers[0].body.contains("x-llm-d-slo-tpot-ms"), "{}", answers[0].body);
    assert_eq!(counted(&strict, "refused_total;reason=malformed_tpot_target"), 1);
    assert_eq!(counted(&strict, "malformed_total;reason=malformed_tpot_target"), 1);
    // What the filter does not read it does not judge.
    let (_, flow) = strict.open(&[bad[0], (":path", "/health")]);
    assert_eq!((flow, strict.host.take_answers().len()), (Flow::Continue, 0));

    let lenient = worker("");
    let (_, flow, answers) = ask(&lenient, &bad);
    assert_eq!((flow, answers.len()), (Flow::Continue, 0));
    assert!(lenient.picked().is_some());
    assert_eq!(counted(&lenient, "malformed_total;reason=malformed_tpot_target"), 1);
    assert_eq!(counted(&lenient, "refused_total;reason=malformed_tpot_target"), 0);
}

#[test]
fn the_headers_go_on_unless_they_are_not_to_or_not_believed() {
    let asked =
        [("x-slo-ttft-ms", "900"), ("x-llm-d-inference-objective", "vip"), ("x-foretoken-priority", "1")];
    for (settings, stay) in
        [("", true), (r#","slo":{"forward_headers":false}"#, false), (r#","slo":{"trust":"none"}"#, false)]
    {
        let worker = worker(settings);
        ask(&worker, &asked);
        let kept = |name| worker.host.header_text(Headers::Request, name).is_some();
        assert_eq!((kept("x-slo-ttft-ms"), kept("x-llm-d-inference-objective")), (stay, stay), "{settings}");
        assert!(!kept("x-foretoken-priority"));
    }
}

#[test]
fn a_route_by_name_or_by_metadata_has_settings_of_its_own() {
    let routes = r#","routes":{
        "batch":{"priority":-1,"shed_ttft_ms":100},
        "off":{"enabled":false},
        "tight":{"ttft_ms":100}}"#;
    let worker = busy_worker(routes);
    worker.host.put_property(&ROUTE_NAME, b"batch");
    assert_eq!(ask(&worker, &[]).2[0].status, 429);

    // The name in the metadata counts first.
    let worker = busy_worker(routes);
    worker.host.put_property(&ROUTE_NAME, b"batch");
    worker.host.put_property(&ROUTE_METADATA, b"tight");
    let (_, flow, answers) = ask(&worker, &[]);
    assert_eq!((flow, answers.len()), (Flow::Continue, 0));
    assert!(worker.host.property_text("foretoken").unwrap().ends_with("in_time=false"));

    // A number there is no name, though its bytes may be text.
    let worker = busy_worker(routes);
    worker.host.put_property(&ROUTE_NAME, b"batch");
    worker.host.put_property(&ROUTE_METADATA, &5.0_f64.to_le_bytes());
    assert_eq!(ask(&worker, &[]).2[0].status, 429);

    let worker = busy_worker(routes);
    worker.host.put_property(&ROUTE_NAME, b"off");
    let (_, flow) = worker.open(&[(PICK, "10.6.6.6:80"), ("x-slo-ttft-ms", "1")]);
    assert_eq!((flow, worker.picked(), worker.inflight()), (Flow::Continue, None, 2));
    assert_eq!(counted(&worker, "fallback_total;reason=route_off"), 1);

    let worker = busy_worker(routes);
    worker.host.put_property(&ROUTE_NAME, b"unheard-of");
    assert_eq!(ask(&worker, &[]).1, Flow::Continue);
    assert_eq!(worker.inflight(), 3);
}

#[test]
fn nobody_asks_for_the_route_where_nothing_is_set_by_route() {
    let worker = worker("");
    ask(&worker, &[]);
    let plain = worker.host.count("proxy_get_property");
    let routed = self::worker(r#","routes":{"a":{}}"#);
    ask(&routed, &[]);
    assert_eq!(routed.host.count("proxy_get_property"), plain + 2);
}

#[test]
fn with_bodies_unread_the_pick_is_made_from_the_headers_and_nothing_is_held() {
    let worker = worker(r#","request":{"body":"none"}"#);
    let head = [("content-length", "40000"), ("x-foretoken-model", "m"), ("content-encoding", "gzip")];
    let (mut stream, flow) = worker.open(&head);
    assert_eq!((flow, worker.inflight()), (Flow::Continue, 1));
    assert!(worker.picked().is_some());
    assert_eq!(worker.host.header_text(Headers::Request, "x-foretoken-model"), None);
    assert_eq!(worker.host.count("proxy_get_buffer_bytes"), 1, "the configuration's");
    assert_eq!(stream.request_body(100, false), Flow::Continue);
    // The answer is measured all the same.
    let pod = worker.picked().unwrap().split(',').next().unwrap().to_owned();
    worker.answer_head(&mut stream, &pod, 1);
    worker.answer_part(&mut stream, ANSWER, true);
    worker.close(stream);
    assert_eq!((worker.inflight(), worker.host.metric("foretoken_ttft_ms")), (0, vec![10]));
    assert_eq!(worker.open(&[("content-length", "0")]).1, Flow::Continue);
    assert_eq!(counted(&worker, "fallback_total;reason=no_body"), 1);
}

#[test]
fn met_and_missed_targets_are_counted_by_target() {
    let worker = worker("");
    for (ttft_ms, tpot_ms) in [("5", "5000"), ("500", "5000"), ("500", "0.001")] {
        let mut stream = worker.send("x", &[("x-slo-ttft-ms", ttft_ms), ("x-slo-tpot-ms", tpot_ms)]);
        let pod = worker.picked().unwrap().split(',').next().unwrap().to_owned();
        worker.answer_head(&mut stream, &pod, 1);
        let (first, rest) = ANSWER.split_at(ANSWER.find("\n\n").unwrap() + 2);
        worker.answer_part(&mut stream, first, false);
        worker.answer_part(&mut stream, rest, true);
        worker.close(stream);
    }
    let count = |metric: &str| counted(&worker, metric);
    assert_eq!((count("targets_met_total;target=ttft"), count("targets_missed_total;target=ttft")), (2, 1));
    assert_eq!((count("targets_met_total;target=tpot"), count("targets_missed_total;target=tpot")), (2, 1));
    // A request without targets is in neither.
    let mut stream = worker.send("x", &[]);
    worker.answer_head(&mut stream, "10.0.0.1:80", 1);
    worker.answer_part(&mut stream, ANSWER, true);
    assert_eq!(count("targets_met_total;target=ttft"), 2);
}
