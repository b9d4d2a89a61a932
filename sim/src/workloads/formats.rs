//! The public trace formats, plain or gzipped.
//!
//! | format | content |
//! | --- | --- |
//! | Azure CSV | `TIMESTAMP,ContextTokens,GeneratedTokens` |
//! | plain CSV | `arrival_ms,input_tokens,output_tokens` and optionally `blocks`: ids and runs `a-b` of 512 tokens |
//! | BurstGPT CSV | `Timestamp,…,Request tokens,Response tokens,…`, seconds; rows without an answer are left out |
//! | Mooncake JSONL | `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512 tokens |
//! | Bailian JSONL | the same with `chat_id`; `timestamp` in seconds, `hash_ids` of 16 tokens |
//!
//! The first line tells which it is. Fields are found by name, never by place.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::trace::TraceRow;

/// Tokens in a block of the Mooncake traces.
const MOONCAKE_BLOCK_TOKENS: u32 = 512;
/// Tokens in a block of the Bailian traces.
const BAILIAN_BLOCK_TOKENS: u32 = 16;
/// A trace of a week has some hundred megabytes; a gzip of a few may say that it holds any number.
const MAX_BYTES: u64 = 4 << 30;
/// Blocks in one row; a run `a-b` must not fill the memory.
const MAX_BLOCKS: usize = 1 << 20;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file.
    #[error("cannot read trace {path}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// What is in a file.
    #[error("{path}")]
    In {
        /// Which.
        path: String,
        /// What is wrong with it.
        source: Box<TraceError>,
    },
    /// A file with a header alone.
    #[error("{0}: the trace has no requests")]
    Empty(String),
    /// Neither text nor gzip.
    #[error("the trace is not UTF-8 text (nor gzip of it): {0}")]
    NotText(String),
    /// The first line is of no known format.
    #[error(
        "the first line is of no known trace: {0:?}; known are the headers of Azure's and BurstGPT's CSV, \
         `arrival_ms,input_tokens,output_tokens[,blocks]`, and Mooncake's and Bailian's JSON lines"
    )]
    Format(String),
    /// More than is read.
    #[error("the trace inflates to more than {} GiB; split it", MAX_BYTES >> 30)]
    TooLarge,
    /// A CSV without a column that its format has.
    #[error("trace line 1: no column `{column}`; the columns are {header:?}")]
    Column {
        /// The column.
        column: &'static str,
        /// The line.
        header: String,
    },
    /// A line's field.
    #[error("trace line {line}: `{field}` is {value:?}; {expected}")]
    Field {
        /// Line number, from 1.
        line: usize,
        /// The field.
        field: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        expected: &'static str,
    },
    /// A line of JSON.
    #[error("trace line {line}: {source}")]
    Json {
        /// Line number, from 1.
        line: usize,
        /// What the JSON reader says.
        source: serde_json::Error,
    },
}

/// A trace's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Azure's public CSV.
    Azure,
    /// Arrival in ms, tokens, optional blocks.
    Plain,
    /// BurstGPT's CSV.
    BurstGpt,
    /// Mooncake's JSON lines.
    Mooncake,
    /// Bailian's JSON lines.
    Bailian,
}

impl Format {
    /// The format that a first line speaks.
    #[must_use]
    pub fn of(line: &str) -> Option<Self> {
        if line.trim_start().starts_with('{') {
            return if line.contains("\"chat_id\"") {
                Some(Self::Bailian)
            } else if line.contains("\"input_length\"") {
                Some(Self::Mooncake)
            } else {
                None
            };
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.contains(&"ContextTokens") {
            Some(Self::Azure)
        } else if fields.contains(&"Request tokens") {
            Some(Self::BurstGpt)
        } else if fields.contains(&"arrival_ms") && fields.contains(&"input_tokens") {
            Some(Self::Plain)
        } else {
            None
        }
    }
}

/// Reads a trace file, in order of arrival.
///
/// # Errors
/// [`TraceError`] names the line and field.
pub fn read_file(path: &Path) -> Result<Vec<TraceRow>, TraceError> {
    let bytes = std::fs::read(path)
        .map_err(|source| TraceError::File { path: path.display().to_string(), source })?;
    let mut rows = read_trace(&bytes)
        .map_err(|source| TraceError::In { path: path.display().to_string(), source: Box::new(source) })?;
    if rows.is_empty() {
        return Err(TraceError::Empty(path.display().to_string()));
    }
    // Logs are often written when requests end.
    rows.sort_by_key(|row| row.arrival_us);
    Ok(rows)
}

/// Reads a trace.
///
/// # Errors
/// [`TraceError`] names the line and field.
pub fn read_trace(bytes: &[u8]) -> Result<Vec<TraceRow>, TraceError> {
    let mut inflated = Vec::new();
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let read = flate2::read::MultiGzDecoder::new(bytes)
            .take(MAX_BYTES + 1)
            .read_to_end(&mut inflated)
            .map_err(|error| TraceError::NotText(error.to_string()))?;
        if read as u64 > MAX_BYTES {
            return Err(TraceError::TooLarge);
        }
        &inflated
    } else {
        bytes
    };
    let text = std::str::from_utf8(bytes).map_err(|error| TraceError::NotText(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}');
    let first = text.lines().next().unwrap_or_default();
    let format = Format::of(first).ok_or_else(|| TraceError::Format(first.chars().take(120).collect()))?;
    let lines =
        text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.trim().is_empty());
    match format {
        Format::Mooncake => lines.map(|(at, line)| json_row(at, line, false)).collect(),
        Format::Bailian => lines.map(|(at, line)| json_row(at, line, true)).collect(),
        Format::Azure | Format::Plain | Format::BurstGpt => {
            let columns = Columns::of(format, first)?;
            lines.skip(1).filter_map(|(at, line)| columns.row(at, line).transpose()).collect()
        }
    }
}

