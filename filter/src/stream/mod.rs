//! One request's way through the filter.
//!
//! * [`request`]: headers to body to pick. [`route`]: what is special about its route. * [`response`]: who answered,
//!   when tokens came, how it ended.
//!
//! Whatever fails on the way, the request goes on: by Envoy's own policy before the pick, by the pick after it.

mod request;
mod response;
mod route;

use std::rc::Rc;
use std::sync::Arc;

use foretoken_core::config::Config;
use foretoken_core::fallback::Reason;
use foretoken_core::refuse::Answer;
use foretoken_core::request::{Api, ChainTail};
use foretoken_core::response::{ResponseReader, Summary};
use foretoken_core::router::Dispatch;
use foretoken_core::slo::Terms;

use crate::host::HostError;
use crate::metrics::Metric;
use crate::vm::{SharedState, Vm};

/// Asks for the decision's terms, and answers with them.
pub const EXPLAIN_HEADER: &str = "x-foretoken-explain";

/// Headers of this prefix are the filter's own: what a client sends in them goes no further.
const OWN_PREFIX: &[u8] = b"x-foretoken-";

/// What a callback tells Envoy to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Hold what came until more comes.
    Hold,
}

/// Where a request stands.
#[derive(Debug)]
enum Phase {
    /// Its headers have not come, or it has passed without a pick.
    Passing,
    /// Its headers are held until its body is whole.
    Holding(Api),
    /// It goes to the pods that were picked.
    Routed(Box<Routed>),
    /// It was answered here.
    Answered,
}

/// A request that was picked for.
#[derive(Debug)]
struct Routed {
    dispatch: Dispatch,
    explain: Option<String>,
    status: u16,
    attempts: u32,
    streamed: bool,
    /// Where the prompt's blocks end and the answer's go on.
    tail: ChainTail,
    reader: Option<ResponseReader>,
    tokens: u32,
    summary: Option<Summary>,
    ended: bool,
}

/// One request.
pub struct Stream {
    vm: Rc<Vm>,
    /// Absent for a root that was never configured: then everything passes.
    routing: Option<(SharedState, Arc<Config>)>,
    phase: Phase,
    started_us: u64,
    wants_explain: bool,
    wants_load_report: bool,
    body_seen: bool,
    terms: Terms,
}

impl Stream {
    /// A request of a root with this state and configuration.
    #[must_use]
    pub fn new(vm: Rc<Vm>, routing: Option<(SharedState, Arc<Config>)>) -> Self {
        Self {
            vm,
            routing,
            phase: Phase::Passing,
            started_us: 0,
            wants_explain: false,
            wants_load_report: false,
            body_seen: false,
            terms: Terms::default(),
        }
    }

    /// Lets the request pass without a pick.
    fn fall_back(&mut self, reason: Reason) -> Flow {
        self.phase = Phase::Passing;
        self.vm.metrics().add(self.vm.host(), Metric::Fallback(reason), 1);
        Flow::Continue
    }

    /// Answers the request itself. Should Envoy not do it, the request goes on by Envoy's own policy.
    fn refuse(&mut self, answer: &Answer) -> Flow {
        let host = self.vm.host();
        let headers: Vec<(&str, &str)> =
            answer.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let details = format!("foretoken_{}", answer.refusal.name());
        match host.answer(answer.refusal.status(), &headers, &answer.body, &details) {
            Ok(()) => {
                self.phase = Phase::Answered;
                self.vm.metrics().add(host, Metric::Refused(answer.refusal), 1);
                Flow::Hold
            }
            Err(error) => {
                self.complain(&error);
                self.fall_back(Reason::HostCall)
            }
        }
    }

    /// A host call failed.
    fn complain(&self, error: &HostError) {
        if let Some((state, _)) = &self.routing
            && let Ok(mut state) = state.try_borrow_mut()
        {
            state.complain(error, self.vm.host().now_us());
        }
    }
}

#[cfg(test)]
mod targets_tests;
#[cfg(test)]
mod tests;
