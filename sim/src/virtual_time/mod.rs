//! The same engine in virtual time: pods, routers and a workload as discrete events.
//!
//! Nothing sleeps and nothing is sent: [`Simulation`] jumps from one event to the next (an arrival, the end of
//! an engine's step, a scrape, a change of the pool), so an hour of traffic takes seconds, and one seed always
//! gives the same run. Which pod a request goes to is a [`Policy`]'s business; [`foretoken`] is the filter's
//! own router in that place, the others are rivals and oracles.
//!
//! * [`content`]: prompts and answers as block hashes. [`workload`]: what arrives when.
//! * [`pods`]: the engines, and the truth about them. [`scrape`]: what a metrics page says of it.
//! * [`policy`]: the interface of a router. [`foretoken`]: `foretoken-core` behind it.
//!   [`exchange`]: what its Envoys hear of each other.
//! * [`run`]: the event loop. [`record`]: what came of each request, and its figures.
//!
//! What it is not: a network. A request reaches its pod at once and a token its router at the end of the step.

pub mod content;
pub mod exchange;
pub mod foretoken;
pub mod pods;
pub mod policy;
pub mod record;
pub mod run;
pub mod scrape;
#[cfg(test)]
mod tests;
pub mod workload;

pub use content::{BLOCK_TOKENS, Content};
pub use foretoken::{Foretoken, ForetokenOptions};
pub use pods::{Change, Pods, PoolChange};
pub use policy::{Ask, Pick, Policy};
pub use record::{Figures, Record};
pub use run::{Observer, Run, RunError, Simulation};
pub use workload::{Arrival, Request, Slo, Workload};
