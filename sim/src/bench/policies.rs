//! The policies of the bench by name: foretoken, its ablations, rivals, oracles.

use std::sync::Arc;

use foretoken_core::model::Model;

use super::fit::Trainer;
use crate::rivals;
use crate::virtual_time::foretoken::{Fit, ForetokenOptions, Refit};
use crate::virtual_time::{Foretoken, Policy};

/// foretoken as it is shipped, with a model that is fitted during the run.
pub const FORETOKEN: &str = "foretoken";

/// What is taken away from it, one at a time.
pub const ABLATIONS: [(&str, &str); 8] = [
    ("foretoken-untrained", "no model: the analytic prior decides"),
    ("foretoken-greedy", "own latency only: no delay to others, none to the future"),
    ("foretoken-no-others", "no charge for the delay to requests that the pod holds"),
    ("foretoken-no-future", "no charge for the delay to requests that it will get"),
    ("foretoken-scrape-1s", "telemetry every second"),
    ("foretoken-no-telemetry", "no scrapes at all"),
    ("foretoken-2-workers", "two workers that share what an Envoy's workers share"),
    ("foretoken-4-envoys", "four Envoys that know nothing of each other"),
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
    };
    match name.strip_prefix("foretoken")? {
        "" | "-untrained" => {}
        "-greedy" => weights(0.0, 0.0),
        "-no-others" => options.config["policy"]["delay_to_others"] = 0.0.into(),
        "-no-future" => options.config["policy"]["delay_to_future"] = 0.0.into(),
        "-scrape-1s" => options.scrape_interval_ms = 1000,
        "-scrape-50ms" => options.scrape_interval_ms = 50,
        "-no-telemetry" => options.scraped = false,
        "-2-workers" => options.workers = 2,
        "-4-envoys" => options.envoys = 4,
        _ => return None,
    }
    Some(options)
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
