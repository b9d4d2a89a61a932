//! The canonical prompt's grammar: which bytes stand for which part of a conversation.
//!
//! Both readers write through it, the request's with what the client sent and the response's with what the
//! engine answered. An answer that comes back as history in the next request therefore has the same bytes, and
//! the next prompt's blocks go on where the answer's ended.
//!
//! Arguments of tool calls are written without the white space between JSON tokens: engines stream them in
//! one spelling, and clients that parse them send them back in another.
//!
//! What it is not: a chat template. Only prefixes have to agree with the engine's (see the parent module).

use super::blocks::{BlockHasher, ChainTail};
use super::text::TextCounts;

/// Control characters stand between the parts: JSON text holds them only when escaped, and chat hardly ever.
const TOOLS: u8 = 0x01;
const MESSAGE: u8 = 0x02;
const CONTENT: u8 = 0x03;
const NEXT_PROMPT: u8 = 0x04;
const CALL: u8 = 0x05;
const MEDIA: u8 = 0x06;
const RESULT: u8 = 0x07;

/// What the spaces between JSON's tokens are.
const JSON_SPACE: [u8; 4] = [b' ', b'\t', b'\n', b'\r'];

/// Where the JSON of a call's arguments stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    /// No call is open.
    Closed,
    /// A call is open and nothing of its arguments has come.
    Empty,
    /// Between strings.
    Between,
    /// Inside a string; `escaped` when the last byte was a backslash.
    InString { escaped: bool },
}

/// Writes a canonical prompt, or the part of one that an answer adds.
#[derive(Debug)]
pub(crate) struct Canonical {
    hasher: BlockHasher,
    arguments: Arguments,
    /// What the text written so far is made of.
    pub(crate) counts: TextCounts,
}

impl Canonical {
    pub(crate) fn new(hasher: BlockHasher) -> Self {
        Self { hasher, arguments: Arguments::Closed, counts: TextCounts::default() }
    }

    /// The tools that a request offers, as it spells them.
    pub(crate) fn tools(&mut self, json: &str) {
        self.mark(TOOLS);
        self.text(json);
    }

    /// A message of this role starts.
    pub(crate) fn message(&mut self, role: &str) {
        self.mark(MESSAGE);
        self.hasher.write(role.as_bytes());
        self.mark(CONTENT);
    }

    /// Text of a message or a prompt.
    pub(crate) fn text(&mut self, text: &str) {
        self.close_call();
        self.counts.add(text.as_bytes());
        self.hasher.write(text.as_bytes());
    }

    /// A call of the tool of this name starts.
    pub(crate) fn call(&mut self, name: &str) {
        self.mark(CALL);
        self.counts.add(name.as_bytes());
        self.hasher.write(name.as_bytes());
        self.mark(CONTENT);
        self.arguments = Arguments::Empty;
    }

    /// The next part of the open call's arguments.
    pub(crate) fn arguments(&mut self, json: &str) {
        self.counts.add(json.as_bytes());
        let mut rest = json.as_bytes();
        while !rest.is_empty() {
            let (length, next) = match self.arguments {
                Arguments::InString { escaped } => string_part(rest, escaped),
                Arguments::Closed | Arguments::Empty | Arguments::Between => between_part(rest),
            };
            let (part, tail) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            let stays_empty = self.arguments == Arguments::Empty && part.is_empty();
            self.hasher.write(part);
            rest = match (next, tail) {
                (Some(next), tail) => {
                    self.arguments = next;
                    tail
                }
                // A space between tokens is left out.
                (None, [_, after @ ..]) => after,
                (None, []) => &[],
            };
            if next.is_none() && !stays_empty {
                self.arguments = Arguments::Between;
            }
        }
    }

    /// The result of a tool call starts.
    pub(crate) fn result(&mut self) {
        self.mark(RESULT);
    }

    /// A picture, sound, file or unknown item, by its digest.
    pub(crate) fn media(&mut self, digest: u64) {
        self.mark(MEDIA);
        self.hasher.write(&digest.to_le_bytes());
    }

