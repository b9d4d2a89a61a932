//! `versions`, `show`, `push`, `promote`, `rollback`, `diff`: the published versions, of a running trainer or of its folder.
//!
//! Reading works beside a running trainer. Publishing through the folder is refused while one runs on it: it
//! would not hear of it, and the next version would take the same generation.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use foretoken_trainer::gate::Limits;
use foretoken_trainer::registry::{self, Origin, Registry, Version};
use foretoken_trainer::store;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Where the versions are.
#[derive(Debug, Args)]
#[group(required = true, multiple = false, id = "where")]
struct Where {
    /// The running trainer's address, for example http://127.0.0.1:9100.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The trainer's --data-dir.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Source {
    #[command(flatten)]
    place: Where,
    /// Token of the running trainer.
    #[arg(long, env = "FORETOKEN_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Source {
    fn ask(&self, method: &Method, server: &str, path: &str) -> Result<Vec<u8>> {
        self.send(method, server, path, Vec::new())
    }

    fn send(&self, method: &Method, server: &str, path: &str, body: Vec<u8>) -> Result<Vec<u8>> {
        let url = format!("{}{path}", server.trim_end_matches('/'));
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::from(body)))
            .with_context(|| format!("{url} is not an address; give it as http://HOST:PORT"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
            let response = client
                .request(request)
                .await
                .with_context(|| format!("cannot reach the trainer at {url}; is it running?"))?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes().to_vec();
            if !status.is_success() {
                let error: Value = serde_json::from_slice(&body).unwrap_or_default();
                let text = error["error"].as_str().unwrap_or("no reason given").to_owned();
                bail!("the trainer answers {status}: {text}");
            }
            Ok(body)
        })
    }

    fn versions(&self) -> Result<Vec<Version>> {
        match (&self.place.server, &self.place.data_dir) {
            (Some(server), _) => {
                let body = self.ask(&Method::GET, server, "/v1/versions")?;
                serde_json::from_slice(&body).context("the trainer is of another version")
            }
            (None, Some(dir)) => Ok(registry::versions(&dir.join("models"))?),
            (None, None) => bail!("give --server or --data-dir"),
        }
    }

    fn version(&self, generation: u64) -> Result<Version> {
        let versions = self.versions()?;
        let (first, last) =
            (versions.first().map_or(0, |v| v.generation), versions.last().map_or(0, |v| v.generation));
        versions
            .into_iter()
            .find(|version| version.generation == generation)
            .with_context(|| format!("there is no version {generation}; the kept ones are {first} to {last}"))
    }

    fn publish(&self, generation: Option<u64>, origin: Origin, hold: bool) -> Result<Version> {
        match (&self.place.server, &self.place.data_dir) {
            (Some(server), _) => {
                let path = match generation {
                    Some(generation) => format!("/v1/promote?generation={generation}&hold={hold}"),
                    None => format!("/v1/rollback?hold={hold}"),
                };
                Ok(serde_json::from_slice(&self.ask(&Method::POST, server, &path)?)?)
            }
            (None, Some(dir)) => {
                let _lock = store::lock(&dir.join("samples")).context(
                    "a running trainer would not hear of it; give --server with its address instead",
                )?;
                let mut registry = Registry::open(&dir.join("models"))?;
                let generation = generation.or_else(|| registry.before());
                let generation = generation.context("there is no version to go back to")?;
                let content = registry.again(generation, origin)?;
                let version = registry.add(content)?.clone();
                if hold {
                    foretoken_trainer::serve::remember_held(&dir.join("held"), true);
                }
                Ok(version)
            }
            (None, None) => bail!("give --server or --data-dir"),
        }
    }

    fn push(&self, onnx: Vec<u8>, hold: bool) -> Result<Version> {
        match (&self.place.server, &self.place.data_dir) {
            (Some(server), _) => {
                let path = format!("/v1/models?hold={hold}");
                Ok(serde_json::from_slice(&self.send(&Method::POST, server, &path, onnx)?)?)
            }
            (None, Some(dir)) => {
                // It may be the folder of a trainer that has never run.
                fs::create_dir_all(dir.join("samples"))
                    .with_context(|| format!("cannot make {}", dir.display()))?;
                let _lock = store::lock(&dir.join("samples")).context(
                    "a running trainer would not hear of it; give --server with its address instead",
                )?;
                let mut registry = Registry::open(&dir.join("models"))?;
                let version = registry.push(onnx, &Limits::default()).map_err(anyhow::Error::msg)?.clone();
                if hold {
                    foretoken_trainer::serve::remember_held(&dir.join("held"), true);
                }
                Ok(version)
            }
            (None, None) => bail!("give --server or --data-dir"),
        }
    }

    fn print_published(&self, version: &Version, hold: bool) {
        if self.json {
            println!("{}", serde_json::json!(version));
            return;
        }
        println!(
            "version {} is published; it has the content of {} (model {})",
            version.generation, version.content_of, version.model_id
        );
        if hold {
            println!("nothing else is published until POST /v1/release");
        }
    }
}

/// List the published versions.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer versions --data-dir data\n  foretoken-trainer versions --server http://127.0.0.1:9100 --json"
)]
pub(super) struct Versions {
    #[command(flatten)]
    source: Source,
}

/// A number inside the scores, as a percentage.
fn percent(version: &Version, path: &str) -> String {
    let value = version.scores.pointer(path).and_then(Value::as_f64);
    value.map_or("-".to_owned(), |value| format!("{:.1} %", 100.0 * value))
}

