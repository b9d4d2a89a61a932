//! The answer's part in the next prompt: its blocks, hashed on from the prompt's as it streams past.
//!
//! A conversation's next request repeats the answer as history, and the engine still has it in its cache. So the
//! router should know the answer's blocks as well as the prompt's. They are those that the request reader will
//! give for them: both write through the same canonical form. Reasoning is left out, as chat templates do.
//!
//! Only hashes are kept, and at most one block of text. What comes back changed (trimmed, edited, tool calls in
//! another order) has other hashes from there on, and simply is not found.

use crate::request::canonical::Canonical;
use crate::request::{ASSISTANT, ChainTail, Continues};

/// Blocks of one answer: 256 KiB of text at the default block size.
const MAX_BLOCKS: usize = 1024;

/// A piece of an answer, in its order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Piece<'a> {
    /// A message of its own starts (the responses API tells).
    Message,
    /// Text.
    Text(&'a str),
    /// A call of the tool of this name starts.
    Call(&'a str),
    /// The next part of the call's arguments.
    Arguments(&'a str),
}

/// Hashes one answer.
#[derive(Debug)]
pub(super) struct Answer {
    canonical: Canonical,
    /// Whether a message must be opened before anything is written.
    opens: bool,
    /// Whether the open message has nothing in it yet.
    fresh: bool,
    is_chat: bool,
}

impl Answer {
    /// An answer to the prompt with this tail; `None` where its form in the next prompt is not known.
    pub(super) fn new(tail: ChainTail) -> Option<Self> {
        let continues = tail.continues;
        (continues != Continues::Nothing).then(|| Self {
            canonical: Canonical::resume(tail, MAX_BLOCKS),
            opens: continues == Continues::Message,
            fresh: false,
            is_chat: continues != Continues::Text,
        })
    }

    /// Takes the next piece.
    pub(super) fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Message if !self.is_chat || self.fresh => {}
            Piece::Message => self.open(),
            Piece::Text("") | Piece::Arguments("") => {}
            Piece::Text(text) => {
                self.begin();
                self.canonical.text(text);
            }
            Piece::Call(name) => {
                self.begin();
                self.canonical.call(name);
            }
            Piece::Arguments(json) => {
                self.begin();
                self.canonical.arguments(json);
            }
        }
    }

    /// Hashes of the blocks that the answer filled.
    pub(super) fn finish(self) -> Vec<u64> {
        self.canonical.finish().blocks
    }

    fn begin(&mut self) {
        if self.opens {
            self.open();
        }
        self.fresh = false;
    }

    fn open(&mut self) {
        self.canonical.message(ASSISTANT);
        self.opens = false;
        self.fresh = true;
    }
}
