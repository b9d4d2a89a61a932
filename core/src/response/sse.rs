//! Lines to events: the part of `text/event-stream` that engines use.
//!
//! `data` matters, and the event's name where the data is too large to be read; ids, retry times and comments
//! pass. The largest events of real engines are the first and the last of the responses API, which repeat the
//! request's instructions and tools.

use super::answer::Answer;
use super::event::{self, Facts};
use super::line::{Line, Lines};
use super::tally::Tally;

/// Data of one event that is kept.
const MAX_EVENT_BYTES: usize = 256 << 10;

/// An event's name that is kept; the longest in use has 40 bytes.
const MAX_NAME_BYTES: usize = 64;

/// Where events go.
pub(super) struct Sink<'s> {
    pub(super) tally: &'s mut Tally,
    pub(super) answer: &'s mut Option<Answer>,
    pub(super) now_us: u64,
}

impl Sink<'_> {
    /// Reads one event's JSON, or a body's. Returns whether it was an object.
    pub(super) fn read(&mut self, json: &[u8]) -> bool {
        let answer = &mut self.answer;
        let facts = event::read(json, |piece| {
            if let Some(answer) = answer {
                answer.take(piece);
            }
        });
        if let Some(facts) = &facts {
            self.tally.event(facts, self.now_us);
        }
        facts.is_some()
    }
}

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
    name: Vec<u8>,
}

impl Events {
    /// Takes the next chunk, received at `now_us`.
    pub(super) fn push(&mut self, chunk: &[u8], sink: &mut Sink<'_>) {
        let Self { lines, event } = self;
        lines.push(chunk, |line| event.take(line, sink));
    }

    /// Closes the stream. The standard drops an event that no blank line ends; a server that forgets the
    /// last one still said what it said.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        let Self { lines, event } = self;
        lines.finish(|line| event.take(line, sink));
        event.dispatch(sink);
    }
}

impl Event {
    fn take(&mut self, line: Line<'_>, sink: &mut Sink<'_>) {
        if line.bytes.is_empty() {
            self.dispatch(sink);
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
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value.get(..MAX_NAME_BYTES).unwrap_or(value));
            }
            // Older llama.cpp servers send `error: {…}` as a field of its own.
            b"error" => sink.tally.error(),
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

    fn dispatch(&mut self, sink: &mut Sink<'_>) {
        if self.has_data {
            if self.name == b"error" {
                sink.tally.error();
            }
            if self.oversized {
                sink.tally.event(&Facts::unread(&self.name), sink.now_us);
            } else if self.data.trim_ascii() == b"[DONE]" {
                sink.tally.end();
            } else {
                sink.read(&self.data);
            }
        }
        self.data.clear();
        self.has_data = false;
        self.oversized = false;
        self.name.clear();
    }
}
