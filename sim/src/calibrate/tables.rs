//! The two public tables as CSV, plain or gzipped; columns by name.

use std::io::Read;
use std::path::Path;

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A column is not in the header.
    #[error("{path}: no column `{column}`; its header is {header:?}")]
    Column {
        /// The file.
        path: String,
        /// What is missing.
        column: &'static str,
        /// What is there.
        header: String,
    },
    /// A value is no count and no time.
    #[error("{path}, line {line}: `{column}` is {value:?}; use a number from 0 up")]
    Value {
        /// The file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
    },
}

/// A row of the splitwise table.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitwiseRow {
    /// Model.
    pub model: String,
    /// Card.
    pub hardware: String,
    /// Cards.
    pub tensor_parallel: u32,
    /// Prompt tokens of each sequence.
    pub prompt_size: u32,
    /// Sequences.
    pub batch_size: u32,
    /// Tokens generated.
    pub token_size: u32,
    /// Time of the prompts.
    pub prompt_time_ms: f64,
    /// Time of each further token.
    pub token_time_ms: f64,
}

/// A row of the silicon table.
#[derive(Debug, Clone, PartialEq)]
pub struct SiliconRow {
    /// Engine.
    pub backend: String,
    /// Model.
    pub model: String,
    /// Card.
    pub system: String,
    /// Number format.
    pub precision: String,
    /// Input tokens.
    pub isl: u32,
    /// Output tokens.
    pub osl: u32,
    /// Requests at once.
    pub concurrency: u32,
    /// Tensor parallelism.
    pub tp: u32,
    /// Pipeline parallelism.
    pub pp: u32,
    /// Data parallelism of attention.
    pub attention_dp: u32,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Time per output token.
    pub tpot_ms: f64,
}

struct Table {
    path: String,
    header: Vec<String>,
    lines: Vec<(usize, Vec<String>)>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, TableError> {
        let name = path.display().to_string();
        let file = |source| TableError::File { path: name.clone(), source };
        let bytes = std::fs::read(path).map_err(file)?;
        let mut text = String::new();
        if bytes.starts_with(&[0x1f, 0x8b]) {
            flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_string(&mut text).map_err(file)?;
        } else {
            (&bytes[..]).read_to_string(&mut text).map_err(file)?;
        }
        let cells = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut lines = text.lines();
        let header = cells(lines.next().unwrap_or_default());
        let lines = lines.enumerate().filter(|(_, line)| !line.trim().is_empty());
        let lines = lines.map(|(at, line)| (at + 2, cells(line))).collect();
        Ok(Self { path: name, header, lines })
    }

    fn column(&self, column: &'static str) -> Result<Column<'_>, TableError> {
        match self.header.iter().position(|name| name == column) {
            Some(at) => Ok(Column { table: self, name: column, at }),
            None => {
                let header = self.header.join(",");
                Err(TableError::Column { path: self.path.clone(), column, header })
            }
        }
    }
}

struct Column<'a> {
    table: &'a Table,
    name: &'static str,
    at: usize,
}

impl Column<'_> {
    fn text(&self, cells: &[String]) -> String {
        cells.get(self.at).cloned().unwrap_or_default()
    }

    fn number(&self, line: usize, cells: &[String]) -> Result<f64, TableError> {
        let text = self.text(cells);
        // No count and no time is less than nothing, and one without end would be the only one that is fitted.
        text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or_else(|| {
            TableError::Value { path: self.table.path.clone(), line, column: self.name, value: text }
        })
    }

    /// A count that the table leaves empty where it is 1.
    fn count_or_one(&self, line: usize, cells: &[String]) -> Result<u32, TableError> {
        if self.text(cells).is_empty() { Ok(1) } else { self.count(line, cells) }
    }

    fn count(&self, line: usize, cells: &[String]) -> Result<u32, TableError> {
        Ok(self.number(line, cells)? as u32)
    }
}

/// Reads the splitwise table.
///
/// # Errors
/// [`TableError`] names file, line and column.
pub fn splitwise(path: &Path) -> Result<Vec<SplitwiseRow>, TableError> {
    let table = Table::read(path)?;
    let [model, hardware] = [table.column("model")?, table.column("hardware")?];
    let (tp, prompt) = (table.column("tensor_parallel")?, table.column("prompt_size")?);
    let (batch, token) = (table.column("batch_size")?, table.column("token_size")?);
    let (prompt_ms, token_ms) = (table.column("prompt_time_ms")?, table.column("token_time_ms")?);
    let row = |(line, cells): &(usize, Vec<String>)| {
        Ok(SplitwiseRow {
            model: model.text(cells),
            hardware: hardware.text(cells),
            tensor_parallel: tp.count(*line, cells)?,
            prompt_size: prompt.count(*line, cells)?,
            batch_size: batch.count(*line, cells)?,
            token_size: token.count(*line, cells)?,
            prompt_time_ms: prompt_ms.number(*line, cells)?,
            token_time_ms: token_ms.number(*line, cells)?,
        })
    };
    table.lines.iter().map(row).collect()
}

/// Reads the silicon table.
///
/// # Errors
/// [`TableError`] names file, line and column.
pub fn silicon(path: &Path) -> Result<Vec<SiliconRow>, TableError> {
    let table = Table::read(path)?;
    let [backend, model] = [table.column("backend")?, table.column("model")?];
    let [system, precision] = [table.column("system")?, table.column("precision")?];
    let (isl, osl, concurrency) = (table.column("isl")?, table.column("osl")?, table.column("concurrency")?);
    let (tp, pp, dp) = (table.column("tp")?, table.column("pp")?, table.column("attention_dp")?);
    let (ttft, tpot) = (table.column("ttft_ms")?, table.column("tpot_ms")?);
    let row = |(line, cells): &(usize, Vec<String>)| {
        Ok(SiliconRow {
            backend: backend.text(cells),
            model: model.text(cells),
            system: system.text(cells),
            precision: precision.text(cells),
            isl: isl.count(*line, cells)?,
            osl: osl.count(*line, cells)?,
            concurrency: concurrency.count(*line, cells)?,
            tp: tp.count_or_one(*line, cells)?,
            pp: pp.count_or_one(*line, cells)?,
            attention_dp: dp.count_or_one(*line, cells)?,
            ttft_ms: ttft.number(*line, cells)?,
            tpot_ms: tpot.number(*line, cells)?,
        })
    };
    table.lines.iter().map(row).collect()
}
