//! When each pod's metrics page is asked for, and what is said about pages.
//!
//! A pod at work is asked every `telemetry.interval_ms`: requests of ours are in flight there, by any worker's
//! ledger, or its last page showed some of others. An idle pod's page hardly changes and is asked for every
//! `telemetry.idle_interval_ms`, until work comes. Each pod has a moment of its own in the interval, so that the pods
//! are not all asked together, and only so many answers are waited for at a time: what comes back makes room for
//! the next.
//!
//! A series that a pod's page should have and lacks is said once per pod and series.

use foretoken_core::config::TelemetryConfig;
use foretoken_core::fleet::Pod;
use foretoken_core::num::{f64_of_u64, u64_of_f64};
use foretoken_core::telemetry::{Dialect, Missing, Scrape};

use super::{Ask, Poller};

/// Pages that are waited for at a time. A page takes a pod some milliseconds to write.
const MAX_CONCURRENT: usize = 64;

/// What is known of one pod's pages.
#[derive(Debug, Default)]
pub(super) struct PodPoll {
    /// The moment that the last question belonged to; 0 before the first.
    planned_us: u64,
    pub(super) asked_us: Option<u64>,
    pub(super) failures: u32,
    pub(super) complained: bool,
    said: Option<(Dialect, Missing)>,
}

impl PodPoll {
    fn waits(&self, lost_us: u64, now_us: u64) -> bool {
        self.asked_us.is_some_and(|asked_us| asked_us + lost_us > now_us)
    }

    /// A pod that was never asked is due at once.
    fn due_us(&self, gap_us: u64) -> u64 {
        if self.planned_us == 0 { 0 } else { self.planned_us + gap_us }
    }
}

/// Time between two pages of a pod.
fn gap_us(telemetry: &TelemetryConfig, busy: bool) -> u64 {
    let gap_ms = if busy {
        telemetry.interval_ms
    } else {
        // Never so rare that what is known of an idle pod goes stale.
        telemetry.idle_interval_ms.min(telemetry.stale_after_ms / 2).max(telemetry.interval_ms)
    };
    u64::from(gap_ms) * 1000
}

fn shows_work(pod: &Pod) -> bool {
    pod.scrape.is_some_and(|scrape| scrape.running_requests > 0.0 || scrape.waiting_requests > 0.0)
}

impl Poller {
    /// Takes the pods at which requests of this Envoy are in flight.
    pub fn set_busy(&mut self, busy: hashbrown::HashSet<u64>) {
        self.busy = busy;
    }

    /// Whether pages are due that nobody was asked for because too many are on their way.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    pub(super) fn due_pages(&mut self, telemetry: &TelemetryConfig, now_us: u64, asks: &mut Vec<Ask>) {
        let lost_us = u64::from(telemetry.timeout_ms) * 2000;
        let mut waiting = 0;
        let mut due = Vec::new();
        for pod in self.fleet.pods() {
            let gap_us = gap_us(telemetry, self.busy.contains(&pod.key) || shows_work(pod));
            let poll = self.polls.entry(pod.key).or_default();
            let due_us = poll.due_us(gap_us);
            if poll.waits(lost_us, now_us) {
                waiting += 1;
            } else if due_us <= now_us {
                due.push((due_us, pod.key, gap_us));
            }
        }
        due.sort_unstable();
        let room = MAX_CONCURRENT.saturating_sub(waiting);
        self.behind = due.len() > room;
        for (due_us, key, gap_us) in due.into_iter().take(room) {
            let (Some(pod), Some(poll)) = (self.fleet.find(key), self.polls.get_mut(&key)) else { continue };
            poll.asked_us = Some(now_us);
            // Ticks are coarser than intervals may be: keep the rhythm. A pod that is new, that work has just come to
            // or that was long forgotten takes a new moment, not that of all others in its place.
            let on_time = due_us + gap_us / 2 > now_us;
            let late_us = if on_time { now_us - due_us } else { share(&mut self.random, gap_us / 2) };
            poll.planned_us = now_us - late_us;
            asks.push(Ask::Page { key, address: pod.address.to_string() });
        }
    }

    /// Says which series a pod's page lacks, once.
    pub(super) fn note_missing(&mut self, key: u64, scrape: &Scrape, path: &str) {
        let (Some(pod), Some(poll)) = (self.fleet.find(key), self.polls.get_mut(&key)) else { return };
        let said = poll
            .said
            .filter(|(dialect, _)| *dialect == scrape.dialect)
            .map_or_else(Missing::default, |(_, said)| said);
        let news = scrape.missing.without(said);
        poll.said = Some((scrape.dialect, said.or(scrape.missing)));
        for missing in news.series(scrape.dialect) {
            log::warn!(
                "pod {}: {path} has no series {}: {}. What it tells is unknown to routing; this is said once per pod and series",
                pod.address,
                missing.series,
                missing.fix
            );
            self.missing.push(missing.series);
        }
    }

    /// The series that were found missing since the last call.
    pub fn take_missing(&mut self) -> Vec<&'static str> {
        core::mem::take(&mut self.missing)
    }
}

