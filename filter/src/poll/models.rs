//! Which models the pods serve: when to ask each, what its answer means.
//!
//! A pod whose list has not come yet is *awaited*: it gets only requests that no other pod can take. One that
//! answers that it has no list may serve anything. One that does not answer keeps what is known of it.

use foretoken_core::config::{Config, PickForm};
use foretoken_core::fleet::{Fleet, Served};
use foretoken_core::hash::pod_key;
use foretoken_core::served::ServedModels;
use hashbrown::HashMap;

use super::Ask;

/// A list is read up to here: vLLM's takes some 600 B a model.
pub const MAX_LIST_BYTES: usize = 1 << 20;

/// Questions sent in one tick.
const MAX_ASKS_PER_TICK: usize = 64;

/// A pod that does not answer is asked again this much later.
const RETRY_US: u64 = 1_000_000;

/// A pod that never answered this often is taken to have no list, rather than left out for ever.
const TRIES: u32 = 5;

#[derive(Debug, Default)]
struct PodPoll {
    due_us: u64,
    asked_us: Option<u64>,
    unanswered: u32,
    complained: bool,
}

/// What came of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The table has changed.
    News,
    /// It has not.
    Known,
    /// The answer is no list, or there was none.
    Failed,
}

/// All pods' questions.
#[derive(Debug, Default)]
pub struct ModelPolls(HashMap<u64, PodPoll>);

/// The cluster to ask through: one that obeys the pick header and knows the pods under their own port. `None`
/// when there is none, or pods are not to be asked.
#[must_use]
pub fn cluster(config: &Config) -> Option<&str> {
    let cluster = match config.pick.form {
        PickForm::List => Some(config.cluster.as_str()),
        PickForm::StatefulSession if config.telemetry.port.is_some() => None,
        PickForm::StatefulSession => config.telemetry.cluster.as_deref(),
    };
    cluster.filter(|_| config.models.discover)
}

impl ModelPolls {
    /// The members have changed: forgets those that left and settles what is known of new ones without asking.
    /// Returns whether that changed the table.
    pub fn members_changed(&mut self, config: &Config, fleet: &mut Fleet) -> bool {
        self.0.retain(|key, _| fleet.find(*key).is_some());
        let mut fixed: HashMap<u64, ServedModels> = HashMap::new();
        for (address, names) in &config.models.pods {
            // In Envoy's own spelling.
            let address: core::net::SocketAddr = match address.parse() {
                Ok(address) => address,
                Err(_) => continue,
            };
            let served = ServedModels::new(names.iter().map(|name| (name.as_str(), false)));
            fixed.insert(pod_key(&address.to_string()), served);
        }
        let keys: Vec<u64> = fleet.pods().iter().map(|pod| pod.key).collect();
        let mut changed = false;
        for key in keys {
            if let Some(served) = fixed.remove(&key) {
                self.0.insert(key, PodPoll { due_us: u64::MAX, ..PodPoll::default() });
                changed |= fleet.set_served(key, Served::list(served));
            } else if cluster(config).is_none() {
                self.0.remove(&key);
                changed |= fleet.set_served(key, Served::Unknown);
            } else if !self.0.contains_key(&key) {
                self.0.insert(key, PodPoll::default());
                let known = fleet.find(key).is_some_and(|pod| matches!(pod.served, Served::List(_)));
                changed |= !known && fleet.set_served(key, Served::Awaited);
            }
        }
        changed
    }

    /// Adds the questions that are due. Each counts as asked.
    pub fn due(&mut self, config: &Config, fleet: &Fleet, now_us: u64, out: &mut Vec<Ask>) {
        if cluster(config).is_none() {
            return;
        }
        let lost_us = u64::from(config.telemetry.timeout_ms) * 2000;
        let mut left = MAX_ASKS_PER_TICK;
        for pod in fleet.pods() {
            let Some(poll) = self.0.get_mut(&pod.key) else { continue };
            let waiting = poll.asked_us.is_some_and(|asked_us| asked_us + lost_us > now_us);
            if waiting || now_us < poll.due_us || left == 0 {
                continue;
            }
            left -= 1;
            poll.asked_us = Some(now_us);
            out.push(Ask::Models { key: pod.key, address: pod.address.to_string() });
        }
    }

