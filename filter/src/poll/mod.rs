//! Which pods there are and what their metrics pages say, kept up to date by one VM for all.
//!
//! The holder of the lease finds out which pods there are, scrapes each, asks each which models it serves, and
//! writes the table of pods to shared data as one value. The other VMs read it before a decision; its version
//! tells them whether they have it already.
//!
//! A scrape goes through the pods' cluster with the pick header set. An address that the cluster does not hold
//! would be answered by some other pod, so only members are asked. Health is ours to know because the
//! `override_host` policy that follows the pick does not look at it.
//!
//! * [`members`]: where the list of pods comes from; [`admin`] and [`dns`] read what comes.
//! * `pages`: when a pod's page is due. * [`busy`]: at which pods requests are in flight.
//! * [`models`]: which models each serves.
//! * [`Poller`]: what is due, what came back.

pub mod admin;
pub mod busy;
pub mod dns;
pub mod members;
pub mod models;
mod pages;

use foretoken_core::codec::{Reader, Writer};
use foretoken_core::config::{Config, PickForm};
use foretoken_core::fleet::{Fleet, MAX_PODS};
use foretoken_core::hash::pod_key;
use foretoken_core::telemetry::read_metrics;
use hashbrown::{HashMap, HashSet};

use members::{Due, Members, Source};
use models::{ModelPolls, Outcome};
use pages::PodPoll;

/// A pod whose connection was refused this often in a row is taken to be down: with fixed addresses nothing
/// else says so, and Envoy's own health checks need longer.
const DOWN_AFTER: u32 = 3;

/// Envoy answers a callout itself with this status when it cannot connect.
const UNREACHABLE: u16 = 503;

/// Time between two writes of the table, per pod in it: packing takes time in proportion, and so does unpacking,
/// which every worker does before its next decision.
const WRITE_GAP_US_PER_POD: u64 = 100;

/// First byte of the shared value.
const FORMAT: u8 = 1;

/// A metrics page is read up to here. vLLM's with many series is some 200 KB.
pub const MAX_PAGE_BYTES: usize = 4 << 20;

/// A request that the poller wants sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The admin listing.
    Listing,
    /// The addresses of a name.
    Resolve {
        /// The name.
        name: String,
    },
    /// A pod's list of models.
    Models {
        /// The pod's key.
        key: u64,
        /// `ip:port`.
        address: String,
    },
    /// A pod's metrics page.
    Page {
        /// The pod's key.
        key: u64,
        /// `ip:port`.
        address: String,
    },
}

/// The lease holder's work.
#[derive(Debug, Default)]
pub struct Poller {
    fleet: Fleet,
    /// Members with the health that Envoy gives them.
    members: Vec<(String, bool)>,
    polls: HashMap<u64, PodPoll>,
    source: Source,
    models: ModelPolls,
    /// The configuration may say something else of the models than it did.
    unsettled: bool,
    dirty: bool,
    written_us: u64,
    version: u64,
    random: u64,
    /// Pods at which requests of this Envoy are in flight.
    busy: HashSet<u64>,
    behind: bool,
    /// Series found missing that nobody was told of yet.
    missing: Vec<&'static str>,
}

/// The cluster to scrape through; `None` when none would obey the pick header.
#[must_use]
pub fn scrape_cluster(config: &Config) -> Option<&str> {
    match (&config.telemetry.cluster, config.pick.form) {
        (Some(cluster), _) => Some(cluster),
        (None, PickForm::List) => Some(&config.cluster),
        (None, PickForm::StatefulSession) => None,
    }
}

