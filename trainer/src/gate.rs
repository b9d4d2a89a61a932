//! The gate: whether a fitted model may replace what serves now.
//!
//! The candidate, the analytic prior and the live model predict the same newest requests, which neither model
//! has learned from. The candidate is refused when it is worse than either by more than a tolerance and by
//! more than chance explains (paired differences, three standard errors): on a small hold-out two equal models
//! differ by several per cent, and a gate that refuses by coin toss keeps a fleet from learning.
//!
//! What it is not yet: split by load and cache hits, and no rollback of what is already live.

use foretoken_core::features::Row;
use foretoken_core::model::contract::{Quantile, Target};
use foretoken_core::model::{Model, Prediction};
use serde::Serialize;

use crate::dataset::Example;
use crate::export::target_name;
use crate::score::{Score, losses, prior_predictions, score};

/// How much worse a candidate may be, as a share of the other's loss.
const TOLERANCE: f64 = 0.05;

/// How many standard errors of the paired difference are chance.
const CHANCE: f64 = 3.0;

/// Fewest requests that judge anything.
pub const MIN_JUDGED: usize = 20;

/// What the gate found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Why the candidate is refused, one line each; empty when it may be published.
    pub refused: Vec<String>,
    /// Scores of the candidate.
    pub candidate: Score,
    /// Scores of the prior.
    pub prior: Score,
    /// Scores of the live model, when there is one.
    pub live: Option<Score>,
}

impl Verdict {
    /// Whether the candidate may be published.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.refused.is_empty()
    }
}

/// Judges a candidate on examples that it has not learned from.
#[must_use]
pub fn judge(candidate: &Model, live: Option<&Model>, examples: &[Example]) -> Verdict {
    let rows: Vec<Row> = examples.iter().map(|example| example.row).collect();
    let predict = |model: &Model| {
        let mut out = Vec::new();
        model.predict(&rows, &mut out);
        out
    };
    let ours = predict(candidate);
    let prior = prior_predictions(examples);
    let live = live.map(predict);

    let mut refused = Vec::new();
    for target in [Target::Ttft, Target::Tpot] {
        // The prior has no 90th percentile, so it is compared on the median alone.
        refused.extend(worse("the prior", target, examples, &ours, &prior, &[Quantile::P50]));
        if let Some(live) = &live {
            refused.extend(worse(
                "the live model",
                target,
                examples,
                &ours,
                live,
                &[Quantile::P50, Quantile::P90],
            ));
        }
    }
    Verdict {
        refused,
        candidate: score(examples, &ours),
        prior: score(examples, &prior),
        live: live.map(|live| score(examples, &live)),
    }
}

/// A line when `ours` is worse than `theirs` by more than tolerance and chance.
fn worse(
    than: &str,
    target: Target,
    examples: &[Example],
    ours: &[Prediction],
    theirs: &[Prediction],
    quantiles: &[Quantile],
) -> Option<String> {
    let sum = |predictions: &[Prediction]| {
        let mut sums = vec![0.0; examples.len()];
        for &quantile in quantiles {
            for (sum, loss) in sums.iter_mut().zip(losses(examples, predictions, target, quantile)) {
                *sum += loss.unwrap_or(f64::NAN);
            }
        }
        sums
    };
    // Examples without this target are NaN on both sides and drop out.
    let pairs: Vec<(f64, f64)> =
        sum(ours).into_iter().zip(sum(theirs)).filter(|(_, theirs)| !theirs.is_nan()).collect();
    let n = pairs.len() as f64;
    if pairs.len() < MIN_JUDGED {
        return None;
    }
    let mean = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).sum::<f64>() / n;
    let (our_loss, their_loss) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let difference = our_loss - their_loss;
    let variance =
        pairs.iter().map(|(ours, theirs)| (ours - theirs - difference).powi(2)).sum::<f64>() / (n - 1.0);
    let chance = CHANCE * (variance / n).sqrt();
    // Written so that a loss that is not a number is refused.
    let fine = difference <= TOLERANCE * their_loss || difference <= chance;
    (!fine).then(|| {
        format!(
            "{}: loss {our_loss:.4} against {their_loss:.4} of {than} on {} requests",
            target_name(target),
            pairs.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::example;
    use crate::synthetic;
    use foretoken_core::features::COUNT;
    use foretoken_core::model::contract::{Output, Unit};
    use foretoken_core::model::ensemble::Ensemble;
    use foretoken_core::model::onnx::write;

    /// A model that answers these ratios for every row.
    fn constant(ttft: f32, tpot: f32) -> Model {
        let facts = crate::export::Facts { model_id: "constant".to_owned(), ..Default::default() };
        let ensemble = |value| {
            let mut ensemble = Ensemble::new(COUNT);
            ensemble.push_constant(value).unwrap();
            ensemble
        };
        let (ttft, tpot) = (ensemble(ttft), ensemble(tpot));
        let outputs: Vec<(Output, &Ensemble)> = Output::ALL
            .into_iter()
            .filter(|output| output.unit == Unit::Ratio)
            .map(|output| (output, if output.target == Target::Ttft { &ttft } else { &tpot }))
            .collect();
        Model::from_onnx_lean(&write::write(&facts.metadata(), &outputs)).unwrap()
    }

    fn examples(count: usize) -> Vec<Example> {
        synthetic::samples(9, count).iter().filter_map(example).collect()
    }

    #[test]
    fn a_better_model_passes_and_a_worse_one_is_refused_with_target_and_figures() {
        let examples = examples(400);
        // The law's ratios lie around 1.6 and 1.3.
        let (good, bad) = (constant(1.6, 1.3), constant(4.0, 1.3));
        assert!(judge(&good, None, &examples).passed());
        let verdict = judge(&bad, None, &examples);
        assert_eq!(verdict.refused.len(), 1, "{:?}", verdict.refused);
        assert!(verdict.refused[0].contains("ttft") && verdict.refused[0].contains("prior"));
        assert!(judge(&good, Some(&bad), &examples).passed());
        let verdict = judge(&constant(1.0, 1.0), Some(&good), &examples);
        assert_eq!(verdict.refused.len(), 2, "{:?}", verdict.refused);
        assert!(verdict.refused.iter().all(|line| line.contains("live model")));
        assert!(verdict.live.unwrap().ttft.unwrap().n > 300);
    }

    #[test]
    fn what_chance_explains_is_not_refused() {
        let examples = examples(40);
        let verdict = judge(&constant(1.7, 1.32), Some(&constant(1.6, 1.3)), &examples);
        assert!(verdict.passed(), "{:?}", verdict.refused);
    }
}
