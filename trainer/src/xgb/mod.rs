//! XGBoost: matrices, boosters, and which library they come from.
//!
//! One exact version is accepted. The same data and parameters give different models in different
//! versions (measured between 3.2.0 and 3.4.1), and so does the model file's form, on which the
//! conversion depends; "some XGBoost" would make a fit impossible to reproduce.

mod ffi;
mod shape;

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The version that is accepted, in the form of the model's metadata.
pub const VERSION: &str = "3.4.1";

/// Environment variable that names the library.
pub const LIBRARY_VARIABLE: &str = "FORETOKEN_XGBOOST_LIB";

/// Where `scripts/setup` puts the library, from the repository root.
pub const LIBRARY_IN_REPOSITORY: &str = ".foretoken/xgboost/xgboost/lib/libxgboost.so";

/// What went wrong around XGBoost.
#[derive(Debug, Error)]
pub enum XgbError {
    /// The library cannot be loaded.
    #[error(
        "cannot load XGBoost from {path}; run scripts/setup, or name libxgboost.so of the xgboost-cpu {VERSION} wheel with --xgboost-lib or {LIBRARY_VARIABLE}"
    )]
    Load {
        /// The file.
        path: PathBuf,
        /// What the loader said.
        source: libloading::Error,
    },
    /// Another version.
    #[error(
        "XGBoost {found} in {path}, but exactly {VERSION} is needed: other versions fit other models from the same samples"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// XGBoost refused a call.
    #[error("XGBoost: {call}: {message}")]
    Call {
        /// What was asked.
        call: &'static str,
        /// First line of what XGBoost said.
        message: String,
    },
    /// Bytes that are no model file.
    #[error("{reason}")]
    NotAModel {
        /// What is wrong with them.
        reason: String,
    },
    /// Arguments that do not fit together.
    #[error("{0}")]
    Argument(String),
}

/// XGBoost's messages carry a stack trace of C++ frames: the first line is the reason.
fn failed(call: &'static str) -> impl Fn(String) -> XgbError {
    move |message| XgbError::Call { call, message: message.lines().next().unwrap_or_default().to_owned() }
}

fn c_string(text: &str) -> Result<CString, XgbError> {
    CString::new(text).map_err(|_| XgbError::Argument(format!("{text:?} has a NUL byte inside")))
}

/// A loaded XGBoost of the right version. Cheap to clone.
#[derive(Clone)]
pub struct Xgboost(ffi::Library);

impl std::fmt::Debug for Xgboost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Xgboost({VERSION})")
    }
}

impl Xgboost {
    /// Loads the library and checks its version.
    ///
    /// # Errors
    /// [`XgbError::Load`] or [`XgbError::Version`].
    pub fn load(path: &Path) -> Result<Self, XgbError> {
        let library =
            ffi::Library::load(path).map_err(|source| XgbError::Load { path: path.to_owned(), source })?;
        let (major, minor, patch) = library.version();
        let found = format!("{major}.{minor}.{patch}");
        if found != VERSION {
            return Err(XgbError::Version { path: path.to_owned(), found });
        }
        // Warnings go to stderr as bare lines and mean nothing to the user of the trainer; errors are returned.
        library.set_global(c"{\"verbosity\":0}").map_err(failed("set verbosity"))?;
        Ok(Self(library))
    }

    /// Copies rows of `columns` values; NaN is missing.
    ///
    /// # Errors
    /// [`XgbError`] when the lengths do not fit, there is no row, or a value is infinite.
    pub fn matrix(&self, rows: &[f32], columns: usize) -> Result<Matrix, XgbError> {
        let count = row_count(rows, columns)?;
        let config = c"{\"missing\":NaN,\"nthread\":1}";
        let inner = self.0.matrix(rows, &[count, columns], config).map_err(failed("make a matrix"))?;
        Ok(Matrix { inner, rows: count })
    }

    /// An untrained booster for matrices like this one.
    ///
    /// # Errors
    /// [`XgbError`] when a parameter is not accepted.
    pub fn booster<'a>(
        &self,
        matrix: &Matrix,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Booster, XgbError> {
        let booster = Booster(self.0.booster(&[&matrix.inner]).map_err(failed("make a booster"))?);
        for (name, value) in parameters {
            booster.set(name, value)?;
        }
        Ok(booster)
    }

    /// A booster from a saved model, JSON or UBJSON.
    ///
    /// # Errors
    /// [`XgbError::NotAModel`] by its shape, or [`XgbError`] when XGBoost cannot read it.
    pub fn load_booster(&self, model: &[u8]) -> Result<Booster, XgbError> {
        check_shape(model).map_err(|reason| XgbError::NotAModel { reason })?;
        let booster = Booster(self.0.booster(&[]).map_err(failed("make a booster"))?);
        booster.0.load(model).map_err(failed("read the model file"))?;
        Ok(booster)
    }
}

/// What [`Xgboost::load_booster`] checks before XGBoost sees a file; the error says what is wrong with it.
///
/// # Errors
/// A sentence without the file's name.
pub fn check_shape(model: &[u8]) -> Result<(), String> {
    shape::check(&crate::convert::finite_thresholds(model))
}

