//! `golden` (hidden): small models with rows and the outputs that XGBoost itself gave for them.
//!
//! core's readers are tested against these files without XGBoost at hand, so that a change of the kernel that
//! moves one bit shows on any machine and in any build. What each case is for stands beside it. Made by
//! `foretoken-trainer golden`; what is compared is committed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use foretoken_core::features::{COLUMNS, COUNT, Row};
use foretoken_core::model::contract::{Output, Target, Unit};
use foretoken_core::model::onnx;

use foretoken_trainer::dataset::{Example, example};
use foretoken_trainer::export::{Facts, export};
use foretoken_trainer::parity;
use foretoken_trainer::synthetic;
use foretoken_trainer::xgb::Xgboost;

use super::Library;

/// Rewrite the golden parity cases.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Golden {
    /// Folder of the cases.
    #[arg(default_value = "models/golden")]
    dir: PathBuf,
    #[command(flatten)]
    library: Library,
}

impl Golden {
    pub(super) fn run(self) -> Result<()> {
        write(&self.library.load()?, &self.dir)
    }
}

/// Rows of a case that come from the samples; as many again sit on the trees' edges.
const ROWS: usize = 32;

/// One case.
struct Case {
    name: &'static str,
    unit: Unit,
    rounds: u16,
    parameters: &'static [(&'static str, &'static str)],
}

const CASES: &[Case] = &[
    // What the trainer publishes: two quantiles in one booster, their trees interleaved, crossings sorted.
    Case {
        name: "quantiles-depth-6",
        unit: Unit::Ratio,
        rounds: 8,
        parameters: &[
            ("objective", "reg:quantileerror"),
            ("quantile_alpha", "[0.5,0.9]"),
            ("tree_method", "hist"),
            ("max_depth", "6"),
            ("eta", "0.3"),
        ],
    },
    // One output per target in milliseconds, and sums over three orders of magnitude.
    Case {
        name: "squared-ms-depth-4",
        unit: Unit::Ms,
        rounds: 20,
        parameters: &[("objective", "reg:squarederror"), ("tree_method", "hist"), ("max_depth", "4")],
    },
    // Deeper than the flat layout takes: the walk node by node.
    Case {
        name: "absolute-depth-14",
        unit: Unit::Ratio,
        rounds: 3,
        parameters: &[
            ("objective", "reg:absoluteerror"),
            ("tree_method", "exact"),
            ("max_depth", "14"),
            ("min_child_weight", "0"),
        ],
    },
    // Trees of very different depth in one ensemble, and pruned nodes.
    Case {
        name: "lossguide-pruned",
        unit: Unit::Ratio,
        rounds: 12,
        parameters: &[
            ("objective", "reg:pseudohubererror"),
            ("tree_method", "hist"),
            ("grow_policy", "lossguide"),
            ("max_leaves", "24"),
            ("max_depth", "9"),
            ("gamma", "0.05"),
        ],
    },
];

/// Writes all cases into a directory, one folder each.
fn write(xgboost: &Xgboost, dir: &Path) -> Result<()> {
    let examples: Vec<Example> = synthetic::samples(11, 1500).iter().filter_map(example).collect();
    for case in CASES {
        write_case(xgboost, &examples, case, &dir.join(case.name)).with_context(|| case.name.to_owned())?;
    }
    Ok(())
}

fn write_case(xgboost: &Xgboost, examples: &[Example], case: &Case, dir: &Path) -> Result<()> {
    let mut boosters = Vec::new();
    for target in [Target::Ttft, Target::Tpot] {
        let (mut rows, mut labels) = (Vec::new(), Vec::new());
        for example in examples {
            let outcome = if target == Target::Ttft { example.ttft } else { example.tpot };
            if let Some(outcome) = outcome {
                rows.extend_from_slice(&example.row.0);
                labels.push(if case.unit == Unit::Ms { outcome.actual_ms } else { outcome.ratio() });
            }
        }
        let matrix = xgboost.matrix(&rows, COUNT)?;
        matrix.set_labels(&labels)?;
        let fixed = [("nthread", "1"), ("seed", "1")];
        let booster = xgboost.booster(&matrix, fixed.iter().chain(case.parameters).copied())?;
        for round in 0..case.rounds {
            booster.update(round, &matrix)?;
        }
        boosters.push((target, booster));
    }
    let facts = Facts { model_id: format!("golden-{}", case.name), ..Facts::default() };
    let parts: Vec<_> = boosters.iter().map(|(target, booster)| (*target, case.unit, booster)).collect();
    let (bytes, parts) = export(&facts, &parts)?;
    parity::prove(&bytes, &parts, &[])?;

    let (_, ensembles) = onnx::read(&bytes)?;
    let mut rows: Vec<Row> =
        examples.iter().step_by(examples.len() / ROWS).take(ROWS).map(|e| e.row).collect();
    rows.extend(parity::edge_rows(ensembles.iter().map(|(_, trees)| trees), ROWS, 2));
    let outputs: Vec<Output> = parts.iter().flat_map(|part| part.outputs.iter().copied()).collect();
    let expected = parity::expected(&parts, &rows)?;

    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join("model.onnx"), &bytes)?;
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    std::fs::write(dir.join("rows.csv"), table(&names, rows.iter().map(|row| row.0.to_vec())))?;
    let names: Vec<&str> = outputs.iter().map(|output| output.name()).collect();
    let expected =
        expected.iter().map(|prediction| outputs.iter().map(|output| prediction.get(*output)).collect());
    std::fs::write(dir.join("expected.csv"), table(&names, expected))?;
    Ok(())
}

/// CSV with the shortest text that reads back as the same float; unknown is empty.
fn table(names: &[&str], rows: impl Iterator<Item = Vec<f32>>) -> String {
    let mut text = names.join(",") + "\n";
    for row in rows {
        for (index, value) in row.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = if value.is_nan() { write!(text, "{comma}") } else { write!(text, "{comma}{value:e}") };
        }
        text.push('\n');
    }
    text
}
