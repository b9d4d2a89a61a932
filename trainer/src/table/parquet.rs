//! Samples as Parquet, by the arrow crates. Columns are found by name when read, so that other tools may
//! reorder them or add their own.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float32Builder, StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use foretoken_core::sample::Sample;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use serde_json::Value;

use super::{Kind, TableError, columns, line, values};

/// Rows of a record batch.
const BATCH: usize = 8192;

fn data_type(kind: Kind) -> DataType {
    match kind {
        Kind::Text => DataType::Utf8,
        Kind::Long => DataType::UInt64,
        Kind::Int => DataType::UInt32,
        Kind::Float => DataType::Float32,
        Kind::Bool => DataType::Boolean,
    }
}

/// The schema of the file.
#[must_use]
pub fn schema() -> Schema {
    let fields: Vec<Field> = columns()
        .into_iter()
        .map(|(name, kind)| {
            let nullable = !["id", "at_ms", "schema"].contains(&name.as_str());
            Field::new(name, data_type(kind), nullable)
        })
        .collect();
    Schema::new(fields)
}

fn array(kind: Kind, column: impl Iterator<Item = Value>) -> ArrayRef {
    macro_rules! build {
        ($builder:ident, $of:expr) => {{
            let mut builder = $builder::new();
            column.map($of).for_each(|value| builder.append_option(value));
            Arc::new(builder.finish())
        }};
    }
    match kind {
        Kind::Text => build!(StringBuilder, |value: Value| value.as_str().map(str::to_owned)),
        Kind::Long => build!(UInt64Builder, |value: Value| value.as_u64()),
        Kind::Int => build!(UInt32Builder, |value: Value| {
            value.as_u64().and_then(|value| u32::try_from(value).ok())
        }),
        Kind::Float => build!(Float32Builder, |value: Value| value.as_f64().map(|value| value as f32)),
        Kind::Bool => build!(BooleanBuilder, |value: Value| value.as_bool()),
    }
}

/// The samples as a file.
///
/// # Errors
/// [`TableError`] of Parquet's.
pub fn write(samples: &[Sample]) -> Result<Vec<u8>, TableError> {
    let schema = Arc::new(schema());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?;
    for batch in samples.chunks(BATCH) {
        let rows: Vec<Vec<Value>> = batch.iter().map(values).collect();
        let arrays = columns()
            .into_iter()
            .enumerate()
            .map(|(index, (_, kind))| {
                array(kind, rows.iter().map(|row| row.get(index).cloned().unwrap_or_default()))
            })
            .collect();
        writer.write(&RecordBatch::try_new(schema.clone(), arrays)?)?;
    }
    Ok(writer.into_inner()?)
}

/// The values of one column of a batch, all nulls when it is not there and need not be.
fn column(batch: &RecordBatch, name: &str, kind: Kind) -> Result<Vec<Value>, TableError> {
    let fail = |what: String| TableError::Column { name: name.to_owned(), what };
    let Some(array) = batch.column_by_name(name) else {
        // A column of features that is not there means another schema, not an unknown value.
        if ["id", "at_ms", "schema"].contains(&name) || name.starts_with("feature_") {
            return Err(fail("is missing".to_owned()));
        }
        return Ok(vec![Value::Null; batch.num_rows()]);
    };
    let wrong = || fail(format!("is of type {}, not {}", array.data_type(), kind.name()));
    macro_rules! collect {
        ($array:expr) => {
            $array.ok_or_else(wrong)?.iter().map(|value| value.map_or(Value::Null, Value::from)).collect()
        };
    }
    Ok(match kind {
        Kind::Text => collect!(array.as_string_opt::<i32>()),
        Kind::Long => collect!(array.as_primitive_opt::<UInt64Type>()),
        Kind::Int => collect!(array.as_primitive_opt::<UInt32Type>()),
        // JSON has no NaN: unknown is null, which `from` gives for it.
        Kind::Float => collect!(array.as_primitive_opt::<Float32Type>()),
        Kind::Bool => collect!(array.as_boolean_opt()),
    })
}

/// The samples of a file as lines, for each to be checked as one from a filter.
///
/// # Errors
/// [`TableError`] names the column.
pub fn read(file: Bytes) -> Result<Vec<Vec<u8>>, TableError> {
    // The library's decoders panic on some damaged pages; nothing outlives the call, so nothing is left half done.
    std::panic::catch_unwind(|| read_sound(file)).unwrap_or_else(|_| {
        Err(ParquetError::General("a page is damaged; export the samples again".to_owned()).into())
    })
}

fn read_sound(file: Bytes) -> Result<Vec<Vec<u8>>, TableError> {
    let mut lines = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(BATCH).build()? {
        let batch = batch?;
        let mut columns: Vec<std::vec::IntoIter<Value>> = columns()
            .into_iter()
            .map(|(name, kind)| Ok(column(&batch, &name, kind)?.into_iter()))
            .collect::<Result<_, TableError>>()?;
        for _ in 0..batch.num_rows() {
            lines.push(line(columns.iter_mut().map(|column| column.next().unwrap_or_default()).collect()));
        }
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
        let mut samples = synthetic::samples(1, BATCH + 100);
        samples[3].ttft_ms = None;
        samples[4].features[2] = f32::NAN;
        samples[5].prior_ttft_ms = 0.1 + 0.2;
        let file = write(&samples).unwrap();
        let read = read(file.into()).unwrap();
        assert_eq!(read.len(), samples.len());
        for (line, sample) in read.iter().zip(&samples) {
            assert_eq!(format!("{:?}", ingest::read_line(line, u64::MAX).unwrap()), format!("{sample:?}"));
        }
    }

    #[test]
    fn a_missing_feature_is_named_and_another_missing_field_is_unknown() {
        let samples = synthetic::samples(1, 10);
        let file = Bytes::from(write(&samples).unwrap());
        let batch = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().next();
        let batch = batch.unwrap().unwrap();
        let without = |name: &str| {
            let mut batch = batch.clone();
            batch.remove_column(batch.schema().index_of(name).unwrap());
            let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            read(writer.into_inner().unwrap().into())
        };
        let error = without("feature_prompt_tokens").unwrap_err().to_string();
        assert!(error.contains("feature_prompt_tokens") && error.contains("missing"), "{error}");
        let line = without("cached_tokens").unwrap().remove(0);
        assert_eq!(ingest::read_line(&line, u64::MAX).unwrap().cached_tokens, None);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let file = Bytes::from(write(&synthetic::samples(1, 3)).unwrap());
        for end in 0..file.len() {
            assert!(read(file.slice(..end)).is_err(), "{end} of {}", file.len());
        }
    }

    proptest! {
        #[test]
        fn a_file_with_flipped_bits_never_panics(
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
            at_the_end in any::<bool>(),
        ) {
            let mut file = write(&synthetic::samples(1, 3)).unwrap();
            // The footer has the structure, and it is last.
            let from = if at_the_end { file.len() * 3 / 4 } else { 0 };
            for (place, bit) in flips {
                let place = from + place.index(file.len() - from);
                file[place] ^= 1 << bit;
            }
            for line in read(file.into()).unwrap_or_default() {
                let _ = ingest::read_line(&line, u64::MAX);
            }
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(bytes.into()).is_err());
        }
    }
}
