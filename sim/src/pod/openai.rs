//! What a client may ask of a pod, and what the pod says when it cannot serve it: vLLM's error bodies.
//!
//! Only what changes the work is read (prompt, output length, stream options); sampling settings,
//! `ignore_eos` among them, are accepted and change nothing, since the pseudo model has no end token.
//! What would need a different answer (`n` above 1, several prompts, `echo`) is refused, not faked.

use serde::Deserialize;
use serde_json::json;

use crate::engine::prompt::TokenBlocks;
use crate::engine::{SubmitError, profile::Profile};

/// Output tokens when the client names none: vLLM's default for completions, used for chat as well,
/// since an answer here never ends by itself.
pub const DEFAULT_MAX_TOKENS: u32 = 16;

/// Which of the two APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Completions,
    Chat,
}

/// A request that the engine can take.
#[derive(Debug)]
pub(crate) struct PodRequest {
    pub(crate) prompt: TokenBlocks,
    pub(crate) max_tokens: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Usage in every chunk.
    pub(crate) continuous_usage: bool,
}

/// An error body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    kind: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    fn bad_request(param: Option<&'static str>, message: String) -> Self {
        Self { status: 400, kind: "BadRequestError", param, message }
    }

    /// What a fault switch answers with.
    pub(crate) fn fault(status: u16) -> Self {
        let kind = if status == 429 { "TooManyRequestsError" } else { "InternalServerError" };
        Self { status, kind, param: None, message: format!("fault switched on: status {status}") }
    }

    pub(crate) fn to_json(&self) -> String {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}})
            .to_string()
    }
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    prompt: Option<PromptField>,
    #[serde(default)]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    n: Option<u32>,
    #[serde(default)]
    echo: Option<bool>,
}

#[derive(Deserialize, Default)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
    #[serde(default)]
    continuous_usage_stats: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PromptField {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: Option<String>,
}

/// Reads a request body for a pod that serves `model` and these LoRA adapters of it.
pub(crate) fn read(
    api: Api,
    body: &[u8],
    model: &str,
    adapters: &[String],
    profile: &Profile,
) -> Result<PodRequest, ApiError> {
    let body: Body = serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(None, format!("request body is not a request of this API: {error}"))
    })?;
    if body.model.as_deref().is_some_and(|asked| asked != model && !adapters.iter().any(|name| name == asked))
    {
        return Err(ApiError {
            status: 404,
            kind: "NotFoundError",
            param: Some("model"),
            message: format!(
                "The model `{}` does not exist. Valid aliases: {model}.",
                body.model.unwrap_or_default()
            ),
        });
    }
    if body.n.unwrap_or(1) != 1 {
        return Err(ApiError::bad_request(Some("n"), "this pod answers one choice; use n = 1".to_owned()));
    }
    if body.echo == Some(true) {
        return Err(ApiError::bad_request(
            Some("echo"),
            "this pod does not echo prompts; leave echo out".to_owned(),
        ));
    }
    let prompt = match api {
        Api::Completions => completion_prompt(body.prompt, model, profile.block_tokens)?,
        Api::Chat => chat_prompt(body.messages, model, profile.block_tokens)?,
    };
    let max_tokens = body.max_completion_tokens.or(body.max_tokens).unwrap_or(DEFAULT_MAX_TOKENS);
    crate::engine::check_size(profile, prompt.len(), max_tokens)
        .map_err(|error| too_large(error, prompt.len(), max_tokens))?;
    let options = body.stream_options.unwrap_or_default();
    Ok(PodRequest {
        prompt,
        max_tokens,
        stream: body.stream.unwrap_or(false),
        include_usage: options.include_usage.unwrap_or(false),
        continuous_usage: options.continuous_usage_stats.unwrap_or(false),
    })
}

fn too_large(error: SubmitError, prompt_tokens: u32, max_tokens: u32) -> ApiError {
    match error {
        SubmitError::TooLong { limit, .. } if prompt_tokens >= limit => ApiError::bad_request(
            Some("input_tokens"),
            format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains at least \
                 {prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please \
                 reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
            ),
        ),
        SubmitError::TooLong { limit, .. } => ApiError::bad_request(
            Some("max_tokens"),
            format!(
                "This model's maximum context length is {limit} tokens. However, you requested {max_tokens} output \
                 tokens and your prompt contains {prompt_tokens} input tokens. Please reduce the length of the \
                 input prompt or the number of requested output tokens. (parameter=max_tokens, value={max_tokens})"
            ),
        ),
        SubmitError::NoOutput => ApiError::bad_request(
            Some("max_tokens"),
            format!("max_tokens must be at least 1, got {max_tokens}."),
        ),
        SubmitError::EmptyPrompt => {
            ApiError::bad_request(Some("prompt"), "The prompt cannot be empty.".to_owned())
        }
    }
}

