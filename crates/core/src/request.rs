//! What the scheduler knows of a request: no text, only hashes, counts and names of fields.

use crate::ids::{FlowKey, ModelKey, RequestId, ResponseKey, SessionKey, TenantId};
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

/// One block's chained hash: it covers the scope and all blocks before it.
pub type BlockHash = u64;

/// How the chain was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Over a canonical rendering of the request's bytes.
    Bytes,
    /// Over token ids: the client's own (token-array prompts), or rendered and tokenised here.
    Tokens,
}

/// Where the session key came from (DESIGN section 8, in this order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySource {
    /// The pool's configured session header (default `x-session-id`).
    Header,
    /// A header of a known coding agent or front end.
    HarnessHeader,
    /// The body's `prompt_cache_key`.
    PromptCacheKey,
    /// The body's `session_params.session_id`.
    SessionParams,
    /// `conversation` (an id, or an object with one).
    Conversation,
    /// `metadata` (`session_id`, `conversation_id`, or the session part of `user_id`).
    Metadata,
    /// Hash of the opening: system or developer text and the first user message.
    Content,
    /// Nothing to go by.
    None,
}

impl KeySource {
    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::HarnessHeader => "harness_header",
            Self::PromptCacheKey => "prompt_cache_key",
            Self::SessionParams => "session_params",
            Self::Conversation => "conversation",
            Self::Metadata => "metadata",
            Self::Content => "content",
            Self::None => "none",
        }
    }
}

/// A request as it arrives.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Unique while the request lives.
    pub request: RequestId,
    /// Who pays and is isolated.
    pub tenant: TenantId,
    /// Whose turns share a place in the fairness of the line (tenant and session); None: a flow of
    /// its own.
    pub flow: Option<FlowKey>,
    /// The conversation, explicit or derived; scoped by tenant and model.
    pub session: Option<SessionKey>,
    /// Where `session` came from.
    pub session_source: KeySource,
    /// Hash of the opening (system or developer text, first user message), scoped by tenant and
    /// model; differs from `session` where the client names its session. None for empty prompts.
    pub opening: Option<SessionKey>,
    /// Named prompt version: the scenario header, else the hash of opening system text and tools,
    /// scoped by model. None where the request has neither.
    pub scenario: Option<SessionKey>,
    /// Hash of the leading text (the first blocks), for `chwbl`. None for empty prompts.
    pub leading: Option<SessionKey>,
    /// Exact binding: the response this one continues.
    pub previous_response: Option<ResponseKey>,
    /// Model or adapter name that the worker must list; None: every worker of the pool serves it.
    pub model: Option<ModelKey>,
    /// 1 for a first request; assistant messages in the history + 1.
    pub turn: u32,
    /// How `chain` was made.
    pub identity: Identity,
    /// What the chain was seeded with: whose cache may serve it (isolation, model, adapter, weights,
    /// template, salt).
    pub scope: u64,
    /// Block hashes from the beginning, full blocks only, at most `CHAIN_BLOCKS_MAX`.
    pub chain: Vec<BlockHash>,
    /// Bytes of the rendering that the chain stands for, the unfilled last block included.
    pub prompt_bytes: u64,
    /// Bytes that the request takes while it waits: its body.
    pub body_bytes: u64,
    /// Prompt tokens where they are known exactly (token arrays); else estimated from bytes.
    pub prompt_tokens: Option<u32>,
    /// Most tokens the answer may have, where the request says so.
    pub max_tokens: Option<u32>,
    /// Prompts in a batch request beyond the first: load, but not identity.
    pub extra_prompts: u32,
    /// The engine may take what it has of the prompt from its cache. Where the request forbids that, or
    /// wants what only computing gives, nothing of it counts as held, and an answer that found
    /// nothing tells nothing.
    pub reads_cache: bool,
    /// Give up waiting in the line at this time, where the pool's `max_wait` does not end before.
    pub deadline: Option<Nanos>,
    /// The caller may retry it on another worker (up to the pool's attempts).
    pub retryable: bool,
    /// Its first token can be seen when it comes: the answer is a stream, or has no tokens of its own.
    /// Of other answers the end alone is seen, so nothing is learnt of how long their prefill took.
    pub streams: bool,
    /// It is one prompt text and wants one text back: a worker that can do no more may take it.
    pub plain: bool,
}

/// What the engine said of one attempt. Unknown is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All prompt tokens, cached ones included.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens served from cache.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer.
    pub output_tokens: Option<u32>,
}

/// Why an attempt ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// No connection could be made.
    Connect,
    /// The connection broke before a response head.
    Reset,
    /// No response head in time.
    FirstByteTimeout,
    /// The stream went silent.
    IdleTimeout,
    /// The whole-request deadline passed.
    TotalTimeout,
    /// The answer broke off after its head.
    Truncated,
    /// 5xx other than saturation.
    ServerError,
    /// 503 or 429: the worker is full. A load signal, not a fault.
    Saturated,
    /// The worker's words could not be read (bad framing, header too large).
    Protocol,
}

impl Failure {
    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::Truncated => "truncated",
            Self::ServerError => "server_error",
            Self::Saturated => "saturated",
            Self::Protocol => "protocol",
        }
    }

    /// Whether the breaker counts it against the worker.
    #[must_use]
    pub fn is_fault(self) -> bool {
        !matches!(self, Self::Saturated | Self::TotalTimeout)
    }
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// The line is full.
    LineFull,
    /// Its flow has as many requests or bytes in the line as it may.
    FlowFull,
    /// Its tenant has as many requests or bytes in the line as it may.
    TenantFull,
    /// Its band has as many requests or bytes in the line as it may.
    BandFull,
    /// A first turn that would start later than the pool promises.
    StartTooLate,
    /// It waited as long as it may.
    WaitExpired,
    /// No worker of the pool can take it, now or soon (none known, or none lists the model).
    NoWorkers,
    /// Every worker that could be tried has failed this request; the last failure says how.
    AttemptsExhausted(Failure),
    /// The worker that holds the response it continues is gone, and the pool says to refuse.
    ResponseLost,
    /// The pool is being closed.
    Closing,
}

impl Refusal {
    /// The stable code: `x-maitred-reason`, records, metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LineFull => "queue-full",
            Self::FlowFull => "flow-full",
            Self::TenantFull => "tenant-full",
            Self::BandFull => "band-full",
            Self::StartTooLate => "start-too-late",
            Self::WaitExpired => "ttl-expired",
            Self::NoWorkers => "no-workers",
            Self::AttemptsExhausted(_) => "attempts-exhausted",
            Self::ResponseLost => "response-lost",
            Self::Closing => "closing",
        }
    }
}

/// A wait after which a refused client may try again.
pub type RetryAfter = Duration;
