use proptest::prelude::*;

use super::*;
use crate::telemetry::Dialect;

const A: &str = "10.0.0.1:80";
const B: &str = "10.0.0.2:80";

fn scrape(waiting: f32) -> Scrape {
    Scrape {
        waiting_requests: waiting,
        running_requests: 2.0,
        kv_usage: 0.5,
        prefix_query_tokens: 100.0,
        prefix_hit_tokens: 50.0,
        computed_tokens_total: 1000.0,
        preemptions: 1.0,
        start_time_s: 1.7e9,
        ..Scrape::unknown(Dialect::Vllm)
    }
}

fn fleet() -> Fleet {
    let mut fleet = Fleet::default();
    fleet.set_members([(A.to_owned(), true), (B.to_owned(), true)]);
    fleet
}

fn report(waiting: f32, kv_usage: f32) -> LoadReport {
    LoadReport { waiting_requests: waiting, kv_usage, ..LoadReport::default() }
}

fn load(fleet: &Fleet, address: &str) -> (u64, f32, f32, f32) {
    let scrape = fleet.find(pod_key(address)).unwrap().scrape.unwrap();
    (scrape.taken_us, scrape.waiting_requests, scrape.running_requests, scrape.kv_usage)
}

#[test]
fn a_pod_that_stays_keeps_its_scrape_and_one_that_left_is_gone() {
    let mut fleet = Fleet::default();
    assert!(fleet.set_members([(B.to_owned(), true), (A.to_owned(), true)]));
    fleet.set_scrape(pod_key(A), &scrape(3.0), 5);
    fleet.set_scrape(pod_key(A), &Scrape { start_time_s: 1.8e9, ..scrape(3.0) }, 5);
    assert!(fleet.set_members([(A.to_owned(), false), (A.to_owned(), false)]));
    assert_eq!(fleet.pods().len(), 1);
    let pod = fleet.find(pod_key(A)).unwrap();
    assert!(!pod.healthy);
    assert_eq!((pod.scrape.unwrap().taken_us, pod.restarts), (5, 1));
    assert!(!fleet.set_members([(A.to_owned(), false)]), "an unknown in the scrape is no change");
    fleet.set_scrape(pod_key(B), &scrape(1.0), 9);
    assert!(fleet.find(pod_key(B)).is_none());
}

#[test]
fn a_table_is_written_and_read_back_with_its_unknowns() {
    let mut fleet = Fleet::default();
    fleet.set_members([(B.to_owned(), true), ("[::1]:80".to_owned(), false)]);
    let mut told = scrape(1.0);
    told.adapters.insert(7);
    told.max_adapters = 4.0;
    fleet.set_scrape(pod_key("[::1]:80"), &told, 9);
    fleet.set_scrape(pod_key("[::1]:80"), &Scrape { preemptions: 0.0, ..told }, 10);
    let blob = fleet.write();
    let back = Fleet::read(&blob).unwrap();
    assert_eq!(back.pods().len(), 2);
    let pod = back.find(pod_key("[::1]:80")).unwrap();
    let read = pod.scrape.unwrap();
    assert_eq!((pod.restarts, read.page_us, read.preemptions, read.start_time_s), (1, 10, 0.0, 1.7e9));
    assert_eq!((read.computed_tokens_total, read.max_adapters, read.adapters), (1000.0, 4.0, told.adapters));
    assert!(read.kv_capacity_tokens.is_nan() && read.host_hit_tokens.is_nan());
    assert_eq!(back.write(), blob);
    for cut in 0..blob.len() {
        assert!(Fleet::read(&blob[..cut]).is_none(), "cut at {cut}");
    }
}

#[test]
fn a_new_start_time_or_a_counter_that_fell_is_a_restart_and_an_unknown_is_not() {
    let first = scrape(0.0);
    for (second, restarts) in [
        (first, 0),
        (Scrape { computed_tokens_total: 2000.0, prefix_query_tokens: 200.0, ..first }, 0),
        (Scrape { start_time_s: 1.7e9 + 1.0, ..first }, 0),
        (Scrape { start_time_s: f64::NAN, computed_tokens_total: f64::NAN, ..first }, 0),
        (Scrape { start_time_s: 1.7e9 + 60.0, ..first }, 1),
        (Scrape { prefix_query_tokens: 99.0, ..first }, 1),
        (Scrape { prefix_hit_tokens: 0.0, ..first }, 1),
        (Scrape { computed_tokens_total: 10.0, ..first }, 1),
        (Scrape { preemptions: 0.0, ..first }, 1),
        (Scrape { start_time_s: 1.8e9, preemptions: 0.0, prefix_hit_tokens: 0.0, ..first }, 1),
    ] {
        let mut fleet = fleet();
        fleet.set_scrape(pod_key(A), &first, 1);
        fleet.set_scrape(pod_key(A), &second, 2);
        assert_eq!(fleet.find(pod_key(A)).unwrap().restarts, restarts, "{second:?}");
        assert_eq!(fleet.find(pod_key(B)).unwrap().restarts, 0);
    }
}