fn row_count(rows: &[f32], columns: usize) -> Result<usize, XgbError> {
    if columns == 0 || rows.is_empty() || !rows.len().is_multiple_of(columns) {
        return Err(XgbError::Argument(format!(
            "{} values do not make rows of {columns} columns",
            rows.len()
        )));
    }
    Ok(rows.len() / columns)
}

/// Rows with labels and weights, inside XGBoost.
pub struct Matrix {
    inner: ffi::Matrix,
    rows: usize,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} rows)", self.rows)
    }
}

impl Matrix {
    /// Sets one label a row.
    ///
    /// # Errors
    /// [`XgbError`] when their number differs from the rows'.
    pub fn set_labels(&self, labels: &[f32]) -> Result<(), XgbError> {
        self.set("label", labels)
    }

    /// Sets one weight a row.
    ///
    /// # Errors
    /// [`XgbError`] when their number differs from the rows'.
    pub fn set_weights(&self, weights: &[f32]) -> Result<(), XgbError> {
        self.set("weight", weights)
    }

    fn set(&self, field: &'static str, values: &[f32]) -> Result<(), XgbError> {
        if values.len() != self.rows {
            return Err(XgbError::Argument(format!(
                "{} values of {field} for {} rows",
                values.len(),
                self.rows
            )));
        }
        self.inner.set(&c_string(field)?, values).map_err(failed(field))
    }
}

/// Trees, growing or finished.
pub struct Booster(ffi::Booster);

impl std::fmt::Debug for Booster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Booster")
    }
}

impl Booster {
    /// Sets a parameter. XGBoost checks names and values at the first update.
    ///
    /// # Errors
    /// [`XgbError`] when XGBoost refuses it.
    pub fn set(&self, name: &str, value: &str) -> Result<(), XgbError> {
        self.0.set(&c_string(name)?, &c_string(value)?).map_err(failed("set a parameter"))
    }

    /// Fits one more round.
    ///
    /// # Errors
    /// [`XgbError`] with what XGBoost said.
    pub fn update(&self, round: u16, matrix: &Matrix) -> Result<(), XgbError> {
        self.0.update(round.into(), &matrix.inner).map_err(failed("fit a round"))
    }

    /// The metric of the booster's objective on a matrix.
    ///
    /// # Errors
    /// [`XgbError`] with what XGBoost said.
    pub fn eval(&self, round: u16, matrix: &Matrix) -> Result<f64, XgbError> {
        let line = self.0.eval(round.into(), &matrix.inner, c"eval").map_err(failed("evaluate"))?;
        // `[round]\teval-metric:value`
        let value = line.rsplit(':').next().and_then(|value| value.trim().parse().ok());
        value.ok_or_else(|| XgbError::Argument(format!("cannot read XGBoost's metric line {line:?}")))
    }

    /// Predictions, one vector of outputs a row.
    ///
    /// # Errors
    /// [`XgbError`] when the shape does not fit the model.
    pub fn predict(&self, rows: &[f32], columns: usize) -> Result<Vec<Vec<f32>>, XgbError> {
        let config = c"{\"type\":0,\"training\":false,\"iteration_begin\":0,\"iteration_end\":0,\"strict_shape\":true,\"missing\":NaN,\"cache_id\":0}";
        self.predict_as(rows, columns, config)
    }

    /// The sums before what the objective makes of them (`exp`, sorting of quantiles), one vector of outputs a row.
    ///
    /// # Errors
    /// [`XgbError`] when the shape does not fit the model.
    pub fn margins(&self, rows: &[f32], columns: usize) -> Result<Vec<Vec<f32>>, XgbError> {
        let config = c"{\"type\":1,\"training\":false,\"iteration_begin\":0,\"iteration_end\":0,\"strict_shape\":true,\"missing\":NaN,\"cache_id\":0}";
        self.predict_as(rows, columns, config)
    }

    fn predict_as(&self, rows: &[f32], columns: usize, config: &CStr) -> Result<Vec<Vec<f32>>, XgbError> {
        let count = row_count(rows, columns)?;
        let (shape, values) = self.0.predict(rows, &[count, columns], config).map_err(failed("predict"))?;
        match shape.as_slice() {
            [n, outputs, ..] if *n == count && *outputs > 0 && n * outputs == values.len() => {
                Ok(values.chunks_exact(*outputs).map(<[f32]>::to_vec).collect())
            }
            shape => Err(XgbError::Argument(format!("XGBoost predicted shape {shape:?} for {count} rows"))),
        }
    }

    /// The first `rounds` rounds as a booster of their own.
    ///
    /// # Errors
    /// [`XgbError`] when there are not as many.
    pub fn first(&self, rounds: u16) -> Result<Self, XgbError> {
        Ok(Self(self.0.slice(0, rounds.into()).map_err(failed("slice"))?))
    }

    /// The model as UBJSON, the form to keep and to load again.
    ///
    /// # Errors
    /// [`XgbError`] with what XGBoost said.
    pub fn to_ubj(&self) -> Result<Vec<u8>, XgbError> {
        self.0.save(c"{\"format\":\"ubj\"}").map_err(failed("save as UBJSON"))
    }

