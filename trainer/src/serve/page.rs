//! The page at `/` and the events that keep it current.
//!
//! One file without any asset from elsewhere; the browser is told to load none. The events carry what
//! `GET /v1/status` has, every [`TICK`], to at most [`MAX_VIEWERS`] viewers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as FromState;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use super::State;
use super::status::Status;

/// Time between two events.
const TICK: Duration = Duration::from_secs(2);

/// Viewers at a time.
const MAX_VIEWERS: usize = 16;

/// Nothing but this page's own styles, script and connection.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

static VIEWERS: Semaphore = Semaphore::const_new(MAX_VIEWERS);

/// The page.
pub async fn page() -> Response {
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(include_str!("page.html"))).into_response()
}

/// Its events, until the viewer or the service goes.
pub async fn events(FromState(state): FromState<Arc<State>>) -> Response {
    let Ok(place) = VIEWERS.try_acquire() else {
        return (StatusCode::TOO_MANY_REQUESTS, "too many viewers at a time\n").into_response();
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = {
        let state = state.clone();
        Box::pin(async move { state.stopped().await })
    };
    let events = stream::unfold((ticks, state, place), |(mut ticks, state, place)| async move {
        ticks.tick().await;
        let event = event(&state);
        Some((Ok::<_, Infallible>(event), (ticks, state, place)))
    });
    Sse::new(events.take_until(end)).keep_alive(KeepAlive::default()).into_response()
}

fn event(state: &State) -> Event {
    let pairs = state.store().live().pairs();
    let data = json!({"status": Status::of(state), "pairs": pairs});
    Event::default().data(data.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_page_loads_nothing_from_elsewhere() {
        let response = page().await;
        assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        let page = include_str!("page.html");
        // The name of SVG's namespace is no address that anything is loaded from.
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!outside.contains(word), "{word}");
        }
        assert!(page.contains("width=device-width"));
        // What comes from samples and Envoys is never taken for markup.
        assert!(!page.contains("innerHTML"));
    }
}
