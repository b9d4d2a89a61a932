//! Reading what a client asks for: which API, which model, how long a prompt, and which prefix of it
//! other requests may share.
//!
//! A router needs four facts of a request body and none of its meaning, so the body is read in one pass,
//! strings stay borrowed where JSON allows it, and unknown fields are skipped without being built.
//!
//! * `body`, with `prompt`, `messages`, `content` and `calls`: JSON to the pieces of a prompt (`piece`).
//! * `trail`: errors that name the field and what was expected, and never quote the client.
//! * `assemble`: pieces to the canonical prompt (`canonical`), its chained block hashes (`blocks`) and what its
//!   text is made of (`text`).
//! * [`tokens`], with `fit`: text to tokens, learned from what engines report.
//!
//! The canonical prompt is not what the engine renders (the chat template is the engine's own). It only
//! has to agree with it about prefixes: what a longer conversation shares with a shorter one here, it shares there.
//! Hence the tools come first, as engines render them, and nothing closes the last message.
//!
//! What it is not: validation on the engine's behalf. A field that routing does not need may hold
//! anything; the engine will say so.

mod assemble;
mod blocks;
mod body;
mod calls;
pub(crate) mod canonical;
mod content;
mod fit;
mod messages;
mod piece;
mod prompt;
mod text;
pub mod tokens;
mod trail;

pub use blocks::{ChainTail, Continues, model_key};
pub(crate) use messages::ASSISTANT;
pub use text::TextCounts;
pub use tokens::TokenEstimator;

/// A model's name is kept and hashed up to this length; names in use are below 100 bytes.
const MAX_MODEL_BYTES: usize = 256;

/// Which API a request speaks, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/embeddings`: no token is generated.
    Embeddings,
    /// `/v1/messages`, Anthropic's.
    Messages,
}

impl Api {
    /// Every API that is read.
    pub const ALL: [Self; 5] =
        [Self::Completions, Self::Chat, Self::Responses, Self::Embeddings, Self::Messages];

    /// How its paths end.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::Messages => "/v1/messages",
        }
    }
}

/// How a prompt is cut into blocks.
#[derive(Debug, Clone, Copy)]
pub struct BlockOptions {
    /// Bytes of prompt text in one block (token ids count 4 bytes each). 0 is read as 1.
    pub block_bytes: u32,
    /// At most this many blocks are hashed; the rest of the prompt counts as tail.
    pub max_blocks: u32,
}

/// What a prompt's number of tokens depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptShape {
    /// What its text is made of.
    pub text: TextCounts,
    /// Messages: the chat template adds tokens to each.
    pub messages: u32,
    /// Pictures, sounds and files.
    pub media: u32,
    /// Whether the engine puts something before it that the request only names.
    pub unseen: bool,
}

/// What the router needs of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    /// Bytes of the canonical prompt.
    pub text_bytes: u32,
    /// Tokens, where the client sent token ids.
    pub exact_tokens: Option<u32>,
    /// What its number of tokens depends on.
    pub shape: PromptShape,
    /// Chained hashes of the full blocks, first block first. The chain's seed is the model's name.
    pub blocks: Vec<u64>,
    /// Where the chain stands: the answer's blocks go on from here
    /// ([`crate::response::ResponseReader::with_answer`]).
    pub tail: ChainTail,
}

/// What the router needs of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LlmRequest {
    /// The API spoken.
    pub api: Api,
    /// Model asked for, at most 256 bytes of it; empty when the client left it to the engine.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the stream will tell `usage`: the client asked for it, or the API always does.
    pub include_usage: bool,
    /// The client's bound on output tokens (`max_completion_tokens` or `max_output_tokens`, else `max_tokens`);
    /// 1 for an embedding, whose one step ends with its vector.
    pub max_tokens: Option<u32>,
    /// The prompt.
    pub prompt: Prompt,
}

/// Why a body is no request. The messages never quote the body: it is the client's.
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
///
/// A gateway may put a prefix before `/v1/`, and a client a slash at the end.
#[must_use]
pub fn api_of_path(path: &str) -> Option<Api> {
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    Api::ALL.into_iter().find(|api| path.ends_with(api.path()))
}

/// Reads a request body.
///
/// # Errors
/// [`RequestError`] says what was expected where.
pub fn read_request(api: Api, body: &[u8], options: BlockOptions) -> Result<LlmRequest, RequestError> {
    let body = body::read(api, body)?;
    let model = leading_bytes(&body.model, MAX_MODEL_BYTES);
    let prompt = assemble::prompt(api, model, &body, options);
    Ok(LlmRequest {
        api,
        model: model.to_owned(),
        stream: body.stream,
        include_usage: body.include_usage || matches!(api, Api::Responses | Api::Messages),
        max_tokens: match api {
            Api::Embeddings => Some(1),
            _ => body.max_completion_tokens.or(body.max_tokens),
        },
        prompt,
    })
}

/// The longest leading part of `text` within `limit` bytes.
fn leading_bytes(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or_default()
}

#[cfg(test)]
mod api_tests;
#[cfg(test)]
mod tests;
