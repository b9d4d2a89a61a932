//! Reading what an engine answers, while it streams past.
//!
//! The reader sees every chunk once, keeps a bounded part of it, and stamps what the samples and the
//! ledger need: when the first and the last token came, how many there were, what the cache gave.
//!
//! * `line`: bytes to lines, wherever chunks are split.
//! * `sse`: lines to events.
//! * `event`, with `choices` and `items`: an event's or a body's JSON to the few facts that count.
//! * `usage`: the engine's own counts, as engines spell them. `json`: values read without complaint.
//! * `answer`: the answer's text to the blocks that it adds to the prompt's.
//! * `tally`: facts and times to a [`Summary`].
//!
//! Proxies coalesce events and engines put several tokens into one, so neither chunks nor events are
//! tokens: where the engine reports a count, that count holds.
//!
//! What it is not: a validator. An event that cannot be read is no token and no error.

mod answer;
mod choices;
mod event;
mod items;
mod json;
mod line;
mod sse;
mod tally;
mod usage;

use crate::request::ChainTail;
use crate::sample::TokenSource;
use answer::Answer;
use sse::{Events, Sink};
use tally::Tally;

/// An unstreamed body is kept up to this length, to be read at its end; of a longer one only its end is read.
/// Answers in text are far below it, embeddings of a batch are not.
const MAX_JSON_BYTES: usize = 1 << 20;

/// End of a longer body that is kept: engines write `usage` last.
const TAIL_BYTES: usize = 4 << 10;

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

/// What was seen of tokens without asking the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventCount {
    /// Parts of events (choices, deltas) that carried generated tokens.
    pub parts: u32,
    /// Bytes of their text.
    pub bytes: u32,
    /// Whether each of them said how many tokens it held (token ids, log probabilities).
    pub stated: bool,
}

impl EventCount {
    /// Whether parts may be taken for tokens: they say so themselves, or hold no more text than one token of this
    /// model does. Engines that decode several tokens a step (speculative decoding, stream intervals) put them
    /// into one event, and a count of events would then make each token look that much slower.
    #[must_use]
    pub fn counts_tokens(&self, bytes_per_token: f32) -> bool {
        let parts = crate::num::f32_of_u64(u64::from(self.parts));
        let bytes = crate::num::f32_of_u64(u64::from(self.bytes));
        self.stated || bytes <= 1.5 * bytes_per_token * parts
    }
}

/// What the whole body said.
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// Tokens as events show them.
    pub events: EventCount,
    /// Clock when the last chunk came.
    pub end_us: Option<u64>,
    /// Whether the format's own end was seen (`[DONE]`, `message_stop`, `response.completed`, or a whole JSON
    /// value; of an unstreamed body of more than 1 MiB, its closing bracket).
    pub complete: bool,
    /// Whether an error object came instead of, or amid, the answer.
    pub error: bool,
    /// Hashes of the blocks that the answer adds to the prompt's, as the next request of the conversation will
    /// have them ([`crate::request::Prompt::blocks`]). Empty without [`ResponseReader::with_answer`], or where the
    /// next prompt is not known.
    pub answer_blocks: Vec<u64>,
}

/// Incremental reader of one response body.
///
/// Memory: at most 512 KiB for a stream (some hundred bytes with real engines), 1 MiB for an unstreamed body.
#[derive(Debug)]
pub struct ResponseReader {
    body: Body,
    tally: Tally,
    answer: Option<Answer>,
    /// Clock of the last chunk that was not empty.
    chunk_us: Option<u64>,
}

#[derive(Debug)]
enum Body {
    Sse(Events),
    Json(Vec<u8>),
    /// The last bytes of an unstreamed body that outgrew its bound.
    Tail(Vec<u8>),
}

impl ResponseReader {
    /// A reader for a body of this form.
    #[must_use]
    pub fn new(form: BodyForm) -> Self {
        let body = match form {
            BodyForm::Sse => Body::Sse(Events::default()),
            BodyForm::Json => Body::Json(Vec::new()),
        };
        Self { body, tally: Tally::default(), answer: None, chunk_us: None }
    }

    /// A reader that also hashes the answer, on from the prompt's tail.
    #[must_use]
    pub fn with_answer(form: BodyForm, tail: ChainTail) -> Self {
        Self { answer: Answer::new(tail), ..Self::new(form) }
    }

    /// Takes the next chunk, received at `now_us`.
    pub fn push(&mut self, chunk: &[u8], now_us: u64) -> Progress {
        if chunk.is_empty() {
            return self.tally.progress(false);
        }
        self.chunk_us = Some(now_us);
        let had_token = self.tally.has_token();
        match &mut self.body {
            Body::Sse(events) => {
                let sink = &mut Sink { tally: &mut self.tally, answer: &mut self.answer, now_us };
                events.push(chunk, sink);
            }
            Body::Json(json) if json.len().saturating_add(chunk.len()) <= MAX_JSON_BYTES => {
                json.extend_from_slice(chunk);
            }
            Body::Json(json) => {
                let mut tail = core::mem::take(json);
                keep_tail(&mut tail, chunk);
                self.body = Body::Tail(tail);
            }
            Body::Tail(tail) => keep_tail(tail, chunk),
        }
        self.tally.progress(!had_token && self.tally.has_token())
    }

    /// Closes the body at `now_us`. What came last counts as of when it came, not of when the body closed.
    pub fn finish(&mut self, now_us: u64) -> Summary {
        let at_us = self.chunk_us.unwrap_or(now_us);
        let mut sink = Sink { tally: &mut self.tally, answer: &mut self.answer, now_us: at_us };
        match &mut self.body {
            Body::Sse(events) => events.finish(&mut sink),
            Body::Json(json) => {
                if sink.read(json) {
                    sink.tally.end();
                }
            }
            Body::Tail(tail) => {
                // What the answer was is not known, only how long it took.
                sink.answer.take();
                if let Some(usage) = event::usage_at_end(tail) {
                    sink.read(&usage);
                }
                if tail.trim_ascii_end().ends_with(b"}") {
                    sink.tally.end();
                }
            }
        }
        Summary {
            end_us: self.chunk_us,
            answer_blocks: self.answer.take().map(Answer::finish).unwrap_or_default(),
            ..self.tally.summary()
        }
    }
}

/// Keeps the last [`TAIL_BYTES`] of what came.
fn keep_tail(tail: &mut Vec<u8>, chunk: &[u8]) {
    let chunk = chunk.get(chunk.len().saturating_sub(TAIL_BYTES)..).unwrap_or(chunk);
    let spare = tail.len().saturating_add(chunk.len()).saturating_sub(TAIL_BYTES);
    tail.drain(..spare.min(tail.len()));
    tail.extend_from_slice(chunk);
    tail.shrink_to(2 * TAIL_BYTES);
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
mod answer_tests;
#[cfg(test)]
mod api_tests;
#[cfg(test)]
mod tests;
