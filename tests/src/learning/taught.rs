//! A router that is taught: its samples go to a trainer in batches, as the filter sends them, and the models that the
//! trainer publishes come back as a push does.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use foretoken_core::features::Feature;
use foretoken_core::model::Model;
use foretoken_core::router::Choice;
use foretoken_core::sample::Sample;
use foretoken_sim::virtual_time::policy::Token;
use foretoken_sim::virtual_time::scrape::PodMetrics;
use foretoken_sim::virtual_time::{Ask, Foretoken, ForetokenOptions, Pick, Policy, Record};
use foretoken_trainer::serve::stepped::Stepped;

use super::figures::Seen;

/// From the end of a fit until workers route by its model: compiling the filter anew and the push itself, as
/// measured on a real Envoy.
const PUSH_US: u64 = 600_000;

/// A batch with every label multiplied, that somebody sends at a moment.
#[derive(Debug, Clone)]
pub struct Poison {
    /// When.
    pub at_us: u64,
    /// Samples: copies of the newest, with ids of their own.
    pub samples: usize,
    /// What times are multiplied by.
    pub factor: f32,
    /// Whether it comes from a worker that has been believed so far, or from one that nobody knows.
    pub known_sender: bool,
}

/// What became of lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Poisoned {
    /// Samples sent.
    pub sent: u64,
    /// Of those, not believed.
    pub quarantined: u64,
}

/// A publication.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// When workers routed by it, s.
    pub at_s: f64,
    /// Samples that it learned from.
    pub samples: usize,
    /// How long its fit took, s.
    pub fit_s: f64,
    /// Newest sample that it learned from, s.
    pub through_s: f64,
    /// Why it was published, as the card says.
    pub origin: String,
}

struct Open {
    at_us: u64,
    known: u64,
    choice: Choice,
}

/// The router, the trainer, and what was seen of both.
pub struct Taught {
    router: Foretoken,
    trainer: Stepped,
    batch_size: usize,
    flush_us: u64,
    batch: Vec<Sample>,
    batch_since_us: u64,
    busy_until_us: u64,
    generation: u64,
    coming: Option<(u64, Arc<Model>, Push)>,
    open: HashMap<u64, Open>,
    known: u64,
    recent: Vec<Sample>,
    poisons: Vec<Poison>,
    serial: u64,
    /// What became of the lies.
    pub poisoned: Poisoned,
    /// Requests in the order of their ends.
    pub seen: Vec<Seen>,
    /// Publications.
    pub pushes: Vec<Push>,
    /// Requests that failed.
    pub failed: u64,
    error: Option<anyhow::Error>,
}

impl Taught {
    /// A router over this many pods and a trainer that knows nothing.
    ///
    /// # Errors
    /// When the settings are wrong.
    pub fn new(pods: usize, options: ForetokenOptions, trainer: Stepped) -> Result<Self> {
        // Every decision is looked at.
        let options = ForetokenOptions { shown: 1, ..options };
        let router = Foretoken::new(pods, options, None).context("settings of the router")?;
        let samples = &router.config().samples;
        let (batch_size, flush_us) = (samples.batch as usize, u64::from(samples.flush_ms) * 1000);
        Ok(Self {
            router,
            trainer,
            batch_size,
            flush_us,
            batch: Vec::new(),
            batch_since_us: 0,
            busy_until_us: 0,
            generation: 0,
            coming: None,
            open: HashMap::new(),
            known: 0,
            recent: Vec::new(),
            poisons: Vec::new(),
            serial: 0,
            poisoned: Poisoned::default(),
            seen: Vec::new(),
            pushes: Vec::new(),
            failed: 0,
            error: None,
        })
    }

    /// Lies that are told on the way, in order of time.
    #[must_use]
    pub fn with_poison(mut self, poisons: Vec<Poison>) -> Self {
        self.poisons = poisons;
        self
    }

    /// The trainer.
    #[must_use]
    pub fn trainer(&self) -> &Stepped {
        &self.trainer
    }

    /// What went wrong on the way, if anything.
    ///
    /// # Errors
    /// The first error; that nothing was seen, too: errors over no requests would be none.
    pub fn finish(&mut self) -> Result<()> {
        if self.seen.is_empty() && self.error.is_none() {
            anyhow::bail!("no clean sample of a decision that was looked at, {} others", self.failed);
        }
        self.error.take().map_or(Ok(()), Err)
    }

    /// What time brings: a batch is sent, the trainer does what is due, a model arrives.
    fn turn(&mut self, now_us: u64) {
        if let Err(error) = self.try_turn(now_us) {
            self.error.get_or_insert(error);
        }
    }

