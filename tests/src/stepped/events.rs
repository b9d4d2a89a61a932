//! Words and events of the two streamed APIs.

use serde_json::{Value, json};

/// An API whose answers are streams of typed events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamedApi {
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
}

/// One event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) bytes: String,
    /// It carries generated text.
    pub(super) has_text: bool,
    /// It is sent when the pod is told to, not right after the one before.
    pub(super) waits: bool,
}

/// Tokens, for `usage`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) prompt: u32,
    pub(super) cached: u32,
    pub(super) output: u32,
}

/// Reasoning, and the texts that follow it one event each: some blocks of the router's prefix index.
pub(super) fn answer(number: usize) -> (String, Vec<String>) {
    let sentence = |at| {
        format!(
            "Sentence {at} of answer {number} says little, takes its time, and adds ninety bytes or so to it. "
        )
    };
    (format!("The user wants answer {number}."), (0..10).map(sentence).collect())
}

/// The words of a request's conversation, with its roles, and without reasoning: models are not shown it again.
pub(super) fn prompt(request: &Value) -> Vec<String> {
    let mut words = Vec::new();
    for system in [&request["instructions"], &request["system"]] {
        add(system, &mut words);
    }
    for message in [&request["input"], &request["messages"]].into_iter().filter_map(Value::as_array).flatten()
    {
        if message["type"] != "reasoning" {
            add(&message["role"], &mut words);
            add(&message["content"], &mut words);
        }
    }
    words
}

fn add(content: &Value, words: &mut Vec<String>) {
    let texts = content.as_array().into_iter().flatten().map(|part| &part["text"]);
    for text in std::iter::once(content).chain(texts).filter_map(Value::as_str) {
        words.extend(text.split_whitespace().map(str::to_owned));
    }
}

impl StreamedApi {
    /// Where it is asked.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// A whole answer. Events with text wait for their step, and so does the first one after the last text.
    pub(super) fn events(self, reasoning: &str, texts: &[String], counts: Counts) -> Vec<Event> {
        let events = match self {
            Self::Responses => responses(reasoning, texts, counts),
            Self::Messages => messages(reasoning, texts, counts),
        };
        let has_text = |event: &Value| {
            matches!(
                event["type"].as_str(),
                Some("response.reasoning_text.delta" | "response.output_text.delta")
            ) || matches!(event["delta"]["type"].as_str(), Some("thinking_delta" | "text_delta"))
        };
        let end = events.iter().rposition(has_text).map(|last| last + 1);
        let event = |(at, event): (usize, &Value)| Event {
            bytes: format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default()),
            has_text: has_text(event),
            waits: has_text(event) || Some(at) == end,
        };
        events.iter().enumerate().map(event).collect()
    }
}

fn responses(reasoning: &str, texts: &[String], counts: Counts) -> Vec<Value> {
    let text = texts.concat();
    let response = |status: &str, usage: Value| {
        json!({"id": "resp_1", "object": "response", "model": "stepped", "status": status, "error": null,
               "output": [], "usage": usage})
    };
    let message = |status: &str, content: Value| json!({"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content});
    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
    let thought = json!({"id": "rs_1", "type": "reasoning", "summary": [],
                         "content": [{"type": "reasoning_text", "text": reasoning}]});
    let mut events = vec![
        json!({"type": "response.created", "response": response("in_progress", Value::Null)}),
        json!({"type": "response.in_progress", "response": response("in_progress", Value::Null)}),
        json!({"type": "response.output_item.added", "output_index": 0,
               "item": {"id": "rs_1", "type": "reasoning", "summary": []}}),
        json!({"type": "response.reasoning_text.delta", "item_id": "rs_1", "output_index": 0,
               "content_index": 0, "delta": reasoning}),
        json!({"type": "response.reasoning_text.done", "item_id": "rs_1", "output_index": 0,
               "content_index": 0, "text": reasoning}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": thought}),
        json!({"type": "response.output_item.added", "output_index": 1,
               "item": message("in_progress", json!([]))}),
        json!({"type": "response.content_part.added", "item_id": "msg_1", "output_index": 1,
               "content_index": 0, "part": part("")}),
    ];
    events.extend(texts.iter().map(|text| {
        json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 1,
               "content_index": 0, "delta": text, "logprobs": []})
    }));
    let usage = json!({
        "input_tokens": counts.prompt, "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.output, "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": counts.prompt + counts.output,
    });
    events.extend([
        json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 1,
               "content_index": 0, "text": text, "logprobs": []}),
        json!({"type": "response.content_part.done", "item_id": "msg_1", "output_index": 1,
               "content_index": 0, "part": part(&text)}),
        json!({"type": "response.output_item.done", "output_index": 1,
               "item": message("completed", json!([part(&text)]))}),
        json!({"type": "response.completed", "response": response("completed", usage)}),
    ]);
    for (at, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(at);
    }
    events
}

fn messages(reasoning: &str, texts: &[String], counts: Counts) -> Vec<Value> {
    let delta =
        |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let mut events = vec![
        json!({"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "stepped", "content": [],
            "stop_reason": null, "stop_sequence": null,
            // Input tokens are those that did not come from the cache; the output's count is a placeholder.
            "usage": {"input_tokens": counts.prompt - counts.cached, "cache_creation_input_tokens": 0,
                      "cache_read_input_tokens": counts.cached, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0,
               "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "ping"}),
        delta(0, json!({"type": "thinking_delta", "thinking": reasoning})),
        delta(0, json!({"type": "signature_delta", "signature": "c2lnbmVk"})),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
    ];
    for text in texts {
        events.push(delta(1, json!({"type": "text_delta", "text": text})));
    }
    events.extend([
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
               "usage": {"output_tokens": counts.output}}),
        json!({"type": "message_stop"}),
    ]);
    events
}