    /// Takes a pod's answer; status 0 is none.
    pub fn answered(
        &mut self,
        config: &Config,
        fleet: &mut Fleet,
        (key, status, body): (u64, u16, &[u8]),
        now_us: u64,
    ) -> Outcome {
        let Some(poll) = self.0.get_mut(&key) else { return Outcome::Known };
        poll.asked_us = None;
        poll.due_us = now_us + u64::from(config.models.refresh_ms) * 1000;
        let (served, problem) = match status {
            200 => match ServedModels::from_json(body) {
                Ok(served) => (Some(Served::list(served)), None),
                Err(error) => (Some(Served::Unknown), Some(error.to_string())),
            },
            // No such path, no method, no permission: it answers, and has no list for us.
            400..=499 => (Some(Served::Unknown), Some(format!("status {status}"))),
            _ => {
                poll.unanswered = poll.unanswered.saturating_add(1);
                poll.due_us = poll.due_us.min(now_us + RETRY_US);
                let awaited = fleet.find(key).is_some_and(|pod| pod.served == Served::Awaited);
                (
                    (awaited && poll.unanswered >= TRIES).then_some(Served::Unknown),
                    Some(format!("status {status}")),
                )
            }
        };
        if status != 0 && status < 500 {
            poll.unanswered = 0;
        }
        match &problem {
            None => poll.complained = false,
            Some(problem) if served.is_some() && !core::mem::replace(&mut poll.complained, true) => {
                let address = fleet.find(key).map_or("", |pod| &pod.address);
                log::info!(
                    "pod {address}: no list of models from {}: {problem}; it may get requests for any model. This is said once until there is one",
                    config.models.path
                );
            }
            Some(_) => {}
        }
        let news = served.is_some_and(|served| fleet.set_served(key, served));
        match problem {
            _ if news => Outcome::News,
            None => Outcome::Known,
            Some(_) => Outcome::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_core::request::model_key;

    const A: &str = "10.0.0.1:80";
    const LIST: &[u8] = br#"{"data":[{"id":"base"},{"id":"sql","parent":"base"}]}"#;

    fn config(models: &str) -> Config {
        let text =
            format!(r#"{{"cluster":"pods","endpoints":{{"admin_cluster":"admin"}},"models":{models}}}"#);
        Config::from_json(text.as_bytes()).unwrap()
    }

    fn fleet() -> Fleet {
        let mut fleet = Fleet::default();
        fleet.set_members([(A.to_owned(), true), ("10.0.0.2:80".to_owned(), true)]);
        fleet
    }

    fn asked(polls: &mut ModelPolls, config: &Config, fleet: &Fleet, now_us: u64) -> usize {
        let mut out = Vec::new();
        polls.due(config, fleet, now_us, &mut out);
        out.len()
    }

    #[test]
    fn a_pod_is_awaited_until_its_list_comes_and_asked_again_after_the_refresh() {
        let (config, mut fleet) = (config(r#"{"refresh_ms":2000}"#), fleet());
        let mut polls = ModelPolls::default();
        assert!(polls.members_changed(&config, &mut fleet));
        assert_eq!(fleet.pods()[0].served, Served::Awaited);
        assert!(!fleet.pods()[0].may_serve(model_key("base")));
        assert_eq!(asked(&mut polls, &config, &fleet, 1_000), 2);
        assert_eq!(asked(&mut polls, &config, &fleet, 2_000), 0, "on their way");
        assert_eq!(polls.answered(&config, &mut fleet, (pod_key(A), 200, LIST), 3_000), Outcome::News);
        assert!(fleet.pods()[0].may_serve(model_key("sql")) && !fleet.pods()[0].may_serve(model_key("x")));
        assert_eq!(fleet.pods()[0].lists_adapter(model_key("sql")), Some(true));
        assert_eq!(asked(&mut polls, &config, &fleet, 1_900_000), 0);
        assert_eq!(asked(&mut polls, &config, &fleet, 2_004_000), 2, "and the other was lost");
        assert_eq!(polls.answered(&config, &mut fleet, (pod_key(A), 200, LIST), 2_005_000), Outcome::Known);
        assert!(!polls.members_changed(&config, &mut fleet));
    }

    #[test]
    fn a_pod_without_a_list_may_serve_anything_and_one_that_is_away_keeps_its_list() {
        let (config, mut fleet) = (config("{}"), fleet());
        let mut polls = ModelPolls::default();
        polls.members_changed(&config, &mut fleet);
        let mut answer =
            |fleet: &mut Fleet, status, body| polls.answered(&config, fleet, (pod_key(A), status, body), 0);
        assert_eq!(answer(&mut fleet, 404, b""), Outcome::News);
        assert_eq!(fleet.pods()[0].served, Served::Unknown);
        answer(&mut fleet, 200, LIST);
        assert_eq!(answer(&mut fleet, 503, b""), Outcome::Failed);
        assert_eq!(fleet.pods()[0].lists_adapter(model_key("sql")), Some(true));
        assert_eq!(answer(&mut fleet, 200, b"<html>"), Outcome::News);
        assert!(fleet.pods()[0].may_serve(model_key("any")));
    }

    #[test]
    fn a_pod_that_never_answers_is_not_left_out_for_ever() {
        let (config, mut fleet) = (config("{}"), fleet());
        let mut polls = ModelPolls::default();
        polls.members_changed(&config, &mut fleet);
        for round in 0..u64::from(TRIES) {
            assert_eq!(fleet.pods()[0].served, Served::Awaited);
            assert_eq!(asked(&mut polls, &config, &fleet, 1 + round * 5_000_000), 2);
            polls.answered(&config, &mut fleet, (pod_key(A), 0, b""), 1 + round * 5_000_000);
        }
        assert_eq!(fleet.pods()[0].served, Served::Unknown);
    }

    #[test]
    fn lists_in_the_configuration_need_no_question() {
        let config = config(r#"{"pods":{"10.0.0.1:80":["x","y"]}}"#);
        let (mut polls, mut fleet) = (ModelPolls::default(), fleet());
        assert!(polls.members_changed(&config, &mut fleet));
        assert!(fleet.pods()[0].may_serve(model_key("y")) && !fleet.pods()[0].may_serve(model_key("base")));
        let mut out = Vec::new();
        polls.due(&config, &fleet, 1_000, &mut out);
        assert_eq!(out, [Ask::Models { key: pod_key("10.0.0.2:80"), address: "10.0.0.2:80".to_owned() }]);
        let quiet = tests::config(r#"{"discover":false}"#);
        let mut fleet = tests::fleet();
        let mut polls = ModelPolls::default();
        assert!(!polls.members_changed(&quiet, &mut fleet));
        assert_eq!(
            (asked(&mut polls, &quiet, &fleet, 1_000), &fleet.pods()[0].served),
            (0, &Served::Unknown)
        );
    }
}
