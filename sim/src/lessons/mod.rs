//! Runs in virtual time whose samples teach a model before there is traffic of one's own, or test one.
//!
//! * [`hardware`]: profiles drawn at random. [`paced`]: load that goes up and down, pods that come and go.
//!
//! Each run begins when the one before has ended: in order of time the newest fifth of the samples, by which a fit is
//! stopped and judged, are of runs and, where hardware is drawn, of hardware that the rest has not seen.
//!
//! What it is not: the trainer. Nothing is fitted here; `foretoken-trainer fit` reads what is written.

pub mod hardware;
pub mod paced;

use std::sync::Arc;

use foretoken_core::model::Model;
use foretoken_core::sample::Sample;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::paced::{LEVELS, Paced, comings_and_goings, pod_rate};
use crate::engine::profile::Profile;
use crate::virtual_time::foretoken::{ForetokenOptions, Refit};
use crate::virtual_time::{Arrival, Figures, Foretoken, Record, Simulation, Workload};
use crate::workloads::{SHAPES, Shape};

/// Between two runs, ms.
const BREAK_MS: u64 = 60_000;

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
pub enum LessonError {
    /// The filter's configuration.
    #[error(transparent)]
    Config(#[from] foretoken_core::config::ConfigError),
    /// The run.
    #[error("{name}: {cause}")]
    Run {
        /// Which.
        name: String,
        /// Why.
        cause: crate::virtual_time::RunError,
    },
}

/// A run to be.
#[derive(Debug, Clone)]
pub struct Lesson {
    /// Name in reports.
    pub name: String,
    /// What is sent.
    pub shape: Shape,
    /// To which pods.
    pub profiles: Vec<Profile>,
    /// A level of 1 is so many times what the pods sustain without caches, about.
    pub load: f64,
    /// Requests.
    pub requests: usize,
    /// Sets traffic, engines and the router's random choices.
    pub seed: u64,
    /// Time between two scrapes of a pod.
    pub scrape_interval_ms: u32,
    /// Whether answers hide how many prompt tokens were cached.
    pub mute_cached_tokens: bool,
}

/// What came of a run.
#[derive(Debug)]
pub struct Taught {
    /// Samples of the requests that ended, in order of their ends, times from 0 on.
    pub samples: Vec<Sample>,
    /// Figures of all requests.
    pub figures: Figures,
    /// How long it was, ms.
    pub length_ms: u64,
}

/// Runs on hardware drawn at random: each of `count` has pods of one to three kinds, of all shapes in turn.
#[must_use]
pub fn on_drawn_hardware(count: usize, requests: usize, seed: u64) -> Vec<Lesson> {
    let mut rng = StdRng::seed_from_u64(seed);
    SHAPES
        .iter()
        .cycle()
        .take(count)
        .enumerate()
        .map(|(at, (shape_name, shape))| {
            let kinds = rng.random_range(1..=3);
            let mut hardware: Vec<Profile> =
                (0..kinds).map(|kind| hardware::drawn(&format!("{at}-{kind}"), &mut rng)).collect();
            if *shape == Shape::MultiTurn {
                hardware.iter_mut().for_each(hardware::lengthen);
            }
            let pods = rng.random_range(5..=10);
            Lesson {
                name: format!("{shape_name} on drawn hardware {at}"),
                shape: *shape,
                profiles: hardware.into_iter().cycle().take(pods).collect(),
                load: rng.random_range(0.6..1.8),
                requests,
                seed: rng.random(),
                scrape_interval_ms: [50, 200, 1000][rng.random_range(0..3)],
                mute_cached_tokens: rng.random_bool(0.3),
            }
        })
        .collect()
}

/// Runs on pods of this hardware in turn, one of each shape.
#[must_use]
pub fn on_hardware(hardware: &[Profile], pods: usize, requests: usize, seed: u64) -> Vec<Lesson> {
    let mut rng = StdRng::seed_from_u64(seed);
    let names: Vec<&str> = hardware.iter().map(|profile| profile.name.as_str()).collect();
    SHAPES
        .iter()
        .map(|(shape_name, shape)| Lesson {
            name: format!("{shape_name} on {}", names.join(" and ")),
            shape: *shape,
            profiles: hardware.iter().cloned().cycle().take(pods).collect(),
            load: 1.0,
            requests,
            seed: rng.random(),
            scrape_interval_ms: 200,
            mute_cached_tokens: false,
        })
        .collect()
}

/// A workload without the requests that no pod takes.
struct Fitting<W> {
    inner: W,
    max_tokens: u32,
}

impl<W> Fitting<W> {
    fn fits(&self, arrival: &Arrival) -> bool {
        arrival.request.prompt_tokens.saturating_add(arrival.request.output_tokens) <= self.max_tokens
    }
}

impl<W: Workload> Workload for Fitting<W> {
    fn next(&mut self) -> Option<Arrival> {
        while let Some(arrival) = self.inner.next() {
            if self.fits(&arrival) {
                return Some(arrival);
            }
        }
        None
    }

    fn follow_up(&mut self, ended: &Record, now_us: u64) -> Option<Arrival> {
        self.inner.follow_up(ended, now_us).filter(|arrival| self.fits(arrival))
    }
}

impl Lesson {
    /// Runs it; the prior routes, or a model.
    ///
    /// # Errors
    /// [`LessonError`].
    pub fn run(&self, model: Option<&Arc<Model>>) -> Result<Taught, LessonError> {
        let pods = self.profiles.len();
        let rates = self.profiles.iter().map(|profile| pod_rate(self.shape, profile, self.seed));
        // Some are always missing.
        let full_rate = self.load * rates.sum::<f64>() * pods.saturating_sub(2) as f64 / pods.max(1) as f64;
        let mean_level = LEVELS.iter().sum::<f64>() / LEVELS.len() as f64;
        let length_s = self.requests as f64 / (full_rate * mean_level);
        let options = ForetokenOptions {
            workers: 2,
            scrape_interval_ms: self.scrape_interval_ms,
            mute_cached_tokens: self.mute_cached_tokens,
            model: model.cloned(),
            refit: Refit { window: usize::MAX / 2, ..Refit::default() },
            seed: self.seed,
            ..ForetokenOptions::default()
        };
        let mut router = Foretoken::new(pods, options, None)?;
        let max_tokens = self.profiles.iter().map(|profile| profile.max_model_len_tokens).min().unwrap_or(0);
        let mut workload = Fitting {
            inner: Paced::new(self.shape, full_rate, &LEVELS, self.requests, self.seed),
            max_tokens,
        };
        let failed = |cause| LessonError::Run { name: self.name.clone(), cause };
        let run = Simulation::new(self.profiles.clone(), &mut router, &mut workload, &mut (), self.seed)
            .map_err(failed)?
            .with_changes(comings_and_goings(pods, length_s))
            .run()
            .map_err(failed)?;
        Ok(Taught {
            samples: router.take_samples(),
            figures: Figures::of(&run.records, 0.0, 0.0),
            length_ms: run.end_us / 1000,
        })
    }
}

/// Where the times of a run begin that follows one of this length, which began at `began_ms`.
#[must_use]
pub fn next_begin_ms(began_ms: u64, length_ms: u64) -> u64 {
    began_ms + length_ms + BREAK_MS
}
