//! One request over HTTP/1.1: sent, streamed, timed.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;

use super::sse::Answer;
use crate::pod::POD_HEADER;

/// Idle connections are closed after this long; some engines close theirs after 5 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes of an error body kept for the record.
const MAX_ERROR_BYTES: usize = 400;

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not a base URL.
    #[error("target `{0}` is not a base URL; write it as http://host:port")]
    Target(String),
    /// Not a header.
    #[error("header `{0}` is not valid; write it as `name: value`")]
    Header(String),
}

/// A client with a connection pool.
#[derive(Debug, Clone)]
pub struct Client {
    http: HyperClient<HttpConnector, Full<Bytes>>,
    headers: Vec<(HeaderName, HeaderValue)>,
    explain_header: HeaderName,
}

/// How one request went.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// HTTP status; 0 when there was no response.
    pub status: u16,
    /// Why it failed, in a few words that can be counted; `None` is success.
    pub failure: Option<String>,
    /// Send to first token.
    pub ttft: Option<Duration>,
    /// Send to last token.
    pub e2e: Option<Duration>,
    /// Prompt tokens as reported.
    pub prompt_tokens: Option<u32>,
    /// Cached prompt tokens as reported.
    pub cached_tokens: Option<u32>,
    /// Output tokens: as reported, else counted.
    pub output_tokens: u32,
    /// The answer.
    pub text: String,
    /// The pod that says it answered (simulated pods do).
    pub pod: Option<String>,
    /// The explain response header.
    pub explain: Option<String>,
    /// Start of an error body.
    pub error_body: Option<String>,
}

/// Checks a base URL and returns it without a trailing slash.
///
/// # Errors
/// [`ClientError::Target`] when it is not `http://authority`.
pub fn base_url(target: &str) -> Result<String, ClientError> {
    let trimmed = target.trim_end_matches('/');
    let uri: Uri = trimmed.parse().map_err(|_| ClientError::Target(target.to_owned()))?;
    if uri.scheme_str() == Some("http") && uri.authority().is_some() {
        Ok(trimmed.to_owned())
    } else {
        Err(ClientError::Target(target.to_owned()))
    }
}

impl Client {
    /// A client that adds `headers` (`name: value`) to every request.
    ///
    /// # Errors
    /// [`ClientError::Header`] names the header that is not one.
    pub fn new(headers: &[String]) -> Result<Self, ClientError> {
        let mut parsed = Vec::with_capacity(headers.len());
        for line in headers {
            let invalid = || ClientError::Header(line.clone());
            let (name, value) = line.split_once(':').ok_or_else(invalid)?;
            let name = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
            let value = HeaderValue::from_str(value.trim()).map_err(|_| invalid())?;
            parsed.push((name, value));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { http, headers: parsed, explain_header: HeaderName::from_static("x-foretoken-explain") })
    }

    /// Posts a streaming request and reads the answer to its end, or until `timeout`.
    pub async fn send(&self, base_url: &str, path: &str, body: Vec<u8>, timeout: Duration) -> Outcome {
        self.send_and_tell(base_url, path, body, timeout, || {}).await
    }

    /// The same; calls `at_first` when the first token has come, as a proxy would see it pass.
    pub async fn send_and_tell(
        &self,
        base_url: &str,
        path: &str,
        body: Vec<u8>,
        timeout: Duration,
        at_first: impl FnOnce() + Send,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        match tokio::time::timeout(timeout, self.exchange(base_url, path, body, at_first, &mut outcome)).await
        {
            Ok(failure) => outcome.failure = failure,
            Err(_) => outcome.failure = Some("timeout".to_owned()),
        }
        outcome
    }

    /// Fills `outcome` as far as the exchange gets; the return value says why it failed.
    async fn exchange(
        &self,
        base_url: &str,
        path: &str,
        body: Vec<u8>,
        at_first: impl FnOnce() + Send,
        outcome: &mut Outcome,
    ) -> Option<String> {
        let mut at_first = Some(at_first);
        let mut request = Request::post(format!("{base_url}{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream")
            .body(Full::new(Bytes::from(body)))
            .ok()?;
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        let sent = Instant::now();
        let response = match self.http.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Some("connect".to_owned()),
            Err(_) => return Some("broken_before_response".to_owned()),
        };
        outcome.status = response.status().as_u16();
        let text = |name: &HeaderName| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        outcome.explain = text(&self.explain_header);
        outcome.pod = text(&HeaderName::from_static(POD_HEADER));
        let mut body = response.into_body();
        if outcome.status != 200 {
            let mut start = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                if let Some(data) = frame.data_ref().filter(|_| start.len() < MAX_ERROR_BYTES) {
                    start.extend_from_slice(&data[..data.len().min(MAX_ERROR_BYTES - start.len())]);
                }
            }
            outcome.error_body = Some(String::from_utf8_lossy(&start).into_owned());
            return Some(format!("status_{}", outcome.status));
        }
        let mut answer = Answer::default();
        let broken = loop {
            match body.frame().await {
                None => break false,
                Some(Err(_)) => break true,
                Some(Ok(frame)) => {
                    if frame.data_ref().is_some_and(|data| answer.push(data)) {
                        let now = sent.elapsed();
                        outcome.ttft.get_or_insert(now);
                        outcome.e2e = Some(now);
                        if let Some(at_first) = at_first.take() {
                            at_first();
                        }
                    }
                }
            }
        };
        outcome.prompt_tokens = answer.usage.map(|usage| usage.prompt_tokens);
        outcome.cached_tokens = answer.usage.and_then(|usage| usage.cached_tokens());
        outcome.output_tokens = answer.usage.map_or(answer.token_events, |usage| usage.completion_tokens);
        outcome.text = answer.text;
        match (answer.bad, broken, answer.done) {
            (Some(bad), _, _) => Some(bad.to_owned()),
            (None, true, _) => Some("broken_amid_answer".to_owned()),
            (None, false, false) => Some("truncated".to_owned()),
            (None, false, true) => None,
        }
    }
}
