//! XGBoost model JSON to tree ensembles, one per output.
//!
//! Only what is exact is converted: sums of trees (also DART's weighted ones, vector leaves and splits by category),
//! alone or through `exp`. Everything else is refused by name, because a converter that skips what it does not know is
//! silently wrong (DART without its weights: by up to 350 %). Numbers are parsed from the JSON text straight to float32,
//! as XGBoost itself reads them; the way through a double can round twice.
//!
//! The form is that of the one XGBoost version accepted ([`crate::xgb::VERSION`]); a file of another version
//! is loaded and saved by it first. What it is not: a proof. That is [`crate::parity`].

mod file;
mod nodes;

use foretoken_core::features::{COLUMNS, COUNT};
use foretoken_core::model::contract::feature_names;
use foretoken_core::model::ensemble::{Ensemble, EnsembleError, Link};
use thiserror::Error;

use self::file::{File, GradientBooster, Learner, Model};
use self::nodes::{Leaves, nodes};

pub use self::file::finite_thresholds;

/// Objectives whose prediction is the sum itself.
const IDENTITY: [&str; 7] = [
    "reg:squarederror",
    "reg:linear",
    "reg:squaredlogerror",
    "reg:absoluteerror",
    "reg:pseudohubererror",
    "reg:quantileerror",
    "reg:expectileerror",
];

/// Objectives whose prediction is `exp` of the sum.
const EXP: [&str; 4] = ["reg:gamma", "reg:tweedie", "count:poisson", "survival:aft"];

/// Most outputs of a booster: what the model contract has names for, twice.
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

/// Which rounds of a booster that remembers its best one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rounds {
    /// The file must leave no doubt: no round after the best one.
    #[default]
    Undoubted,
    /// All that are there, whatever the best one is.
    All,
}

/// A booster's outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Converted {
    /// The predictions, base first, in the order of the outputs.
    pub outputs: Vec<Ensemble>,
    /// Quantiles of the outputs when the objective says them.
    pub alphas: Vec<f32>,
    /// Column of the row for each feature of the booster.
    pub columns: Vec<usize>,
}

fn unsupported<T>(what: impl Into<String>, fix: &'static str) -> Result<T, ConvertError> {
    Err(ConvertError::Unsupported { what: what.into(), fix })
}

/// Converts the JSON that [`crate::xgb::Booster::to_json`] gives.
///
/// # Errors
/// [`ConvertError`] names what is not supported.
pub fn convert(json: &[u8], rounds: Rounds) -> Result<Converted, ConvertError> {
    let json = finite_thresholds(json);
    let File { learner } = serde_json::from_slice(&json).map_err(ConvertError::Json)?;
    let link = link(&learner)?;
    let columns = columns(&learner)?;
    let model = trees(&learner)?;
    check_categories(model, &columns)?;
    if rounds == Rounds::Undoubted {
        check_best_iteration(&learner, model)?;
    }
    let mut outputs = bases(&learner, model, link)?;
    let count = outputs.len();
    if model.tree_info.len() != model.trees.len() {
        return Err(ConvertError::Tree { tree: model.trees.len(), reason: "tree_info has another length" });
    }
    let column = |feature: u32| {
        let column = usize::try_from(feature).ok().and_then(|feature| columns.get(feature));
        column.and_then(|&column| u32::try_from(column).ok())
    };
    for (index, (tree, &of)) in model.trees.iter().zip(&model.tree_info).enumerate() {
        let weight = weight_of(model, index)?;
        let size = leaf_size(&tree.tree_param.size_leaf_vector)?;
        if size != 1 && size != count {
            return Err(ConvertError::Tree {
                tree: index,
                reason: "its leaves have another number of values",
            });
        }
        for (output, ensemble) in outputs.iter_mut().enumerate() {
            if size > 1 || output == of {
                ensemble.push(&nodes(index, tree, &column, &Leaves { output, size, weight })?)?;
            }
        }
    }
    let alphas = match &learner.objective.quantile_loss_param {
        Some(parameter) => number_list("quantile_alpha", &parameter.quantile_alpha)?,
        None => Vec::new(),
    };
    Ok(Converted { outputs, alphas, columns })
}

