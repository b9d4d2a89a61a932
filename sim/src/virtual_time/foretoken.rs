//! `foretoken-core`'s router as the filter runs it, in virtual time.
//!
//! Per Envoy several workers, each a [`Router`] with its own ledger and prefix index; the workers of one Envoy
//! share what the filter's workers share through the host (ledger blobs, placement segments, the table of pods)
//! and in the same order: a worker takes in the others' news before it decides and tells its own after. Envoys
//! share nothing, or what [`super::exchange`] brings. Samples go to a [`Fit`], whose models come back as the trainer's pushes do.
//!
//! What it is not: the filter. No bytes of requests or responses, no HTTP.

use std::collections::HashMap;
use std::sync::Arc;

use foretoken_core::asked::Asked;
use foretoken_core::config::{Config, RouteSettings, Trust};
use foretoken_core::fleet::Fleet;
use foretoken_core::hash::pod_key;
use foretoken_core::model::Model;
use foretoken_core::request::{Api, LlmRequest, Prompt};
use foretoken_core::response::{Summary, Usage};
use foretoken_core::router::{Ablation, Decision, Dispatch, Outcome, Router, SegmentWrite};
use foretoken_core::sample::{self, Sample, TokenSource};
use foretoken_core::slo::Terms;
use foretoken_core::telemetry::{Dialect, read_metrics};

use super::exchange::{Exchange, Segments, Snapshot};
use super::policy::{Ask, Pick, Policy, Token};
use super::record::{Ending, Record};
use super::scrape::PodMetrics;

/// Turns samples into a model: the trainer, seen from here.
pub trait Fit {
    /// Fits a model to all samples so far, oldest first.
    ///
    /// # Errors
    /// A sentence that says why there is none, and that routing goes on with the old one.
    fn fit(&mut self, samples: &[Sample]) -> Result<Arc<Model>, String>;
}

/// When models are fitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refit {
    /// Time between two fits.
    pub interval_us: u64,
    /// No fit below this many samples.
    pub min_samples: usize,
    /// No fit before there are this many new samples for each one of the last fit.
    pub growth: f64,
    /// Newest samples that are kept.
    pub window: usize,
    /// Time from the fit's start until workers route by its model.
    pub delay_us: u64,
}

impl Default for Refit {
    fn default() -> Self {
        Self { interval_us: 10_000_000, min_samples: 300, growth: 0.5, window: 8000, delay_us: 2_000_000 }
    }
}

/// How the routers are set up.
#[derive(Debug, Clone)]
pub struct ForetokenOptions {
    /// Name in reports.
    pub name: String,
    /// Workers of each Envoy.
    pub workers: usize,
    /// Envoys, each with state of its own.
    pub envoys: usize,
    /// Time between two scrapes of a pod.
    pub scrape_interval_ms: u32,
    /// Whether pods are scraped at all.
    pub scraped: bool,
    /// Fields of the filter's configuration (`docs/configuration.md`), laid over its defaults.
    pub config: serde_json::Value,
    /// Every which decision an observer gets to see, with all its candidates; 0: none.
    pub shown: u64,
    /// Whether answers hide how many prompt tokens were cached, as vLLM's do unless it is told otherwise.
    pub mute_cached_tokens: bool,
    /// Time that an Envoy's ledgers and placements take to the other Envoys; `None`: they know nothing of each
    /// other. See [`super::exchange`].
    pub exchange_ms: Option<u32>,
    /// Parts of the router that are left out.
    pub ablation: Ablation,
    /// Whether routers get to see what prompts begin with.
    pub prefixes: bool,
    /// Whether requests come without their targets and priorities.
    pub deaf_to_targets: bool,
    /// The model to begin with.
    pub model: Option<Arc<Model>>,
    /// When models are fitted, if there is a [`Fit`].
    pub refit: Refit,
    /// Sets the workers' random choices.
    pub seed: u64,
}

