//! The pod's HTTP paths.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::answering::{Answer, AnswerBody};
use super::chunks::{ChunkWriter, whole};
use super::driver::Command;
use super::openai::{self, Api, ApiError};
use super::{Shared, metrics};
use crate::engine::Submission;

/// Largest request body; the longest prompt of any profile fits.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Response header that names the pod, so that tests and reports can tell replicas apart behind a proxy.
const POD_HEADER: HeaderName = HeaderName::from_static(super::POD_HEADER);

pub(super) fn router(shared: &Arc<Shared>) -> Router {
    let mut router = Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics_page));
    if shared.options.sim_endpoints {
        router = router.route("/sim/fault", post(fault)).route("/sim/reset", post(reset));
    }
    router.layer(DefaultBodyLimit::max(MAX_BODY_BYTES)).with_state(shared.clone())
}

async fn completions(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    infer(shared, Api::Completions, body).await
}

async fn chat(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    infer(shared, Api::Chat, body).await
}

async fn infer(shared: Arc<Shared>, api: Api, body: Bytes) -> Response {
    let arrived = Instant::now();
    if let Some(status) = shared.faults.take_failure() {
        return error_response(&shared, &ApiError::fault(status));
    }
    let adapters = shared.adapters().clone();
    let request = match openai::read(api, &body, &shared.options.model, &adapters, &shared.options.profile) {
        Ok(request) => request,
        Err(error) => return error_response(&shared, &error),
    };
    drop(body);
    let id = shared.requests.fetch_add(1, Ordering::Relaxed);
    let (sender, deliveries) = mpsc::unbounded_channel();
    let answer = Answer::new(shared.clone(), id, deliveries, request.prompt.digest(), request.prompt.len());
    let submission = Submission { id, prompt: request.prompt, max_output_tokens: request.max_tokens };
    if shared.commands.send(Command::Submit { submission, arrived, deliveries: sender }).is_err() {
        return error_response(&shared, &ApiError::fault(500));
    }
    let name = match api {
        Api::Completions => format!("cmpl-{:016x}", shared.response_id(id)),
        Api::Chat => format!("chatcmpl-{:016x}", shared.response_id(id)),
    };
    let (created, model) = (super::unix_seconds(), shared.options.model.as_str());
    if request.stream {
        let writer =
            ChunkWriter::new(api, &name, created, model, request.include_usage, request.continuous_usage);
        let body = Body::new(AnswerBody::new(answer, writer));
        respond(&shared, StatusCode::OK, "text/event-stream; charset=utf-8", body)
    } else {
        match answer.collect().await {
            Ok((text, usage)) => {
                let body = whole(api, &name, created, model, &text, usage);
                respond(&shared, StatusCode::OK, "application/json", Body::from(body))
            }
            Err(_) => error_response(&shared, &ApiError::fault(500)),
        }
    }
}

fn respond(shared: &Shared, status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Ok(name) = HeaderValue::from_str(&shared.options.name) {
        response.headers_mut().insert(POD_HEADER, name);
    }
    response
}

fn error_response(shared: &Shared, error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(shared, status, "application/json", Body::from(error.to_json()))
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let created = shared.created_s as u64;
    let base = &shared.options.model;
    let mut models = vec![json!({
        "id": base, "object": "model", "created": created, "owned_by": "vllm", "root": base, "parent": null,
        "max_model_len": shared.options.profile.max_model_len_tokens,
    })];
    models.extend(shared.adapters().iter().map(|adapter| {
        json!({
            "id": adapter, "object": "model", "created": created, "owned_by": "vllm",
            "root": format!("/adapters/{adapter}"), "parent": base,
        })
    }));
    let list = json!({"object": "list", "data": models});
    respond(&shared, StatusCode::OK, "application/json", Body::from(list.to_string()))
}

async fn metrics_page(State(shared): State<Arc<Shared>>) -> Response {
    respond(&shared, StatusCode::OK, metrics::CONTENT_TYPE, Body::from(metrics::page(&shared)))
}

/// Body of `POST /sim/fault`; every field is one switch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultRequest {
    /// Multiplies step times.
    #[serde(default)]
    slow: Option<f64>,
    /// Refuse new connections, or listen again.
    #[serde(default)]
    refuse: Option<bool>,
    /// Fail the next inference requests.
    #[serde(default)]
    fail_next: Option<FailNext>,
    /// Die.
    #[serde(default)]
    kill: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailNext {
    status: u16,
    count: u32,
}

async fn fault(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let switches: FaultRequest = match serde_json::from_slice(&body) {
        Ok(switches) => switches,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("fault switches: {error}\n")).into_response(),
    };
    if let Some(factor) = switches.slow {
        if !(0.01..=1000.0).contains(&factor) {
            return (StatusCode::BAD_REQUEST, format!("`slow` is {factor}: use 0.01 to 1000\n"))
                .into_response();
        }
        shared.faults.set_slow(factor);
    }
    if let Some(FailNext { status, count }) = switches.fail_next {
        if !(400..=599).contains(&status) {
            return (StatusCode::BAD_REQUEST, format!("`fail_next.status` is {status}: use 400 to 599\n"))
                .into_response();
        }
        shared.faults.fail_next(status, count);
    }
    if let Some(refuse) = switches.refuse {
        shared.faults.refuse(refuse);
    }
    if switches.kill {
        shared.faults.kill();
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn reset(State(shared): State<Arc<Shared>>) -> Response {
    let (done, finished) = oneshot::channel();
    let sent = shared.commands.send(Command::Reset(done)).is_ok();
    if sent && finished.await.is_ok() {
        StatusCode::NO_CONTENT.into_response()
    } else {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}
