//! What load to make: the parameters of a workload, by preset name or JSON file.
//!
//! Rates are per pod and are multiplied by the number of pods, so that one preset loads any pool alike.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pod::DEFAULT_MODEL;

/// Why there is no such workload.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// Neither a preset nor a readable file.
    #[error("workload `{name}` is neither a preset ({}) nor a readable file: {source}", PRESETS.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Why the file could not be read.
        source: std::io::Error,
    },
    /// The file is not the JSON of a workload.
    #[error("workload `{name}`: {source}")]
    Json {
        /// Which workload.
        name: String,
        /// What the JSON reader says: names the field, line and column.
        source: serde_json::Error,
    },
    /// A field's value cannot work.
    #[error("workload `{name}`: `{field}` is {value}: {fix}")]
    Value {
        /// Which workload.
        name: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What to do instead.
        fix: &'static str,
    },
}

/// Which API is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name in reports.
    pub name: String,
    /// Model asked for.
    #[serde(default = "default_model")]
    pub model: String,
    /// API spoken.
    #[serde(default = "default_api")]
    pub api: Api,
    /// What is sent when.
    pub shape: Shape,
}

fn default_model() -> String {
    DEFAULT_MODEL.to_owned()
}

fn default_api() -> Api {
    Api::Chat
}

/// The forms of load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Conversations of several turns over a document, in groups that share a system prompt.
    Multiturn(Multiturn),
    /// Single requests, in groups that share a long prefix.
    SharedPrefix(SharedPrefix),
    /// Requests at even distances with nothing in common. For tests.
    Constant(Constant),
}

/// Lengths drawn log-normally around a mean and cut to bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Mean before cutting.
    pub mean_tokens: f64,
    /// Sigma of the logarithm; 0 for a fixed length.
    pub sigma: f64,
    /// Shortest.
    pub min_tokens: u32,
    /// Longest.
    pub max_tokens: u32,
}

/// Conversations arrive by a Poisson process; the next turn follows the answer after a think time and
/// carries the real answer. The run begins in the middle: conversations that would have begun earlier
/// are there with a history, so that the rate is level from the first second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multiturn {
    /// Rate of new conversations.
    pub conversations_per_second_per_pod: f64,
    /// Number of groups.
    pub groups: u32,
    /// Exponent of the groups' popularity (share of rank r is r to the minus this); 0 for equal shares.
    pub group_skew: f64,
    /// System prompt that a group shares.
    pub system_tokens: u32,
    /// Document at the head of each conversation.
    pub document_tokens: Lengths,
    /// Question of each turn.
    pub question_tokens: Lengths,
    /// Answer asked for, each length between the bounds equally likely.
    pub min_output_tokens: u32,
    /// See `min_output_tokens`.
    pub max_output_tokens: u32,
    /// Turns, each number between the bounds equally likely.
    pub min_turns: u32,
    /// See `min_turns`.
    pub max_turns: u32,
    /// Mean of the exponential think time between an answer and the next question.
    pub think_mean_ms: f64,
    /// Time that an answer is assumed to take, for conversations that began before the run.
    pub assumed_answer_ms: f64,
}

/// Single requests arrive by a Poisson process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Rate of requests.
    pub requests_per_second_per_pod: f64,
    /// Number of groups.
    pub groups: u32,
    /// Exponent of the groups' popularity.
    pub group_skew: f64,
    /// Prefix that a group shares.
    pub prefix_tokens: u32,
    /// Own part of each request.
    pub question_tokens: Lengths,
    /// Shortest answer asked for.
    pub min_output_tokens: u32,
    /// Longest answer asked for.
    pub max_output_tokens: u32,
}

/// Requests at even distances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Rate of requests.
    pub requests_per_second_per_pod: f64,
    /// Length of each prompt.
    pub prompt_tokens: u32,
    /// Answer asked for.
    pub output_tokens: u32,
}

/// Names of the presets.
pub const PRESETS: [&str; 3] = ["demo", "shared-prefix", "constant"];

