//! XGBoost model JSON to tree ensembles, one per output.
//!
//! Only what is exact is converted: tree boosters with an identity link. Everything else is refused by
//! name, because a converter that skips what it does not know is silently wrong (DART without its weights:
//! by up to 350 %). Numbers are parsed from the JSON text straight to float32, as XGBoost itself reads them;
//! the way through a double can round twice.
//!
//! The form is that of the one XGBoost version accepted ([`crate::xgb::VERSION`]); a file of another version
//! is loaded and saved by it first. What it is not: a proof. That is [`crate::parity`].

use std::borrow::Cow;

use foretoken_core::features::{COLUMNS, COUNT};
use foretoken_core::model::ensemble::{Ensemble, EnsembleError, Node};
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

/// Objectives whose prediction is the sum itself.
const IDENTITY: [&str; 5] = [
    "reg:squarederror",
    "reg:absoluteerror",
    "reg:pseudohubererror",
    "reg:quantileerror",
    "reg:expectileerror",
];

/// Most outputs of a booster; the contract has a use for two.
const MAX_OUTPUTS: usize = 16;

/// Why a booster cannot be converted.
#[derive(Debug, Error)]
pub enum ConvertError {
    /// Not the JSON that this version writes.
    #[error("not a model file of XGBoost {version}: {0}", version = crate::xgb::VERSION)]
    Json(serde_json::Error),
    /// A kind of model that has no exact form here.
    #[error("{what} cannot be converted: {fix}")]
    Unsupported {
        /// What the model has.
        what: String,
        /// What to do instead.
        fix: &'static str,
    },
    /// A number that is none.
    #[error("{field}: {text:?} is not a number")]
    Number {
        /// Where.
        field: &'static str,
        /// The text.
        text: String,
    },
    /// Arrays of a tree of different lengths, or ids out of range.
    #[error("tree {tree}: {reason}")]
    Tree {
        /// Which, in the order of the file.
        tree: usize,
        /// What does not fit.
        reason: &'static str,
    },
    /// The nodes do not form trees.
    #[error(transparent)]
    Ensemble(#[from] EnsembleError),
}

/// A booster's outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Converted {
    /// The sums, base first, in the order of the outputs.
    pub outputs: Vec<Ensemble>,
    /// Quantiles of the outputs when the objective says them.
    pub alphas: Vec<f32>,
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    learner: Learner<'a>,
}

#[derive(Deserialize)]
struct Learner<'a> {
    #[serde(default)]
    feature_names: Vec<String>,
    #[serde(default)]
    attributes: serde_json::Map<String, serde_json::Value>,
    #[serde(borrow)]
    gradient_booster: Option<GradientBooster<'a>>,
    learner_model_param: LearnerParam,
    objective: Objective,
}

#[derive(Deserialize)]
struct LearnerParam {
    base_score: String,
    num_feature: String,
    #[serde(default)]
    num_class: String,
}

#[derive(Deserialize)]
struct Objective {
    name: String,
    quantile_loss_param: Option<QuantileParam>,
}

#[derive(Deserialize)]
struct QuantileParam {
    quantile_alpha: String,
}

#[derive(Deserialize)]
struct GradientBooster<'a> {
    name: String,
    #[serde(borrow)]
    model: Option<Trees<'a>>,
}

#[derive(Deserialize)]
struct Trees<'a> {
    tree_info: Vec<usize>,
    #[serde(borrow)]
    trees: Vec<Tree<'a>>,
    weight_drop: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Tree<'a> {
    default_left: Vec<u8>,
    left_children: Vec<i64>,
    right_children: Vec<i64>,
    /// Thresholds of branches and values of leaves.
    #[serde(borrow)]
    split_conditions: Vec<&'a RawValue>,
    split_indices: Vec<u32>,
    #[serde(default)]
    split_type: Vec<u8>,
    tree_param: TreeParam,
}

#[derive(Deserialize)]
struct TreeParam {
    #[serde(default)]
    size_leaf_vector: String,
}

fn unsupported<T>(what: impl Into<String>, fix: &'static str) -> Result<T, ConvertError> {
    Err(ConvertError::Unsupported { what: what.into(), fix })
}