    /// The model as XGBoost's JSON.
    ///
    /// # Errors
    /// [`XgbError`] with what XGBoost said.
    pub fn to_json(&self) -> Result<Vec<u8>, XgbError> {
        self.0.save(c"{\"format\":\"json\"}").map_err(failed("save as JSON"))
    }
}

/// Variable by which libgomp's threads wait for each other.
const WAIT_POLICY: &str = "OMP_WAIT_POLICY";

/// Starts this program again with threads that sleep while they wait for each other, unless the variable says how
/// they are to wait. By default they spin: with two threads on a machine that others use too, a fit then takes
/// several times as long and takes that time from the others. libgomp reads the variable when it is loaded, so it
/// must be there before; the process id stays the same. When it cannot start again it goes on as it is.
pub fn wait_without_spinning() {
    use std::os::unix::process::CommandExt;
    if std::env::var_os(WAIT_POLICY).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut again = std::process::Command::new(program);
        // Returns only when it fails.
        let error = again.args(std::env::args_os().skip(1)).env(WAIT_POLICY, "passive").exec();
        tracing::debug!(%error, "cannot start again with {WAIT_POLICY}");
    }
}

/// The library that tests use: the variable, else the one of `scripts/setup`. Without it a developer's
/// test is skipped with a printed line; in CI (`CI` set) it fails, so that nothing is skipped unseen.
#[doc(hidden)]
#[must_use]
pub fn for_tests() -> Option<Xgboost> {
    let path = std::env::var_os(LIBRARY_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(LIBRARY_IN_REPOSITORY),
        PathBuf::from,
    );
    if !path.exists() && std::env::var_os("CI").is_none() {
        eprintln!("SKIPPED: no XGBoost at {}; run scripts/setup", path.display());
        return None;
    }
    match Xgboost::load(&path) {
        Ok(xgboost) => Some(xgboost),
        Err(error) => panic!("{error}: {error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two columns; the label is 3 where the first is above 0.5 or unknown, else 1.
    fn data() -> (Vec<f32>, Vec<f32>) {
        let rows: Vec<f32> = (0u8..200)
            .flat_map(|i| [if i % 10 == 0 { f32::NAN } else { f32::from(i % 100) / 100.0 }, 7.0])
            .collect();
        let labels =
            rows.chunks(2).map(|row| if row[0].is_nan() || row[0] > 0.5 { 3.0 } else { 1.0 }).collect();
        (rows, labels)
    }

    #[test]
    fn a_booster_learns_a_step_and_the_side_of_unknown_values() {
        let Some(xgboost) = for_tests() else { return };
        let (rows, labels) = data();
        let matrix = xgboost.matrix(&rows, 2).unwrap();
        matrix.set_labels(&labels).unwrap();
        let parameters = [("objective", "reg:squarederror"), ("nthread", "1"), ("max_depth", "2")];
        let booster = xgboost.booster(&matrix, parameters).unwrap();
        let mut metrics = Vec::new();
        for round in 0..20 {
            booster.update(round, &matrix).unwrap();
            metrics.push(booster.eval(round, &matrix).unwrap());
        }
        assert!(metrics.last().unwrap() < &0.05 && metrics[0] > metrics[19], "{metrics:?}");
        let predicted = booster.predict(&[0.1, 7.0, 0.9, 7.0, f32::NAN, 7.0], 2).unwrap();
        for (row, expected) in predicted.iter().zip([1.0, 3.0, 3.0]) {
            assert!((row[0] - expected).abs() < 0.1, "{predicted:?}");
        }
        let reloaded = xgboost.load_booster(&booster.to_json().unwrap()).unwrap();
        assert_eq!(reloaded.predict(&rows, 2).unwrap(), booster.predict(&rows, 2).unwrap());
        let short = booster.first(3).unwrap();
        assert_ne!(short.predict(&rows, 2).unwrap(), booster.predict(&rows, 2).unwrap());
    }

    #[test]
    fn what_xgboost_refuses_comes_back_as_its_words() {
        let Some(xgboost) = for_tests() else { return };
        let (rows, labels) = data();
        let matrix = xgboost.matrix(&rows, 2).unwrap();
        matrix.set_labels(&labels).unwrap();
        let booster = xgboost.booster(&matrix, [("objective", "reg:nonsense")]).unwrap();
        let error = booster.update(0, &matrix).unwrap_err().to_string();
        assert!(error.contains("nonsense"), "{error}");
        assert!(xgboost.load_booster(b"{}").is_err());
        assert!(matrix.set_labels(&labels[1..]).unwrap_err().to_string().contains("199"));
        assert!(xgboost.matrix(&rows[1..], 2).unwrap_err().to_string().contains("399"));
    }

    #[test]
    fn a_missing_library_names_the_file_and_the_fix() {
        let error = Xgboost::load(Path::new("no/such/libxgboost.so")).unwrap_err().to_string();
        assert!(error.contains("no/such/libxgboost.so") && error.contains("scripts/setup"), "{error}");
    }
}