#[derive(Deserialize)]
struct JsonRow {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

fn json_row(line: usize, text: &str, seconds: bool) -> Result<TraceRow, TraceError> {
    let row: JsonRow = serde_json::from_str(text).map_err(|source| TraceError::Json { line, source })?;
    let unit_us = if seconds { 1e6 } else { 1e3 };
    let block_tokens = if seconds { BAILIAN_BLOCK_TOKENS } else { MOONCAKE_BLOCK_TOKENS };
    if !(0.0..1e15).contains(&row.timestamp) {
        return Err(field(line, "timestamp", &row.timestamp.to_string(), "use a time since the start"));
    }
    Ok(TraceRow {
        arrival_us: (row.timestamp * unit_us) as u64,
        input_tokens: row.input_length,
        output_tokens: row.output_length,
        block_ids: row.hash_ids,
        block_tokens,
    })
}

fn field(line: usize, field: &'static str, value: &str, expected: &'static str) -> TraceError {
    TraceError::Field { line, field, value: value.chars().take(60).collect(), expected }
}

/// Where the columns of a CSV are.
struct Columns {
    format: Format,
    time: (usize, &'static str),
    input: (usize, &'static str),
    output: (usize, &'static str),
    blocks: Option<usize>,
}

impl Columns {
    fn of(format: Format, header: &str) -> Result<Self, TraceError> {
        let fields: Vec<&str> = header.split(',').map(str::trim).collect();
        let at = |column: &'static str| {
            let found = fields.iter().position(|field| *field == column).map(|at| (at, column));
            let header = || header.chars().take(120).collect();
            found.ok_or_else(|| TraceError::Column { column, header: header() })
        };
        let names = match format {
            Format::Azure => ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
            Format::BurstGpt => ["Timestamp", "Request tokens", "Response tokens"],
            _ => ["arrival_ms", "input_tokens", "output_tokens"],
        };
        Ok(Self {
            format,
            time: at(names[0])?,
            input: at(names[1])?,
            output: at(names[2])?,
            blocks: fields.iter().position(|field| *field == "blocks"),
        })
    }

    /// The line's row; `None` for a request that was never answered.
    fn row(&self, line: usize, text: &str) -> Result<Option<TraceRow>, TraceError> {
        // None of these formats quotes a comma in a column that is read here.
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        let cell = |column: (usize, &'static str)| {
            cells.get(column.0).copied().ok_or_else(|| field(line, column.1, "", "the line is too short"))
        };
        let count = |column: (usize, &'static str)| {
            let text = cell(column)?;
            text.parse::<u32>().map_err(|_| field(line, column.1, text, "use a whole number of tokens"))
        };
        let time = cell(self.time)?;
        let arrival_us = match self.format {
            Format::Azure => timestamp_us(time),
            Format::BurstGpt => number(time).map(|seconds| (seconds * 1e6) as u64),
            _ => number(time).map(|ms| (ms * 1e3) as u64),
        }
        .ok_or_else(|| field(line, self.time.1, time, "use a time since the start, or a date and time"))?;
        let (input_tokens, output_tokens) = (count(self.input)?, count(self.output)?);
        if self.format == Format::BurstGpt && output_tokens == 0 {
            return Ok(None);
        }
        let block_ids = match self.blocks.and_then(|at| cells.get(at)) {
            Some(text) => runs(text)
                .ok_or_else(|| field(line, "blocks", text, "use ids and runs a-b, space between"))?,
            None => Vec::new(),
        };
        Ok(Some(TraceRow {
            arrival_us,
            input_tokens,
            output_tokens,
            block_ids,
            block_tokens: MOONCAKE_BLOCK_TOKENS,
        }))
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|value| (0.0..1e12).contains(value))
}

/// Ids and inclusive runs: `0 14-27`.
fn runs(text: &str) -> Option<Vec<u64>> {
    let mut ids = Vec::new();
    for part in text.split_whitespace() {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
        let length = usize::try_from(to.checked_sub(from)?).ok()?;
        if ids.len().saturating_add(length) >= MAX_BLOCKS {
            return None;
        }
        ids.extend(from..=to);
    }
    Some(ids)
}

/// `2023-11-16 18:17:03.9799600`, with an optional zone that is ignored (a trace has one), in microseconds
/// since the epoch.
fn timestamp_us(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let time = time.split(['+', 'Z']).next().unwrap_or_default();
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
    let second = time.next()?.parse::<f64>().ok()?;
    let valid = (1970..3000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && (0.0..61.0).contains(&second);
    if !valid {
        return None;
    }
    // Days since the epoch of the proleptic Gregorian calendar, years counted from March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60;
    Some(seconds * 1_000_000 + (second * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn azures_csv_is_read_with_its_sevenfold_fractions() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n\
                    2023-11-16 18:17:04.0319600,3180,8\n";
        let rows = read_trace(text.as_bytes()).unwrap();
        assert_eq!((rows[0].input_tokens, rows[0].output_tokens), (4808, 10));
        assert_eq!(rows[1].arrival_us - rows[0].arrival_us, 52_000);
        // `date -d "2023-11-16 18:17:03 UTC" +%s`
        assert_eq!(rows[0].arrival_us, 1_700_158_623_979_960);
    }

    #[test]
    fn mooncakes_lines_and_the_plain_csv_say_the_same() {
        let json = r#"{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 2353]}"#;
        let csv = "arrival_ms,input_tokens,output_tokens,blocks\n27482,6955,52,46-48 2353\n";
        assert_eq!(read_trace(json.as_bytes()).unwrap(), read_trace(csv.as_bytes()).unwrap());
    }

    #[test]
    fn bailians_seconds_and_small_blocks_are_told_from_mooncakes() {
        let json = r#"{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, 1090]}"#;
        let row = &read_trace(json.as_bytes()).unwrap()[0];
        assert_eq!((row.arrival_us, row.block_tokens, row.block_ids.len()), (61_114_000, 16, 2));
    }

    #[test]
    fn burstgpts_unanswered_requests_are_left_out() {
        let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                    5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n";
        let rows = read_trace(text.as_bytes()).unwrap();
        assert_eq!((rows.len(), rows[0].arrival_us, rows[0].input_tokens), (1, 5_000_000, 472));
    }

    #[test]
    fn gzip_is_read_as_what_is_inside() {
        use std::io::Write;
        let text = b"arrival_ms,input_tokens,output_tokens\n0,374,44\n";
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        zip.write_all(text).unwrap();
        assert_eq!(read_trace(&zip.finish().unwrap()).unwrap(), read_trace(text).unwrap());
    }

    #[test]
    fn errors_name_line_and_field() {
        let error = |text: &str| read_trace(text.as_bytes()).unwrap_err().to_string();
        let text = error("arrival_ms,input_tokens,output_tokens\n0,1,2\n5,x,2\n");
        assert!(text.contains("line 3") && text.contains("input_tokens") && text.contains("\"x\""), "{text}");
        assert!(error("a,b,c\n1,2,3\n").contains("no known trace"));
        assert!(error("arrival_ms,input_tokens,output_tokens,blocks\n0,1,2,9-3\n").contains("blocks"));
        assert!(error("{\"input_length\": 3}\n").contains("timestamp"));
    }

    /// A trace of each format, and its number of rows.
    const TRACES: [(&str, usize); 5] = [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n\
             2023-11-16 18:17:04.0319600,3180,8\n",
            2,
        ),
        ("arrival_ms,input_tokens,output_tokens,blocks\n0,6955,52,46-48 2353\n10.5,7,1,\n", 2),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
             5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,30,1117,API log\n",
            2,
        ),
        (
            "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47]}\n",
            1,
        ),
        (
            "{\"chat_id\": 1, \"timestamp\": 61.1, \"input_length\": 52, \"output_length\": 3, \"hash_ids\": [9]}\n",
            1,
        ),
    ];

    #[test]
    fn a_trace_cut_at_any_byte_is_fewer_rows_or_an_error_that_names_its_line() {
        for (text, rows) in TRACES {
            assert_eq!(read_trace(text.as_bytes()).unwrap().len(), rows, "{text}");
            for at in 0..text.len() {
                match read_trace(&text.as_bytes()[..at]) {
                    Ok(cut) => assert!(cut.len() <= rows, "{text} cut at {at}"),
                    Err(TraceError::Format(_) | TraceError::Column { .. }) => {
                        assert!(at < text.find('\n').unwrap(), "{text} cut at {at}");
                    }
                    Err(error) => {
                        let line = text[..at].lines().count();
                        assert!(error.to_string().contains(&format!("trace line {line}:")), "{at}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_that_end_as_on_windows_and_a_mark_of_byte_order_change_nothing() {
        for (text, _) in TRACES {
            let odd = format!("\u{feff}{}", text.replace('\n', "\r\n"));
            assert_eq!(read_trace(odd.as_bytes()).unwrap(), read_trace(text.as_bytes()).unwrap());
        }
    }

    #[test]
    fn numbers_that_are_none_are_named_with_their_line_and_field() {
        let bad = ["", "-1", "1.5", "NaN", "1e99", "4294967296", "seven", "\u{661}"];
        for value in bad {
            for (field, row) in
                [("input_tokens", format!("0,{value},5")), ("output_tokens", format!("0,5,{value}"))]
            {
                let text = format!("arrival_ms,input_tokens,output_tokens\n0,1,1\n{row}\n");
                let error = read_trace(text.as_bytes()).unwrap_err().to_string();
                assert!(error.starts_with(&format!("trace line 3: `{field}` is {value:?}")), "{error}");
            }
        }
        for value in ["", "-1", "NaN", "inf", "1e12", "noon"] {
            let text = format!("arrival_ms,input_tokens,output_tokens\n{value},1,1\n");
            let error = read_trace(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("trace line 2: `arrival_ms`"), "{value}: {error}");
        }
        for value in
            ["2023-13-01 00:00:00", "2023-11-16", "2023-11-16 24:00:00", "1969-12-31 23:59:59", "now"]
        {
            let text = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{value},1,1\n");
            let error = read_trace(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("trace line 2: `TIMESTAMP`"), "{value}: {error}");
        }
        for json in ["\"timestamp\": -5", "\"timestamp\": 1e300"] {
            let text = format!("{{\"input_length\": 1, \"output_length\": 1, {json}}}");
            let error = read_trace(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("trace line 1: `timestamp`"), "{json}: {error}");
        }
    }

    #[test]
    fn a_missing_column_is_named_before_any_row_is_read() {
        for (header, column) in [
            ("TIMESTAMP,ContextTokens", "GeneratedTokens"),
            ("ContextTokens,GeneratedTokens", "TIMESTAMP"),
            ("arrival_ms,input_tokens,outputs", "output_tokens"),
            ("Timestamp,Request tokens", "Response tokens"),
        ] {
            let error = read_trace(format!("{header}\n1,2,3\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("trace line 1: no column `{column}`")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_in_a_trace_is_rows_or_an_error(
            which in 0usize..5,
            at in any::<prop::sample::Index>(),
            garbage in "[ -~\n\u{661}\u{feff}]{0,40}",
        ) {
            let (text, _) = TRACES[which];
            let at = at.index(text.len());
            let _ = read_trace(format!("{}{garbage}{}", &text[..at], &text[at..]).as_bytes());
            let _ = read_trace(garbage.as_bytes());
        }

        #[test]
        fn a_broken_gzip_is_an_error(at in any::<prop::sample::Index>(), flip in 1u8..) {
            use std::io::Write;
            let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            zip.write_all(TRACES[0].0.as_bytes()).unwrap();
            let mut zip = zip.finish().unwrap();
            let rows = read_trace(&zip).unwrap();
            let cut = read_trace(&zip[..2 + at.index(zip.len() - 2)]);
            prop_assert!(cut.is_err());
            // Behind the magic number: a changed time stamp in the head changes nothing, all else is found out.
            let place = 2 + at.index(zip.len() - 2);
            zip[place] ^= flip;
            if let Ok(read) = read_trace(&zip) {
                prop_assert_eq!(read, rows);
            }
        }
    }
}
