use std::rc::Rc;

use crate::host::Host;
use crate::host::mock::World;
use crate::testing::{Worker, body, config, good_model, model};

fn world() -> Rc<World> {
    let world = World::default();
    world.now_us.set(1_000_000);
    Rc::new(world)
}

#[test]
fn reading_a_configuration_writes_nothing_that_others_see() {
    let world = world();
    let mut canary = Worker::unconfigured(&world);
    assert!(canary.configure(&config(&good_model(1))));
    assert!(canary.host.shared_keys().is_empty());
    assert_eq!(canary.host.count("proxy_http_call"), 0);
    assert_eq!(canary.host.metric("foretoken_models_applied_total"), Vec::<u64>::new());
}

#[test]
fn a_bad_configuration_is_refused_and_the_old_one_stays() {
    let mut worker = Worker::new(&world(), &config(""));
    for bad in ["", "{", r#"{"cluster":"pods"}"#, &config(r#","polcy":{}"#)] {
        assert!(!worker.push(bad).0, "{bad:?}");
    }
    worker.send("hello", &[]);
    assert!(worker.picked().is_some());
    assert_eq!(worker.host.counter("foretoken_models_refused_total"), 0);
}

#[test]
fn a_bad_model_is_refused_and_counted_and_the_old_one_serves() {
    let mut worker = Worker::new(&world(), &config(&good_model(7)));
    let bad = r#","model":{"generation":8,"onnx_deflate_base64":"AAAA"}"#;
    assert!(!worker.push(&config(bad)).0);
    assert!(!worker.push(&config(&model(9, "foretoken-0"))).0);
    worker.tick();
    assert_eq!(worker.host.counter("foretoken_models_refused_total"), 2);
    assert_eq!(worker.host.metric("foretoken_model_generation;worker=0"), [7]);
    worker.send("hello", &[]);
    assert_eq!(worker.host.counter("foretoken_picks_total;rung=model"), 1);
}

#[test]
fn a_push_reaches_new_requests_and_reports_its_generation() {
    let mut worker = Worker::new(&world(), &config(""));
    let mut old = worker.send("hello", &[]);
    let (taken, mut old_root) = worker.push(&config(&good_model(1)));
    assert!(taken);
    worker.send("hello", &[]);
    assert_eq!(worker.host.counter("foretoken_picks_total;rung=prior"), 1);
    assert_eq!(worker.host.counter("foretoken_picks_total;rung=model"), 1);
    worker.tick();
    assert_eq!(worker.host.counter("foretoken_models_applied_total"), 1);
    assert_eq!(worker.host.metric("foretoken_model_generation;worker=0"), [1]);

    // The request that the old root sent ends in the same books, and the old root's end disturbs nobody.
    worker.answer_head(&mut old, "10.0.0.1:80", 1);
    worker.answer_part(&mut old, crate::testing::ANSWER, true);
    worker.close(old);
    old_root.done();
    assert_eq!(worker.inflight(), 1);
    let calls = worker.host.count("proxy_get_shared_data");
    old_root.tick();
    assert_eq!(worker.host.count("proxy_get_shared_data"), calls, "an old root's tick does nothing");
    worker.tick();
    assert!(worker.host.count("proxy_get_shared_data") > calls);
}

