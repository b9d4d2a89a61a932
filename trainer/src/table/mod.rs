//! Samples as tables: Parquet and CSV, for Spark, Dask, pandas and for backups.
//!
//! One row a sample, one column a field, and one column a feature (`feature_` and its name in the schema). The
//! table [`FIELDS`] is the schema of both forms and of `docs/samples.md`. A field of a newer or older build that
//! is not in it travels in `more`, as JSON, so that nothing is lost on the way through a file.
//!
//! What it is not: it checks no sample; what is read goes the way of a line from a filter.

pub mod csv;
pub mod files;
pub mod parquet;

use foretoken_core::features::COLUMNS;
use foretoken_core::sample::Sample;
use serde_json::{Map, Value};
use thiserror::Error;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// Whole number of 64 bits.
    Long,
    /// Whole number of 32 bits.
    Int,
    /// Float of 32 bits.
    Float,
    /// True or false.
    Bool,
}

impl Kind {
    /// Its name in Parquet's and Arrow's terms.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "utf8",
            Self::Long => "uint64",
            Self::Int => "uint32",
            Self::Float => "float32",
            Self::Bool => "bool",
        }
    }
}

/// Name, type and meaning of every column that is no feature. All may be null but `id`, `at_ms` and `schema`.
pub const FIELDS: &[(&str, Kind, &str)] = &[
    ("id", Kind::Text, "Unique in the fleet."),
    ("at_ms", Kind::Long, "Request's first byte, milliseconds since the Unix epoch."),
    ("schema", Kind::Text, "Feature schema of the `feature_` columns."),
    ("model", Kind::Text, "Name of the LLM asked for."),
    ("pod", Kind::Text, "`ip:port` of the pod that answered."),
    ("picked", Kind::Text, "`ip:port` of the pod that was picked first."),
    ("prior_ttft_ms", Kind::Float, "The prior's TTFT: the base of the ratio that is learned."),
    ("prior_tpot_ms", Kind::Float, "The prior's TPOT."),
    ("predicted_ttft_ms", Kind::Float, "Predicted TTFT, median."),
    ("predicted_tpot_ms", Kind::Float, "Predicted TPOT, median."),
    ("model_id", Kind::Text, "Id of the model that predicted; empty for the prior."),
    ("rung", Kind::Text, "What routed: model, prior, least_tokens, envoy."),
    ("ttft_ms", Kind::Float, "Request's first header byte to the first event with a token."),
    ("tpot_ms", Kind::Float, "(last token - first token) / (output tokens - 1)."),
    ("e2e_ms", Kind::Float, "First header byte to last token."),
    ("prompt_tokens", Kind::Int, "Prompt tokens as the engine counted them."),
    ("cached_tokens", Kind::Int, "Prompt tokens that the engine took from its cache."),
    ("output_tokens", Kind::Int, "Output tokens."),
    ("tokens_from", Kind::Text, "Where `output_tokens` comes from: usage, timings, events."),
    ("streamed", Kind::Bool, "Whether the response was streamed."),
    ("status", Kind::Int, "HTTP status of the response; 0 when there was none."),
    ("attempts", Kind::Int, "Upstream attempts that Envoy made."),
    ("ending", Kind::Text, "How it ended: complete, cancelled, failed, truncated."),
    ("more", Kind::Text, "Fields that are in no other column, as a JSON object."),
];

/// Name and type of every column, features last.
#[must_use]
pub fn columns() -> Vec<(String, Kind)> {
    let fields = FIELDS.iter().map(|(name, kind, _)| ((*name).to_owned(), *kind));
    let features = COLUMNS.iter().map(|column| (format!("feature_{}", column.name), Kind::Float));
    fields.chain(features).collect()
}

/// Why a table cannot be read or written.
#[derive(Debug, Error)]
pub enum TableError {
    /// Parquet.
    #[error("Parquet: {0}")]
    Parquet(#[from] ::parquet::errors::ParquetError),
    /// Arrow.
    #[error("Arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// CSV.
    #[error("CSV: {0}")]
    Csv(#[from] ::csv::Error),
    /// A column that is missing or of another type.
    #[error("column `{name}` {what}; docs/samples.md has the schema")]
    Column {
        /// Which.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A value that does not fit its column.
    #[error("row {row}, column `{column}`: {text:?} is not of type {kind}")]
    Value {
        /// Row from 1.
        row: usize,
        /// Column.
        column: String,
        /// What it says.
        text: String,
        /// What it should be.
        kind: &'static str,
    },
    /// A file or an object store.
    #[error("{place}: {cause}")]
    Store {
        /// Where.
        place: String,
        /// Why.
        cause: object_store::Error,
    },
    /// A place that is no path or URL.
    #[error("{place}: {reason}")]
    Place {
        /// Where.
        place: String,
        /// Why.
        reason: String,
    },
}

/// A sample's values in the order of [`columns`]; null where it has none.
#[must_use]
pub fn values(sample: &Sample) -> Vec<Value> {
    let mut fields = match serde_json::to_value(sample) {
        Ok(Value::Object(fields)) => fields,
        // A sample is an object.
        _ => Map::new(),
    };
    let features = fields.remove("features");
    let mut values: Vec<Value> = Vec::with_capacity(FIELDS.len() + COLUMNS.len());
    for (name, ..) in FIELDS.iter().filter(|(name, ..)| *name != "more") {
        values.push(fields.remove(*name).unwrap_or(Value::Null));
    }
    values.push(if fields.is_empty() { Value::Null } else { Value::Object(fields).to_string().into() });
    let feature = |index| features.as_ref().and_then(|list| list.get(index)).cloned().unwrap_or(Value::Null);
    values.extend((0..COLUMNS.len()).map(feature));
    values
}

/// The JSON line of a sample from its values in the order of [`columns`].
#[must_use]
pub fn line(values: Vec<Value>) -> Vec<u8> {
    let mut fields = Map::new();
    let mut features = Vec::with_capacity(COLUMNS.len());
    for (index, value) in values.into_iter().enumerate() {
        match FIELDS.get(index) {
            None => features.push(value),
            Some(("more", ..)) => {
                let more = value.as_str().and_then(|text| serde_json::from_str(text).ok());
                if let Some(Value::Object(more)) = more {
                    fields.extend(more);
                }
            }
            Some((name, ..)) if !value.is_null() => {
                fields.insert((*name).to_owned(), value);
            }
            Some(_) => {}
        }
    }
    fields.insert("features".to_owned(), Value::Array(features));
    Value::Object(fields).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ingest, synthetic};

    #[test]
    fn a_sample_comes_back_from_its_values_with_fields_of_no_column() {
        for sample in synthetic::samples(1, 20) {
            let line = line(values(&sample));
            assert_eq!(format!("{:?}", ingest::read_line(&line, u64::MAX).unwrap()), format!("{sample:?}"));
        }
        let mut with_more = values(&synthetic::samples(1, 1)[0]);
        with_more[FIELDS.len() - 1] = r#"{"colour":"red"}"#.into();
        let line: Value = serde_json::from_slice(&line(with_more)).unwrap();
        assert_eq!(line["colour"], "red");
    }

    #[test]
    fn the_page_in_docs_has_exactly_these_columns() {
        let expected: String = FIELDS
            .iter()
            .map(|(name, kind, doc)| format!("| `{name}` | {} | {doc} |\n", kind.name()))
            .collect();
        let docs = include_str!("../../../docs/samples.md");
        let rows: String =
            docs.lines().filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect();
        assert_eq!(rows, expected, "write these rows into docs/samples.md:\n{expected}");
    }
}
