//! `export` and `import` through S3, Google Cloud Storage and Azure Blob Storage, each against a store in this process that
//! keeps what is put and wants that service's kind of credentials. In builds with the feature of each.

#![cfg(feature = "cloud")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use foretoken_trainer::export::now_ms;
use foretoken_trainer::synthetic;
use serde_json::Value;

/// Blobs by path, and the beginning that an authorization must have.
struct Bucket {
    blobs: Mutex<HashMap<String, Bytes>>,
    authorization: &'static str,
}

async fn serve(
    State(bucket): State<Arc<Bucket>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
    if !given.starts_with(bucket.authorization) {
        return (StatusCode::FORBIDDEN, format!("authorization {given:?}")).into_response();
    }
    let path = uri.path().to_owned();
    let mut blobs = bucket.blobs.lock().unwrap();
    // What clients read of an answer to a put or a get.
    let facts = [
        (header::ETAG, "\"1\""),
        (header::LAST_MODIFIED, "Mon, 30 Nov 2026 00:00:00 GMT"),
        (header::CONTENT_TYPE, "application/octet-stream"),
    ];
    match method {
        Method::PUT => {
            blobs.insert(path, body);
            (StatusCode::CREATED, facts).into_response()
        }
        Method::GET => match blobs.get(&path) {
            Some(blob) => (facts, blob.clone()).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Puts samples into a store and takes them out again, by the command line; the paths that the store has then.
async fn through(
    authorization: &'static str,
    url: &'static str,
    variables: impl Fn(&str) -> Vec<(&'static str, String)>,
) -> Vec<String> {
    let bucket = Arc::new(Bucket { blobs: Mutex::default(), authorization });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = Router::new()
        .fallback(serve)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(bucket.clone());
    tokio::spawn(axum::serve(listener, router).into_future());
    let environment = variables(&address);
    // The binary blocks; the store must be able to answer meanwhile.
    tokio::task::spawn_blocking(move || commands(url, &environment)).await.unwrap();
    let mut paths: Vec<String> = bucket.blobs.lock().unwrap().keys().cloned().collect();
    paths.sort();
    paths
}

fn commands(url: &str, environment: &[(&str, String)]) {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str], folder: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken-trainer"));
        // Nothing of the machine's own accounts.
        for (name, _) in std::env::vars() {
            if ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.args(args).arg("--json").arg("--data-dir").arg(folder).envs(environment.iter().cloned());
        command.output().unwrap()
    };
    let json = |output: std::process::Output| -> Value {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (one, two, file) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("s.ndjson"));
    let line = |mut sample: foretoken_core::sample::Sample| {
        sample.at_ms = now_ms() - 1000;
        serde_json::to_string(&sample).unwrap() + "\n"
    };
    std::fs::write(&file, synthetic::samples(4, 50).into_iter().map(line).collect::<String>()).unwrap();
    json(run(&["import", "--from", file.to_str().unwrap()], &one));
    let place = format!("{url}/fleet/samples.parquet");
    assert_eq!(json(run(&["export", "--to", &place], &one))["samples"], 50);
    assert_eq!(json(run(&["import", "--from", &place], &two))["accepted"], 50);
    let missing = run(&["import", "--from", &format!("{url}/nothing.parquet")], &two);
    assert_eq!(missing.status.code(), Some(1));
    let message = String::from_utf8(missing.stderr).unwrap();
    assert!(message.contains("nothing.parquet"), "{message}");
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn s3_keeps_samples_that_come_back() {
    let variables = |address: &str| {
        vec![
            ("AWS_ENDPOINT", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "eu-central-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "key-1".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ]
    };
    let paths = through("AWS4-HMAC-SHA256 Credential=key-1/", "s3://bucket", variables).await;
    assert_eq!(paths, ["/bucket/fleet/samples.parquet"]);
}

#[cfg(feature = "gcs")]
#[tokio::test]
async fn google_cloud_storage_keeps_samples_that_come_back() {
    let variables = |address: &str| {
        vec![
            ("GOOGLE_BASE_URL", format!("http://{address}")),
            ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
            ("GOOGLE_BEARER_TOKEN", "token-1".to_owned()),
        ]
    };
    let paths = through("Bearer token-1", "gs://bucket", variables).await;
    // Its API takes a name as one segment of the path, so the client escapes it.
    assert_eq!(paths, ["/bucket/fleet%2Fsamples%2Eparquet"]);
}

#[cfg(feature = "azure")]
#[tokio::test]
async fn azure_blob_storage_keeps_samples_that_come_back() {
    let variables = |address: &str| {
        vec![
            ("AZURE_STORAGE_ENDPOINT", format!("http://{address}")),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account".to_owned()),
            // Base64 of "secret".
            ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0".to_owned()),
        ]
    };
    let paths = through("SharedKey account:", "az://container", variables).await;
    assert_eq!(paths, ["/container/fleet/samples.parquet"]);
}