/// A random part of `whole`.
fn share(random: &mut u64, whole: u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    u64_of_f64(f64_of_u64(whole) * (f64_of_u64(*random >> 11) / f64_of_u64(1 << 53)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use foretoken_core::config::Config;
    use foretoken_core::fleet::Fleet;
    use foretoken_core::hash::pod_key;

    use super::*;

    const IDLE: &[u8] = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n";
    const WORKING: &[u8] = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 1\n";

    fn config(pods: usize, telemetry: &str) -> Config {
        let addresses: Vec<String> =
            (0..pods).map(|n| format!("\"10.0.{}.{}:80\"", n / 250, n % 250 + 1)).collect();
        let text = format!(
            r#"{{"cluster":"pods","endpoints":{{"addresses":[{}]}},"telemetry":{{{telemetry}}}}}"#,
            addresses.join(",")
        );
        Config::from_json(text.as_bytes()).unwrap()
    }

    fn poller() -> Poller {
        Poller::resume(Fleet::default(), 7)
    }

    fn pages(asks: Vec<Ask>) -> Vec<(u64, String)> {
        asks.into_iter()
            .filter_map(|ask| match ask {
                Ask::Page { key, address } => Some((key, address)),
                _ => None,
            })
            .collect()
    }

    /// Ticks of 20 ms for so long, every page answered with this one; when each pod was asked.
    fn run(
        poller: &mut Poller,
        config: &Config,
        from_ms: u64,
        for_ms: u64,
        page: &[u8],
    ) -> HashMap<String, Vec<u64>> {
        let mut asked: HashMap<String, Vec<u64>> = HashMap::new();
        for tick in 0..for_ms / 20 {
            let now_us = (from_ms + tick * 20) * 1000;
            for (key, address) in pages(poller.due(config, now_us)) {
                asked.entry(address).or_default().push(now_us / 1000);
                assert!(poller.page(config, key, 200, page, now_us + 1000));
            }
        }
        asked
    }

    fn rates(asked: &HashMap<String, Vec<u64>>) -> Vec<usize> {
        let mut rates: Vec<usize> = asked.values().map(Vec::len).collect();
        rates.sort_unstable();
        rates
    }

    #[test]
    fn an_idle_pod_is_asked_seldom_and_one_at_work_often_from_the_next_tick_on() {
        let config = config(2, r#""interval_ms":100,"idle_interval_ms":1000"#);
        let mut poller = poller();
        let idle = rates(&run(&mut poller, &config, 1000, 10_000, IDLE));
        assert!(idle.len() == 2 && idle.iter().all(|asked| (10..=12).contains(asked)), "{idle:?}");

        let busy = pod_key("10.0.0.1:80");
        poller.set_busy([busy].into_iter().collect());
        let asked = run(&mut poller, &config, 11_000, 10_000, IDLE);
        assert!((95..=106).contains(&asked["10.0.0.1:80"].len()), "{asked:?}");
        assert!(asked["10.0.0.1:80"][0] <= 11_100, "at once, not at the end of its idle interval: {asked:?}");
        assert!((9..=11).contains(&asked["10.0.0.2:80"].len()), "{asked:?}");

        poller.set_busy(hashbrown::HashSet::new());
        let idle = rates(&run(&mut poller, &config, 21_000, 10_000, IDLE));
        assert!(idle.iter().all(|asked| (9..=12).contains(asked)), "{idle:?}");
    }

    #[test]
    fn work_that_others_sent_counts_as_well() {
        let config = config(1, r#""interval_ms":100,"idle_interval_ms":1000"#);
        let mut poller = poller();
        let asked = rates(&run(&mut poller, &config, 1000, 10_000, WORKING));
        assert!(asked.iter().all(|asked| (95..=106).contains(asked)), "{asked:?}");
    }

    #[test]
    fn idle_pods_are_asked_before_what_is_known_of_them_is_stale_and_never_more_often_than_busy_ones() {
        let stale = config(1, r#""interval_ms":100,"idle_interval_ms":60000,"stale_after_ms":1000"#);
        let asked = rates(&run(&mut poller(), &stale, 1000, 10_000, IDLE));
        assert!(asked.iter().all(|asked| (19..=22).contains(asked)), "{asked:?}");
        let slow = config(1, r#""interval_ms":2000,"idle_interval_ms":1000"#);
        let asked = rates(&run(&mut poller(), &slow, 1000, 10_000, IDLE));
        assert!(asked.iter().all(|asked| (5..=7).contains(asked)), "{asked:?}");
    }

    #[test]
    fn pods_that_get_work_together_are_not_asked_together_for_long() {
        let config = config(60, r#""interval_ms":200,"idle_interval_ms":1000"#);
        let mut poller = poller();
        run(&mut poller, &config, 1000, 3000, IDLE);
        let all = poller.fleet.pods().iter().map(|pod| pod.key).collect();
        poller.set_busy(all);
        run(&mut poller, &config, 4000, 400, IDLE);
        let asked = run(&mut poller, &config, 4400, 200, IDLE);
        let mut per_tick: HashMap<u64, usize> = HashMap::new();
        asked.values().flatten().for_each(|at| *per_tick.entry(*at).or_default() += 1);
        // Ten ticks in an interval: six pods each if they were spread evenly.
        assert!(per_tick.values().all(|pods| *pods <= 20) && per_tick.len() >= 5, "{per_tick:?}");
    }

    #[test]
    fn only_so_many_pages_are_waited_for_and_an_answer_makes_room() {
        let config = config(200, r#""interval_ms":100"#);
        let mut poller = poller();
        let first = pages(poller.due(&config, 1_000_000));
        assert_eq!((first.len(), poller.is_behind()), (MAX_CONCURRENT, true));
        assert!(pages(poller.due(&config, 1_020_000)).is_empty());
        for (key, _) in &first[..10] {
            poller.page(&config, *key, 200, IDLE, 1_030_000);
        }
        let next = pages(poller.due(&config, 1_030_000));
        assert_eq!(next.len(), 10);
        assert!(
            next.iter().all(|(key, _)| !first.iter().any(|(before, _)| before == key)),
            "the oldest first"
        );
        for (key, _) in first[10..].iter().chain(&next) {
            poller.page(&config, *key, 200, IDLE, 1_040_000);
        }
        let rest = pages(poller.due(&config, 1_040_000));
        for (key, _) in &rest {
            poller.page(&config, *key, 200, IDLE, 1_050_000);
        }
        let last = pages(poller.due(&config, 1_050_000));
        assert_eq!((rest.len(), last.len(), poller.is_behind()), (64, 62, false));
    }

    #[test]
    fn a_missing_series_is_told_once_per_pod_and_series_and_again_for_another_engine() {
        let config = config(2, r#""interval_ms":100"#);
        let mut poller = poller();
        let ask = |poller: &mut Poller, address: &str, page: &str, at_us: u64| {
            poller.due(&config, at_us);
            assert!(poller.page(&config, pod_key(address), 200, page.as_bytes(), at_us));
            poller.take_missing()
        };
        let lacking = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n\
            vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n";
        let told = ["vllm:cache_config_info", "vllm:generation_tokens_total"];
        assert_eq!(ask(&mut poller, "10.0.0.1:80", lacking, 1_000_000), told);
        for second in 2..50 {
            assert!(ask(&mut poller, "10.0.0.1:80", lacking, second * 1_000_000).is_empty());
        }
        assert_eq!(ask(&mut poller, "10.0.0.2:80", lacking, 50_000_000), told, "each pod for itself");
        let worse = lacking.replace("vllm:kv_cache_usage_perc 0\n", "");
        assert_eq!(ask(&mut poller, "10.0.0.1:80", &worse, 51_000_000), ["vllm:kv_cache_usage_perc"]);
        let whole = format!(
            "{lacking}vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"9\"}} 1\nvllm:generation_tokens_total 1\n"
        );
        assert!(ask(&mut poller, "10.0.0.1:80", &whole, 52_000_000).is_empty());
        assert!(ask(&mut poller, "10.0.0.1:80", lacking, 53_000_000).is_empty(), "it was said");
        let other = ask(&mut poller, "10.0.0.1:80", "tgi_queue_size 1\n", 54_000_000);
        assert_eq!(other, ["tgi_batch_current_size"]);
    }
}