impl Default for ForetokenOptions {
    fn default() -> Self {
        Self {
            name: "foretoken".to_owned(),
            workers: 1,
            envoys: 1,
            scrape_interval_ms: 200,
            scraped: true,
            config: serde_json::json!({}),
            shown: 0,
            mute_cached_tokens: false,
            exchange_ms: None,
            ablation: Ablation::default(),
            prefixes: true,
            deaf_to_targets: false,
            model: None,
            refit: Refit::default(),
            seed: 1,
        }
    }
}

struct Worker {
    router: Router,
    /// What it stored in shared data.
    segments: Segments,
    /// Something happened since its ledger was last taken.
    news: bool,
    /// …and since it was last sent to the other Envoys.
    unsent: bool,
    blob: Vec<u8>,
    fleet_version: u64,
}

struct Held {
    dispatch: Option<Dispatch>,
    /// Until it is dispatched.
    decision: Option<Box<Decision>>,
    request: LlmRequest,
    worker: usize,
    output_tokens: u32,
    /// Hashes of the blocks that the answer fills, as the filter reads them off the response.
    answer: Vec<u64>,
}

/// The routers of all Envoys.
pub struct Foretoken {
    options: ForetokenOptions,
    addresses: Vec<String>,
    index: HashMap<String, usize>,
    config: Arc<Config>,
    workers: Vec<Worker>,
    exchange: Option<Exchange>,
    fleet: Fleet,
    fleet_version: u64,
    held: hashbrown::HashMap<u64, Held>,
    page: String,
    fit: Option<Box<dyn Fit>>,
    samples: Vec<Sample>,
    unfitted: usize,
    /// Samples of the last fit.
    fitted: usize,
    fit_due_us: u64,
    coming: Option<(u64, Arc<Model>)>,
    generation: u64,
    refused_fits: u64,
    refusal: Option<String>,
    decisions: u64,
    by_model: u64,
    refused: u64,
    shed: u64,
}

/// `ip:port` of a pod.
#[must_use]
pub fn address(pod: usize) -> String {
    format!("10.{}.{}.{}:8000", pod >> 16 & 255, pod >> 8 & 255, pod & 255)
}

/// Lays `over` onto `base`, object by object.
fn merge(base: &mut serde_json::Value, over: &serde_json::Value) {
    match (base, over) {
        (serde_json::Value::Object(base), serde_json::Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(serde_json::Value::Null), value);
            }
        }
        // Nothing is laid over.
        (_, serde_json::Value::Null) => {}
        (base, over) => *base = over.clone(),
    }
}

impl Foretoken {
    /// Routers for this many pods.
    ///
    /// # Errors
    /// What is wrong with the configuration, as the filter would say it.
    pub fn new(
        pods: usize,
        options: ForetokenOptions,
        fit: Option<Box<dyn Fit>>,
    ) -> Result<Self, foretoken_core::config::ConfigError> {
        let addresses: Vec<String> = (0..pods).map(address).collect();
        let mut json = serde_json::json!({
            "cluster": "pods",
            "endpoints": {"addresses": addresses},
            "telemetry": {"interval_ms": options.scrape_interval_ms},
        });
        merge(&mut json, &options.config);
        let config = Arc::new(Config::from_json(json.to_string().as_bytes())?);
        let workers = (0..(options.workers * options.envoys).max(1) as u64)
            .map(|at| {
                // Any number but 0, and another one for each worker.
                let incarnation =
                    options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(at + 1).max(1);
                let mut router = Router::new(Arc::clone(&config), incarnation);
                router.set_ablation(options.ablation);
                if let Some(model) = &options.model {
                    router.set_model(Some(Arc::clone(model)), 1);
                }
                Worker {
                    router,
                    segments: Segments::new(),
                    news: true,
                    unsent: true,
                    blob: Vec::new(),
                    fleet_version: 0,
                }
            })
            .collect();
        Ok(Self {
            index: addresses.iter().cloned().zip(0..).collect(),
            addresses,
            config,
            workers,
            exchange: options
                .exchange_ms
                .map(|delay_ms| Exchange::new(options.workers * options.envoys, delay_ms)),
            fleet: Fleet::default(),
            fleet_version: 1,
            held: hashbrown::HashMap::new(),
            page: String::new(),
            fit,
            samples: Vec::new(),
            unfitted: 0,
            fitted: 0,
            fit_due_us: 0,
            coming: None,
            generation: u64::from(options.model.is_some()),
            refused_fits: 0,
            refusal: None,
            decisions: 0,
            by_model: 0,
            refused: 0,
            shed: 0,
            options,
        })
    }

