//! Files of samples, wherever they are: local paths, and URLs of object stores that this build has.
//!
//! The form is told by the name: `.parquet`, `.csv`, `.log` (a segment of a trainer's store), else NDJSON. Every
//! sample that is read is checked as one from a filter.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use foretoken_core::sample::Sample;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use url::Url;

use super::{TableError, csv, parquet};
use crate::ingest;
use crate::store::segment;

/// What was read.
#[derive(Debug, Default)]
pub struct Read {
    /// Good samples with the text of their line.
    pub samples: Vec<(Sample, Vec<u8>)>,
    /// Rows or lines.
    pub lines: usize,
    /// Those among them that are no sample, or were not believed when they came.
    pub rejected: usize,
    /// Why the first of them was rejected.
    pub first: Option<String>,
}

/// A place as a URL: what has no scheme is a local path.
fn url(place: &str) -> Result<Url, TableError> {
    let fail = |reason: &str| TableError::Place { place: place.to_owned(), reason: reason.to_owned() };
    if place.contains("://") {
        return Url::parse(place).map_err(|error| fail(&error.to_string()));
    }
    let path = std::path::absolute(PathBuf::from(place)).map_err(|error| fail(&error.to_string()))?;
    Url::from_file_path(path).map_err(|()| fail("is not a path"))
}

/// Object stores: schemes of their URLs, the feature of the build that has them, whether this one has.
const STORES: [(&[&str], &str, bool); 3] = [
    (&["s3", "s3a"], "s3", cfg!(feature = "s3")),
    (&["gs"], "gcs", cfg!(feature = "gcs")),
    (&["az", "adl", "azure", "abfs", "abfss"], "azure", cfg!(feature = "azure")),
];

/// Names the feature that a URL needs when this build has it not.
fn check_store(place: &str, url: &Url) -> Result<(), TableError> {
    match STORES.iter().find(|(schemes, ..)| schemes.contains(&url.scheme())) {
        Some((_, feature, false)) => Err(TableError::Place {
            place: place.to_owned(),
            reason: format!(
                "this build has no such object store; build it with: cargo build --release -p foretoken-trainer --features {feature}"
            ),
        }),
        _ => Ok(()),
    }
}

fn open(place: &str) -> Result<(Arc<dyn ObjectStore>, Path), TableError> {
    let url = url(place)?;
    check_store(place, &url)?;
    // The HTTP client takes the process's provider; an error says that there is one.
    #[cfg(feature = "cloud")]
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    // Credentials and regions in the variables that the store's own tools use.
    let options = std::env::vars()
        .filter(|(name, _)| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix)));
    let (store, path) = object_store::parse_url_opts(&url, options)
        .map_err(|cause| TableError::Store { place: place.to_owned(), cause })?;
    Ok((store.into(), path))
}

/// The bytes of a file.
///
/// # Errors
/// [`TableError`] names the place.
pub async fn get(place: &str) -> Result<Bytes, TableError> {
    let fail = |cause| TableError::Store { place: place.to_owned(), cause };
    let (store, path) = open(place)?;
    store.get(&path).await.map_err(fail)?.bytes().await.map_err(fail)
}

/// Writes a file whole.
///
/// # Errors
/// [`TableError`] names the place.
pub async fn put(place: &str, bytes: Vec<u8>) -> Result<(), TableError> {
    let fail = |cause| TableError::Store { place: place.to_owned(), cause };
    let (store, path) = open(place)?;
    store.put(&path, bytes.into()).await.map_err(fail)?;
    Ok(())
}

/// The samples of a file.
///
/// # Errors
/// [`TableError`] when it cannot be read as what its name says; single bad lines are counted instead.
pub async fn read(place: &str, now_ms: u64) -> Result<Read, TableError> {
    let bytes = get(place).await?;
    let mut read = Read::default();
    let mut take = |line: &[u8]| {
        read.lines += 1;
        match ingest::read_line(line, now_ms) {
            Ok(sample) => read.samples.push((sample, line.to_vec())),
            Err((_, detail)) => {
                read.rejected += 1;
                read.first.get_or_insert(detail);
            }
        }
    };
    if place.ends_with(".parquet") {
        parquet::read(bytes)?.iter().for_each(|line| take(line));
    } else if place.ends_with(".csv") {
        csv::read(&bytes)?.iter().for_each(|line| take(line));
    } else if place.ends_with(".log") {
        let mut lost = 0;
        for line in segment::lines(&bytes) {
            match line {
                segment::Line::Record(segment::Kind::Sample, json) => take(json),
                _ => lost += 1,
            }
        }
        read.lines += lost;
        read.rejected += lost;
    } else {
        let lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| !line.is_empty()).for_each(take);
    }
    Ok(read)
}

/// Writes samples in the form that the name says.
///
/// # Errors
/// [`TableError`] names the place.
pub async fn write(place: &str, samples: &[Sample]) -> Result<usize, TableError> {
    let bytes = if place.ends_with(".parquet") {
        parquet::write(samples)?
    } else if place.ends_with(".csv") {
        csv::write(samples)?
    } else {
        let mut out = Vec::new();
        for sample in samples {
            out.extend(serde_json::to_vec(sample).unwrap_or_default());
            out.push(b'\n');
        }
        out
    };
    let length = bytes.len();
    put(place, bytes).await?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    #[tokio::test]
    async fn every_form_is_written_and_read_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let samples = synthetic::samples(1, 50);
        for name in ["s.parquet", "s.csv", "s.ndjson", "sub folder/s.parquet"] {
            let path = dir.path().join(name);
            let place = path.to_str().unwrap();
            write(place, &samples).await.unwrap();
            let found = read(place, u64::MAX).await.unwrap();
            assert_eq!((found.samples.len(), found.rejected), (50, 0), "{name}: {:?}", found.first);
            let url = Url::from_file_path(&path).unwrap();
            assert_eq!(read(url.as_str(), u64::MAX).await.unwrap().samples.len(), 50);
        }
    }

    #[tokio::test]
    async fn a_store_that_this_build_has_not_or_a_missing_file_is_named() {
        let error = read("/no/such/file.parquet", 0).await.unwrap_err().to_string();
        assert!(error.contains("/no/such/file.parquet"), "{error}");
        let error = read("nothing://bucket/file.parquet", 0).await.unwrap_err().to_string();
        assert!(error.contains("nothing://bucket"), "{error}");
    }
}
