//! The HTTP interface: samples in, status and metrics out, hold and release.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State as FromState;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, http};
use serde_json::json;

use super::State;
use super::status::Status;
use crate::export::now_ms;
use crate::ingest;
use crate::metrics::Metrics;

/// The routes.
pub fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/v1/samples", post(samples))
        .route("/v1/status", get(status))
        .route("/v1/hold", post(|state, headers| set_held(state, headers, true)))
        .route("/v1/release", post(|state, headers| set_held(state, headers, false)))
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

async fn samples(FromState(state): FromState<Arc<State>>, request: Request<Body>) -> Response {
    // Before the body is read: who may not send has nothing buffered for him.
    if let Some(refused) = unauthorized(&state, request.headers()) {
        return refused;
    }
    let encoding = request.headers().get(header::CONTENT_ENCODING).cloned();
    let Ok(body) = to_bytes(request.into_body(), ingest::MAX_BODY_BYTES).await else {
        let error = format!("the body is longer than {} bytes or broke off", ingest::MAX_BODY_BYTES);
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, &error);
    };
    let taken = tokio::task::spawn_blocking(move || {
        let encoding = encoding.as_ref().map(|value| value.to_str().unwrap_or("?"));
        take(&state, &body, encoding)
    });
    taken.await.unwrap_or_else(|_| refuse(StatusCode::INTERNAL_SERVER_ERROR, "the trainer is ending"))
}

/// Parses and stores a body.
fn take(state: &State, body: &[u8], encoding: Option<&str>) -> Response {
    let batch = match ingest::decode(body, encoding) {
        Ok(body) => ingest::read(&body, now_ms()),
        Err(error @ ingest::BodyError::TooLarge) => {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &error.to_string());
        }
        Err(error @ ingest::BodyError::Encoding(_)) => {
            return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, &error.to_string());
        }
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let rejected = batch.rejected_count();
    state.rejected.fetch_add(rejected, Ordering::Relaxed);
    state.metrics.samples.with_label_values(&["rejected"]).inc_by(rejected);
    for (reason, count) in &batch.rejected {
        state.metrics.rejected.with_label_values(&[reason.name()]).inc_by(*count);
    }
    let appended = {
        let mut store = state.store();
        let appended = store.append(&batch.samples);
        state.metrics.window.set(i64::try_from(store.window_len()).unwrap_or(i64::MAX));
        appended
    };
    // What is not on disk is in memory and will be learned from, so it counts all the same.
    let (appended, not_on_disk) = match appended {
        Ok(appended) => (appended, None),
        Err(error) => (error.appended, Some(error)),
    };
    state.duplicates.fetch_add(appended.duplicates, Ordering::Relaxed);
    state.metrics.samples.with_label_values(&["accepted"]).inc_by(appended.accepted);
    state.metrics.samples.with_label_values(&["duplicate"]).inc_by(appended.duplicates);
    if appended.accepted > 0 {
        state.news.notify_one();
    }
    if let Some(error) = not_on_disk {
        tracing::error!(%error, "samples are not on disk");
        return refuse(StatusCode::INSUFFICIENT_STORAGE, &error.to_string());
    }
    // A batch of which nothing could be read is an error of the sender's, however many lines it has.
    let status = if batch.samples.is_empty() && rejected > 0 {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    let answer = json!({
        "accepted": appended.accepted,
        "duplicates": appended.duplicates,
        "rejected": rejected,
        "reasons": batch.examples,
    });
    (status, Json(answer)).into_response()
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

async fn metrics(FromState(state): FromState<Arc<State>>) -> Response {
    let report = state.store().live().report();
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
    use crate::publish::tests::template;
    use crate::serve::ServeOptions;
    use crate::{synthetic, xgb};

    #[tokio::test]
    async fn on_a_full_disk_the_counter_says_the_same_as_the_status() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let dir = tempfile::tempdir().unwrap();
        let any_port = "127.0.0.1:0".parse().unwrap();
        let options = ServeOptions {
            listen: any_port,
            xds_listen: any_port,
            ecds_file: None,
            template: template(),
            data_dir: dir.path().to_owned(),
            min_samples: 300,
            refit_interval: std::time::Duration::from_secs(1),
            token: String::new(),
            hold: false,
            bounds: crate::store::Bounds::default(),
            fit: crate::fit::FitOptions::default(),
        };
        let state = State::open(&options, xgboost).unwrap();
        let lines = |samples: &[foretoken_core::sample::Sample]| -> String {
            samples.iter().map(|sample| serde_json::to_string(sample).unwrap() + "\n").collect()
        };
        let samples = synthetic::samples(1, 5);
        state.store().fill_disk();
        let answer = take(&state, lines(&samples[..3]).as_bytes(), None);
        assert_eq!(answer.status(), StatusCode::INSUFFICIENT_STORAGE);
        let answer = take(&state, lines(&samples[2..]).as_bytes(), None);
        assert_eq!(answer.status(), StatusCode::OK);
        let counted = |result| state.metrics.samples.with_label_values(&[result]).get();
        assert_eq!((counted("accepted"), counted("duplicate")), (5, 1));
        assert_eq!(Status::of(&state).samples, 5);
    }
}