    /// The next prompt of a batch starts.
    pub(crate) fn next_prompt(&mut self) {
        self.mark(NEXT_PROMPT);
    }

    /// Token ids, four little-endian bytes each.
    pub(crate) fn token_ids(&mut self, ids: &[u8]) {
        self.hasher.write(ids);
    }

    /// The hasher, with everything written.
    pub(crate) fn finish(mut self) -> BlockHasher {
        self.close_call();
        self.hasher
    }

    /// A writer that goes on where a prompt ended.
    pub(crate) fn resume(tail: ChainTail, max_blocks: usize) -> Self {
        Self::new(BlockHasher::resume(tail, max_blocks))
    }

    fn mark(&mut self, byte: u8) {
        self.close_call();
        self.hasher.write(&[byte]);
    }

    /// A call without arguments has those of an empty object, as clients send it back.
    fn close_call(&mut self) {
        if core::mem::replace(&mut self.arguments, Arguments::Closed) == Arguments::Empty {
            self.hasher.write(b"{}");
        }
    }
}

/// How much of `json` belongs to a string that is open, and what comes after it.
fn string_part(json: &[u8], mut escaped: bool) -> (usize, Option<Arguments>) {
    for (at, byte) in json.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return (at.saturating_add(1), Some(Arguments::Between)),
            _ => {}
        }
    }
    (json.len(), Some(Arguments::InString { escaped }))
}

/// How much of `json` stands before the next space or inside string, and what comes after it; `None` for a space.
fn between_part(json: &[u8]) -> (usize, Option<Arguments>) {
    match json.iter().position(|byte| *byte == b'"' || JSON_SPACE.contains(byte)) {
        Some(at) if json.get(at) == Some(&b'"') => {
            (at.saturating_add(1), Some(Arguments::InString { escaped: false }))
        }
        Some(at) => (at, None),
        None => (json.len(), Some(Arguments::Between)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::BlockOptions;
    use super::*;

    fn bytes_of(write: impl FnOnce(&mut Canonical)) -> Vec<u64> {
        let mut canonical =
            Canonical::new(BlockHasher::new(1, BlockOptions { block_bytes: 1, max_blocks: 10_000 }));
        write(&mut canonical);
        canonical.finish().blocks
    }

    #[test]
    fn spaces_between_the_tokens_of_arguments_do_not_count_and_those_in_strings_do() {
        let tight = r#"{"a b":"c \" d\\","e":[1,true],"f":"}"}"#;
        let loose = "\n{ \"a b\" : \"c \\\" d\\\\\",\t\"e\":\r[1, true], \"f\": \"}\" }  ";
        let of = |json: &str| {
            bytes_of(|canonical| {
                canonical.call("f");
                canonical.arguments(json);
                canonical.text("x");
            })
        };
        assert_eq!(of(tight), of(loose));
        assert_ne!(of(tight), of(&tight.replace("a b", "ab")));
        for at in 0..loose.len() {
            let (head, tail) = loose.split_at(at);
            let split = bytes_of(|canonical| {
                canonical.call("f");
                canonical.arguments(head);
                canonical.arguments(tail);
                canonical.text("x");
            });
            assert_eq!(split, of(tight), "split at {at}");
        }
    }

    #[test]
    fn a_call_without_arguments_is_one_of_an_empty_object() {
        let of = |json: &str| {
            bytes_of(|canonical| {
                canonical.call("f");
                canonical.arguments(json);
                canonical.message("tool");
            })
        };
        assert_eq!(of(""), of("{}"));
        assert_eq!(of(" \n"), of("{ }"));
        assert_ne!(of(""), of("{\"a\":1}"));
        let at_the_end = bytes_of(|canonical| canonical.call("f"));
        assert_eq!(
            at_the_end,
            bytes_of(|canonical| {
                canonical.call("f");
                canonical.arguments("{}");
            })
        );
    }
}