impl Workload {
    /// The preset of this name.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let shape = match name {
            // For two `fast` and two `slow` pods: prompts of 1 to 8 thousand tokens whose contexts do not
            // all fit into the pods' caches, at a rate that queues on a router without foresight.
            "demo" => Shape::Multiturn(Multiturn {
                conversations_per_second_per_pod: 0.8,
                groups: 12,
                group_skew: 0.6,
                system_tokens: 900,
                document_tokens: Lengths {
                    mean_tokens: 1800.0,
                    sigma: 0.6,
                    min_tokens: 200,
                    max_tokens: 5500,
                },
                question_tokens: Lengths { mean_tokens: 90.0, sigma: 0.6, min_tokens: 20, max_tokens: 400 },
                min_output_tokens: 40,
                max_output_tokens: 150,
                min_turns: 2,
                max_turns: 6,
                think_mean_ms: 4000.0,
                assumed_answer_ms: 3500.0,
            }),
            // Many groups of one long prefix each, short questions: what a prefix cache is best at.
            "shared-prefix" => Shape::SharedPrefix(SharedPrefix {
                requests_per_second_per_pod: 3.0,
                groups: 32,
                group_skew: 0.0,
                prefix_tokens: 2048,
                question_tokens: Lengths { mean_tokens: 256.0, sigma: 0.0, min_tokens: 256, max_tokens: 256 },
                min_output_tokens: 60,
                max_output_tokens: 120,
            }),
            "constant" => Shape::Constant(Constant {
                requests_per_second_per_pod: 2.0,
                prompt_tokens: 500,
                output_tokens: 20,
            }),
            _ => return None,
        };
        Some(Self { name: name.to_owned(), model: default_model(), api: default_api(), shape })
    }

    /// A preset by name, else a JSON file by path.
    ///
    /// # Errors
    /// [`WorkloadError`] names the field and the fix.
    pub fn load(name_or_path: &str) -> Result<Self, WorkloadError> {
        if let Some(workload) = Self::preset(name_or_path) {
            return Ok(workload);
        }
        let name = name_or_path.to_owned();
        match std::fs::read(name_or_path) {
            Ok(text) => Self::from_json(&name, &text),
            Err(source) => Err(WorkloadError::Unknown { name, source }),
        }
    }

    /// Reads and checks a workload; `name` is only used in errors.
    ///
    /// # Errors
    /// [`WorkloadError`] names the field and the fix.
    pub fn from_json(name: &str, text: &[u8]) -> Result<Self, WorkloadError> {
        let workload: Self = serde_json::from_slice(text)
            .map_err(|source| WorkloadError::Json { name: name.to_owned(), source })?;
        workload.check()?;
        Ok(workload)
    }

    /// Checks that the workload can be played.
    ///
    /// # Errors
    /// [`WorkloadError::Value`] names the first field that cannot work.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let mut checks = Checks { name: &self.name, result: Ok(()) };
        match &self.shape {
            Shape::Multiturn(shape) => {
                checks.rate("conversations_per_second_per_pod", shape.conversations_per_second_per_pod);
                checks.groups(shape.groups, shape.group_skew);
                checks.tokens("system_tokens", shape.system_tokens);
                checks.lengths("document_tokens", shape.document_tokens);
                checks.lengths("question_tokens", shape.question_tokens);
                checks.range("min_output_tokens", shape.min_output_tokens, shape.max_output_tokens);
                checks.range("min_turns", shape.min_turns, shape.max_turns);
                checks.number("max_turns", shape.max_turns.into(), 1.0, 1000.0, "use 1 to 1000");
                checks.number("think_mean_ms", shape.think_mean_ms, 0.0, 1e7, "use 0 to 10000000");
                checks.number("assumed_answer_ms", shape.assumed_answer_ms, 0.0, 1e7, "use 0 to 10000000");
            }
            Shape::SharedPrefix(shape) => {
                checks.rate("requests_per_second_per_pod", shape.requests_per_second_per_pod);
                checks.groups(shape.groups, shape.group_skew);
                checks.tokens("prefix_tokens", shape.prefix_tokens);
                checks.lengths("question_tokens", shape.question_tokens);
                checks.range("min_output_tokens", shape.min_output_tokens, shape.max_output_tokens);
            }
            Shape::Constant(shape) => {
                checks.rate("requests_per_second_per_pod", shape.requests_per_second_per_pod);
                checks.range("prompt_tokens", shape.prompt_tokens, 1 << 20);
                checks.range("output_tokens", shape.output_tokens, 1 << 20);
            }
        }
        checks.result
    }
}

/// Keeps the first failure.
struct Checks<'a> {
    name: &'a str,
    result: Result<(), WorkloadError>,
}

impl Checks<'_> {
    fn number(&mut self, field: &'static str, value: f64, low: f64, high: f64, fix: &'static str) {
        if self.result.is_ok() && !(low..=high).contains(&value) {
            let (name, value) = (self.name.to_owned(), value.to_string());
            self.result = Err(WorkloadError::Value { name, field, value, fix });
        }
    }

    fn rate(&mut self, field: &'static str, value: f64) {
        self.number(field, value, 1e-4, 1e4, "use 0.0001 to 10000");
    }

    fn groups(&mut self, groups: u32, skew: f64) {
        self.number("groups", groups.into(), 1.0, 100_000.0, "use 1 to 100000");
        self.number("group_skew", skew, 0.0, 10.0, "use 0 to 10");
    }

    fn tokens(&mut self, field: &'static str, value: u32) {
        self.number(field, value.into(), 0.0, 1_048_576.0, "use 0 to 1048576");
    }

    fn range(&mut self, field: &'static str, min: u32, max: u32) {
        self.number(field, min.into(), 1.0, max.into(), "use at least 1 and at most its maximum");
        self.number(field, max.into(), 1.0, 1_048_576.0, "use a maximum of at most 1048576");
    }

    fn lengths(&mut self, field: &'static str, lengths: Lengths) {
        self.number(field, lengths.mean_tokens, 1.0, 1_048_576.0, "use a mean of 1 to 1048576");
        self.number(field, lengths.sigma, 0.0, 5.0, "use a sigma of 0 to 5");
        self.range(field, lengths.min_tokens, lengths.max_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_passes_its_own_check_and_survives_json() {
        for name in PRESETS {
            let workload = Workload::preset(name).unwrap();
            let text = serde_json::to_vec(&workload).unwrap();
            assert_eq!(Workload::from_json(name, &text).unwrap(), workload);
        }
    }

    #[test]
    fn errors_name_the_field_and_the_fix() {
        let mut value = serde_json::to_value(Workload::preset("demo").unwrap()).unwrap();
        value["shape"]["multiturn"]["min_turns"] = 9.into();
        let error = Workload::from_json("mine", value.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("min_turns") && error.contains("is 9"), "{error}");
        value["shape"]["multiturn"]["turns"] = 9.into();
        let error = Workload::from_json("mine", value.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("turns"), "{error}");
        let error = Workload::load("no-such-workload").unwrap_err().to_string();
        assert!(error.contains("demo, shared-prefix, constant"), "{error}");
    }
}