#[test]
fn a_load_report_stands_until_a_newer_page() {
    let mut pages = fleet();
    pages.set_scrape(pod_key(A), &scrape(3.0), 100);
    let mut own = pages.clone();
    own.note_load_report(pod_key(A), &report(9.0, f32::NAN), 150);
    assert_eq!(load(&own, A), (150, 9.0, 2.0, 0.5), "what is not reported stays");
    own.note_load_report(pod_key(B), &report(4.0, 0.25), 150);
    assert_eq!(own.find(pod_key(B)).unwrap().scrape.unwrap().page_us, 0);

    // The same table once more, as when another pod's page came.
    let mut next = pages.clone();
    next.keep_newer_load(&own);
    assert_eq!(load(&next, A), (150, 9.0, 2.0, 0.5));
    assert_eq!((load(&next, B).1, load(&next, B).3), (4.0, 0.25));
    assert_eq!(next.find(pod_key(A)).unwrap().scrape.unwrap().page_us, 100);

    pages.set_scrape(pod_key(A), &scrape(1.0), 200);
    pages.set_scrape(pod_key(B), &scrape(1.0), 200);
    pages.keep_newer_load(&next);
    assert_eq!((load(&pages, A), load(&pages, B)), ((200, 1.0, 2.0, 0.5), (200, 1.0, 2.0, 0.5)));
}

#[test]
fn reports_of_pods_that_left_are_left_behind() {
    let mut own = fleet();
    own.note_load_report(pod_key(A), &report(9.0, 0.1), 150);
    own.note_load_report(pod_key("10.0.0.9:80"), &report(9.0, 0.1), 150);
    let mut next = Fleet::default();
    next.set_members([(B.to_owned(), true), ("10.0.0.3:80".to_owned(), true)]);
    next.keep_newer_load(&own);
    assert!(next.pods().iter().all(|pod| pod.scrape.is_none()));
}

#[test]
fn pods_that_serve_the_same_models_share_one_list() {
    let mut fleet = Fleet::default();
    fleet.set_members(["a:1", "b:1", "c:1", "d:1"].map(|address| (address.to_owned(), true)));
    let list = |name| Served::list(ServedModels::new([("base", false), (name, true)]));
    assert!(fleet.set_served(pod_key("a:1"), list("x")) && fleet.set_served(pod_key("b:1"), list("x")));
    assert!(fleet.set_served(pod_key("c:1"), list("y")));
    assert!(!fleet.set_served(pod_key("b:1"), list("x")), "no news");
    assert!(fleet.set_served(pod_key("d:1"), Served::Awaited));
    let back = Fleet::read(&fleet.write()).unwrap();
    assert_eq!(back.pods(), fleet.pods());
    let served: Vec<_> = back.pods().iter().filter_map(|pod| pod.served.models()).collect();
    assert!(Arc::ptr_eq(served[0], served[1]) && !Arc::ptr_eq(served[0], served[2]));
    let x = crate::request::model_key("x");
    let may: Vec<bool> = back.pods().iter().map(|pod| pod.may_serve(x)).collect();
    assert_eq!(may, [true, true, false, false], "one that has not said yet is not asked for it");
    let adapter: Vec<_> = back.pods().iter().map(|pod| pod.lists_adapter(x)).collect();
    assert_eq!(adapter, [Some(true), Some(true), Some(false), None]);
    fleet.set_members([("a:1".to_owned(), true)]);
    assert!(fleet.pods()[0].may_serve(x), "a pod that stays keeps its list");
    assert!(fleet.set_served(pod_key("a:1"), Served::Unknown) && fleet.pods()[0].may_serve(0));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(blob in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Fleet::read(&blob);
    }

    #[test]
    fn newer_loads_are_found_whatever_the_two_memberships(
        olds in proptest::collection::btree_set(0_u8..20, 0..12),
        news in proptest::collection::btree_set(0_u8..20, 0..12),
    ) {
        let of = |numbers: &std::collections::BTreeSet<u8>| {
            let mut fleet = Fleet::default();
            fleet.set_members(numbers.iter().map(|n| (format!("10.0.0.{n}:80"), true)));
            fleet
        };
        let (mut old, mut new) = (of(&olds), of(&news));
        for n in &olds {
            old.note_load_report(pod_key(&format!("10.0.0.{n}:80")), &report(f32::from(*n), 0.5), 10);
        }
        new.keep_newer_load(&old);
        for n in &news {
            let waiting = new.find(pod_key(&format!("10.0.0.{n}:80"))).unwrap().scrape.map(|scrape| scrape.waiting_requests);
            prop_assert_eq!(waiting, olds.contains(n).then_some(f32::from(*n)));
        }
    }
}
