//! The proof before every publish: XGBoost, the kernel, the plain walk and tract give the same bits.
//!
//! Where a model's prediction is `exp` of a sum, the sums are the same bits and the predictions differ by one unit in the
//! last place at most: C libraries round `exp` either way in about one case in a thousand, and each has its own.
//!
//! A conversion that is off by a rounding is a bug that nobody would find in production, and one that is off
//! by a missing direction looks like a slightly worse model. So nothing is published on trust: the ONNX bytes
//! are read back by both readers and compared with XGBoost's own prediction of the boosters they came from,
//! on the hold-out rows and on rows made to sit on every edge of these trees.

use foretoken_core::features::{COUNT, Row};
use foretoken_core::model::contract::Output;
use foretoken_core::model::ensemble::{Ensemble, Link, Node};
use foretoken_core::model::{Model, ModelError, Prediction, onnx, scalar};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use thiserror::Error;

use crate::export::Part;
use crate::xgb::{Booster, XgbError};

/// Edge rows that are added to the hold-out's.
pub const EDGE_ROWS: usize = 1024;

/// A model that must not be published.
#[derive(Debug, Error)]
pub enum ParityError {
    /// A reader refuses the file.
    #[error("{reader}: {cause}")]
    Reader {
        /// Which.
        reader: &'static str,
        /// Why.
        cause: ModelError,
    },
    /// XGBoost could not predict.
    #[error(transparent)]
    Xgb(#[from] XgbError),
    /// The bits differ.
    #[error(
        "{reader} gives {found:e} for output {output} of row {row}, XGBoost gives {expected:e}; {differing} of {values} values differ"
    )]
    Differs {
        /// Which reader.
        reader: &'static str,
        /// Output's name.
        output: &'static str,
        /// First differing row, as it was given.
        row: usize,
        /// What the reader gives.
        found: f32,
        /// What XGBoost gives.
        expected: f32,
        /// How many values differ.
        differing: usize,
        /// Of how many.
        values: usize,
    },
}

/// What was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct ParityReport {
    /// Rows.
    pub rows: usize,
    /// Values per reader.
    pub values: usize,
}