/// A split of the unknown from the known has the threshold `-Infinity` in XGBoost's file, which is no JSON. The
/// smallest float does the same for every row that there is: rows hold no infinities, and nothing is below it.
#[must_use]
pub fn finite_thresholds(json: &[u8]) -> Cow<'_, [u8]> {
    const INFINITE: &[u8] = b"-Infinity";
    let mut out = Vec::new();
    let mut from = 0;
    for at in places_of(json, INFINITE) {
        let inside = |index: Option<usize>, of: &[u8]| {
            index.and_then(|index| json.get(index)).is_some_and(|byte| of.contains(byte))
        };
        if inside(at.checked_sub(1), b"[,") && inside(at.checked_add(INFINITE.len()), b"],") {
            out.extend_from_slice(json.get(from..at).unwrap_or_default());
            out.extend_from_slice(b"-3.4028235E38");
            from = at + INFINITE.len();
        }
    }
    if from == 0 {
        return Cow::Borrowed(json);
    }
    out.extend_from_slice(json.get(from..).unwrap_or_default());
    Cow::Owned(out)
}

/// Where a text occurs.
fn places_of<'a>(text: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    text.windows(wanted.len()).enumerate().filter(move |(_, window)| *window == wanted).map(|(at, _)| at)
}

/// Converts the JSON that [`crate::xgb::Booster::to_json`] gives.
///
/// # Errors
/// [`ConvertError`] names what is not supported.
pub fn convert(json: &[u8]) -> Result<Converted, ConvertError> {
    let json = finite_thresholds(json);
    let File { learner } = serde_json::from_slice(&json).map_err(ConvertError::Json)?;
    check_learner(&learner)?;
    let booster = match learner.gradient_booster {
        Some(booster) if booster.name == "gbtree" => booster,
        Some(booster) => {
            return unsupported(format!("booster {:?}", booster.name), "fit with booster=gbtree");
        }
        None => return unsupported("a model without a booster", "fit at least one round"),
    };
    let Some(model) = booster.model else {
        return unsupported("a booster without trees", "fit with booster=gbtree");
    };
    if model.weight_drop.is_some() {
        return unsupported("a DART booster", "fit with booster=gbtree");
    }
    let bases = number_list("base_score", &learner.learner_model_param.base_score)?;
    let count =
        model.tree_info.iter().map(|output| output.saturating_add(1)).max().unwrap_or(0).max(bases.len());
    if count > MAX_OUTPUTS {
        return unsupported(format!("{count} outputs"), "a model has two quantiles of a target at most");
    }
    if bases.len() != 1 && bases.len() != count {
        return unsupported(format!("{} base scores for {count} outputs", bases.len()), "fit it again");
    }
    let mut outputs = Vec::with_capacity(count);
    for output in 0..count {
        let mut ensemble = Ensemble::new(COUNT);
        // XGBoost's sum starts with the base, so it is the first tree.
        ensemble.push_constant(bases.get(output).or(bases.first()).copied().unwrap_or(0.0))?;
        outputs.push(ensemble);
    }
    if model.tree_info.len() != model.trees.len() {
        return Err(ConvertError::Tree { tree: model.trees.len(), reason: "tree_info has another length" });
    }
    for (index, (tree, &output)) in model.trees.iter().zip(&model.tree_info).enumerate() {
        let nodes = nodes(index, tree)?;
        if let Some(ensemble) = outputs.get_mut(output) {
            ensemble.push(&nodes)?;
        }
    }
    let alphas = match &learner.objective.quantile_loss_param {
        Some(parameter) => number_list("quantile_alpha", &parameter.quantile_alpha)?,
        None => Vec::new(),
    };
    Ok(Converted { outputs, alphas })
}

fn check_learner(learner: &Learner<'_>) -> Result<(), ConvertError> {
    let objective = learner.objective.name.as_str();
    if !IDENTITY.contains(&objective) {
        return unsupported(
            format!("objective {objective:?}"),
            "its prediction is not the sum of the trees; use reg:quantileerror or reg:squarederror",
        );
    }
    if !matches!(learner.learner_model_param.num_class.as_str(), "" | "0") {
        return unsupported("a classifier", "fit a regression");
    }
    if learner.learner_model_param.num_feature != COUNT.to_string() {
        return unsupported(
            format!("a model of {} features", learner.learner_model_param.num_feature),
            "fit it on all columns of the feature schema, in order",
        );
    }
    let names = &learner.feature_names;
    if !names.is_empty() && !names.iter().zip(COLUMNS).all(|(name, column)| name == column.name) {
        return unsupported(
            "a model with other feature names",
            "fit it on the columns of the feature schema, in order",
        );
    }
    if learner.attributes.contains_key("best_iteration") {
        return unsupported(
            "a model that remembers a best iteration but holds later trees",
            "slice it first (booster[: booster.best_iteration + 1]) and save that",
        );
    }
    Ok(())
}

/// `"5E-1"` or `"[5E-1,9E-1]"`.
fn number_list(field: &'static str, text: &str) -> Result<Vec<f32>, ConvertError> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    inner.split(',').map(|number| parse(field, number)).collect()
}

