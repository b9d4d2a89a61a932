//! The policies of the bench by name: foretoken, its ablations, rivals, oracles.

use std::sync::Arc;

use foretoken_core::model::Model;

use super::fit::Trainer;
use crate::rivals;
use crate::virtual_time::foretoken::{Fit, ForetokenOptions, Refit};
use crate::virtual_time::{Foretoken, Policy};

/// foretoken as it is shipped, with a model that is fitted during the run.
pub const FORETOKEN: &str = "foretoken";

/// A router reads the ledgers of at most 256 others.
const MOST_ENVOYS: usize = 256;

/// What is taken away from it, one at a time.
pub const ABLATIONS: [(&str, &str); 20] = [
    ("foretoken-untrained", "no model: the analytic prior decides"),
    ("foretoken-no-ledger", "what is in flight is known from scrapes alone"),
    ("foretoken-no-prefix", "no prefix index: prompts are told apart by their length alone"),
    ("foretoken-no-eviction", "pods are taken to keep every block for ever"),
    ("foretoken-greedy", "own latency only: no delay to others, none to the future"),
    ("foretoken-no-others", "no charge for the delay to requests that the pod holds"),
    ("foretoken-no-crowding", "no charge for filling a pod's memory"),
    ("foretoken-no-future", "no charge for the delay to requests that it will get"),
    ("foretoken-scrape-1s", "telemetry every second"),
    ("foretoken-scrape-5s", "telemetry every five seconds"),
    ("foretoken-no-telemetry", "no scrapes at all"),
    ("foretoken-no-targets", "requests come without their targets and priorities"),
    ("foretoken-2-workers", "two workers that share what an Envoy's workers share"),
    ("foretoken-4-envoys", "four Envoys that know nothing of each other"),
    ("foretoken-4-envoys-20ms", "four that hear of each other's placements and ledgers 20 ms late"),
    ("foretoken-4-envoys-100ms", "the same 100 ms late"),
    ("foretoken-4-envoys-500ms", "the same 500 ms late"),
    ("foretoken-16-envoys", "sixteen Envoys that know nothing of each other"),
    ("foretoken-16-envoys-20ms", "sixteen that hear of each other 20 ms late"),
    ("foretoken-16-envoys-100ms", "the same 100 ms late"),
];

/// Why a policy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No such name.
    #[error("no policy `{0}`; `foretoken-sim bench --list` names all")]
    Unknown(String),
    /// The configuration of foretoken.
    #[error(transparent)]
    Config(#[from] foretoken_core::config::ConfigError),
}

/// How foretoken is run under this name; `None` for another policy's.
#[must_use]
pub fn foretoken_options(name: &str, seed: u64, config: &serde_json::Value) -> Option<ForetokenOptions> {
    let mut options = ForetokenOptions {
        name: name.to_owned(),
        seed,
        config: config.clone(),
        ..ForetokenOptions::default()
    };
    let mut weights = |others: f64, future: f64| {
        options.config["policy"]["delay_to_others"] = others.into();
        options.config["policy"]["delay_to_future"] = future.into();
        options.config["policy"]["crowding"] = future.into();
    };
    match name.strip_prefix("foretoken")? {
        "" | "-untrained" => {}
        "-greedy" => weights(0.0, 0.0),
        "-no-others" => options.config["policy"]["delay_to_others"] = 0.0.into(),
        "-no-crowding" => options.config["policy"]["crowding"] = 0.0.into(),
        "-no-future" => options.config["policy"]["delay_to_future"] = 0.0.into(),
        "-scrape-1s" => options.scrape_interval_ms = 1000,
        "-scrape-50ms" => options.scrape_interval_ms = 50,
        "-no-telemetry" => options.scraped = false,
        "-scrape-5s" => {
            options.scrape_interval_ms = 5000;
            // Else it would be unknown half of the time, which is another matter.
            options.config["telemetry"]["stale_after_ms"] = 15_000.into();
        }
        "-no-ledger" => options.ablation.no_ledger = true,
        "-no-eviction" => options.ablation.no_eviction = true,
        "-no-prefix" => options.prefixes = false,
        "-no-targets" => options.deaf_to_targets = true,
        "-2-workers" => options.workers = 2,
        rest => (options.envoys, options.exchange_ms) = envoys(rest)?,
    }
    Some(options)
}

/// `-4-envoys` or `-4-envoys-100ms`: how many, and how late they hear of each other.
fn envoys(name: &str) -> Option<(usize, Option<u32>)> {
    let (count, rest) = name.strip_prefix('-')?.split_once("-envoys")?;
    let count = count.parse().ok().filter(|count| (1..=MOST_ENVOYS).contains(count))?;
    let delay_ms = match rest {
        "" => None,
        rest => Some(rest.strip_prefix('-')?.strip_suffix("ms")?.parse().ok()?),
    };
    Some((count, delay_ms))
}

/// What foretoken's models come from.
#[derive(Debug, Clone, Default)]
pub struct Models {
    /// Fits during the run.
    pub trainer: Option<Trainer>,
    /// A model to begin with.
    pub start: Option<Arc<Model>>,
    /// Fields laid over the filter's default configuration.
    pub config: serde_json::Value,
}

/// A policy of the matrix.
pub enum Made {
    /// foretoken, with its figures.
    Foretoken(Box<Foretoken>),
    /// Any other.
    Other(Box<dyn Policy>),
}

/// Makes the policy of this name for a pool of `pods`. Of foretoken's decisions every `shown`th is shown to observers.
///
/// # Errors
/// [`PolicyError`].
pub fn make(name: &str, pods: usize, seed: u64, models: &Models, shown: u64) -> Result<Made, PolicyError> {
    if let Some(mut options) = foretoken_options(name, seed, &models.config) {
        let trained = !name.ends_with("-untrained");
        options.shown = shown;
        options.model = models.start.clone().filter(|_| trained);
        options.refit = Refit::default();
        let fit = models.trainer.clone().filter(|_| trained).map(|trainer| Box::new(trainer) as Box<dyn Fit>);
        return Ok(Made::Foretoken(Box::new(Foretoken::new(pods, options, fit)?)));
    }
    rivals::rival(name, seed).map(Made::Other).ok_or_else(|| PolicyError::Unknown(name.to_owned()))
}
