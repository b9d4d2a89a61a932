//! The routers that foretoken is measured against, and oracles that no router can be.
//!
//! Each rival is a [`Rule`] in a file of its own that names its source; what they share (requests in flight,
//! an index of prefixes, the last scrape) is kept for them by [`Ruled`]. They are written from the sources'
//! descriptions, in their shipped settings; where a constant is tied to hardware it is set for this simulator's
//! `h100` profile, in the rival's favour.
//!
//! What they are not: ports. Nothing of their code is here.

pub mod books;
pub mod boost;
pub mod gie;
pub mod higress;
pub mod kv_cost;
pub mod least_request;
pub mod llmd_predicted;
pub mod oracle;
pub mod power_of_two;
pub mod queue_kv;
pub mod radix;
pub mod random;
pub mod round_robin;
pub mod sticky;
#[cfg(test)]
mod tests;

pub use books::{Books, Rule, Ruled};

use crate::virtual_time::Policy;

/// Names of all rivals.
pub const RIVALS: [&str; 11] = [
    "round-robin",
    "random",
    "power-of-two",
    "least-request",
    "queue-kv",
    "gie-default",
    "sticky",
    "radix",
    "kv-cost",
    "higress",
    "llmd-predicted",
];

/// Names of the oracles.
pub const ORACLES: [&str; 3] = ["oracle-greedy", "oracle-social", "oracle-full"];

/// The rival or oracle of this name.
#[must_use]
pub fn rival(name: &str, seed: u64) -> Option<Box<dyn Policy>> {
    fn ruled<R: Rule + 'static>(rule: R, seed: u64) -> Option<Box<dyn Policy>> {
        Some(Box::new(Ruled::new(rule, seed)))
    }
    match name {
        "round-robin" => ruled(round_robin::RoundRobin::default(), seed),
        "random" => ruled(random::Random, seed),
        "power-of-two" => ruled(power_of_two::PowerOfTwo, seed),
        "least-request" => ruled(least_request::LeastRequest, seed),
        "queue-kv" => ruled(queue_kv::QueueKv, seed),
        "gie-default" => ruled(gie::GieDefault::default(), seed),
        "sticky" => ruled(sticky::Sticky::default(), seed),
        "radix" => ruled(radix::Radix, seed),
        "kv-cost" => ruled(kv_cost::KvCost::default(), seed),
        "higress" => ruled(higress::Higress, seed),
        "llmd-predicted" => ruled(llmd_predicted::Predicted::default(), seed),
        "oracle-greedy" => ruled(oracle::Oracle::greedy(), seed),
        "oracle-social" => ruled(oracle::Oracle::social(), seed),
        "oracle-full" => ruled(oracle::Oracle::full(), seed),
        _ => None,
    }
}