    /// The filter's configuration in use.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Samples of the requests that ended, oldest first; at most [`Refit::window`].
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Takes the samples of the requests that ended since the last call, oldest first: for a trainer that is not a
    /// [`Fit`].
    pub fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// Routes by this model from now on, as after a push of the trainer.
    pub fn push_model(&mut self, model: &Arc<Model>) {
        self.generation += 1;
        for worker in &mut self.workers {
            worker.router.set_model(Some(Arc::clone(model)), self.generation);
        }
    }

    /// Why the last fit that gave no model gave none.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Index of the pod with this address.
    #[must_use]
    pub fn pod_of(&self, address: &str) -> Option<usize> {
        self.index.get(address).copied()
    }

    /// The worker that Envoy's kernel would hand a connection to: any.
    fn worker_of(&self, id: u64) -> usize {
        let mixed = foretoken_core::hash::chain(self.options.seed, &(id >> 32).to_le_bytes());
        (mixed % self.workers.len() as u64) as usize
    }

    /// What the request's headers would ask for, on a route that believes them.
    fn terms(&self, ask: &Ask<'_>) -> Terms {
        let route = RouteSettings { trust: Trust::All, ..self.config.route(None) };
        if self.options.deaf_to_targets {
            return Terms::of_route(&route);
        }
        let mut asked = Asked::default();
        let request = ask.request;
        let texts = [
            ("x-slo-ttft-ms", request.slo.map(|slo| slo.ttft_ms.to_string())),
            ("x-slo-tpot-ms", request.slo.map(|slo| slo.tpot_ms.to_string())),
            ("x-foretoken-priority", Some(request.priority.to_string())),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                asked.take(name.as_bytes(), text.as_bytes());
            }
        }
        asked.terms(&route, &self.config.priority.objectives).0
    }

    /// What a worker does before it decides: the newest table of pods, and the other workers' news.
    fn sync(&mut self, at: usize, now_us: u64) {
        if self.workers[at].fleet_version != self.fleet_version {
            self.workers[at].fleet_version = self.fleet_version;
            self.workers[at].router.set_fleet(self.fleet.clone());
        }
        let workers = self.options.workers.max(1);
        let first = at / workers * workers;
        for peer in (first..first + workers).filter(|peer| *peer != at) {
            // The filter writes its ledger at every change; here it is written when somebody reads it.
            if std::mem::take(&mut self.workers[peer].news) {
                let buffer = std::mem::take(&mut self.workers[peer].blob);
                self.workers[peer].blob = self.workers[peer].router.export(buffer, now_us);
            }
            let (reader, writer) = pair(&mut self.workers, at, peer);
            reader.router.import_peer(peer as u32, &writer.blob, |place| {
                writer.segments.get(&place).map(|segment| segment.to_vec())
            });
        }
        if let Some(exchange) = &mut self.exchange {
            for peer in (0..self.workers.len()).filter(|peer| !(first..first + workers).contains(peer)) {
                let Some(snapshot) = exchange.arrived(peer, now_us) else { continue };
                self.workers[at].router.import_peer(peer as u32, &snapshot.blob, |place| {
                    snapshot.segments.get(&place).map(|segment| segment.to_vec())
                });
            }
        }
        self.workers[at].router.take_pages(now_us);
    }

    fn store(&mut self, at: usize, segment: Option<SegmentWrite>) {
        let worker = &mut self.workers[at];
        worker.news = true;
        worker.unsent = true;
        if self.options.workers > 1 || self.exchange.is_some() {
            worker.segments.extend(segment.map(|(place, bytes)| (place, Arc::from(bytes))));
        }
    }

    /// Sends what is due to the other Envoys, as it was at its time: nothing has changed since the last call.
    fn send_due(&mut self, now_us: u64) {
        let Some(exchange) = &mut self.exchange else { return };
        for at_us in exchange.due(now_us).into_iter().flatten() {
            for (at, worker) in self.workers.iter_mut().enumerate() {
                // An idle worker's word goes out too, so that it is not taken for dead.
                if std::mem::take(&mut worker.unsent) || exchange.is_old(at, at_us) {
                    let blob = worker.router.export(Vec::new(), at_us);
                    exchange.send(at, Snapshot { at_us, blob, segments: worker.segments.clone() });
                }
            }
        }
    }

    fn learn(&mut self, sample: Sample, now_us: u64) {
        self.samples.push(sample);
        self.unfitted += 1;
        let window = self.options.refit.window.max(1);
        if self.samples.len() >= window * 2 {
            self.samples.drain(..self.samples.len() - window);
        }
        if let Some((_, model)) = self.coming.take_if(|(due_us, _)| *due_us <= now_us) {
            self.push_model(&model);
        }
        let refit = self.options.refit;
        let due = now_us >= self.fit_due_us
            && self.coming.is_none()
            && self.samples.len() >= refit.min_samples
            && self.unfitted as f64 >= refit.growth * self.fitted as f64;
        if let Some(fit) = self.fit.as_mut().filter(|_| due) {
            self.fit_due_us = now_us + refit.interval_us;
            self.fitted = self.samples.len().min(window);
            self.unfitted = 0;
            let newest = self.samples.len().saturating_sub(window);
            match fit.fit(&self.samples[newest..]) {
                Ok(model) => self.coming = Some((now_us + refit.delay_us, model)),
                Err(reason) => {
                    tracing::info!(reason, "no model from this fit");
                    self.refused_fits += 1;
                    self.refusal = Some(reason);
                }
            }
        }
    }
}