    fn try_turn(&mut self, now_us: u64) -> Result<()> {
        self.trainer.set_time_us(now_us);
        let waited = now_us.saturating_sub(self.batch_since_us) >= self.flush_us;
        if self.batch.len() >= self.batch_size || (waited && !self.batch.is_empty()) {
            let batch = std::mem::take(&mut self.batch);
            let (sent, clean) = (batch.len() as u64, batch.iter().filter(|sample| sample.is_clean()).count());
            self.recent.extend(batch.iter().filter(|sample| sample.is_clean()).cloned());
            let too_many = self.recent.len().saturating_sub(2000);
            self.recent.drain(..too_many);
            let appended = self.trainer.ingest(batch)?;
            if appended.accepted < sent {
                anyhow::bail!("{} of {sent} samples were taken", appended.accepted);
            }
            self.known += clean as u64;
        }
        if self.poisons.first().is_some_and(|poison| poison.at_us <= now_us) {
            let poison = self.poisons.remove(0);
            self.lie(&poison)?;
        }
        if let Some((_, model, push)) = self.coming.take_if(|(due_us, ..)| *due_us <= now_us) {
            self.router.push_model(&model);
            self.pushes.push(push);
        }
        if now_us < self.busy_until_us {
            return Ok(());
        }
        let step = self.trainer.step();
        let fit_us = step.fit.map_or(0, |took| took.as_micros() as u64);
        self.busy_until_us = now_us + fit_us;
        if step.generation != self.generation {
            self.generation = step.generation;
            let (version, onnx) = self.trainer.published().context("a generation without a model")?;
            let due_us = self.busy_until_us + PUSH_US;
            let push = Push {
                at_s: due_us as f64 / 1e6,
                samples: version.samples,
                fit_s: fit_us as f64 / 1e6,
                through_s: version.trained_through_ms as f64 / 1e3,
                origin: format!("{:?}", version.origin),
            };
            self.coming = Some((due_us, Arc::new(Model::from_onnx(&onnx)?), push));
        }
        Ok(())
    }

    /// Sends a lie in batches of the usual size.
    fn lie(&mut self, poison: &Poison) -> Result<()> {
        let from = self.recent.len().saturating_sub(poison.samples);
        let mut lies: Vec<Sample> = self.recent.get(from..).unwrap_or_default().to_vec();
        for lie in &mut lies {
            self.serial += 1;
            let sender = lie.id.rsplit_once('-').map_or("", |(sender, _)| sender);
            let sender = if poison.known_sender { sender } else { "ffff0000ffff0000" };
            lie.id = format!("{sender}-{:x}", (1_u64 << 40) + self.serial);
            for time in [&mut lie.ttft_ms, &mut lie.tpot_ms, &mut lie.e2e_ms].into_iter().flatten() {
                *time *= poison.factor;
            }
        }
        for batch in lies.chunks(self.batch_size) {
            let appended = self.trainer.ingest(batch.to_vec())?;
            self.poisoned.sent += appended.accepted;
            self.poisoned.quarantined += appended.quarantined;
        }
        Ok(())
    }
}

impl Policy for Taught {
    fn name(&self) -> &str {
        self.router.name()
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        self.router.scrape_interval_us()
    }

    fn scraped(&mut self, pod: usize, metrics: &PodMetrics, now_us: u64) {
        self.router.scraped(pod, metrics, now_us);
        self.turn(now_us);
    }

    fn pool_changed(&mut self, up: &[bool], now_us: u64) {
        self.router.pool_changed(up, now_us);
    }

    fn pick(&mut self, ask: &Ask<'_>) -> Pick {
        let pick = self.router.pick(ask);
        if let Some(choice) = pick.decision.as_ref().and_then(|decision| decision.choices.first()) {
            let open = Open { at_us: ask.now_us, known: self.known, choice: choice.clone() };
            self.open.insert(ask.id, open);
        }
        pick
    }

    fn sent(&mut self, ask: &Ask<'_>, pod: usize, attempts: u32) {
        self.router.sent(ask, pod, attempts);
    }

    fn token(&mut self, token: &Token, now_us: u64) {
        self.router.token(token, now_us);
    }

    fn ended(&mut self, id: u64, record: &Record, now_us: u64) {
        self.router.ended(id, record, now_us);
        let generation = self.pushes.len() as u64;
        for sample in self.router.take_samples() {
            let open = self.open.remove(&id);
            if let Some(Open { at_us, known, choice }) = open.filter(|_| sample.is_clean()) {
                let predicted = choice.prediction;
                self.seen.push(Seen {
                    at_s: at_us as f64 / 1e6,
                    known,
                    generation: if sample.model_id.is_empty() { 0 } else { generation },
                    queued: choice.row.get(Feature::PrefillRequests),
                    pod: record.pod,
                    ttft_ms: [
                        predicted.ttft_ms_p50,
                        predicted.ttft_ms_p90,
                        sample.ttft_ms.unwrap_or(f32::NAN),
                    ],
                    tpot_ms: ([predicted.tpot_ms_p50, predicted.tpot_ms_p90], sample.tpot_ms),
                });
            } else {
                self.failed += 1;
            }
            if self.batch.is_empty() {
                self.batch_since_us = now_us;
            }
            self.batch.push(sample);
        }
        self.turn(now_us);
    }
}
