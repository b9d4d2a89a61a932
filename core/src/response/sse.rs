//! Lines to events: the part of `text/event-stream` that engines use.
//!
//! Only `data` matters; ids, retry times and comments pass. An event larger than its bound is not read: it
//! counts as one token, because real ones of that size are a token with its log probabilities.

use super::event::Facts;
use super::line::{Line, Lines};
use super::tally::Tally;

/// Data of one event that is kept.
const MAX_EVENT_BYTES: usize = 64 << 10;

/// Reads events off a stream of chunks.
#[derive(Debug, Default)]
pub(super) struct Events {
    lines: Lines,
    event: Event,
}

/// The event that is being received.
#[derive(Debug, Default)]
struct Event {
    data: Vec<u8>,
    has_data: bool,
    oversized: bool,
    named_error: bool,
}

impl Events {
    /// Takes the next chunk, received at `now_us`.
    pub(super) fn push(&mut self, chunk: &[u8], tally: &mut Tally, now_us: u64) {
        let Self { lines, event } = self;
        lines.push(chunk, |line| event.take(line, tally, now_us));
    }

    /// Closes the stream. The standard drops an event that no blank line ends; a server that forgets the
    /// last one still said what it said.
    pub(super) fn finish(&mut self, tally: &mut Tally, now_us: u64) {
        let Self { lines, event } = self;
        lines.finish(|line| event.take(line, tally, now_us));
        event.dispatch(tally, now_us);
    }
}

impl Event {
    fn take(&mut self, line: Line<'_>, tally: &mut Tally, now_us: u64) {
        if line.bytes.is_empty() {
            self.dispatch(tally, now_us);
            return;
        }
        let (name, value) = match line.bytes.iter().position(|byte| *byte == b':') {
            Some(at) => {
                let (name, rest) = line.bytes.split_at(at);
                let value = rest.strip_prefix(b":").unwrap_or(rest);
                (name, value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line.bytes, &[][..]),
        };
        match name {
            b"data" => self.append(value, line.cut),
            b"event" => self.named_error = value == b"error",
            // Older llama.cpp servers send `error: {…}` as a field of its own.
            b"error" => tally.error(),
            _ => {}
        }
    }

    fn append(&mut self, value: &[u8], cut: bool) {
        let length = self.data.len().saturating_add(value.len()).saturating_add(usize::from(self.has_data));
        if cut || self.oversized || length > MAX_EVENT_BYTES {
            self.oversized = true;
            self.data.clear();
        } else {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        }
        self.has_data = true;
    }

    fn dispatch(&mut self, tally: &mut Tally, now_us: u64) {
        if self.has_data {
            if self.named_error {
                tally.error();
            }
            if self.oversized {
                tally.event(&Facts::UNREAD_TOKEN, now_us);
            } else if self.data.trim_ascii() == b"[DONE]" {
                tally.end();
            } else if let Some(facts) = Facts::read(&self.data) {
                tally.event(&facts, now_us);
            }
        }
        self.data.clear();
        self.has_data = false;
        self.oversized = false;
        self.named_error = false;
    }
}