/// Where a pod's page is: `ip:port`, with the port of the pages where that is another one.
#[must_use]
pub fn page_address(config: &Config, address: &str) -> String {
    match (config.telemetry.port, address.rsplit_once(':')) {
        (Some(port), Some((host, _))) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

/// Version and table of a shared value; `None` when it is none of this format.
#[must_use]
pub fn read_shared(value: &[u8]) -> Option<((u64, u64), Fleet)> {
    let version = peek_shared(value)?;
    Fleet::read(value.get(HEAD_BYTES..)?).map(|fleet| (version, fleet))
}

/// Writer and version of a shared value.
#[must_use]
pub fn peek_shared(value: &[u8]) -> Option<(u64, u64)> {
    let mut input = Reader::new(value);
    (input.u8()? == FORMAT).then_some(())?;
    Some((input.u64()?, input.u64()?))
}

const HEAD_BYTES: usize = 1 + 8 + 8;

impl Poller {
    /// Starts from the table that the last holder left.
    #[must_use]
    pub fn resume(fleet: Fleet, random: u64) -> Self {
        let members = fleet.pods().iter().map(|pod| (pod.address.to_string(), pod.healthy)).collect();
        Self { fleet, members, random: random | 1, unsettled: true, ..Self::default() }
    }

    /// Number of pods.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.fleet.pods().len()
    }

    /// What to send now. Everything returned counts as sent.
    pub fn due(&mut self, config: &Config, now_us: u64) -> Vec<Ask> {
        let mut asks = Vec::new();
        match self.source.due(config, now_us) {
            Due::Nothing => {}
            Due::Ask(ask) => asks.push(ask),
            Due::Fixed(members) => self.set_members(config, members),
        }
        if core::mem::take(&mut self.unsettled) {
            self.dirty |= self.models.members_changed(config, &mut self.fleet);
        }
        if scrape_cluster(config).is_some() {
            self.due_pages(&config.telemetry, now_us, &mut asks);
        }
        self.models.due(config, &self.fleet, now_us, &mut asks);
        asks
    }

    /// The configuration has changed. A question that is on its way stays good, unless it is another's now.
    pub fn reconfigured(&mut self, old: &Config, new: &Config) {
        if old.endpoints != new.endpoints {
            self.source = Source::default();
        }
        self.unsettled = true;
    }

    fn set_members(&mut self, config: &Config, members: Members) {
        self.members = members;
        self.members.truncate(MAX_PODS);
        self.settle_health();
        let fleet = &self.fleet;
        self.polls.retain(|key, _| fleet.find(*key).is_some());
        self.dirty |= self.models.members_changed(config, &mut self.fleet);
    }

    /// Membership with both views of health: Envoy's and our own.
    fn settle_health(&mut self) {
        let polls = &self.polls;
        let reachable =
            |address: &str| polls.get(&pod_key(address)).is_none_or(|poll| poll.failures < DOWN_AFTER);
        let members: Vec<(String, bool)> = self
            .members
            .iter()
            .map(|(address, healthy)| (address.clone(), *healthy && reachable(address)))
            .collect();
        // The table's own answer to "has it changed" is always yes: unknown values (NaN) equal nothing.
        let before: Vec<(u64, bool)> = self.fleet.pods().iter().map(|pod| (pod.key, pod.healthy)).collect();
        self.fleet.set_members(members);
        let pods = self.fleet.pods();
        if !pods.iter().map(|pod| (pod.key, pod.healthy)).eq(before) {
            self.dirty = true;
            let healthy = pods.iter().filter(|pod| pod.healthy).count();
            log::info!("pods: {} known, {healthy} healthy", pods.len());
        }
    }

    /// Takes the admin listing's answer. Returns whether it gave a list of pods.
    pub fn listing(&mut self, config: &Config, status: u16, body: &[u8]) -> bool {
        let members = self.source.listing(config, status, body);
        members.map(|members| self.set_members(config, members)).is_some()
    }

    /// Takes the resolver's answer. Returns whether it gave a list of pods.
    pub fn resolved(&mut self, config: &Config, answer: &[u8]) -> bool {
        let members = self.source.resolved(config, answer);
        members.map(|members| self.set_members(config, members)).is_some()
    }

    /// The list of pods could not be asked for.
    pub fn members_not_asked(&mut self, problem: String) {
        self.source.not_asked(problem);
    }

    /// Takes a pod's list of models; status 0 is no answer. Returns whether it was one.
    pub fn models(&mut self, config: &Config, key: u64, status: u16, body: &[u8], now_us: u64) -> bool {
        let outcome = self.models.answered(config, &mut self.fleet, (key, status, body), now_us);
        self.dirty |= outcome == Outcome::News;
        outcome != Outcome::Failed
    }

    /// Takes a pod's page. Returns whether it could be used.
    pub fn page(&mut self, config: &Config, key: u64, status: u16, body: &[u8], now_us: u64) -> bool {
        let Some(pod) = self.fleet.find(key) else { return false };
        let Some(poll) = self.polls.get_mut(&key) else { return false };
        poll.asked_us = None;
        let was_down = poll.failures >= DOWN_AFTER;
        poll.failures = if status == UNREACHABLE { poll.failures.saturating_add(1) } else { 0 };
        let scrape = if status == 200 {
            read_metrics(body, config.telemetry.dialect).map_err(|error| error.to_string())
        } else {
            Err(format!("status {status}"))
        };
        if let Err(problem) = &scrape
            && !core::mem::replace(&mut poll.complained, true)
        {
            log::warn!(
                "pod {}: no metrics from {}: {problem}; it is routed to without them. This is said once until it works again",
                pod.address,
                config.telemetry.path
            );
        }
        if (poll.failures >= DOWN_AFTER) != was_down {
            self.settle_health();
        }
        let Ok(scrape) = scrape else { return false };
        if let Some(poll) = self.polls.get_mut(&key) {
            poll.complained = false;
        }
        self.note_missing(key, &scrape, &config.telemetry.path);
        self.fleet.set_scrape(key, &scrape, now_us);
        self.dirty = true;
        true
    }

    /// The value to share, when there is news and the last write is long enough ago.
    pub fn to_share(&mut self, incarnation: u64, now_us: u64) -> Option<Vec<u8>> {
        let gap_us = WRITE_GAP_US_PER_POD * u64::try_from(self.fleet.pods().len()).unwrap_or(0);
        if !self.dirty || now_us < self.written_us + gap_us {
            return None;
        }
        self.dirty = false;
        self.written_us = now_us;
        self.version += 1;
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u64(incarnation);
        out.u64(self.version);
        let mut value = out.finish();
        value.extend_from_slice(&self.fleet.write());
        Some(value)
    }

    /// The shared value could not be written: it stays due.
    pub fn not_shared(&mut self) {
        self.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        let text = format!(r#"{{"cluster":"pods","telemetry":{{"interval_ms":200}},{more}}}"#);
        Config::from_json(text.as_bytes()).unwrap()
    }

    fn fixed() -> Config {
        config(r#""endpoints":{"addresses":["10.0.0.1:80","10.0.0.2:80"]}"#)
    }

    fn pages(asks: &[Ask]) -> Vec<&str> {
        asks.iter()
            .filter_map(|ask| match ask {
                Ask::Page { address, .. } => Some(address.as_str()),
                _ => None,
            })
            .collect()
    }

    const VLLM: &[u8] =
        b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} 3\n\
        # TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 2\n\
        # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\n";

    #[test]
    fn every_pod_is_asked_once_an_interval_and_never_twice_at_a_time() {
        let config = fixed();
        let mut poller = Poller::resume(Fleet::default(), 7);
        let mut counts = HashMap::<String, u32>::new();
        for tick in 0..200_u64 {
            let now_us = 1_000_000 + tick * 50_000;
            for ask in poller.due(&config, now_us) {
                let Ask::Page { key, address } = ask else { continue };
                *counts.entry(address).or_default() += 1;
                assert!(poller.page(&config, key, 200, VLLM, now_us + 1000));
            }
        }
        // 200 ticks of 50 ms are 10 s: 50 intervals of 200 ms.
        assert!(counts.len() == 2 && counts.values().all(|count| (48..=52).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_page_that_never_comes_is_asked_for_again_after_twice_the_timeout() {
        let config = fixed();
        let mut poller = Poller::resume(Fleet::default(), 7);
        assert_eq!(pages(&poller.due(&config, 1_000_000)).len(), 2);
        assert_eq!(pages(&poller.due(&config, 2_999_999)).len(), 0);
        assert_eq!(pages(&poller.due(&config, 3_000_000)).len(), 2);
    }

    #[test]
    fn a_pod_that_cannot_be_reached_three_times_is_down_until_it_answers() {
        let config = fixed();
        let mut poller = Poller::resume(Fleet::default(), 7);
        poller.due(&config, 1_000_000);
        let key = pod_key("10.0.0.1:80");
        let healthy = |poller: &Poller| poller.fleet.find(key).unwrap().healthy;
        for round in 1..=3 {
            assert!(healthy(&poller), "before failure {round}");
            assert!(!poller.page(&config, key, 503, b"", 1_000_000));
        }
        assert!(!healthy(&poller));
        // A page that is missing or late says nothing of whether the pod serves.
        poller.page(&config, key, 404, b"", 1_000_000);
        assert!(healthy(&poller));
        for _ in 0..5 {
            poller.page(&config, key, 504, b"", 1_000_000);
        }
        assert!(healthy(&poller));
    }

    #[test]
    fn a_listing_sets_the_members_and_a_bad_one_leaves_them() {
        let config = config(r#""endpoints":{"admin_cluster":"admin"}"#);
        let mut poller = Poller::resume(Fleet::default(), 7);
        assert_eq!(poller.due(&config, 1_000_000), [Ask::Listing]);
        let body = br#"{"cluster_statuses":[{"name":"pods","host_statuses":[
            {"address":{"socket_address":{"address":"10.0.0.9","port_value":80}},"health_status":{"eds_health_status":"HEALTHY"}}]}]}"#;
        assert!(poller.listing(&config, 200, body));
        assert_eq!(pages(&poller.due(&config, 1_100_000)), ["10.0.0.9:80"]);
        poller.page(&config, pod_key("10.0.0.9:80"), 200, VLLM, 1_100_000);
        assert!(poller.to_share(1, 1_200_000).is_some());
        assert!(poller.listing(&config, 200, body) && poller.to_share(1, 1_300_000).is_none(), "no news");
        assert!(!poller.listing(&config, 200, b"{}"));
        assert!(!poller.listing(&config, 503, body));
        assert_eq!(poller.pods(), 1);
    }

    #[test]
    fn a_name_is_resolved_again_and_again_and_its_last_addresses_stay_when_it_is_not() {
        let config =
            config(r#""endpoints":{"dns":"pods.local:80","refresh_ms":500},"models":{"discover":false}"#);
        let mut poller = Poller::resume(Fleet::default(), 7);
        let ask = [Ask::Resolve { name: "pods.local".to_owned() }];
        assert_eq!(poller.due(&config, 1_000_000), ask);
        assert_eq!(poller.due(&config, 1_600_000), [], "on its way");
        let answer = b"\x01\0\0\0\x1e\0\0\x0010.0.0.7:0\0";
        assert!(poller.resolved(&config, answer));
        assert_eq!(poller.due(&config, 1_700_000)[..1], ask);
        assert!(!poller.resolved(&config, b"\0\0\0\0"));
        assert_eq!(&*poller.fleet.pods()[0].address, "10.0.0.7:80");
        let elsewhere = tests::config(r#""endpoints":{"addresses":["10.0.0.8:80"]}"#);
        poller.reconfigured(&config, &elsewhere);
        poller.due(&elsewhere, 1_800_000);
        assert_eq!(&*poller.fleet.pods()[0].address, "10.0.0.8:80");
    }

    #[test]
    fn without_a_cluster_that_obeys_the_pick_no_pod_is_scraped() {
        let session =
            config(r#""endpoints":{"addresses":["10.0.0.1:80"]},"pick":{"form":"stateful_session"}"#);
        assert_eq!(Poller::resume(Fleet::default(), 7).due(&session, 1), []);
        let mut with_cluster = session;
        with_cluster.telemetry.cluster = Some("original_dst".to_owned());
        assert_eq!(pages(&Poller::resume(Fleet::default(), 7).due(&with_cluster, 1)), ["10.0.0.1:80"]);
        assert_eq!(scrape_cluster(&with_cluster), Some("original_dst"));
    }

    #[test]
    fn the_table_is_shared_when_there_is_news_and_read_back() {
        let config = fixed();
        let mut poller = Poller::resume(Fleet::default(), 7);
        poller.due(&config, 1_000_000);
        let value = poller.to_share(5, 1_000_000).unwrap();
        let (version, fleet) = read_shared(&value).unwrap();
        assert_eq!((version, fleet.pods().len()), ((5, 1), 2));
        assert_eq!(poller.to_share(5, 2_000_000), None);
        poller.page(&config, pod_key("10.0.0.1:80"), 200, VLLM, 2_000_000);
        assert_eq!(poller.to_share(5, 1_000_001), None, "too soon after the last write");
        assert_eq!(peek_shared(&poller.to_share(5, 2_000_000).unwrap()), Some((5, 2)));
    }

    #[test]
    fn the_next_holder_goes_on_with_the_table_of_the_last() {
        let config = config(r#""endpoints":{"admin_cluster":"admin"}"#);
        let mut fleet = Fleet::default();
        fleet.set_members([("10.0.0.1:80".to_owned(), false)]);
        let mut poller = Poller::resume(fleet, 7);
        let asks = poller.due(&config, 1_000_000);
        assert_eq!((asks[0].clone(), pages(&asks)), (Ask::Listing, vec!["10.0.0.1:80"]));
    }
}