#[test]
fn the_same_model_under_other_settings_is_not_parsed_again() {
    let mut worker = Worker::new(&world(), &config(&good_model(1)));
    let model_of = |worker: &Worker| Rc::clone(&worker.vm.state("foretoken/foretoken/pods").unwrap());
    let before = model_of(&worker).borrow().model().unwrap();
    assert!(worker.push(&config(&format!(r#","explain":{{"allow":true}}{}"#, good_model(1)))).0);
    assert!(std::sync::Arc::ptr_eq(&before, &model_of(&worker).borrow().model().unwrap()));
    assert!(worker.push(&config(&good_model(2))).0);
    assert!(!std::sync::Arc::ptr_eq(&before, &model_of(&worker).borrow().model().unwrap()));
    assert!(worker.push(&config("")).0);
    assert!(model_of(&worker).borrow().model().is_none());
}

#[test]
fn when_the_newest_root_goes_another_one_of_the_scope_takes_its_place() {
    let mut worker = Worker::new(&world(), &config(&good_model(1)));
    let (_, mut older) = worker.push(&config(""));
    worker.tick();
    assert_eq!(worker.host.metric("foretoken_model_generation;worker=0"), [0]);
    worker.root.done();
    older.tick();
    assert_eq!(worker.host.metric("foretoken_model_generation;worker=0"), [1]);
}

#[test]
fn filters_of_other_clusters_in_the_same_vm_keep_apart() {
    let mut worker = Worker::new(&world(), &config(""));
    worker.send("hello", &[]);
    assert!(worker.push(r#"{"cluster":"other","endpoints":{"addresses":["10.0.9.9:80"]}}"#).0);
    worker.tick();
    worker.send("hello", &[]);
    assert_eq!(worker.picked().as_deref(), Some("10.0.9.9:80"));
}

#[test]
fn one_worker_polls_and_the_others_know_what_it_heard() {
    let world = world();
    let text = r#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"}}"#;
    let (mut main, mut worker) = (Worker::unconfigured(&world), Worker::unconfigured(&world));
    assert!(main.configure(text) && worker.configure(text));
    main.tick();
    worker.tick();
    assert_eq!(worker.host.count("proxy_http_call"), 0, "only the holder of the lease polls");

    let (mut stream, _) = worker.open(&[]);
    let bytes = body("hi");
    worker.host.set_buffer(crate::host::Buffer::RequestBody, bytes.as_bytes());
    stream.request_body(bytes.len(), true);
    assert_eq!(worker.host.counter("foretoken_fallback_total;reason=no_candidates"), 1);

    let listing = main.calls_to("admin");
    assert_eq!(listing[0].header(":path"), "/clusters?format=json&filter=%5Epods%24");
    let hosts = r#"{"cluster_statuses":[{"name":"pods","host_statuses":[
        {"address":{"socket_address":{"address":"10.0.0.5","port_value":80}},"health_status":{"eds_health_status":"HEALTHY"}}]}]}"#;
    main.answer(&listing[0], 200, hosts);
    assert_eq!(main.host.metric("foretoken_pods"), [1]);
    worker.send("hi", &[]);
    assert_eq!(worker.picked().as_deref(), Some("10.0.0.5:80"));

    main.tick();
    let pages = main.calls_to("pods");
    assert_eq!(
        (pages[0].header(":path"), pages[0].header(crate::testing::PICK)),
        ("/metrics", "10.0.0.5:80")
    );
    main.answer(&pages[0], 500, "");
    assert_eq!(main.host.counter("foretoken_scrape_failures_total"), 1);
}

#[test]
fn the_pods_of_a_name_are_routed_to_and_a_root_waits_for_its_question() {
    let mut worker = Worker::new(&world(), r#"{"cluster":"pods","endpoints":{"dns":"pods.local:80"}}"#);
    let names = worker.host.take_names();
    assert_eq!(names[0].1, "pods.local");
    let (token, root) = (names[0].0, 1);
    assert!(!worker.host.leave(root), "Envoy's answer would go to a root that is gone");
    let answer = b"\x01\0\0\0\x1e\0\0\x0010.0.0.7:0\0";
    assert!(worker.host.resolver.borrow_mut().answered(token, root, answer.to_vec()), "now it goes");
    worker.tick();
    worker.send("hello", &[]);
    assert_eq!(worker.picked().as_deref(), Some("10.0.0.7:80"));
}

#[test]
fn requests_go_to_the_pod_that_lists_their_model() {
    let text = r#"{"cluster":"pods","endpoints":{"addresses":["10.0.0.1:80","10.0.0.2:80"]}}"#;
    let mut worker = Worker::new(&world(), text);
    let asked = worker.calls_to("pods");
    for (pod, model) in [("10.0.0.1:80", "m"), ("10.0.0.2:80", "other")] {
        let question = asked
            .iter()
            .find(|made| made.header(":path") == "/v1/models" && made.header(crate::testing::PICK) == pod);
        worker.answer(question.unwrap(), 200, &format!(r#"{{"data":[{{"id":"{model}"}}]}}"#));
    }
    worker.tick();
    worker.send("hello", &[]);
    assert_eq!(worker.picked().as_deref(), Some("10.0.0.1:80"));
}

#[test]
fn a_listing_that_fails_is_counted_and_the_pods_stay() {
    let mut worker = Worker::new(&world(), r#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"}}"#);
    let listing = worker.calls_to("admin");
    worker.answer(&listing[0], 200, r#"{"cluster_statuses":[]}"#);
    assert_eq!(worker.host.counter("foretoken_listing_failures_total"), 1);
    worker.host.fail("proxy_http_call");
    for _ in 0..40 {
        worker.tick();
    }
    assert!(worker.host.counter("foretoken_listing_failures_total") > 1);
}

#[test]
fn a_callout_whose_root_went_away_is_written_off() {
    let mut worker = Worker::new(&world(), &config(r#","samples":{"cluster":"trainer"}"#));
    let mut stream = worker.send("hello", &[]);
    worker.answer_head(&mut stream, "10.0.0.1:80", 1);
    worker.answer_part(&mut stream, crate::testing::ANSWER, true);
    assert_eq!(worker.samples().len(), 1);
    // No answer comes to either of the next two: without writing off, nothing would be sent any more.
    for _ in 0..(12_000 / 50) {
        worker.tick();
    }
    let again = worker.calls_to("trainer");
    assert_eq!(again.len(), 1, "the sample is sent again");
    worker.answer(&again[0], 204, "");
    assert_eq!(worker.host.counter("foretoken_samples_sent_total"), 1);
}

const IDLE_PAGE: &str = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n\
    vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\nvllm:generation_tokens_total 0\n";

/// Scrapes of each pod in so many ticks, all answered with an idle page.
fn scrapes(main: &mut Worker, ticks: u32) -> std::collections::HashMap<String, u32> {
    let mut scrapes = std::collections::HashMap::new();
    for _ in 0..ticks {
        main.tick();
        for call in main.calls_to("pods") {
            *scrapes.entry(call.header(crate::testing::PICK).to_owned()).or_default() += 1;
            main.answer(&call, 200, IDLE_PAGE);
        }
    }
    scrapes
}

#[test]
fn a_pod_with_requests_of_any_worker_in_flight_is_scraped_often_and_an_idle_one_seldom() {
    let world = world();
    let telemetry = config(r#","telemetry":{"interval_ms":100,"idle_interval_ms":1000}"#);
    let mut main = Worker::new(&world, &telemetry);
    let mut other = Worker::new(&world, &telemetry);
    // 50 ms a tick: 10 s.
    let idle = scrapes(&mut main, 200);
    assert!(idle.values().all(|count| (9..=12).contains(count)), "{idle:?}");

    let mut stream = other.send("hello", &[]);
    let busy = other.picked().unwrap().split(',').next().unwrap().to_owned();
    // The other worker lives as long as its ledger's heartbeat.
    let mut counts = std::collections::HashMap::<String, u32>::new();
    for _ in 0..20 {
        other.root.tick();
        for (pod, count) in scrapes(&mut main, 10) {
            *counts.entry(pod).or_default() += count;
        }
    }
    let idle_pod = if busy == "10.0.0.1:80" { "10.0.0.2:80" } else { "10.0.0.1:80" };
    assert!(
        (95..=105).contains(&counts[&busy]) && (9..=11).contains(&counts[idle_pod]),
        "{busy}: {counts:?}"
    );

    other.answer_head(&mut stream, &busy, 1);
    other.answer_part(&mut stream, crate::testing::ANSWER, true);
    let idle = scrapes(&mut main, 200);
    assert!(idle.values().all(|count| (9..=12).contains(count)), "{idle:?}");
}

#[test]
fn a_series_that_a_pods_page_lacks_is_counted_once_for_each_pod() {
    let mut main = Worker::new(&world(), &config(r#","telemetry":{"interval_ms":100}"#));
    scrapes(&mut main, 200);
    assert_eq!(main.host.counter("foretoken_telemetry_missing_total;series=vllm:cache_config_info"), 2);
    assert_eq!(main.host.counter("foretoken_telemetry_missing_total;series=vllm:kv_cache_usage_perc"), 0);
}

#[test]
fn pages_on_another_port_are_asked_for_there() {
    let telemetry = r#","telemetry":{"port":8002,"cluster":"metrics","interval_ms":100}"#;
    let worker = Worker::new(&world(), &config(telemetry));
    let mut picks: Vec<String> =
        worker.calls_to("metrics").iter().map(|call| call.header(crate::testing::PICK).to_owned()).collect();
    picks.sort();
    assert_eq!(picks, ["10.0.0.1:8002", "10.0.0.2:8002"]);
}
