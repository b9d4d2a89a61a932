//! What a model file must promise: names, units, metadata, bounds.
//!
//! The trainer's writer, both readers and the documentation take the names from here. A model is fitted
//! to the columns of one feature schema; one that was fitted to others would predict nonsense with
//! confidence, so schema and column names must match exactly.

use super::{ModelCard, ModelError};
use crate::features::{COLUMNS, Feature, Row, SCHEMA_ID};

/// Name of the one input: float32 `[n, COUNT]`.
pub const INPUT: &str = "features";

/// Longest ONNX file, also after inflating. 400 trees of depth 8 for four outputs are 15 MB.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// Longest model id: it goes into headers and samples.
const MAX_MODEL_ID: usize = 128;

/// Metadata key: feature schema ([`SCHEMA_ID`]).
pub const KEY_SCHEMA: &str = "foretoken.schema";
/// Metadata key: column names in order, separated by commas.
pub const KEY_FEATURES: &str = "foretoken.features";
/// Metadata key: unique id of the model.
pub const KEY_MODEL_ID: &str = "foretoken.model_id";
/// Metadata key: when it was made, milliseconds since the Unix epoch.
pub const KEY_CREATED_MS: &str = "foretoken.created_ms";
/// Metadata key: samples it was fitted to.
pub const KEY_SAMPLES: &str = "foretoken.samples";
/// Metadata key: time from the oldest to the newest of these samples, milliseconds.
pub const KEY_WINDOW_MS: &str = "foretoken.window_ms";
/// Metadata key: hold-out scores, a JSON object.
pub const KEY_SCORES: &str = "foretoken.scores";
/// Metadata key: version of the XGBoost that fitted it.
pub const KEY_XGBOOST_VERSION: &str = "foretoken.xgboost_version";

/// What an output is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Time to first token.
    Ttft,
    /// Time per output token, the first excluded.
    Tpot,
}

/// What an output's number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Ratio to the row's prior of the same target.
    Ratio,
    /// Milliseconds.
    Ms,
}

/// Which quantile an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quantile {
    /// Median.
    P50,
    /// 90th percentile.
    P90,
}

/// One output of a model, named `<target>_<unit>_<quantile>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Output {
    /// Target.
    pub target: Target,
    /// Unit.
    pub unit: Unit,
    /// Quantile.
    pub quantile: Quantile,
}

impl Output {
    /// Every output there can be.
    pub const ALL: [Self; 8] = {
        const fn output(target: Target, unit: Unit, quantile: Quantile) -> Output {
            Output { target, unit, quantile }
        }
        [
            output(Target::Ttft, Unit::Ratio, Quantile::P50),
            output(Target::Ttft, Unit::Ratio, Quantile::P90),
            output(Target::Tpot, Unit::Ratio, Quantile::P50),
            output(Target::Tpot, Unit::Ratio, Quantile::P90),
            output(Target::Ttft, Unit::Ms, Quantile::P50),
            output(Target::Ttft, Unit::Ms, Quantile::P90),
            output(Target::Tpot, Unit::Ms, Quantile::P50),
            output(Target::Tpot, Unit::Ms, Quantile::P90),
        ]
    };

    /// Its name in the graph.
    #[must_use]
    pub fn name(self) -> &'static str {
        use {
            Quantile::{P50, P90},
            Target::{Tpot, Ttft},
            Unit::{Ms, Ratio},
        };
        match (self.target, self.unit, self.quantile) {
            (Ttft, Ratio, P50) => "ttft_ratio_p50",
            (Ttft, Ratio, P90) => "ttft_ratio_p90",
            (Tpot, Ratio, P50) => "tpot_ratio_p50",
            (Tpot, Ratio, P90) => "tpot_ratio_p90",
            (Ttft, Ms, P50) => "ttft_ms_p50",
            (Ttft, Ms, P90) => "ttft_ms_p90",
            (Tpot, Ms, P50) => "tpot_ms_p50",
            (Tpot, Ms, P90) => "tpot_ms_p90",
        }
    }

    /// The output of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|output| output.name() == name)
    }
}

/// Checks the graph's output names: known, each once, one unit per target, at least one per target.
///
/// # Errors
/// [`ModelError::Contract`] names the output.
pub fn outputs<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<(&'a str, Output)>, ModelError> {
    let mut outputs: Vec<(&str, Output)> = Vec::new();
    for name in names {
        let Some(output) = Output::from_name(name) else {
            return Err(ModelError::Contract(format!(
                "output `{name}` is not known: outputs are named like `{}` or `{}`",
                Output::ALL.map(Output::name).first().unwrap_or(&""),
                "ttft_ms_p50"
            )));
        };
        for (before, other) in &outputs {
            if *other == output {
                return Err(ModelError::Contract(format!("output `{name}` is given twice")));
            }
            if other.target == output.target && other.unit != output.unit {
                return Err(ModelError::Contract(format!(
                    "outputs `{before}` and `{name}` give one target in two units: use one"
                )));
            }
        }
        outputs.push((name, output));
    }
    for (target, words) in [(Target::Ttft, "TTFT"), (Target::Tpot, "TPOT")] {
        if !outputs.iter().any(|(_, output)| output.target == target) {
            return Err(ModelError::Contract(format!("no {words} output: a model must predict both")));
        }
    }
    Ok(outputs)
}

