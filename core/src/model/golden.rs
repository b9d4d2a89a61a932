//! The golden cases of `models/golden`: outputs that XGBoost itself gave, to the last bit.
//!
//! The files are part of the test binary, so the same check runs natively and as wasm. How they are made and what
//! each is for is in `models/README.md`.

use super::contract::Output;
use super::{Model, Prediction};
use crate::features::{COLUMNS, COUNT, Row};

struct Case {
    name: &'static str,
    model: &'static [u8],
    rows: &'static str,
    expected: &'static str,
}

macro_rules! case {
    ($name:literal) => {
        Case {
            name: $name,
            model: include_bytes!(concat!("../../../models/golden/", $name, "/model.onnx")),
            rows: include_str!(concat!("../../../models/golden/", $name, "/rows.csv")),
            expected: include_str!(concat!("../../../models/golden/", $name, "/expected.csv")),
        }
    };
}

const CASES: [Case; 4] = [
    case!("quantiles-depth-6"),
    case!("squared-ms-depth-4"),
    case!("absolute-depth-14"),
    case!("lossguide-pruned"),
];

/// Header and values; an empty field is unknown.
fn table(text: &str) -> (Vec<&str>, Vec<Vec<f32>>) {
    let mut lines = text.lines();
    let header = lines.next().unwrap().split(',').collect();
    let value = |field: &str| if field.is_empty() { f32::NAN } else { field.parse().unwrap() };
    (header, lines.map(|line| line.split(',').map(value).collect()).collect())
}

fn check(reader: &str, read: fn(&[u8]) -> Result<Model, super::ModelError>) {
    for case in &CASES {
        let model = read(case.model).unwrap();
        let (columns, values) = table(case.rows);
        assert!(columns.iter().eq(COLUMNS.iter().map(|column| &column.name)), "{}", case.name);
        let rows: Vec<Row> =
            values.iter().map(|row| Row(<[f32; COUNT]>::try_from(row.as_slice()).unwrap())).collect();
        assert!(rows.len() >= 64 && rows.iter().any(|row| row.0.iter().any(|value| value.is_nan())));
        let (names, expected) = table(case.expected);
        let outputs: Vec<Output> = names.iter().map(|name| Output::from_name(name).unwrap()).collect();
        assert_eq!((outputs.as_slice(), expected.len()), (model.outputs(), rows.len()), "{}", case.name);
        let mut batch = Vec::new();
        model.evaluate(&rows, &mut batch);
        let mut alone: Vec<Prediction> = Vec::new();
        for (index, (row, expected)) in rows.iter().zip(&expected).enumerate() {
            model.evaluate(std::slice::from_ref(row), &mut alone);
            for (output, expected) in outputs.iter().zip(expected) {
                for (way, found) in [("in a batch", batch[index]), ("alone", alone[0])] {
                    let found = found.get(*output);
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{}, {reader}, row {index} {way}, {}: {found:e}, XGBoost gave {expected:e}",
                        case.name,
                        output.name()
                    );
                }
            }
        }
    }
}

#[test]
fn the_lean_reader_and_the_kernel_equal_xgboost_to_the_last_bit() {
    check("lean", Model::from_onnx_lean);
}

#[cfg(feature = "tract")]
#[test]
fn tract_with_our_operator_equals_xgboost_to_the_last_bit() {
    check("tract", Model::from_onnx_tract);
}
