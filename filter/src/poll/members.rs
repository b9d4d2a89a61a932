//! Where the list of pods comes from: fixed addresses, a DNS name, or Envoy's admin listing.
//!
//! One of the three by configuration, in this order. This part knows when to ask and what a failed question
//! means (the last list stays in use, said once); the list itself is the poller's.

use foretoken_core::config::Config;

use super::{Ask, admin, dns};

/// Pods as `ip:port`, each with the health that the source gives it.
pub type Members = Vec<(String, bool)>;

/// What is to be done about the list now.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// Ask for it.
    Ask(Ask),
    /// It is this.
    Fixed(Members),
}

/// When the source was asked, and how it went.
#[derive(Debug, Default)]
pub struct Source {
    due_us: u64,
    asked_us: Option<u64>,
    complained: bool,
}

impl Source {
    /// What to do now. A question that is returned counts as asked.
    pub fn due(&mut self, config: &Config, now_us: u64) -> Due {
        // A question has the scrape's timeout; an answer that never came is written off after twice that.
        let lost_us = u64::from(config.telemetry.timeout_ms) * 2000;
        let waiting = self.asked_us.is_some_and(|asked_us| asked_us + lost_us > now_us);
        if waiting || now_us < self.due_us {
            return Due::Nothing;
        }
        self.due_us = now_us + u64::from(config.endpoints.refresh_ms) * 1000;
        let endpoints = &config.endpoints;
        if !endpoints.addresses.is_empty() {
            return Due::Fixed(endpoints.addresses.iter().map(|address| (address.clone(), true)).collect());
        }
        self.asked_us = Some(now_us);
        Due::Ask(match endpoints.dns_target() {
            Some((name, _)) => Ask::Resolve { name: name.to_owned() },
            None => Ask::Listing,
        })
    }

    /// Takes the admin listing's answer.
    pub fn listing(&mut self, config: &Config, status: u16, body: &[u8]) -> Option<Members> {
        self.settle(match admin::read_members(&config.cluster, body) {
            _ if status != 200 => {
                Err(format!("Envoy's admin listing: status {status}; check `endpoints.admin_cluster`"))
            }
            listed => listed.map_err(|error| {
                format!("Envoy's admin listing: {error}; check `cluster` and `endpoints.admin_cluster`")
            }),
        })
    }

    /// Takes a resolver's answer. A name that resolves to nothing is a failure: Envoy tells both in one way.
    pub fn resolved(&mut self, config: &Config, answer: &[u8]) -> Option<Members> {
        let (name, port) = config.endpoints.dns_target()?;
        let addresses = dns::read_addresses(answer, port);
        self.settle(if addresses.is_empty() {
            Err(format!("{name} does not resolve; check `endpoints.dns` and the machine's resolver"))
        } else {
            Ok(addresses.into_iter().map(|address| (address, true)).collect())
        })
    }

    /// The question could not be asked.
    pub fn not_asked(&mut self, problem: String) {
        self.settle(Err(problem));
    }

    fn settle(&mut self, answer: Result<Members, String>) -> Option<Members> {
        self.asked_us = None;
        match answer {
            Ok(members) => {
                self.complained = false;
                Some(members)
            }
            Err(problem) => {
                if !core::mem::replace(&mut self.complained, true) {
                    log::warn!(
                        "no list of pods: {problem}. The last one stays in use; this is said once until it works again"
                    );
                }
                None
            }
        }
    }
}