fn parse(field: &'static str, text: &str) -> Result<f32, ConvertError> {
    text.trim().parse().map_err(|_| ConvertError::Number { field, text: text.chars().take(40).collect() })
}

/// The tree's nodes that the root reaches: pruned ones stay in XGBoost's arrays.
fn nodes(tree: usize, arrays: &Tree<'_>) -> Result<Vec<Node>, ConvertError> {
    let fail = |reason| ConvertError::Tree { tree, reason };
    if !matches!(arrays.tree_param.size_leaf_vector.as_str(), "" | "0" | "1") {
        return unsupported("a vector leaf", "fit with multi_strategy=one_output_per_tree");
    }
    let count = arrays.left_children.len();
    let lengths = [
        arrays.right_children.len(),
        arrays.split_conditions.len(),
        arrays.split_indices.len(),
        arrays.default_left.len(),
    ];
    if lengths.iter().any(|&length| length != count) {
        return Err(fail("its arrays have different lengths"));
    }
    let mut nodes: Vec<Node> = Vec::with_capacity(count);
    // Place in the arrays of each node taken; a node's new index is its position here.
    let mut taken: Vec<usize> = vec![0];
    let mut next = 0;
    while let Some(&place) = taken.get(next) {
        next += 1;
        let value = |field| {
            arrays
                .split_conditions
                .get(place)
                .map_or(Err(fail("a child does not exist")), |raw| parse(field, raw.get()))
        };
        let (left, right) = (arrays.left_children.get(place), arrays.right_children.get(place));
        let (Some(&left), Some(&right)) = (left, right) else { return Err(fail("a child does not exist")) };
        if left < 0 && right < 0 {
            nodes.push(Node::Leaf { value: value("leaf")? });
            continue;
        }
        if arrays.split_type.get(place).is_some_and(|&kind| kind != 0) {
            return unsupported("a categorical split", "encode categories as numbers");
        }
        let child = |id: i64, taken: &mut Vec<usize>| {
            let id = usize::try_from(id).map_err(|_| fail("a node has one child"))?;
            // A tree names each node once; more means a cycle.
            if taken.len() >= count {
                return Err(fail("its nodes form a cycle or share a child"));
            }
            taken.push(id);
            u32::try_from(taken.len() - 1).map_err(|_| fail("too many nodes"))
        };
        let (yes, no) = (child(left, &mut taken)?, child(right, &mut taken)?);
        nodes.push(Node::Branch {
            feature: arrays.split_indices.get(place).copied().unwrap_or(u32::MAX),
            threshold: value("split_conditions")?,
            yes,
            no,
            missing_yes: arrays.default_left.get(place).is_some_and(|&left| left != 0),
        });
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_core::model::scalar;

    /// A model of one tree in the form of XGBoost 3.4.1, with a pruned node left in the arrays.
    fn json() -> String {
        let text = r#"{"learner":{"attributes":{},"feature_names":[],"gradient_booster":{"model":{
            "tree_info":[0,1],"trees":[
            {"default_left":[1,0,0,0],"left_children":[1,-1,-1,-1],"right_children":[3,-1,-1,-1],
             "split_conditions":[5.1E-1,1E0,9E9,3E0],"split_indices":[2,0,0,0],"split_type":[0,0,0,0],
             "tree_param":{"size_leaf_vector":"1"}},
            {"default_left":[0],"left_children":[-1],"right_children":[-1],"split_conditions":[-0E0],
             "split_indices":[0],"split_type":[0],"tree_param":{"size_leaf_vector":"1"}}]},"name":"gbtree"},
            "learner_model_param":{"base_score":"[1E1,2E1]","num_class":"0","num_feature":"COUNT"},
            "objective":{"name":"reg:quantileerror","quantile_loss_param":{"quantile_alpha":"[5E-1,9E-1]"}}}}"#;
        text.replace("COUNT", &COUNT.to_string())
    }

    fn refusal(from: &str, to: &str) -> String {
        let changed = json().replace(from, to);
        assert_ne!(changed, json(), "{from} is not in the text");
        convert(changed.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn outputs_get_their_trees_and_bases_and_pruned_nodes_are_dropped() {
        let converted = convert(json().as_bytes()).unwrap();
        assert_eq!(converted.alphas, [0.5, 0.9]);
        let [low, high] = converted.outputs.as_slice() else { panic!("two outputs") };
        assert_eq!((low.node_count(), high.node_count()), (4, 2));
        let mut row = [0.0; COUNT];
        assert_eq!((scalar::eval(low, &row), scalar::eval(high, &row)), (11.0, 20.0));
        row[2] = 0.51;
        assert_eq!(scalar::eval(low, &row), 13.0);
        row[2] = f32::NAN;
        assert_eq!(scalar::eval(low, &row), 11.0);
    }

    #[test]
    fn a_scalar_base_score_serves_every_output() {
        let converted = convert(json().replace("[1E1,2E1]", "5E-1").as_bytes()).unwrap();
        assert_eq!(scalar::eval(&converted.outputs[1], &[0.0; COUNT]), 0.5);
    }

    #[test]
    fn what_has_no_exact_form_is_refused_by_name() {
        assert!(refusal("\"gbtree\"", "\"dart\"").contains("dart"));
        assert!(refusal("\"tree_info\"", "\"weight_drop\":[1],\"tree_info\"").contains("DART"));
        assert!(refusal("reg:quantileerror", "reg:gamma").contains("reg:gamma"));
        assert!(refusal("\"split_type\":[0,0,0,0]", "\"split_type\":[1,0,0,0]").contains("categorical"));
        assert!(refusal("\"size_leaf_vector\":\"1\"", "\"size_leaf_vector\":\"2\"").contains("vector leaf"));
        assert!(
            refusal(&format!("\"num_feature\":\"{COUNT}\""), "\"num_feature\":\"3\"").contains("3 features")
        );
        assert!(refusal("\"feature_names\":[]", "\"feature_names\":[\"f0\"]").contains("feature names"));
        assert!(
            refusal("\"attributes\":{}", "\"attributes\":{\"best_iteration\":\"3\"}")
                .contains("best iteration")
        );
        assert!(refusal("[1E1,2E1]", "[1E1,2E1,3E1,4E1],").contains("is not a number"));
    }

    #[test]
    fn broken_trees_are_refused_and_never_loop() {
        assert!(
            refusal("\"left_children\":[1,-1,-1,-1]", "\"left_children\":[0,-1,-1,-1]").contains("tree 0")
        );
        assert!(
            refusal("\"right_children\":[3,-1,-1,-1]", "\"right_children\":[9,-1,-1,-1]").contains("child")
        );
        assert!(
            refusal("\"right_children\":[3,-1,-1,-1]", "\"right_children\":[3,-1,-1]").contains("lengths")
        );
        assert!(refusal("5.1E-1", "\"x\"").contains("split_conditions"));
        assert!(refusal("\"split_indices\":[2", "\"split_indices\":[77").contains("77"));
    }

    #[test]
    fn a_split_of_the_unknown_from_the_known_is_converted_exactly() {
        use foretoken_core::model::contract::{Target, Unit};
        let Some(xgboost) = crate::xgb::for_tests() else { return };
        let rows: Vec<f32> = (0..400 * COUNT as u16).map(|index| f32::from(index % 7)).collect();
        let labels: Vec<f32> = (0..400u16).map(|index| f32::from(index % 5)).collect();
        let matrix = xgboost.matrix(&rows, COUNT).unwrap();
        matrix.set_labels(&labels).unwrap();
        let booster = xgboost.booster(&matrix, [("nthread", "1"), ("max_depth", "1")]).unwrap();
        booster.update(0, &matrix).unwrap();
        // Which way XGBoost writes such a split depends on rounding, so it is written here.
        let mut json = String::from_utf8(booster.to_json().unwrap()).unwrap();
        for (key, value) in [("\"split_conditions\":[", "-Infinity"), ("\"default_left\":[", "1")] {
            let start = json.find(key).unwrap() + key.len();
            let end = start + json[start..].find(',').unwrap();
            json.replace_range(start..end, value);
        }
        let booster = xgboost.load_booster(json.as_bytes()).unwrap();
        assert!(String::from_utf8(booster.to_json().unwrap()).unwrap().contains("-Infinity"));
        let facts = crate::export::Facts { model_id: "m".to_owned(), ..Default::default() };
        let boosters = [(Target::Ttft, Unit::Ratio, &booster), (Target::Tpot, Unit::Ratio, &booster)];
        let (onnx, parts) = crate::export::export(&facts, &boosters).unwrap();
        crate::parity::prove(&onnx, &parts, &[]).unwrap();
    }

    #[test]
    fn only_a_number_is_taken_for_a_threshold() {
        let json = br#"{"a":[-Infinity,1,-Infinity],"b":"-Infinity"}"#;
        let expected = br#"{"a":[-3.4028235E38,1,-3.4028235E38],"b":"-Infinity"}"#;
        assert_eq!(finite_thresholds(json).as_ref(), expected);
        assert!(matches!(finite_thresholds(b"{}"), Cow::Borrowed(_)));
    }
}