fn completion_prompt(
    field: Option<PromptField>,
    model: &str,
    block_tokens: u32,
) -> Result<TokenBlocks, ApiError> {
    let several = || ApiError::bad_request(Some("prompt"), "this pod takes one prompt a request".to_owned());
    let of_ids = |ids: &[u32]| {
        let mut blocks = TokenBlocks::new(model, block_tokens);
        ids.iter().for_each(|id| blocks.push(*id));
        blocks
    };
    match field {
        None => Err(ApiError::bad_request(Some("prompt"), "`prompt` is missing".to_owned())),
        Some(PromptField::Text(text)) => Ok(TokenBlocks::of_text(model, block_tokens, &text)),
        Some(PromptField::Tokens(ids)) => Ok(of_ids(&ids)),
        Some(PromptField::Texts(texts)) => match texts.as_slice() {
            [text] => Ok(TokenBlocks::of_text(model, block_tokens, text)),
            _ => Err(several()),
        },
        Some(PromptField::TokenLists(lists)) => match lists.as_slice() {
            [ids] => Ok(of_ids(ids)),
            _ => Err(several()),
        },
    }
}

/// The chat template: each message as `<|role|>content<|end|>`, then the mark that opens the answer. An
/// answer that comes back as an assistant message stands exactly where it was generated.
fn chat_prompt(
    messages: Option<Vec<Message>>,
    model: &str,
    block_tokens: u32,
) -> Result<TokenBlocks, ApiError> {
    let messages = messages.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::bad_request(Some("messages"), "`messages` is missing or empty".to_owned()));
    }
    let mut rendered = String::new();
    for message in &messages {
        let role = match message.role.as_str() {
            role @ ("system" | "user" | "assistant" | "tool" | "developer") => role,
            other => {
                return Err(ApiError::bad_request(
                    Some("messages"),
                    format!("role {other:?} is unknown; use system, developer, user, assistant or tool"),
                ));
            }
        };
        rendered.push_str("<|");
        rendered.push_str(role);
        rendered.push_str("|>");
        match &message.content {
            None => {}
            Some(Content::Text(text)) => rendered.push_str(text),
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_deref()).for_each(|text| rendered.push_str(text));
            }
        }
        rendered.push_str("<|end|>");
    }
    rendered.push_str("<|assistant|>");
    Ok(TokenBlocks::of_text(model, block_tokens, &rendered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Word;

    fn read_one(api: Api, body: &serde_json::Value) -> Result<PodRequest, ApiError> {
        read(api, body.to_string().as_bytes(), "tiny", &[], &Profile::built_in("fast").unwrap())
    }

    #[test]
    fn the_next_turn_begins_with_the_tokens_of_the_former_prompt_and_its_answer() {
        let system = json!({"role": "system", "content": "Be short."});
        let question = json!({"role": "user", "content": [{"type": "text", "text": "What is a token?"}]});
        let first = read_one(Api::Chat, &json!({"messages": [system, question]})).unwrap().prompt;
        let mut expected = first.clone();
        let mut answer = String::new();
        for position in 0..50 {
            let word = Word::at(first.digest(), position);
            expected.push(word.token());
            answer.push_str(std::str::from_utf8(word.as_bytes()).unwrap());
        }
        let next = read_one(
            Api::Chat,
            &json!({"messages": [system, question, {"role": "assistant", "content": answer},
                                 {"role": "user", "content": "And why?"}]}),
        )
        .unwrap()
        .prompt;
        assert!(expected.hashes().len() >= 3);
        assert_eq!(&next.hashes()[..expected.hashes().len()], expected.hashes());
    }

    #[test]
    fn prompts_may_be_text_ids_or_a_list_of_one() {
        let tokens = |prompt| {
            read_one(Api::Completions, &json!({"prompt": prompt})).map(|request| request.prompt.len())
        };
        assert_eq!(tokens(json!("one two")), Ok(2));
        assert_eq!(tokens(json!(["one two"])), Ok(2));
        assert_eq!(tokens(json!([5, 6, 7])), Ok(3));
        assert_eq!(tokens(json!([[5, 6, 7]])), Ok(3));
        assert_eq!(tokens(json!(["one", "two"])).unwrap_err().status, 400);
    }

    #[test]
    fn errors_read_as_vllm_writes_them() {
        let error = read_one(Api::Completions, &json!({"model": "nope", "prompt": "x"})).unwrap_err();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&error.to_json()).unwrap(),
            json!({"error": {"message": "The model `nope` does not exist. Valid aliases: tiny.",
                             "type": "NotFoundError", "param": "model", "code": 404}})
        );
        let error = read_one(Api::Completions, &json!({"prompt": vec![1; 20_000]})).unwrap_err();
        assert!(error.to_json().contains("maximum context length is 16384 tokens"), "{}", error.to_json());
        assert_eq!(read_one(Api::Chat, &json!({"messages": []})).unwrap_err().status, 400);
        assert_eq!(
            read_one(Api::Completions, &json!({"prompt": "x", "max_tokens": 0})).unwrap_err().status,
            400
        );
        assert_eq!(read_one(Api::Completions, &json!({"prompt": "x", "n": 2})).unwrap_err().status, 400);
    }
}
