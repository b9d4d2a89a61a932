//! A small HTTP/1.1 client for tests, and raw bytes for what no client would send.

use std::net::SocketAddr;
use std::time::Duration;

use ::http::{HeaderMap, Method, Request, StatusCode};
use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No request of a test takes longer than this on a healthy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Response headers.
    pub headers: HeaderMap,
    /// Body bytes.
    pub body: Bytes,
}

impl Answer {
    /// The body as text; what is not UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is not JSON; quotes it.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }

    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Sends one request and reads the whole answer. Each call opens a connection of its own, so that a test
/// never meets a connection that another one left behind.
///
/// # Errors
/// When there is no answer.
pub async fn send(
    method: Method,
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Answer> {
    let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header("connection", "close").body(Full::new(body.into()))?;
    let exchange = async {
        let response = client().request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        anyhow::Ok(Answer { status: parts.status, headers: parts.headers, body })
    };
    match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(answer) => answer.with_context(|| format!("http://{address}{path}")),
        Err(_) => bail!("http://{address}{path}: no answer for {PATIENCE:?}"),
    }
}

/// GET, whole answer.
///
/// # Errors
/// When there is no answer.
pub async fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    send(Method::GET, address, path, &[], Bytes::new()).await
}

/// GET of a JSON document.
///
/// # Errors
/// When there is no answer, it is not 200, or it is not JSON.
pub async fn get_json(address: SocketAddr, path: &str) -> Result<serde_json::Value> {
    let answer = get(address, path).await?;
    if answer.status != StatusCode::OK {
        bail!("http://{address}{path}: {}: {}", answer.status, answer.text());
    }
    answer.json()
}

/// POST of a JSON document, whole answer.
///
/// # Errors
/// When there is no answer.
pub async fn post_json(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &serde_json::Value,
) -> Result<Answer> {
    let mut headers = headers.to_vec();
    headers.push(("content-type", "application/json"));
    send(Method::POST, address, path, &headers, body.to_string()).await
}

/// A stream of server-sent events that is being read. Dropping it closes its connection, as a client does that
/// loses interest.
#[derive(Debug)]
pub struct EventStream {
    /// HTTP status.
    pub status: StatusCode,
    body: Incoming,
    received: Vec<u8>,
}

impl EventStream {
    /// POSTs a JSON document, and returns when the answer's headers have come.
    ///
    /// # Errors
    /// When they do not.
    pub async fn open(address: SocketAddr, path: &str, body: &serde_json::Value) -> Result<Self> {
        let request = Request::post(format!("http://{address}{path}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = tokio::time::timeout(PATIENCE, client().request(request))
            .await
            .with_context(|| format!("http://{address}{path}: no answer for {PATIENCE:?}"))??;
        Ok(Self { status: response.status(), body: response.into_body(), received: Vec::new() })
    }

    /// The data of the next event, once its last byte has come; `None` at the end.
    ///
    /// # Errors
    /// When the connection breaks, nothing comes, or the data is not JSON.
    pub async fn next(&mut self) -> Result<Option<serde_json::Value>> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.received.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                let data: String = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
                return serde_json::from_str(&data).map(Some).with_context(|| format!("not JSON: {event}"));
            }
            match tokio::time::timeout(PATIENCE, self.body.frame()).await.context("no event comes")? {
                Some(frame) => self.received.extend_from_slice(frame?.data_ref().context("trailers")?),
                None => return Ok(None),
            }
        }
    }
}

/// Writes `bytes` to a connection and returns all that comes back before the other side closes or `within`
/// is over.
///
/// # Errors
/// When the connection cannot be made or written.
pub async fn raw(address: SocketAddr, bytes: &[u8], within: Duration) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(bytes).await?;
    let mut answer = Vec::new();
    // A reset by the other side ends the answer just as a close does.
    let _ = tokio::time::timeout(within, stream.read_to_end(&mut answer)).await;
    Ok(answer)
}

fn client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http()
}
