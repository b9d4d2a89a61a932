//! Chat requests of three kinds with their true number of tokens, for the estimator's test and bench.
//!
//! English from this repository's own documents, code from its own sources, Chinese composed from sentences of
//! many registers. The truth is a real tokenizer's count and a chat template of four tokens a message and three
//! at the end.

use std::fs;
use std::path::{Path, PathBuf};

use foretoken_core::request::{Api, BlockOptions, Prompt, TokenEstimator, read_request};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::json;
use tiktoken_rs::CoreBPE;

const BLOCKS: BlockOptions = BlockOptions { block_bytes: 256, max_blocks: 4096 };
const TEMPLATE_TOKENS: usize = 4 + 3;
const SHORTEST_BYTES: f64 = 200.0;
const LONGEST_BYTES: f64 = 6000.0;

/// Kinds of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    English,
    Chinese,
    Code,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::English, Self::Chinese, Self::Code];
}

/// Where requests are drawn from.
pub(crate) struct Corpus {
    english: Vec<String>,
    code: Vec<String>,
    chinese: Vec<String>,
}

fn files(folder: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_dir() && !hidden && !path.ends_with("target") {
            files(&path, ending, into);
        } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
            into.push(path);
        }
    }
}

fn lines(paths: &[PathBuf]) -> Vec<String> {
    let texts = paths.iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

impl Corpus {
    /// Reads the repository around this crate.
    pub(crate) fn of_this_repository() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate lies in a folder");
        let mut documents = vec![root.join("LICENSE")];
        files(root, ".md", &mut documents);
        let mut sources = Vec::new();
        files(root, ".rs", &mut sources);
        Self {
            english: lines(&documents),
            code: lines(&sources),
            chinese: include_str!("chinese.txt").lines().map(str::to_owned).collect(),
        }
    }

    /// A text of this kind; its length is spread evenly over the orders of magnitude.
    fn text(&self, kind: Kind, random: &mut StdRng) -> String {
        let bytes = random.random_range(SHORTEST_BYTES.ln()..LONGEST_BYTES.ln()).exp() as usize;
        let mut text = String::new();
        match kind {
            Kind::Chinese => {
                while text.len() < bytes {
                    text.push_str(self.chinese.choose(random).expect("sentences"));
                    if random.random_bool(0.15) {
                        text.push('\n');
                    }
                }
            }
            Kind::English | Kind::Code => {
                let lines = if kind == Kind::English { &self.english } else { &self.code };
                let from = random.random_range(0..lines.len());
                for line in lines.iter().cycle().skip(from) {
                    if text.len() >= bytes {
                        break;
                    }
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        text
    }

    /// A request's prompt, and its true number of tokens.
    pub(crate) fn request(&self, kind: Kind, tokenizer: &CoreBPE, random: &mut StdRng) -> (Prompt, u32) {
        let text = self.text(kind, random);
        let tokens = tokenizer.encode_ordinary(&text).len() + TEMPLATE_TOKENS;
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
        let request = read_request(Api::Chat, body.as_bytes(), BLOCKS).expect("a chat request");
        (request.prompt, tokens as u32)
    }
}

/// Median relative error of the estimates after the first `learned` of `count` requests, of which each is of one
/// of `kinds` at random. The estimator learns from every answer, as the router does.
pub(crate) fn median_error(
    corpus: &Corpus,
    tokenizer: &CoreBPE,
    kinds: &[Kind],
    learned: usize,
    count: usize,
    seed: u64,
) -> f64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut estimator = TokenEstimator::new();
    let mut errors = Vec::new();
    for at in 0..count {
        let kind = *kinds.choose(&mut random).expect("a kind");
        let (prompt, truth) = corpus.request(kind, tokenizer, &mut random);
        let estimate = f64::from(estimator.estimate(1, &prompt));
        if at >= learned {
            errors.push((estimate - f64::from(truth)).abs() / f64::from(truth));
        }
        estimator.observe(1, prompt.text_bytes, &prompt.shape, truth);
    }
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}