fn link(learner: &Learner<'_>) -> Result<Link, ConvertError> {
    let objective = learner.objective.name.as_str();
    if !matches!(learner.learner_model_param.num_class.as_str(), "" | "0") {
        return unsupported("a classifier", "fit a regression");
    }
    match objective {
        _ if IDENTITY.contains(&objective) => Ok(Link::Identity),
        _ if EXP.contains(&objective) => Ok(Link::Exp),
        "reg:logistic" | "binary:logistic" | "binary:logitraw" | "binary:hinge" => unsupported(
            format!("objective {objective:?}"),
            "its prediction is a probability or a class and no time; use reg:squarederror, reg:quantileerror or reg:gamma",
        ),
        "survival:cox" => unsupported(
            format!("objective {objective:?}"),
            "its prediction is a hazard ratio and no time; use survival:aft or reg:gamma",
        ),
        _ if objective.starts_with("rank:") => unsupported(
            format!("objective {objective:?}"),
            "its prediction is a rank and no time; use reg:squarederror or reg:quantileerror",
        ),
        _ => unsupported(
            format!("objective {objective:?}"),
            "how its prediction follows from the trees is not known here; use reg:quantileerror, reg:squarederror or reg:gamma",
        ),
    }
}

/// By name where the model has names, else all columns in order.
fn columns(learner: &Learner<'_>) -> Result<Vec<usize>, ConvertError> {
    let (names, features) = (&learner.feature_names, learner.learner_model_param.num_feature.as_str());
    if names.is_empty() {
        if features != COUNT.to_string() {
            return unsupported(
                format!("a model of {features} features without names"),
                "name them (feature_names) as columns of the feature schema, or fit it on all columns, in order",
            );
        }
        return Ok((0..COUNT).collect());
    }
    let mut columns = Vec::with_capacity(names.len());
    for name in names {
        match COLUMNS.iter().position(|column| column.name == name) {
            Some(column) if !columns.contains(&column) => columns.push(column),
            Some(_) => {
                return unsupported(format!("a model with two features {name:?}"), "name each feature once");
            }
            None => {
                return unsupported(
                    format!("a model with the feature {name:?}, which is none of {}", feature_names()),
                    "fit it on columns of the feature schema, by their names",
                );
            }
        }
    }
    if features != names.len().to_string() {
        return unsupported(
            format!("a model of {features} features with {} names", names.len()),
            "name each feature",
        );
    }
    Ok(columns)
}

fn trees<'a, 'b>(learner: &'b Learner<'a>) -> Result<&'b Model<'a>, ConvertError> {
    match &learner.gradient_booster {
        Some(GradientBooster { name, model: Some(model) }) if name == "gbtree" => Ok(model),
        Some(GradientBooster { name, .. }) if name == "gblinear" => unsupported(
            "booster \"gblinear\"",
            "a weighted sum of columns is no sum of trees; fit with booster=gbtree",
        ),
        Some(GradientBooster { name, .. }) => {
            unsupported(format!("booster {name:?}"), "fit with booster=gbtree or booster=dart")
        }
        None => unsupported("a model without a booster", "fit at least one round"),
    }
}

/// A category is its number. Where the training data named them otherwise, XGBoost would need the names with each row,
/// and rows are numbers.
fn check_categories(model: &Model<'_>, columns: &[usize]) -> Result<(), ConvertError> {
    for (encoding, column) in model.cats.enc.iter().zip(columns) {
        let are_numbers = (0_u64..).zip(&encoding.values).all(|(code, value)| value.as_u64() == Some(code));
        if !encoding.values.is_empty() && (encoding.offsets.is_some() || !are_numbers) {
            let name = COLUMNS.get(*column).map_or("", |column| column.name);
            return unsupported(
                format!("named categories of {name:?}"),
                "give XGBoost the column's own whole numbers as categories (feature_types \"c\"), or the column as a number",
            );
        }
    }
    Ok(())
}