/// Column names in order, as [`KEY_FEATURES`] holds them.
#[must_use]
pub fn feature_names() -> String {
    COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(",")
}

/// Checks the metadata and keeps it as the model's card.
///
/// # Errors
/// [`ModelError::Contract`] names the key and what was expected.
pub fn card<'a>(properties: impl Iterator<Item = (&'a str, &'a str)>) -> Result<ModelCard, ModelError> {
    let properties: Vec<(String, String)> =
        properties.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let find = |key: &str| {
        let found = properties.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        found.ok_or_else(|| ModelError::Contract(format!("metadata `{key}` is missing")))
    };
    let schema = find(KEY_SCHEMA)?;
    if schema != SCHEMA_ID {
        return Err(ModelError::Contract(format!(
            "feature schema {schema:?}, this build has {SCHEMA_ID:?}: refit the model"
        )));
    }
    let names = find(KEY_FEATURES)?;
    if names != feature_names() {
        let mut ours = COLUMNS.iter();
        let differing = names.split(',').find(|name| ours.next().is_none_or(|column| column.name != *name));
        return Err(ModelError::Contract(format!(
            "feature names differ from schema {SCHEMA_ID:?} at {:?}: refit the model",
            differing.unwrap_or("the end")
        )));
    }
    let model_id = find(KEY_MODEL_ID)?;
    if model_id.is_empty()
        || model_id.len() > MAX_MODEL_ID
        || !model_id.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(ModelError::Contract(format!(
            "metadata `{KEY_MODEL_ID}` must be 1 to {MAX_MODEL_ID} printable ASCII characters without spaces"
        )));
    }
    let model_id = model_id.to_owned();
    Ok(ModelCard { model_id, properties })
}

/// The row's prior of a target, the base of its ratio.
#[must_use]
pub fn prior_ms(row: &Row, target: Target) -> f32 {
    match target {
        Target::Ttft => row.get(Feature::PriorTtftMs),
        Target::Tpot => row.get(Feature::PriorTpotMs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Vec<(&'static str, String)> {
        vec![
            (KEY_SCHEMA, SCHEMA_ID.to_owned()),
            (KEY_FEATURES, feature_names()),
            (KEY_MODEL_ID, "m-1".to_owned()),
        ]
    }

    fn check(properties: &[(&'static str, String)]) -> Result<ModelCard, ModelError> {
        card(properties.iter().map(|(key, value)| (*key, value.as_str())))
    }

    #[test]
    fn every_output_has_a_name_that_finds_it() {
        for output in Output::ALL {
            assert_eq!(Output::from_name(output.name()), Some(output));
        }
        assert_eq!(Output::from_name("ttft_ratio_p99"), None);
    }

    #[test]
    fn a_card_keeps_every_property() {
        let mut properties = good();
        properties.push(("owner", "me".to_owned()));
        let card = check(&properties).unwrap();
        assert_eq!(card.model_id, "m-1");
        assert_eq!(card.properties.len(), 4);
    }

    #[test]
    fn another_schema_another_column_order_and_a_bad_id_are_refused_by_name() {
        let mut other = good();
        other[0].1 = "foretoken-0".to_owned();
        assert!(check(&other).unwrap_err().to_string().contains("foretoken-0"));
        let mut swapped = good();
        swapped[1].1 =
            swapped[1].1.replacen("prompt_tokens,uncached_tokens", "uncached_tokens,prompt_tokens", 1);
        assert!(check(&swapped).unwrap_err().to_string().contains("uncached_tokens"));
        let mut short = good();
        short[1].1 = "prompt_tokens".to_owned();
        assert!(check(&short).unwrap_err().to_string().contains("differ"));
        for id in ["", "a b", "line\n"] {
            let mut bad = good();
            bad[2].1 = id.to_owned();
            assert!(check(&bad).unwrap_err().to_string().contains(KEY_MODEL_ID));
        }
        let mut without = good();
        without.remove(2);
        assert!(check(&without).unwrap_err().to_string().contains(KEY_MODEL_ID));
    }

    #[test]
    fn outputs_must_cover_both_targets_once_and_in_one_unit() {
        assert_eq!(outputs(["ttft_ratio_p50", "tpot_ms_p90"].into_iter()).unwrap().len(), 2);
        for (names, word) in [
            (vec!["ttft_ratio_p50"], "TPOT"),
            (vec!["tpot_ratio_p50"], "TTFT"),
            (vec!["ttft_ratio_p50", "ttft_ratio_p50", "tpot_ms_p50"], "twice"),
            (vec!["ttft_ratio_p50", "ttft_ms_p90", "tpot_ms_p50"], "two units"),
            (vec!["latency"], "latency"),
        ] {
            assert!(outputs(names.into_iter()).unwrap_err().to_string().contains(word), "{word}");
        }
    }
}
