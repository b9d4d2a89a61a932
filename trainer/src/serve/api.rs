//! The HTTP interface: samples in, status and metrics out, hold and release.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, State as FromState};
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, http};
use foretoken_core::model::contract::MAX_FILE_BYTES;
use serde::Deserialize;
use serde_json::json;

use super::status::Status;
use super::{State, page};
use crate::ingest;
use crate::metrics::Metrics;
use crate::registry::Origin;
use crate::store::{Appended, NotOnDisk};

/// Longest time that a body may take to come.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// Longest wait for the disk before a batch is answered without a promise.
const SYNC_PATIENCE: Duration = Duration::from_secs(2);

/// How much longer than itself a compressed body is taken to be, before it is read. Samples deflate to a fifth.
const INFLATES: u32 = 5;

/// The routes.
pub fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/v1/events", get(page::events))
        .route("/v1/samples", post(samples))
        .route("/v1/status", get(status))
        .route("/v1/hold", post(|state, headers| set_held(state, headers, true)))
        .route("/v1/release", post(|state, headers| set_held(state, headers, false)))
        .route("/v1/versions", get(versions))
        .route("/v1/versions/{generation}", get(version))
        .route("/v1/models", post(push))
        .route("/v1/promote", post(promote))
        .route("/v1/rollback", post(rollback))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(state)
}

fn refuse(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

/// The answer to a request without the right token.
fn unauthorized(state: &State, headers: &HeaderMap) -> Option<Response> {
    let given = headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes);
    if ingest::authorized(given, &state.token) {
        return None;
    }
    state.metrics.unauthorized.inc();
    let error = "send `authorization: Bearer <token>` with the token of the trainer's --token";
    Some(refuse(StatusCode::UNAUTHORIZED, error))
}

/// The answer to a sender that is to come back later.
fn too_many(state: &State, after_s: u64) -> Response {
    state.metrics.throttled.inc();
    let error = "more samples than are taken at a time: send again after the seconds of retry-after";
    let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, error);
    response.headers_mut().insert(header::RETRY_AFTER, after_s.into());
    response
}

async fn samples(FromState(state): FromState<Arc<State>>, request: Request<Body>) -> Response {
    // Before the body is read: who may not send has nothing buffered for him.
    if let Some(refused) = unauthorized(&state, request.headers()) {
        return refused;
    }
    let (encoding, length) = {
        let text =
            |name| request.headers().get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
        (text(header::CONTENT_ENCODING).map(str::to_owned), length)
    };
    // A body of unknown length is taken for the longest that is read.
    let inflates = if encoding.is_some() { INFLATES } else { 1 };
    let bytes = length.unwrap_or(ingest::MAX_BODY_BYTES as u32).saturating_mul(inflates);
    let _room = match state.limits.admit(bytes, state.clock_us()) {
        Ok(room) => room,
        Err(after_s) => return too_many(&state, after_s),
    };
    let reading = to_bytes(request.into_body(), ingest::MAX_BODY_BYTES);
    let body = match tokio::time::timeout(BODY_PATIENCE, reading).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let error = format!("the body is longer than {} bytes or broke off", ingest::MAX_BODY_BYTES);
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &error);
        }
        Err(_) => {
            let error = format!("the body did not come within {} s", BODY_PATIENCE.as_secs());
            return refuse(StatusCode::REQUEST_TIMEOUT, &error);
        }
    };
    let taking = tokio::task::spawn_blocking({
        let state = state.clone();
        move || take(&state, &body, encoding.as_deref())
    });
    match taking.await {
        Ok(Ok(taken)) => taken.answer(&state).await,
        Ok(Err(refused)) => *refused,
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the trainer is ending"),
    }
}

/// A batch that is stored.
struct Taken {
    appended: Appended,
    batch: ingest::Batch,
    not_on_disk: Option<NotOnDisk>,
}

