//! Reading what an engine answers.
//!
//! (placeholder head; owner: request/response/telemetry)

use crate::sample::TokenSource;

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
    /// Output tokens seen so far.
    pub tokens: u32,
    /// Whether this chunk held the first event that carries a token.
    pub first_token: bool,
}

/// What the whole body said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Clock when the first event with a token came.
    pub first_token_us: Option<u64>,
    /// Clock when the last event with a token came.
    pub last_token_us: Option<u64>,
    /// Output tokens.
    pub output_tokens: u32,
    /// Where `output_tokens` comes from.
    pub tokens_from: TokenSource,
    /// Token counts as reported.
    pub usage: Usage,
    /// Whether the format's own end was seen (`[DONE]`, or a whole JSON value).
    pub complete: bool,
    /// Whether an error object came instead of, or amid, the answer.
    pub error: bool,
}

/// Incremental reader of one response body.
#[derive(Debug)]
pub struct ResponseReader {}

impl ResponseReader {
    /// A reader for a body of this form.
    #[must_use]
    pub fn new(_form: BodyForm) -> Self {
        Self {}
    }

    /// Takes the next chunk, received at `now_us`.
    pub fn push(&mut self, _chunk: &[u8], _now_us: u64) -> Progress {
        Progress::default()
    }

    /// Closes the body at `now_us`.
    pub fn finish(&mut self, _now_us: u64) -> Summary {
        Summary {
            first_token_us: None,
            last_token_us: None,
            output_tokens: 0,
            tokens_from: TokenSource::Events,
            usage: Usage::default(),
            complete: false,
            error: false,
        }
    }
}

/// The form of a body with this content type, if it is one that is read here.
#[must_use]
pub fn form_of_content_type(_content_type: &str) -> Option<BodyForm> {
    None
}