/// Two different workers at once.
fn pair(workers: &mut [Worker], one: usize, other: usize) -> (&mut Worker, &mut Worker) {
    if one < other {
        let (head, tail) = workers.split_at_mut(other);
        (&mut head[one], &mut tail[0])
    } else {
        let (head, tail) = workers.split_at_mut(one);
        (&mut tail[0], &mut head[other])
    }
}

impl Policy for Foretoken {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn scrape_interval_us(&self) -> Option<u64> {
        self.options.scraped.then_some(u64::from(self.options.scrape_interval_ms) * 1000)
    }

    fn scraped(&mut self, pod: usize, metrics: &PodMetrics, now_us: u64) {
        metrics.write_page(&mut self.page);
        if let Ok(scrape) = read_metrics(self.page.as_bytes(), Some(Dialect::Vllm)) {
            self.fleet.set_scrape(pod_key(&self.addresses[pod]), &scrape, now_us);
            self.fleet_version += 1;
        }
    }

    fn pool_changed(&mut self, up: &[bool], _now_us: u64) {
        let members = self.addresses.iter().zip(up).filter(|(_, up)| **up);
        self.fleet.set_members(members.map(|(address, _)| (address.clone(), true)));
        self.fleet_version += 1;
    }

    fn pick(&mut self, ask: &Ask<'_>) -> Pick {
        self.send_due(ask.now_us);
        let worker = self.worker_of(ask.id);
        self.sync(worker, ask.now_us);
        let request = llm_request(ask, self.options.prefixes);
        self.decisions += 1;
        let is_shown = self.options.shown > 0 && self.decisions.is_multiple_of(self.options.shown);
        let terms = self.terms(ask);
        let router = &mut self.workers[worker].router;
        router.set_lists_all(is_shown);
        let Ok(mut decision) = router.decide_on(&request, &terms, ask.now_us) else {
            self.refused += 1;
            return Pick::default();
        };
        if decision.shed.is_some() {
            self.shed += 1;
            return Pick::default();
        }
        self.by_model += u64::from(decision.rung == foretoken_core::fallback::Rung::Model);
        let shown = is_shown.then(|| Box::new(decision.clone()));
        // The filter knows no more of a decision than this, shown or not.
        decision.choices.truncate((self.config.pick.count as usize).max(1));
        let pods = decision.choices.iter().filter_map(|choice| self.pod_of(&choice.address)).collect();
        self.held.insert(
            ask.id,
            Held {
                dispatch: None,
                decision: Some(Box::new(decision)),
                answer: if self.options.prefixes {
                    ask.request.blocks[request.prompt.blocks.len()..].to_vec()
                } else {
                    Vec::new()
                },
                request,
                worker,
                output_tokens: 0,
            },
        );
        Pick { pods, decision: shown }
    }