impl Versions {
    pub(super) fn run(self) -> Result<()> {
        let versions = self.source.versions()?;
        if self.source.json {
            println!("{}", serde_json::json!(versions));
            return Ok(());
        }
        println!(
            "{:>10} {:20} {:>8} {:>6} {:>10} {:>10} {:>8} {:>9} {:>9}",
            "generation", "model", "content", "parent", "origin", "samples", "bytes", "TTFT", "TPOT"
        );
        for version in &versions {
            println!(
                "{:>10} {:20} {:>8} {:>6} {:>10} {:>10} {:>8} {:>9} {:>9}",
                version.generation,
                version.model_id,
                version.content_of,
                version.parent,
                serde_json::json!(version.origin).as_str().unwrap_or_default().replace('_', " "),
                version.samples,
                version.onnx_bytes,
                percent(version, "/candidate/ttft/ape_median"),
                percent(version, "/candidate/tpot/ape_median"),
            );
        }
        println!("(TTFT, TPOT: median absolute percentage error on the hold-out when it was fitted)");
        Ok(())
    }
}

/// Show the card of a version.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  foretoken-trainer show 12 --data-dir data")]
pub(super) struct Show {
    /// Generation of the version.
    generation: u64,
    #[command(flatten)]
    source: Source,
}

impl Show {
    pub(super) fn run(self) -> Result<()> {
        let version = self.source.version(self.generation)?;
        if self.source.json {
            println!("{}", serde_json::json!(version));
        } else {
            println!("{}", serde_json::to_string_pretty(&version)?);
        }
        Ok(())
    }
}

/// Publish an old version again, under a new generation, and hold publishing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  foretoken-trainer promote 12 --server http://127.0.0.1:9100")]
pub(super) struct Promote {
    /// Generation of the version.
    generation: u64,
    /// Let the next fit replace it.
    #[arg(long)]
    no_hold: bool,
    #[command(flatten)]
    source: Source,
}

impl Promote {
    pub(super) fn run(self) -> Result<()> {
        let version = self.source.publish(Some(self.generation), Origin::Promoted, !self.no_hold)?;
        self.source.print_published(&version, !self.no_hold);
        Ok(())
    }
}

/// Publish the version before the current one again, under a new generation, and hold publishing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer rollback --server http://127.0.0.1:9100\n  foretoken-trainer rollback --data-dir data --no-hold"
)]
pub(super) struct Rollback {
    /// Let the next fit replace it.
    #[arg(long)]
    no_hold: bool,
    #[command(flatten)]
    source: Source,
}

impl Rollback {
    pub(super) fn run(self) -> Result<()> {
        let version = self.source.publish(None, Origin::RolledBack, !self.no_hold)?;
        self.source.print_published(&version, !self.no_hold);
        Ok(())
    }
}

/// Publish a model file: one to start with, or one that was fitted elsewhere.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  foretoken-trainer push models/starter.onnx --data-dir data\n  foretoken-trainer push mine.onnx --hold --server http://127.0.0.1:9100\n\nWithout --hold the next fit that is better replaces it."
)]
pub(super) struct Push {
    /// The ONNX file.
    model: PathBuf,
    /// Let no fit replace it until POST /v1/release.
    #[arg(long)]
    hold: bool,
    #[command(flatten)]
    source: Source,
}

impl Push {
    pub(super) fn run(self) -> Result<()> {
        let onnx = fs::read(&self.model).with_context(|| format!("cannot read {}", self.model.display()))?;
        let version = self.source.push(onnx, self.hold).with_context(|| self.model.display().to_string())?;
        self.source.print_published(&version, self.hold);
        Ok(())
    }
}

/// Compare the cards of two versions.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  foretoken-trainer diff 11 12 --data-dir data")]
pub(super) struct Diff {
    /// Generation of the one.
    from: u64,
    /// Generation of the other.
    to: u64,
    #[command(flatten)]
    source: Source,
}

/// Leaves of a JSON value by their path.
fn leaves(value: &Value, path: &str, out: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| leaves(value, &format!("{path}.{key}"), out));
        }
        // Importances are pairs of a name and a share.
        Value::Array(items) if path.ends_with(".importances") => {
            for item in items {
                let name = item[0].as_str().unwrap_or_default();
                out.push((format!("{path}.{name}"), item[1].clone()));
            }
        }
        leaf => out.push((path.trim_start_matches('.').to_owned(), leaf.clone())),
    }
}

impl Diff {
    pub(super) fn run(self) -> Result<()> {
        let side = |generation| -> Result<std::collections::BTreeMap<String, Value>> {
            let mut out = Vec::new();
            leaves(&serde_json::json!(self.source.version(generation)?), "", &mut out);
            Ok(out.into_iter().collect())
        };
        let (from, to) = (side(self.from)?, side(self.to)?);
        let keys: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        let changed: Vec<(&String, &Value, &Value)> = keys
            .into_iter()
            .map(|key| (key, from.get(key).unwrap_or(&Value::Null), to.get(key).unwrap_or(&Value::Null)))
            .filter(|(_, from, to)| from != to)
            .collect();
        if self.source.json {
            let object: serde_json::Map<String, Value> = changed
                .iter()
                .map(|(key, from, to)| ((*key).clone(), serde_json::json!({"from": from, "to": to})))
                .collect();
            println!("{}", Value::Object(object));
            return Ok(());
        }
        for (key, from, to) in changed {
            println!("{:48} {from:>24} -> {to}", key.trim_start_matches('.'));
        }
        Ok(())
    }
}
