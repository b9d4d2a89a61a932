//! Samples as CSV with a header line; an empty cell is unknown. Columns are found by name.

use foretoken_core::sample::Sample;
use serde_json::{Number, Value};

use super::{Kind, TableError, columns, line, values};

/// The samples as a file.
///
/// # Errors
/// [`TableError`] of the writer's.
pub fn write(samples: &[Sample]) -> Result<Vec<u8>, TableError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(columns().iter().map(|(name, _)| name))?;
    for sample in samples {
        let cell = |value: Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text,
            value => value.to_string(),
        };
        writer.write_record(values(sample).into_iter().map(cell))?;
    }
    writer.into_inner().map_err(|error| TableError::Csv(error.into_error().into()))
}

fn value(text: &str, kind: Kind) -> Option<Value> {
    match kind {
        Kind::Text => Some(text.into()),
        Kind::Long | Kind::Int => text.parse::<u64>().ok().map(Value::from),
        // As text, so that it is read to a float32 once and not by way of a double.
        Kind::Float => text
            .parse::<f32>()
            .ok()
            .map(|value| Number::from_f64(f64::from(value)).map_or(Value::Null, Value::Number)),
        Kind::Bool => text.parse::<bool>().ok().map(Value::from),
    }
}

/// The samples of a file as lines, for each to be checked as one from a filter.
///
/// # Errors
/// [`TableError`] names the row and the column.
pub fn read(file: &[u8]) -> Result<Vec<Vec<u8>>, TableError> {
    let mut reader = csv::Reader::from_reader(file);
    let headers = reader.headers()?.clone();
    let mut places = Vec::new();
    for (name, kind) in columns() {
        let place = headers.iter().position(|header| header == name);
        let needed = ["id", "at_ms", "schema"].contains(&name.as_str()) || name.starts_with("feature_");
        if place.is_none() && needed {
            return Err(TableError::Column { name, what: "is missing".to_owned() });
        }
        places.push((name, kind, place));
    }
    let mut lines = Vec::new();
    for (row, record) in (1..).zip(reader.records()) {
        let record = record?;
        let mut cells = Vec::with_capacity(places.len());
        for (name, kind, place) in &places {
            let text = place.and_then(|place| record.get(place)).unwrap_or("");
            // An empty id of a model says that the prior predicted.
            let empty = if *kind == Kind::Text && name != "more" { Value::from("") } else { Value::Null };
            cells.push(if text.is_empty() {
                empty
            } else {
                value(text, *kind).ok_or_else(|| TableError::Value {
                    row,
                    column: name.clone(),
                    text: text.chars().take(40).collect(),
                    kind: kind.name(),
                })?
            });
        }
        lines.push(line(cells));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ingest, synthetic};
    use proptest::prelude::*;

    #[test]
    fn samples_come_back_bit_by_bit() {
        let mut samples = synthetic::samples(1, 100);
        samples[3].model = "a, \"quoted\"\nname".to_owned();
        samples[4].tpot_ms = None;
        let read = read(&write(&samples).unwrap()).unwrap();
        for (line, sample) in read.iter().zip(&samples) {
            assert_eq!(format!("{:?}", ingest::read_line(line, u64::MAX).unwrap()), format!("{sample:?}"));
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_row_and_column() {
        let text = String::from_utf8(write(&synthetic::samples(1, 2)).unwrap()).unwrap();
        let error = read(text.replace(",200,", ",two hundred,").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("row 1") && error.contains("`status`"), "{error}");
        let error = read(text.replacen("feature_kv_usage", "kv", 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("feature_kv_usage"), "{error}");
    }

    #[test]
    fn a_file_cut_anywhere_gives_whole_samples_or_an_error() {
        let samples = synthetic::samples(1, 3);
        let file = write(&samples).unwrap();
        for end in 0..file.len() {
            let Ok(lines) = read(&file[..end]) else { continue };
            // A number that is cut is still one; only the last row can be.
            for (line, sample) in lines.iter().rev().skip(1).rev().zip(&samples) {
                let read = ingest::read_line(line, u64::MAX).unwrap();
                assert_eq!(format!("{read:?}"), format!("{sample:?}"), "{end}");
            }
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut file = write(&synthetic::samples(1, 3)).unwrap();
            for (place, byte) in changes {
                let place = place.index(file.len());
                file[place] = byte;
            }
            for line in read(&file).unwrap_or_default() {
                let _ = ingest::read_line(&line, u64::MAX);
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            // Whatever it is, it has not our columns.
            prop_assert!(read(&bytes).is_err());
        }
    }
}
