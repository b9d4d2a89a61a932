//! Reads a streamed answer: events out of byte chunks, text and counts out of events.
//!
//! The filter's own reader is not used: a client that measures a proxy should not share its mistakes.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Longest event accepted; beyond it the stream is not an answer.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// What a stream has said so far.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Bytes of an event that is not complete yet.
    partial: Vec<u8>,
    /// The text.
    pub(super) text: String,
    /// Events that carried a token.
    pub(super) token_events: u32,
    /// Token counts as reported.
    pub(super) usage: Option<Usage>,
    /// The mark that ends a stream was seen.
    pub(super) done: bool,
    /// Something that is no answer: an error event, or not the format.
    pub(super) bad: Option<&'static str>,
}

/// `usage` of an answer.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u32,
    #[serde(default)]
    pub(super) completion_tokens: u32,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

impl Usage {
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    role: Option<IgnoredAny>,
    #[serde(default)]
    content: Option<String>,
}

impl Choice {
    /// The token's text, if this is one. An empty text is a token all the same (a part of a character),
    /// except in the event that opens a chat answer and in one that only ends it.
    fn token(&self) -> Option<&str> {
        let (text, opens) = match &self.delta {
            Some(delta) => (delta.content.as_deref()?, delta.role.is_some()),
            None => (self.text.as_deref()?, false),
        };
        (!text.is_empty() || !(opens || self.finish_reason.is_some())).then_some(text)
    }
}

impl Answer {
    /// Takes the next chunk; true when it held a token.
    pub(super) fn push(&mut self, chunk: &[u8]) -> bool {
        let before = self.token_events;
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.partial.is_empty() {
                self.line(line);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole);
            }
        }
        self.partial.extend_from_slice(rest);
        if self.partial.len() > MAX_EVENT_BYTES {
            self.partial = Vec::new();
            self.bad = Some("event_too_long");
        }
        self.token_events > before
    }

    fn line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        let Ok(event) = serde_json::from_slice::<Event>(data) else {
            self.bad = Some("not_an_event");
            return;
        };
        if event.error.is_some() {
            self.bad = Some("error_event");
        }
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        if let Some(token) = event.choices.first().and_then(Choice::token) {
            self.token_events += 1;
            self.text.push_str(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHAT: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" \\u00e9\\n\"},\"finish_reason\":null}]}\r\n\r\n",
        ": a comment\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n",
    );

    proptest! {
        #[test]
        fn a_stream_reads_the_same_however_it_is_cut(cuts in proptest::collection::vec(0usize..CHAT.len(), 0..6)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut answer = Answer::default();
            let mut from = 0;
            for cut in cuts.into_iter().chain([CHAT.len()]) {
                answer.push(&CHAT.as_bytes()[from..cut]);
                from = cut;
            }
            prop_assert_eq!(&answer.text, " é\nb");
            prop_assert_eq!(answer.token_events, 3);
            prop_assert!(answer.done && answer.bad.is_none());
            let usage = answer.usage.unwrap();
            prop_assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()), (9, 3, Some(4)));
        }
    }

    #[test]
    fn the_opening_event_is_no_token_and_an_error_is_no_answer() {
        let mut answer = Answer::default();
        assert!(!answer.push(&CHAT.as_bytes()[..110]));
        assert!(!answer.push(b"\ndata: {\"error\":{\"message\":\"x\"}}\n"));
        assert_eq!(answer.bad, Some("error_event"));
    }

    #[test]
    fn streams_of_real_engines_are_read_to_their_reported_length() {
        let shared = std::env::var_os("FORETOKEN_SHARED").map_or_else(
            || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
            std::path::PathBuf::from,
        );
        let fixtures = shared.join("engines/fixtures");
        let Ok(engines) = std::fs::read_dir(&fixtures) else {
            println!("skipped: no engine fixtures; set FORETOKEN_SHARED");
            return;
        };
        let mut read = 0;
        for entry in engines.flat_map(|engine| std::fs::read_dir(engine.unwrap().path()).unwrap()) {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "sse") {
                let mut answer = Answer::default();
                answer.push(&std::fs::read(&path).unwrap());
                assert!(answer.done && answer.bad.is_none(), "{path:?}");
                assert!(answer.token_events > 0, "{path:?}");
                if let Some(usage) = answer.usage {
                    // llama.cpp holds back tokens that end amid a character.
                    let held_back = usage.completion_tokens - answer.token_events;
                    assert!(held_back == 0 || path.to_string_lossy().contains("llamacpp"), "{path:?}");
                }
                read += 1;
            }
        }
        assert!(read > 0, "no .sse file under the fixtures");
    }
}
