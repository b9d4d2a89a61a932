//! Ejections by one worker and by several, and what holds for any course of events.

use super::*;
use proptest::prelude::*;

const CONFIG: HealthConfig =
    HealthConfig { consecutive_failures: 3, eject_base_ms: 1000, eject_max_ms: 8000 };
const S: u64 = 1_000_000;

fn standing(workers: &[PodHealth]) -> Standing {
    let mut standing = Standing::default();
    workers.iter().for_each(|worker| standing.merge(worker));
    standing
}

fn ejected(workers: &[PodHealth], now_us: u64) -> bool {
    standing(workers).is_ejected(now_us, |_| false)
}

/// Worker `at` sees a failure of a request sent just before.
fn fail(workers: &mut [PodHealth], at: usize, now_us: u64) -> bool {
    let peers: Vec<PodHealth> =
        workers.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, peer)| *peer).collect();
    workers[at].note_failure(peers.iter(), now_us - 1, now_us, &CONFIG)
}

#[test]
fn the_third_failure_in_a_row_ejects_whichever_worker_sees_it() {
    let mut workers = [PodHealth::default(); 3];
    assert!(!fail(&mut workers, 0, S));
    assert!(!fail(&mut workers, 1, S + 1));
    assert!(!ejected(&workers, S + 1));
    assert!(fail(&mut workers, 2, S + 2));
    assert!(ejected(&workers, S + 2) && ejected(&workers, 2 * S + 1));
    assert!(!ejected(&workers, 2 * S + 2), "tried again after the back-off");
}

#[test]
fn a_good_answer_between_them_starts_the_count_over_for_all_workers() {
    let mut workers = [PodHealth::default(); 2];
    fail(&mut workers, 0, S);
    fail(&mut workers, 0, S + 1);
    workers[1].note_good(S, S + 2);
    assert!(!fail(&mut workers, 0, S + 3));
    assert!(!fail(&mut workers, 1, S + 4));
    assert!(fail(&mut workers, 1, S + 5));
}

#[test]
fn while_one_request_tries_the_pod_no_other_does() {
    let mut workers = [PodHealth::default()];
    (0..3).for_each(|i| {
        fail(&mut workers, 0, S + i);
    });
    let standing = standing(&workers);
    assert!(standing.is_ejected(3 * S, |since_us| {
        assert_eq!(since_us, 2 * S + 2);
        true
    }));
    assert!(!standing.is_ejected(3 * S, |_| false));
}

#[test]
fn the_back_off_doubles_up_to_its_bound_and_starts_over_after_as_long_without_trouble() {
    let mut workers = [PodHealth::default()];
    let mut now_us = S;
    (0..2).for_each(|_| {
        fail(&mut workers, 0, now_us);
    });
    for expected_s in [1, 2, 4, 8, 8, 8] {
        assert!(fail(&mut workers, 0, now_us), "a trial that fails ejects at once");
        let until_us = now_us + expected_s * S;
        assert!(ejected(&workers, until_us - 1) && !ejected(&workers, until_us));
        now_us = until_us + 1;
    }
    workers[0].note_good(now_us, now_us);
    now_us += 9 * S;
    let again: Vec<bool> = (0..3).map(|i| fail(&mut workers, 0, now_us + i)).collect();
    assert_eq!(again, [false, false, true]);
    assert!(!ejected(&workers, now_us + S + 2));
}

#[test]
fn what_was_on_its_way_at_the_ejection_neither_ends_nor_prolongs_it() {
    let mut workers = [PodHealth::default()];
    (0..3).for_each(|i| {
        fail(&mut workers, 0, S + i);
    });
    // A stream that began before, and failures of requests that were sent for want of other pods.
    workers[0].note_good(S - 5, S + 10);
    assert!(ejected(&workers, S + 10));
    assert!(!workers[0].note_failure([].iter(), S + 20, 3 * S, &CONFIG));
    assert!(!ejected(&workers, 3 * S));
    // What was sent after it and went well does end it, before the back-off is over too.
    workers[0].note_good(S + 30, S + 40);
    assert!(!ejected(&workers, S + 41));
}

#[test]
fn with_zero_nothing_is_ever_ejected() {
    let never = HealthConfig { consecutive_failures: 0, ..CONFIG };
    let mut worker = PodHealth::default();
    assert!((0..100).all(|i| !worker.note_failure([].iter(), S + i, S + i, &never)));
}

proptest! {
    #[test]
    fn any_course_of_events_keeps_the_rules(
        events in prop::collection::vec((0_usize..4, any::<bool>(), 1_u64..3 * S), 1..200),
    ) {
        let mut workers = [PodHealth::default(); 4];
        let (mut now_us, mut in_a_row) = (S, 0);
        for (at, good, pause_us) in events {
            now_us += pause_us;
            let before = ejected(&workers, now_us);
            if good {
                workers[at].note_good(now_us - 1, now_us);
                in_a_row = 0;
                prop_assert!(!ejected(&workers, now_us), "a good answer ends every ejection");
            } else {
                in_a_row += 1;
                let ejects = fail(&mut workers, at, now_us);
                prop_assert!(!ejects || (in_a_row >= 3 && !before));
                prop_assert!(in_a_row != 3 || ejects, "the third in a row always ejects");
                prop_assert_eq!(ejected(&workers, now_us), before || ejects);
            }
            // Never for longer than the longest back-off after the last failure.
            prop_assert!(!ejected(&workers, now_us + 8 * S));
            let mut reversed = workers;
            reversed.reverse();
            prop_assert_eq!(standing(&workers), standing(&reversed));
        }
    }

    #[test]
    fn what_is_written_reads_back_and_any_bytes_are_read_without_harm(
        failures in 0_u64..9, bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut worker = PodHealth::default();
        (0..failures).for_each(|i| { worker.note_failure([].iter(), S + i, S + i, &CONFIG); });
        worker.note_good(S + failures, S + failures + 3);
        let mut out = Writer::default();
        worker.write(&mut out);
        prop_assert_eq!(PodHealth::read(&mut Reader::new(&out.finish())), Some(worker));
        let _ = PodHealth::read(&mut Reader::new(&bytes));
    }
}
