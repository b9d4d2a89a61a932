//! The interface of a router in virtual time.

use foretoken_core::router::Decision;

use super::pods::Pods;
use super::record::Record;
use super::scrape::PodMetrics;
use super::workload::Request;

/// A request that wants a pod.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Its name in this run.
    pub id: u64,
    /// What the client sends. [`Request::output_tokens`] is for oracles only.
    pub request: &'a Request,
    /// Now.
    pub now_us: u64,
    /// The pods as they truly are: for oracles only. Routers may read [`Pods::up`], their membership.
    pub pods: &'a Pods,
}

/// Where a request goes.
#[derive(Debug, Clone, Default)]
pub struct Pick {
    /// Pods, best first. When the first has gone, the next is tried. Empty: the request is refused.
    pub pods: Vec<usize>,
    /// How it came about, where the router is foretoken's and shows this one
    /// ([`super::ForetokenOptions::shown`]).
    pub decision: Option<Box<Decision>>,
}

impl Pick {
    /// This pod and no other.
    #[must_use]
    pub fn one(pod: usize) -> Self {
        Self { pods: vec![pod], decision: None }
    }
}

/// A token on its way through the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The request.
    pub id: u64,
    /// The pod.
    pub pod: usize,
    /// Output tokens so far, this one included.
    pub tokens: u32,
}

/// Decides where requests go. All methods but [`Policy::pick`] only bring news.
pub trait Policy {
    /// Name in reports.
    fn name(&self) -> &str;

    /// How often each pod's metrics page is read; `None`: never.
    fn scrape_interval_us(&self) -> Option<u64> {
        None
    }

    /// A pod's page was read.
    fn scraped(&mut self, _pod: usize, _metrics: &PodMetrics, _now_us: u64) {}

    /// Membership changed; `up[pod]` says who is in.
    fn pool_changed(&mut self, _up: &[bool], _now_us: u64) {}

    /// Chooses pods for a request.
    fn pick(&mut self, ask: &Ask<'_>) -> Pick;

    /// The request went to this pod, the first of the pick or, after `attempts` above 1, a later one.
    fn sent(&mut self, _ask: &Ask<'_>, _pod: usize, _attempts: u32) {}

    /// A token passed. The first has `tokens == 1`.
    fn token(&mut self, _token: &Token, _now_us: u64) {}

    /// The request is over, well or not.
    fn ended(&mut self, _id: u64, _record: &Record, _now_us: u64) {}

    /// What the policy wants to tell about itself after the run: name and value.
    fn remarks(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}
