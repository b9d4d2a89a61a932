//! Model files of XGBoost 1.7, 2.1 and 3.4 are converted exactly, or refused by name.
//!
//! The files and what the XGBoost that wrote them predicts are in `other_xgboosts/`, made by the script there. Each is
//! loaded by the library in use, converted, proven (XGBoost in use, plain walk, kernel, tract), and then compared with
//! the predictions of the XGBoost that wrote it.

use std::path::PathBuf;

use foretoken_core::features::{COLUMNS, Row};
use foretoken_core::model::Model;
use foretoken_core::model::contract::{Output, Quantile, Target, Unit};
use foretoken_trainer::convert::Rounds;
use foretoken_trainer::export::{ExportError, Facts, Names, Source, export_sources};
use foretoken_trainer::parity;
use foretoken_trainer::xgb::{self, Xgboost};

const VERSIONS: [&str; 3] = ["1.7.6", "2.1.4", "3.4.1"];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/other_xgboosts")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// The committed rows; columns that the models do not read are 5.
fn rows() -> Vec<Row> {
    let text = text("rows.csv");
    let mut lines = text.lines();
    let column = |name| COLUMNS.iter().position(|column| column.name == name).unwrap();
    let places: Vec<usize> = lines.next().unwrap().split(',').map(column).collect();
    let row = |line: &str| {
        let mut row = Row([5.0; COLUMNS.len()]);
        for (place, field) in places.iter().zip(line.split(',')) {
            row.0[*place] = if field.is_empty() { f32::NAN } else { field.parse().unwrap() };
        }
        row
    };
    lines.map(row).collect()
}

/// File names and what the XGBoost that wrote them predicts for the rows.
fn cases() -> Vec<(String, Vec<f32>)> {
    let case = |line: &str| {
        let (name, numbers) = line.split_once(',').unwrap();
        (name.to_owned(), numbers.split(',').map(|number| number.parse().unwrap()).collect())
    };
    VERSIONS
        .iter()
        .flat_map(|version| text(&format!("{version}.csv")).lines().map(case).collect::<Vec<_>>())
        .collect()
}

/// The first output of a lone one is TTFT; two are TTFT and TPOT, or two quantiles of TTFT.
fn names(file: &str, outputs: usize) -> Vec<Option<Output>> {
    let output = |target, quantile| Some(Output { target, unit: Unit::Ms, quantile });
    let first = output(Target::Ttft, Quantile::P50);
    match outputs {
        1 => vec![first],
        _ if file.contains("quantiles") => vec![first, output(Target::Ttft, Quantile::P90)],
        _ => vec![first, output(Target::Tpot, Quantile::P50)],
    }
}

/// A model must have both targets: what a case lacks comes from this one.
const TPOT: &str = "1.7.6-squared.json";

fn model(xgboost: &Xgboost, file: &str, outputs: usize, rounds: Rounds) -> Result<Vec<u8>, ExportError> {
    let load = |file: &str| xgboost.load_booster(&std::fs::read(folder().join(file)).unwrap()).unwrap();
    let (booster, tpot) = (load(file), load(TPOT));
    let names = names(file, outputs);
    let has_tpot = names.iter().flatten().any(|output| output.target == Target::Tpot);
    let mut sources = vec![Source { booster: &booster, names: Names::Each(names), rounds }];
    if !has_tpot {
        sources.push(Source { booster: &tpot, names: Names::Quantiles(Target::Tpot, Unit::Ms), rounds });
    }
    let facts = Facts { model_id: "elsewhere".to_owned(), ..Facts::default() };
    let (onnx, parts) = export_sources(&facts, &sources)?;
    let report = parity::prove(&onnx, &parts, &rows()).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(report.rows > 1000);
    Ok(onnx)
}

#[test]
fn what_another_xgboost_predicts_is_what_the_converted_model_predicts() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let rows = rows();
    let mut converted = 0;
    for (file, mut expected) in cases() {
        if ["linear", "logistic", "2.1.4-vector"].iter().any(|refused| file.contains(refused)) {
            continue;
        }
        let outputs = expected.len() / rows.len();
        let onnx =
            model(&xgboost, &file, outputs, Rounds::All).unwrap_or_else(|error| panic!("{file}: {error}"));
        if file.contains("quantiles") {
            // Before 3.4 XGBoost leaves quantiles that cross as they are.
            expected.chunks_mut(2).for_each(|pair| pair.sort_by(f32::total_cmp));
        }
        let model = Model::from_onnx_lean(&onnx).unwrap();
        let mut found = Vec::new();
        model.evaluate(&rows, &mut found);
        let through_exp = ["gamma", "tweedie", "poisson"].iter().any(|name| file.contains(name));
        for (row, (found, expected)) in found.iter().zip(expected.chunks(outputs)).enumerate() {
            for (output, expected) in names(&file, outputs).into_iter().flatten().zip(expected) {
                let found = found.get(output);
                let apart = found.to_bits().abs_diff(expected.to_bits());
                assert!(apart <= u32::from(through_exp), "{file}, row {row}: {found} {expected}");
            }
        }
        converted += 1;
    }
    assert_eq!(converted, 23);
}

#[test]
fn what_has_no_exact_form_is_refused_by_name() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let refusal = |file, rounds| model(&xgboost, file, 1, rounds).unwrap_err().to_string();
    let message = refusal("1.7.6-linear.json", Rounds::Undoubted);
    assert!(message.contains("gblinear") && message.contains("booster=gbtree"), "{message}");
    let message = refusal("1.7.6-logistic.json", Rounds::Undoubted);
    assert!(message.contains("reg:logistic") && message.contains("reg:squarederror"), "{message}");
    let message = refusal("3.4.1-stopped-late.json", Rounds::Undoubted);
    assert!(message.contains("5 rounds") && message.contains("--rounds best"), "{message}");
}

#[test]
fn vector_leaves_that_the_library_in_use_misreads_never_reach_it() {
    let Some(xgboost) = xgb::for_tests() else { return };
    for file in ["2.1.4-vector-leaf.json", "2.1.4-vector-leaf-ubj.ubj"] {
        let error =
            xgboost.load_booster(&std::fs::read(folder().join(file)).unwrap()).unwrap_err().to_string();
        assert!(error.contains("multi_output_tree") && error.contains("fit it again"), "{file}: {error}");
    }
}

#[test]
fn names_must_fit_the_outputs_of_the_booster() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let load = |file: &str| xgboost.load_booster(&std::fs::read(folder().join(file)).unwrap()).unwrap();
    let (both, quantiles) = (load("1.7.6-two-targets.json"), load("2.1.4-quantiles.json"));
    let facts = Facts { model_id: "elsewhere".to_owned(), ..Facts::default() };
    let refusal = |booster, names: &[&str]| {
        let names = names.iter().map(|name| Output::from_name(name)).collect();
        let source = Source { booster, names: Names::Each(names), rounds: Rounds::Undoubted };
        export_sources(&facts, &[source]).unwrap_err().to_string()
    };
    assert!(refusal(&both, &["ttft_ms_p50"]).contains("has 2 outputs, 1 are named"));
    assert!(refusal(&both, &["ttft_ms_p50", "-"]).contains("TPOT"));
    for wrong in [["ttft_ms_p90", "ttft_ms_p50"], ["ttft_ms_p50", "tpot_ms_p90"], ["ttft_ms_p50", "-"]] {
        let message = refusal(&quantiles, &wrong);
        assert!(message.contains("p50 and the p90 of one target"), "{message}");
    }
}
