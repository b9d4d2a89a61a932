//! A client that stamps bytes when they arrive.
//!
//! Blocking reads on a thread of its own: what lies between the bytes' arrival and the stamp is one wake-up.
//! It reads what Envoy sends for a streamed completion, and nothing else: HTTP/1.1, chunked, SSE.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// A request that takes longer fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Model name.
    pub model: String,
    /// Prompt.
    pub prompt: String,
    /// Output tokens.
    pub max_tokens: usize,
}

/// What the client measured.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// From the request's first byte sent to the first event with text.
    pub ttft_ms: f64,
    /// From there to the last one, over the tokens after the first.
    pub tpot_ms: f64,
    /// By the response's usage.
    pub prompt_tokens: u32,
    /// By the response's usage.
    pub output_tokens: u32,
}

/// Sends one request on a connection of its own and reads the answer.
///
/// # Errors
/// When the answer is not a whole stream.
pub fn exchange(address: SocketAddr, exchange: &Exchange) -> Result<Times> {
    let body = json!({
        "model": exchange.model, "prompt": exchange.prompt, "max_tokens": exchange.max_tokens, "stream": true,
        "stream_options": {"include_usage": true},
    })
    .to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let sent = Instant::now();
    stream.write_all(request.as_bytes())?;

    let mut reader = Answer::default();
    let mut buffer = [0; 64 << 10];
    loop {
        let size = stream.read(&mut buffer)?;
        let arrived = Instant::now();
        if size == 0 {
            bail!("the connection closed early: {reader:?}");
        }
        reader.take(&buffer[..size], arrived)?;
        if reader.done {
            break;
        }
    }
    let (first, last) = (reader.first.context("no token")?, reader.last.context("no token")?);
    let (prompt_tokens, output_tokens) = reader.usage.context("no usage")?;
    ensure!(output_tokens >= 2, "{output_tokens} tokens have no time between them");
    let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1000.0;
    Ok(Times {
        ttft_ms: ms(sent, first),
        tpot_ms: ms(first, last) / f64::from(output_tokens - 1),
        prompt_tokens,
        output_tokens,
    })
}

#[derive(Debug, Default)]
struct Answer {
    raw: Vec<u8>,
    head_read: bool,
    text: Vec<u8>,
    first: Option<Instant>,
    last: Option<Instant>,
    usage: Option<(u32, u32)>,
    done: bool,
}

impl Answer {
    fn take(&mut self, bytes: &[u8], arrived: Instant) -> Result<()> {
        self.raw.extend_from_slice(bytes);
        if !self.head_read {
            let Some(end) = find(&self.raw, b"\r\n\r\n") else { return Ok(()) };
            let head = String::from_utf8_lossy(&self.raw[..end]).to_lowercase();
            ensure!(head.starts_with("http/1.1 200"), "{}", String::from_utf8_lossy(&self.raw));
            ensure!(head.contains("transfer-encoding: chunked"), "not chunked: {head}");
            self.raw.drain(..end + 4);
            self.head_read = true;
        }
        while let Some(line) = find(&self.raw, b"\r\n") {
            let size = usize::from_str_radix(std::str::from_utf8(&self.raw[..line])?.trim(), 16)?;
            if self.raw.len() < line + 2 + size + 2 {
                break;
            }
            self.text.extend_from_slice(&self.raw[line + 2..line + 2 + size]);
            self.raw.drain(..line + 2 + size + 2);
            self.done |= size == 0;
        }
        while let Some(end) = find(&self.text, b"\n\n") {
            let event: Vec<u8> = self.text.drain(..end + 2).collect();
            let Some(data) = event.strip_prefix(b"data: ") else { continue };
            if data.starts_with(b"[DONE]") {
                continue;
            }
            let value: Value = serde_json::from_slice(data)?;
            if value["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
                self.first.get_or_insert(arrived);
                self.last = Some(arrived);
            }
            let tokens =
                |name: &str| value["usage"][name].as_u64().and_then(|count| u32::try_from(count).ok());
            if let (Some(prompt), Some(output)) = (tokens("prompt_tokens"), tokens("completion_tokens")) {
                self.usage = Some((prompt, output));
            }
        }
        Ok(())
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
