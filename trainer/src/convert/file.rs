//! The parts of XGBoost's model file that the conversion reads, in the form that [`crate::xgb::VERSION`] writes.
//!
//! Numbers of trees are kept as text, to be parsed straight to float32. What is not named here either says how the
//! model was trained or is refused by a check on what is. What it is not: a check.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(borrow)]
    pub(super) learner: Learner<'a>,
}

#[derive(Deserialize)]
pub(super) struct Learner<'a> {
    #[serde(default)]
    pub(super) feature_names: Vec<String>,
    #[serde(default)]
    pub(super) attributes: serde_json::Map<String, serde_json::Value>,
    #[serde(borrow)]
    pub(super) gradient_booster: Option<GradientBooster<'a>>,
    pub(super) learner_model_param: LearnerParam,
    pub(super) objective: Objective,
}

#[derive(Deserialize)]
pub(super) struct LearnerParam {
    pub(super) base_score: String,
    pub(super) num_feature: String,
    #[serde(default)]
    pub(super) num_class: String,
    #[serde(default)]
    pub(super) num_target: String,
}

#[derive(Deserialize)]
pub(super) struct Objective {
    pub(super) name: String,
    pub(super) quantile_loss_param: Option<QuantileParam>,
}

#[derive(Deserialize)]
pub(super) struct QuantileParam {
    pub(super) quantile_alpha: String,
}

#[derive(Deserialize)]
pub(super) struct GradientBooster<'a> {
    pub(super) name: String,
    #[serde(borrow)]
    pub(super) model: Option<Model<'a>>,
}

/// Trees, or the weights of a linear booster, which are not read.
#[derive(Deserialize)]
pub(super) struct Model<'a> {
    /// Output of each tree; all 0 when leaves are vectors.
    #[serde(default)]
    pub(super) tree_info: Vec<usize>,
    #[serde(borrow, default)]
    pub(super) trees: Vec<Tree<'a>>,
    /// Where each round's trees begin, and the end.
    #[serde(default)]
    pub(super) iteration_indptr: Vec<usize>,
    /// What each tree of a DART booster is multiplied by.
    #[serde(borrow, default)]
    pub(super) weight_drop: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    pub(super) cats: Categories,
}

/// Categories that the training data named.
#[derive(Default, Deserialize)]
pub(super) struct Categories {
    /// One a feature; empty for those that are numbers.
    #[serde(default)]
    pub(super) enc: Vec<Encoding>,
}

#[derive(Deserialize)]
pub(super) struct Encoding {
    /// Only there when the names are texts.
    pub(super) offsets: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub(super) values: Vec<serde_json::Number>,
}

#[derive(Deserialize)]
pub(super) struct Tree<'a> {
    pub(super) default_left: Vec<u8>,
    pub(super) left_children: Vec<i64>,
    /// Of a leaf that is a vector: its place in `leaf_weights`.
    pub(super) right_children: Vec<i64>,
    /// Thresholds of branches and values of leaves.
    #[serde(borrow)]
    pub(super) split_conditions: Vec<&'a RawValue>,
    pub(super) split_indices: Vec<u32>,
    /// 1 where a split is by category.
    #[serde(default)]
    pub(super) split_type: Vec<u8>,
    /// Categories that go right, of all such splits one after another.
    #[serde(default)]
    pub(super) categories: Vec<i64>,
    /// Nodes of such splits.
    #[serde(default)]
    pub(super) categories_nodes: Vec<usize>,
    /// Where each one's categories begin.
    #[serde(default)]
    pub(super) categories_segments: Vec<usize>,
    /// How many it has.
    #[serde(default)]
    pub(super) categories_sizes: Vec<usize>,
    /// Leaves that are vectors, one after another.
    #[serde(borrow, default)]
    pub(super) leaf_weights: Vec<&'a RawValue>,
    pub(super) tree_param: TreeParam,
}

#[derive(Deserialize)]
pub(super) struct TreeParam {
    #[serde(default)]
    pub(super) size_leaf_vector: String,
}

/// XGBoost writes numbers that JSON has not: a split of the unknown from the known has the threshold `-Infinity`, and
/// older versions give `NaN` for the threshold of a split by category. The smallest float does the same as the first for
/// every row that there is: rows hold no infinities, and nothing is below it. The second becomes `null`, which is
/// ignored where it means nothing and refused where a number is read.
#[must_use]
pub fn finite_thresholds(json: &[u8]) -> Cow<'_, [u8]> {
    const CHANGES: [(&[u8], &[u8]); 3] =
        [(b"-Infinity", b"-3.4028235E38"), (b"Infinity", b"1E39"), (b"NaN", b"null")];
    let mut out = Vec::new();
    let (mut from, mut at) = (0, 0);
    while let Some(found) = next_word(json, at) {
        let rest = json.get(found..).unwrap_or_default();
        let change = CHANGES.iter().find(|(word, _)| rest.starts_with(word));
        at = found + change.map_or(1, |(word, _)| word.len());
        let inside = |index: Option<usize>, of: &[u8]| {
            index.and_then(|index| json.get(index)).is_some_and(|byte| of.contains(byte))
        };
        if let Some((_, instead)) = change
            && inside(found.checked_sub(1), b"[,:")
            && inside(Some(at), b"],}")
        {
            out.extend_from_slice(json.get(from..found).unwrap_or_default());
            out.extend_from_slice(instead);
            from = at;
        }
    }
    if from == 0 {
        return Cow::Borrowed(json);
    }
    out.extend_from_slice(json.get(from..).unwrap_or_default());
    Cow::Owned(out)
}

/// Where a word of the above may begin, at or after `at`.
fn next_word(json: &[u8], at: usize) -> Option<usize> {
    let rest = json.get(at..)?;
    // A minus belongs to most numbers: only one before a letter counts.
    rest.iter()
        .enumerate()
        .position(|(place, byte)| match byte {
            b'-' => rest.get(place + 1) == Some(&b'I'),
            byte => matches!(byte, b'I' | b'N'),
        })
        .map(|place| at + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_is_taken_for_a_threshold() {
        let json = br#"{"a":[-Infinity,1,-Infinity],"b":"-Infinity","c":[NaN,Infinity],"NaN":NaN}"#;
        let expected = br#"{"a":[-3.4028235E38,1,-3.4028235E38],"b":"-Infinity","c":[null,1E39],"NaN":null}"#;
        assert_eq!(finite_thresholds(json).as_ref(), expected);
        assert!(matches!(finite_thresholds(b"{\"In\":-1}"), Cow::Borrowed(_)));
    }
}