    fn sent(&mut self, ask: &Ask<'_>, pod: usize, attempts: u32) {
        let Some(held) = self.held.get_mut(&ask.id) else { return };
        let (worker, now_us) = (held.worker, ask.now_us);
        let router = &mut self.workers[worker].router;
        if let Some(decision) = held.decision.take() {
            let (dispatch, segment) = router.dispatch(&decision, &held.request, now_us, now_us);
            held.dispatch = Some(dispatch);
            self.store(worker, segment);
        }
        let Some(dispatch) = self.held.get_mut(&ask.id).and_then(|held| held.dispatch.as_mut()) else {
            return;
        };
        if attempts > 1 {
            let router = &mut self.workers[worker].router;
            let segment = router.served_by(dispatch, &self.addresses[pod], now_us);
            self.store(worker, segment);
        }
    }

    fn token(&mut self, token: &Token, now_us: u64) {
        self.send_due(now_us);
        let Some(held) = self.held.get_mut(&token.id) else { return };
        held.output_tokens = token.tokens;
        let worker = &mut self.workers[held.worker];
        if let Some(dispatch) = &mut held.dispatch {
            worker.router.progress(dispatch, token.tokens, now_us);
            worker.news = true;
            worker.unsent = true;
        }
    }

    fn ended(&mut self, id: u64, record: &Record, now_us: u64) {
        self.send_due(now_us);
        let Some(mut held) = self.held.remove(&id) else { return };
        let Some(dispatch) = &mut held.dispatch else { return };
        let complete = record.ending == Ending::Complete;
        let started = record.first_us > 0;
        let summary = started.then(|| Summary {
            first_token_us: Some(record.first_us),
            last_token_us: Some(record.last_us),
            output_tokens: record.output_tokens,
            tokens_from: if complete { TokenSource::Usage } else { TokenSource::Events },
            usage: Usage {
                prompt_tokens: complete.then_some(record.prompt_tokens),
                completion_tokens: complete.then_some(record.output_tokens),
                cached_tokens: (complete && !self.options.mute_cached_tokens).then_some(record.cached_tokens),
            },
            answer_blocks: if complete { std::mem::take(&mut held.answer) } else { Vec::new() },
            complete,
            ..Summary::default()
        });
        let outcome = Outcome {
            status: if started { 200 } else { 503 },
            attempts: record.attempts,
            streamed: true,
            ending: if complete { sample::Ending::Complete } else { sample::Ending::Failed },
            summary,
        };
        let worker = held.worker;
        if let Some((sample, segment)) = self.workers[worker].router.end(dispatch, &outcome, now_us) {
            self.store(worker, segment);
            self.learn(sample, now_us);
        }
    }

    fn remarks(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("decisions", self.decisions as f64),
            ("decided_by_model", self.by_model as f64),
            ("refused", self.refused as f64),
            ("shed", self.shed as f64),
            ("model_generation", self.generation as f64),
            ("refused_fits", self.refused_fits as f64),
        ]
    }
}

/// The request as the filter would have read it from a body of token ids.
fn llm_request(ask: &Ask<'_>, prefixes: bool) -> LlmRequest {
    let request = ask.request;
    LlmRequest {
        api: Api::Completions,
        model: "m".to_owned(),
        stream: true,
        include_usage: true,
        max_tokens: request.max_tokens,
        prompt: Prompt {
            text_bytes: request.prompt_tokens.saturating_mul(4),
            exact_tokens: Some(request.prompt_tokens),
            blocks: if prefixes { request.prompt_blocks().to_vec() } else { Vec::new() },
            ..Prompt::default()
        },
    }
}