impl Taken {
    /// Waits until the disk has it, and says how much of it there is.
    async fn answer(self, state: &State) -> Response {
        let Appended { accepted, duplicates, quarantined, ticket } = self.appended;
        let rejected = self.batch.rejected_count();
        let mut synced = 0;
        let mut failed = self.not_on_disk.map(|error| error.to_string());
        if failed.is_none() && accepted > 0 {
            let mut progress = state.progress.clone();
            let wait = progress.wait_for(|progress| progress.of(ticket).is_some());
            // An error or no answer in time: the samples are stored, but nothing is promised.
            match tokio::time::timeout(SYNC_PATIENCE, wait).await {
                Ok(Ok(progress)) if progress.of(ticket) == Some(true) => synced = accepted,
                Ok(Ok(_)) => failed = Some("the disk refused to sync the samples".to_owned()),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        let status = if failed.is_some() {
            StatusCode::INSUFFICIENT_STORAGE
        } else if self.batch.samples.is_empty() && rejected > 0 {
            // A batch of which nothing could be read is an error of the sender's, however many lines it has.
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::OK
        };
        let mut answer = json!({
            "accepted": accepted,
            "synced": synced,
            "duplicates": duplicates,
            "quarantined": quarantined,
            "rejected": rejected,
            "reasons": self.batch.examples,
        });
        if let (Some(error), Some(answer)) = (failed, answer.as_object_mut()) {
            tracing::error!(%error, "samples are not on disk");
            answer.insert("error".to_owned(), error.into());
        }
        (status, Json(answer)).into_response()
    }
}

/// Parses and stores a body.
fn take(state: &State, body: &[u8], encoding: Option<&str>) -> Result<Taken, Box<Response>> {
    let batch = match ingest::decode(body, encoding) {
        Ok(body) => ingest::read(&body, state.clock.now_ms()),
        Err(error @ ingest::BodyError::TooLarge) => {
            return Err(Box::new(refuse(StatusCode::PAYLOAD_TOO_LARGE, &error.to_string())));
        }
        Err(error @ ingest::BodyError::Encoding(_)) => {
            return Err(Box::new(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, &error.to_string())));
        }
        Err(error) => return Err(Box::new(refuse(StatusCode::BAD_REQUEST, &error.to_string()))),
    };
    let rejected = batch.rejected_count();
    state.limits.book(batch.samples.len() + rejected as usize, state.clock_us());
    state.rejected.fetch_add(rejected, Ordering::Relaxed);
    state.metrics.samples.with_label_values(&["rejected"]).inc_by(rejected);
    for (reason, count) in &batch.rejected {
        state.metrics.rejected.with_label_values(&[reason.name()]).inc_by(*count);
    }
    let appended = {
        let mut store = state.store();
        let appended = store.append(&batch.samples, state.clock.now_ms());
        state.metrics.window.set(i64::try_from(store.window_len()).unwrap_or(i64::MAX));
        appended
    };
    // What is not on disk is in memory and will be learned from, so it counts all the same.
    let (appended, not_on_disk) = match appended {
        Ok(appended) => (appended, None),
        Err(error) => (error.appended, Some(error)),
    };
    state.duplicates.fetch_add(appended.duplicates, Ordering::Relaxed);
    for (result, count) in [
        ("accepted", appended.accepted - appended.quarantined),
        ("quarantined", appended.quarantined),
        ("duplicate", appended.duplicates),
    ] {
        state.metrics.samples.with_label_values(&[result]).inc_by(count);
    }
    if appended.accepted > 0 {
        state.news.notify_one();
    }
    Ok(Taken { appended, batch, not_on_disk })
}

async fn status(FromState(state): FromState<Arc<State>>) -> Json<Status> {
    Json(Status::of(&state))
}

async fn set_held(FromState(state): FromState<Arc<State>>, headers: HeaderMap, held: bool) -> Response {
    if let Some(refused) = unauthorized(&state, &headers) {
        return refused;
    }
    state.set_held(held);
    Json(json!({"held": held})).into_response()
}

async fn versions(FromState(state): FromState<Arc<State>>) -> Response {
    let versions = state.registry().versions();
    match versions {
        Ok(versions) => Json(versions).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn version(FromState(state): FromState<Arc<State>>, Path(generation): Path<u64>) -> Response {
    let version = state.registry().read(generation);
    match version {
        Ok((version, _)) => Json(version).into_response(),
        Err(error) => refuse(StatusCode::NOT_FOUND, &error.to_string()),
    }
}

/// Which version to publish again, and whether to hold publishing afterwards.
#[derive(Debug, Deserialize)]
struct Again {
    generation: Option<u64>,
    #[serde(default = "yes")]
    hold: bool,
}

fn yes() -> bool {
    true
}

async fn promote(
    FromState(state): FromState<Arc<State>>,
    Query(again): Query<Again>,
    headers: HeaderMap,
) -> Response {
    if again.generation.is_none() {
        return refuse(StatusCode::BAD_REQUEST, "say which version: ?generation=N");
    }
    publish_again(state, again, Origin::Promoted, &headers).await
}

async fn rollback(
    FromState(state): FromState<Arc<State>>,
    Query(again): Query<Again>,
    headers: HeaderMap,
) -> Response {
    publish_again(state, Again { generation: None, ..again }, Origin::RolledBack, &headers).await
}

/// Whether publishing is held after a push.
#[derive(Debug, Deserialize)]
struct Push {
    #[serde(default)]
    hold: bool,
}

async fn push(
    FromState(state): FromState<Arc<State>>,
    Query(Push { hold }): Query<Push>,
    request: Request<Body>,
) -> Response {
    if let Some(refused) = unauthorized(&state, request.headers()) {
        return refused;
    }
    let body = tokio::time::timeout(BODY_PATIENCE, to_bytes(request.into_body(), MAX_FILE_BYTES)).await;
    let Ok(Ok(onnx)) = body else {
        return refuse(StatusCode::BAD_REQUEST, "no model of at most 16 MiB has come");
    };
    match tokio::task::spawn_blocking(move || state.push(onnx.to_vec(), hold)).await {
        Ok(Ok(version)) => Json(version).into_response(),
        Ok(Err(error)) => refuse(StatusCode::UNPROCESSABLE_ENTITY, &error),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the trainer is ending"),
    }
}

async fn publish_again(state: Arc<State>, again: Again, origin: Origin, headers: &HeaderMap) -> Response {
    if let Some(refused) = unauthorized(&state, headers) {
        return refused;
    }
    let publishing =
        tokio::task::spawn_blocking(move || state.publish_again(again.generation, origin, again.hold));
    match publishing.await {
        Ok(Ok(version)) => Json(version).into_response(),
        Ok(Err(error)) => refuse(StatusCode::CONFLICT, &error),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the trainer is ending"),
    }
}

async fn metrics(FromState(state): FromState<Arc<State>>) -> Response {
    let (report, counts, bytes) = {
        let store = state.store();
        (store.live().report(), store.counts().clone(), store.bytes())
    };
    for (reason, count) in &counts.unclean {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        state.metrics.unclean.with_label_values(&[reason]).set(count);
    }
    state.metrics.store_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    for rung in ["model", "prior", "least_tokens", "envoy"] {
        let error = report.by_rung.get(rung);
        let metrics = &state.metrics.live;
        Metrics::set(metrics, &["ttft", rung], error.and_then(|error| error.ttft_ape_median));
        Metrics::set(metrics, &["tpot", rung], error.and_then(|error| error.tpot_ape_median));
    }
    let streams: i64 = state.nodes.list().iter().map(|node| i64::from(node.streams)).sum();
    state.metrics.streams.set(streams);
    ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], state.metrics.page()).into_response()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::publish::tests::template;
    use crate::serve::ServeOptions;
    use crate::{synthetic, xgb};

    fn state(dir: &std::path::Path, max_samples_per_s: u32) -> Option<Arc<State>> {
        let xgboost = xgb::for_tests()?;
        let options = ServeOptions {
            max_samples_per_s,
            publish_interval: Duration::ZERO,
            ..ServeOptions::new(template(), dir.to_owned())
        };
        Some(Arc::new(State::open(&options, xgboost, Clock::system()).unwrap()))
    }

    fn lines(samples: &[foretoken_core::sample::Sample]) -> String {
        samples.iter().map(|sample| serde_json::to_string(sample).unwrap() + "\n").collect()
    }

    async fn answer(response: Response) -> (StatusCode, serde_json::Value) {
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn post(state: &Arc<State>, body: String) -> (StatusCode, serde_json::Value) {
        answer(samples(FromState(state.clone()), Request::new(Body::from(body))).await).await
    }

    #[tokio::test]
    async fn on_a_full_disk_the_counter_says_the_same_as_the_status() {
        let dir = tempfile::tempdir().unwrap();
        let Some(state) = state(dir.path(), 1000) else { return };
        let samples = synthetic::samples(1, 5);
        state.store().fill_disk();
        let (status, body) = post(&state, lines(&samples[..3])).await;
        assert_eq!((status, &body["synced"]), (StatusCode::INSUFFICIENT_STORAGE, &0.into()));
        assert!(body["error"].as_str().unwrap().contains("samples-00000001.log"), "{body}");
        let (status, body) = post(&state, lines(&samples[2..])).await;
        assert_eq!((status, &body["accepted"], &body["synced"]), (StatusCode::OK, &2.into(), &2.into()));
        let counted = |result| state.metrics.samples.with_label_values(&[result]).get();
        assert_eq!((counted("accepted"), counted("duplicate")), (5, 1));
        assert_eq!(Status::of(&state).samples, 5);
    }

    #[tokio::test]
    async fn more_than_the_rate_is_told_when_to_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let Some(state) = state(dir.path(), 10) else { return };
        let (status, _) = post(&state, lines(&synthetic::samples(1, 60))).await;
        assert_eq!(status, StatusCode::OK);
        let response =
            samples(FromState(state.clone()), Request::new(Body::from(lines(&synthetic::samples(2, 1)))))
                .await;
        let after_s: u64 = response.headers()[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
        assert!((1..=4).contains(&after_s), "{after_s}");
        assert_eq!(answer(response).await.0, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(state.metrics.throttled.get(), 1);
    }
}
