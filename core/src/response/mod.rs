//! Reading what an engine answers, while it streams past.
//!
//! The reader sees every chunk once, keeps a bounded part of it, and stamps what the samples and the
//! ledger need: when the first and the last token came, how many there were, what the cache gave.
//!
//! * `line`: bytes to lines, wherever chunks are split.
//! * `sse`: lines to events.
//! * `event`: an event's or a body's JSON to the few facts that count.
//! * `usage`: the engine's own counts, as engines spell them.
//! * `tally`: facts and times to a [`Summary`].
//!
//! Proxies coalesce events and engines put several tokens into one, so neither chunks nor events are
//! tokens: where the engine reports a count, that count holds.
//!
//! What it is not: a validator. An event that cannot be read is no token and no error.

mod event;
mod line;
mod sse;
mod tally;
mod usage;

use crate::sample::TokenSource;
use event::Facts;
use sse::Events;
use tally::Tally;

/// An unstreamed body is kept up to this length, to be read at its end; a longer one is not read.
const MAX_JSON_BYTES: usize = 8 << 20;

/// Form of a response body, by its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyForm {
    /// `text/event-stream`.
    Sse,
    /// `application/json`.
    Json,
}

/// Token counts as the engine reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: Option<u32>,
    /// Output tokens.
    pub completion_tokens: Option<u32>,
    /// Prompt tokens taken from the cache.
    pub cached_tokens: Option<u32>,
}

/// What one chunk of the body brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Output tokens seen so far; never falls from one chunk to the next.
    pub tokens: u32,
    /// Whether this chunk held the first event that carries a token.
    pub first_token: bool,
}

/// What the whole body said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Clock when the first event with a token came. For an unstreamed body: when its last chunk came.
    pub first_token_us: Option<u64>,
    /// Clock when the last event with a token came.
    pub last_token_us: Option<u64>,
    /// Output tokens.
    pub output_tokens: u32,
    /// Where `output_tokens` comes from.
    pub tokens_from: TokenSource,
    /// Token counts as reported.
    pub usage: Usage,
    /// Whether the format's own end was seen (`[DONE]`, or a whole JSON value). False for an unstreamed
    /// body of more than 8 MiB, which is not read.
    pub complete: bool,
    /// Whether an error object came instead of, or amid, the answer.
    pub error: bool,
}

/// Incremental reader of one response body.
///
/// Memory: at most 128 KiB for a stream, 8 MiB for an unstreamed body.
#[derive(Debug)]
pub struct ResponseReader {
    body: Body,
    tally: Tally,
    /// Clock of the last chunk that was not empty.
    chunk_us: Option<u64>,
}

#[derive(Debug)]
enum Body {
    Sse(Events),
    Json(Vec<u8>),
    /// An unstreamed body that outgrew its bound.
    Unread,
}

impl ResponseReader {
    /// A reader for a body of this form.
    #[must_use]
    pub fn new(form: BodyForm) -> Self {
        let body = match form {
            BodyForm::Sse => Body::Sse(Events::default()),
            BodyForm::Json => Body::Json(Vec::new()),
        };
        Self { body, tally: Tally::default(), chunk_us: None }
    }

    /// Takes the next chunk, received at `now_us`.
    pub fn push(&mut self, chunk: &[u8], now_us: u64) -> Progress {
        if chunk.is_empty() {
            return self.tally.progress(false);
        }
        self.chunk_us = Some(now_us);
        let had_token = self.tally.has_token();
        match &mut self.body {
            Body::Sse(events) => events.push(chunk, &mut self.tally, now_us),
            Body::Json(json) if json.len().saturating_add(chunk.len()) <= MAX_JSON_BYTES => {
                json.extend_from_slice(chunk);
            }
            Body::Json(_) => self.body = Body::Unread,
            Body::Unread => {}
        }
        self.tally.progress(!had_token && self.tally.has_token())
    }

    /// Closes the body at `now_us`. What came last counts as of when it came, not of when the body closed.
    pub fn finish(&mut self, now_us: u64) -> Summary {
        let at_us = self.chunk_us.unwrap_or(now_us);
        match &mut self.body {
            Body::Sse(events) => events.finish(&mut self.tally, at_us),
            Body::Json(json) => {
                if let Some(facts) = Facts::read(json) {
                    self.tally.event(&facts, at_us);
                    self.tally.end();
                }
            }
            Body::Unread => {}
        }
        self.tally.summary()
    }
}

/// The form of a body with this content type, if it is one that is read here.
#[must_use]
pub fn form_of_content_type(content_type: &str) -> Option<BodyForm> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("text/event-stream") {
        Some(BodyForm::Sse)
    } else if media_type.eq_ignore_ascii_case("application/json") {
        Some(BodyForm::Json)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