/// Compares all readers with XGBoost on `rows` and on edge rows made from the model's own thresholds.
///
/// # Errors
/// [`ParityError::Differs`] with the first differing value.
pub fn prove(onnx: &[u8], parts: &[Part<'_>], rows: &[Row]) -> Result<ParityReport, ParityError> {
    let (_, ensembles) =
        onnx::read(onnx).map_err(|cause| ParityError::Reader { reader: "lean reader", cause })?;
    let mut all = rows.to_vec();
    all.extend(edge_rows(ensembles.iter().map(|(_, ensemble)| ensemble), EDGE_ROWS, 1));
    let links: Vec<Link> = ensembles.iter().map(|(_, ensemble)| ensemble.link()).collect();
    let expected = expected(parts, &all)?;
    let outputs: Vec<Output> = parts.iter().flat_map(|part| part.outputs.iter().copied()).collect();

    if links.contains(&Link::Exp) {
        // Sums first, and to the last bit: `exp` would hide a difference in them.
        let sums = margins(parts, &all)?;
        let walked = walked(&ensembles, &all, scalar::sum);
        compare("plain walk (sums)", &outputs, &vec![Link::Identity; links.len()], &walked, &sums)?;
    }
    let mut plain = walked(&ensembles, &all, scalar::eval);
    plain.iter_mut().for_each(Prediction::sort);
    compare("plain walk", &outputs, &links, &plain, &expected)?;
    let lean =
        Model::from_onnx_lean(onnx).map_err(|cause| ParityError::Reader { reader: "kernel", cause })?;
    let tract =
        Model::from_onnx_tract(onnx).map_err(|cause| ParityError::Reader { reader: "tract", cause })?;
    let mut found = Vec::new();
    for (reader, model) in [("kernel", &lean), ("tract", &tract)] {
        model.evaluate(&all, &mut found);
        compare(reader, &outputs, &links, &found, &expected)?;
    }
    // A single row takes another path through the kernel than a batch does.
    let mut alone = Vec::new();
    let mut one = Vec::new();
    for row in &all {
        lean.evaluate(std::slice::from_ref(row), &mut one);
        alone.append(&mut one);
    }
    compare("kernel, row by row", &outputs, &links, &alone, &expected)?;
    Ok(ParityReport { rows: all.len(), values: all.len() * outputs.len() })
}

/// XGBoost's own predictions, quantiles sorted, in the form that a model evaluates to.
///
/// # Errors
/// [`XgbError`] when a booster does not fit its outputs.
pub fn expected(parts: &[Part<'_>], rows: &[Row]) -> Result<Vec<Prediction>, XgbError> {
    let mut expected = asked(parts, rows, Booster::predict)?;
    expected.iter_mut().for_each(Prediction::sort);
    Ok(expected)
}

fn margins(parts: &[Part<'_>], rows: &[Row]) -> Result<Vec<Prediction>, XgbError> {
    asked(parts, rows, Booster::margins)
}

fn asked(
    parts: &[Part<'_>],
    rows: &[Row],
    ask: impl Fn(&Booster, &[f32], usize) -> Result<Vec<Vec<f32>>, XgbError>,
) -> Result<Vec<Prediction>, XgbError> {
    let mut answers = vec![Prediction::UNKNOWN; rows.len()];
    for part in parts {
        let value = |row: &Row, column: &usize| row.0.get(*column).copied().unwrap_or(f32::NAN);
        let flat: Vec<f32> =
            rows.iter().flat_map(|row| part.columns.iter().map(move |column| value(row, column))).collect();
        let predicted = ask(part.booster, &flat, part.columns.len())?;
        for (slot, values) in answers.iter_mut().zip(&predicted) {
            for (output, place) in part.outputs.iter().zip(&part.places) {
                let value = values.get(*place).ok_or_else(|| {
                    XgbError::Argument(format!("{} outputs predicted, number {place} expected", values.len()))
                })?;
                slot.set(*output, *value);
            }
        }
    }
    Ok(answers)
}

fn walked(
    ensembles: &[(Output, Ensemble)],
    rows: &[Row],
    walk: impl Fn(&Ensemble, &[f32]) -> f32,
) -> Vec<Prediction> {
    let of_row = |row: &Row| {
        let mut prediction = Prediction::UNKNOWN;
        for (output, ensemble) in ensembles {
            prediction.set(*output, walk(ensemble, &row.0));
        }
        prediction
    };
    rows.iter().map(of_row).collect()
}

/// Whether two numbers are as near as they must be.
fn agree(found: f32, expected: f32, link: Link) -> bool {
    match link {
        Link::Identity => found.to_bits() == expected.to_bits(),
        // Predictions are positive here, so bits are in the order of the numbers.
        Link::Exp => found.to_bits().abs_diff(expected.to_bits()) <= 1,
    }
}

fn compare(
    reader: &'static str,
    outputs: &[Output],
    links: &[Link],
    found: &[Prediction],
    expected: &[Prediction],
) -> Result<(), ParityError> {
    let mut first = None;
    let mut differing = 0;
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (output, link) in outputs.iter().zip(links) {
            let (found, expected) = (found.get(*output), expected.get(*output));
            if !agree(found, expected, *link) {
                differing += 1;
                first.get_or_insert((output.name(), row, found, expected));
            }
        }
    }
    let values = expected.len() * outputs.len();
    match first {
        None if found.len() == expected.len() => Ok(()),
        None => Err(ParityError::Reader {
            reader,
            cause: ModelError::Contract(format!("{} rows of {} predicted", found.len(), expected.len())),
        }),
        Some((output, row, found, expected)) => {
            Err(ParityError::Differs { reader, output, row, found, expected, differing, values })
        }
    }
}

/// Rows on the edges of these trees: thresholds exactly and one step beside them, unknown, zero of both signs,
/// the largest, the smallest and denormal numbers.
pub fn edge_rows<'a>(ensembles: impl Iterator<Item = &'a Ensemble>, count: usize, seed: u64) -> Vec<Row> {
    let mut thresholds: Vec<Vec<f32>> = vec![Vec::new(); COUNT];
    for ensemble in ensembles {
        for (tree, _) in ensemble.trees() {
            for node in tree {
                if let Node::Branch { feature, threshold, .. } = *node
                    && let Some(list) = thresholds.get_mut(feature as usize)
                {
                    list.push(threshold);
                }
            }
        }
    }
    let specials = [
        0.0,
        -0.0,
        1.0,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        -f32::from_bits(1),
        1e-3,
        1e6,
    ];
    let mut random = StdRng::seed_from_u64(seed);
    let mut value = |thresholds: &[f32]| match (random.random_range(0..10), thresholds.choose(&mut random)) {
        (0 | 1, _) => f32::NAN,
        (2, _) | (_, None) => specials.choose(&mut random).copied().unwrap_or(0.0),
        (3 | 4, Some(threshold)) => threshold.next_up(),
        (5 | 6, Some(threshold)) => threshold.next_down(),
        (_, Some(threshold)) => *threshold,
    };
    (0..count)
        .map(|_| {
            let mut row = Row::default();
            for (slot, thresholds) in row.0.iter_mut().zip(&thresholds) {
                // No row holds an infinity: it is stored as unknown.
                *slot = Some(value(thresholds)).filter(|value| value.is_finite()).unwrap_or(f32::NAN);
            }
            row
        })
        .collect()
}
