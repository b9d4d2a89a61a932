//! Reading what a client asks for.
//!
//! (placeholder head; owner: request/response/telemetry)

/// Which API a request speaks, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// How a prompt is cut into blocks.
#[derive(Debug, Clone, Copy)]
pub struct BlockOptions {
    /// Bytes of prompt text in one block (token ids count 4 bytes each).
    pub block_bytes: u32,
    /// At most this many blocks are hashed; the rest of the prompt counts as tail.
    pub max_blocks: u32,
}

/// What the router needs of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    /// Text bytes of the canonical prompt.
    pub text_bytes: u32,
    /// Tokens, where the client sent token ids.
    pub exact_tokens: Option<u32>,
    /// Chained hashes of the full blocks, first block first. The chain's seed is the model's name.
    pub blocks: Vec<u64>,
}

/// What the router needs of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LlmRequest {
    /// The API spoken.
    pub api: Api,
    /// Model asked for, at most 256 bytes of it.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the client asked for `usage` in the stream.
    pub include_usage: bool,
    /// The client's bound on output tokens (`max_tokens`, `max_completion_tokens`).
    pub max_tokens: Option<u32>,
    /// The prompt.
    pub prompt: Prompt,
}

/// Why a body is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not JSON.
    #[error("request body is not JSON: {0}")]
    NotJson(String),
    /// JSON, but not a request of this API.
    #[error("request body is not a request of this API: {0}")]
    NotRequest(String),
}

/// The API of a path (its query is ignored), if it is one that is read here.
#[must_use]
pub fn api_of_path(_path: &str) -> Option<Api> {
    None
}

/// Reads a request body.
///
/// # Errors
/// [`RequestError`] says what was expected where.
pub fn read_request(_api: Api, _body: &[u8], _options: BlockOptions) -> Result<LlmRequest, RequestError> {
    Err(RequestError::NotRequest(String::new()))
}
