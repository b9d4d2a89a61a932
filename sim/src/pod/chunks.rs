//! The bytes of an answer, as vLLM writes them: SSE events and whole JSON bodies.
//!
//! A streamed token costs one copy of a prepared head and tail around its word; everything that does not
//! change within an answer is rendered once. Words need no JSON escape (see [`crate::answer`]).

use bytes::{BufMut, BytesMut};
use serde_json::json;

use super::openai::Api;
use crate::answer::Word;

/// vLLM puts its version here; clients log it.
const FINGERPRINT: &str = "foretoken-sim";
const FINGERPRINT_FIELD: &str = ",\"system_fingerprint\":\"foretoken-sim\"";

/// Token counts of one answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) cached_tokens: u32,
}

impl Usage {
    fn to_json(self) -> String {
        let Self { prompt_tokens, completion_tokens, cached_tokens } = self;
        let total_tokens = prompt_tokens + completion_tokens;
        format!(
            "{{\"prompt_tokens\":{prompt_tokens},\"total_tokens\":{total_tokens},\"completion_tokens\":{completion_tokens},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens}}}}}"
        )
    }
}

/// Writes the events of one streamed answer.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    api: Api,
    /// `data: {"id":…,"model":…,`: the beginning of every event.
    opening: String,
    /// Usage in every chunk.
    continuous_usage: bool,
    /// Usage in a chunk of its own at the end.
    final_usage: bool,
}

impl ChunkWriter {
    pub(super) fn new(
        api: Api,
        id: &str,
        created: u64,
        model: &str,
        final_usage: bool,
        continuous_usage: bool,
    ) -> Self {
        let object = match api {
            Api::Completions => "text_completion",
            Api::Chat => "chat.completion.chunk",
        };
        let model = json!(model);
        let opening = format!(
            "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":["
        );
        Self { api, opening, continuous_usage, final_usage }
    }

    /// The event of one token. The first token of a chat answer is led by the role event, as in vLLM.
    pub(super) fn token(&self, out: &mut BytesMut, word: Word, finished: bool, usage: Usage) {
        out.reserve(2 * self.opening.len() + 320);
        let finish = if finished { "\"length\"" } else { "null" };
        match self.api {
            Api::Chat => {
                if usage.completion_tokens == 1 {
                    self.put(out, &["{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]"]);
                    self.close(
                        out,
                        Usage { completion_tokens: 0, ..usage },
                        ",\"prompt_token_ids\":null,\"prompt_text\":null",
                    );
                }
                self.put(out, &["{\"index\":0,\"delta\":{\"content\":\""]);
                out.put_slice(word.as_bytes());
                put_all(out, &["\"},\"logprobs\":null,\"finish_reason\":", finish]);
                put_all(out, &[if finished { ",\"stop_reason\":null" } else { "" }, ",\"token_ids\":null}]"]);
            }
            Api::Completions => {
                self.put(out, &["{\"index\":0,\"text\":\""]);
                out.put_slice(word.as_bytes());
                put_all(out, &["\",\"logprobs\":null,\"finish_reason\":", finish]);
                put_all(out, &[",\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]"]);
            }
        }
        let fingerprint = if finished && !self.final_usage { FINGERPRINT_FIELD } else { "" };
        self.close(out, usage, fingerprint);
    }

    /// What follows the last token: usage if asked for, and the mark that ends the stream.
    pub(super) fn end(&self, out: &mut BytesMut, usage: Usage) {
        if self.final_usage {
            self.put(out, &["],\"usage\":", &usage.to_json(), FINGERPRINT_FIELD, "}\n\n"]);
        }
        out.put_slice(b"data: [DONE]\n\n");
    }

    fn put(&self, out: &mut BytesMut, parts: &[&str]) {
        out.put_slice(self.opening.as_bytes());
        put_all(out, parts);
    }

    /// Ends a token's event, with usage when every chunk carries it.
    fn close(&self, out: &mut BytesMut, usage: Usage, extra: &str) {
        if self.continuous_usage {
            put_all(out, &[",\"usage\":", &usage.to_json()]);
        }
        put_all(out, &[extra, "}\n\n"]);
    }
}

fn put_all(out: &mut BytesMut, parts: &[&str]) {
    parts.iter().for_each(|part| out.put_slice(part.as_bytes()));
}

/// The body of an answer that is not streamed.
pub(super) fn whole(api: Api, id: &str, created: u64, model: &str, text: &str, usage: Usage) -> String {
    let usage = json!({
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    });
    let (object, choice) = match api {
        Api::Completions => (
            "text_completion",
            json!({"index": 0, "text": text, "logprobs": null, "finish_reason": "length", "stop_reason": null}),
        ),
        Api::Chat => (
            "chat.completion",
            json!({"index": 0, "message": {"role": "assistant", "content": text, "refusal": null},
                   "logprobs": null, "finish_reason": "length", "stop_reason": null}),
        ),
    };
    json!({"id": id, "object": object, "created": created, "model": model, "choices": [choice],
           "system_fingerprint": FINGERPRINT, "usage": usage})
    .to_string()
}