fn check_best_iteration(learner: &Learner<'_>, model: &Model<'_>) -> Result<(), ConvertError> {
    let Some(best) = best_iteration(learner)? else { return Ok(()) };
    // A form without round bounds: each tree may be a round.
    let rounds = match model.iteration_indptr.len() {
        0 => model.trees.len(),
        bounds => bounds - 1,
    };
    if best.saturating_add(1) < rounds {
        return unsupported(
            format!("a model of {rounds} rounds that remembers round {best}, counted from 0, as its best"),
            "say which are meant: --rounds best (what scikit-learn's predict uses) or --rounds all (what Booster.predict uses)",
        );
    }
    Ok(())
}

fn best_iteration(learner: &Learner<'_>) -> Result<Option<usize>, ConvertError> {
    match learner.attributes.get("best_iteration") {
        None => Ok(None),
        Some(value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.parse().map(Some).map_err(|_| ConvertError::Number { field: "best_iteration", text })
        }
    }
}

/// The round that early stopping found best, counted from 0, when the model remembers one.
///
/// # Errors
/// [`ConvertError`] when this is not XGBoost's JSON.
pub fn best_round(json: &[u8]) -> Result<Option<usize>, ConvertError> {
    let json = finite_thresholds(json);
    let File { learner } = serde_json::from_slice(&json).map_err(ConvertError::Json)?;
    best_iteration(&learner)
}

/// One ensemble an output, with its base: XGBoost's sum starts with it, so it is the first tree.
fn bases(learner: &Learner<'_>, model: &Model<'_>, link: Link) -> Result<Vec<Ensemble>, ConvertError> {
    let parameter = &learner.learner_model_param;
    let bases = number_list("base_score", &parameter.base_score)?;
    let targets = parameter.num_target.parse().unwrap_or(1);
    let of_trees = model.tree_info.iter().map(|output| output.saturating_add(1)).max().unwrap_or(0);
    let count = of_trees.max(bases.len()).max(targets);
    if count > MAX_OUTPUTS {
        return unsupported(format!("{count} outputs"), "a model has two quantiles of two targets at most");
    }
    if bases.len() != 1 && bases.len() != count {
        return unsupported(format!("{} base scores for {count} outputs", bases.len()), "fit it again");
    }
    let mut outputs = Vec::with_capacity(count);
    for output in 0..count {
        let base = bases.get(output).or(bases.first()).copied().unwrap_or(0.0);
        let base = match link {
            Link::Identity => base,
            // The file has the base as a prediction; the same C function as XGBoost's own.
            Link::Exp if base > 0.0 => base.ln(),
            Link::Exp => {
                return unsupported(
                    format!("a base score of {base} with objective {:?}", learner.objective.name),
                    "fit with a positive base_score",
                );
            }
        };
        let mut ensemble = Ensemble::new(COUNT).with_link(link);
        ensemble.push_constant(base)?;
        outputs.push(ensemble);
    }
    Ok(outputs)
}

fn weight_of(model: &Model<'_>, tree: usize) -> Result<Option<f32>, ConvertError> {
    match &model.weight_drop {
        // An empty list is what a booster without dropout writes.
        None => Ok(None),
        Some(weights) if weights.is_empty() => Ok(None),
        Some(weights) => match weights.get(tree) {
            Some(weight) => parse("weight_drop", weight.get()).map(Some),
            None => Err(ConvertError::Tree { tree, reason: "weight_drop has no weight of it" }),
        },
    }
}

fn leaf_size(text: &str) -> Result<usize, ConvertError> {
    match text {
        "" | "0" => Ok(1),
        size => size
            .parse()
            .map_err(|_| ConvertError::Number { field: "size_leaf_vector", text: size.to_owned() }),
    }
}

/// `"5E-1"` or `"[5E-1,9E-1]"`.
fn number_list(field: &'static str, text: &str) -> Result<Vec<f32>, ConvertError> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    inner.split(',').map(|number| parse(field, number)).collect()
}

fn parse(field: &'static str, text: &str) -> Result<f32, ConvertError> {
    text.trim().parse().map_err(|_| ConvertError::Number { field, text: text.chars().take(40).collect() })
}

#[cfg(test)]
mod tests;
