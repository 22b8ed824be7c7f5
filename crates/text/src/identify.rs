//! A request's identity: chain, session, opening, turn.

use maitred_core::ids::{ResponseKey, SessionKey};
use maitred_core::request::{BlockHash, Identity, KeySource};
use maitred_wire::{Endpoint, RequestHead};

/// What surrounds a request: who sent it, to which pool, and how the pool cuts blocks.
pub struct Context<'a> {
    /// Seed of the chain; see [`crate::scope()`].
    pub scope: u64,
    /// The tenant id's number.
    pub tenant: u64,
    /// Tells anonymous callers apart (hash of peer or forwarded address); 0 where none can be told:
    /// then content gives no session key.
    pub client_scope: u64,
    /// The pool's number or hash.
    pub pool: u64,
    /// Bytes of one block of a rendering.
    pub block_bytes: usize,
    /// Tokens of one block of a token prompt.
    pub token_block: usize,
    /// The pool's configured session headers, in order.
    pub session_headers: &'a [&'a str],
    /// The header that names a scenario (default `x-scenario`).
    pub scenario_header: &'a str,
    /// A request header by lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
}

/// What a request is, for the scheduler.
#[derive(Clone, Debug)]
pub struct Identified {
    /// Block hashes from the beginning; full blocks only.
    pub chain: Vec<BlockHash>,
    /// Bytes of the rendering.
    pub prompt_bytes: u64,
    /// Prompt tokens where exactly known.
    pub prompt_tokens: Option<u32>,
    /// How the chain was made.
    pub identity: Identity,
    /// 1 for a first request.
    pub turn: u32,
    /// The conversation.
    pub session: Option<SessionKey>,
    /// Where `session` came from.
    pub session_source: KeySource,
    /// Hash of the opening.
    pub opening: Option<SessionKey>,
    /// Named or derived prompt version.
    pub scenario: Option<SessionKey>,
    /// Hash of the leading text.
    pub leading: Option<SessionKey>,
    /// The response that it continues.
    pub previous_response: Option<ResponseKey>,
    /// Prompts beyond the first.
    pub extra_prompts: u32,
}

/// Identifies a request.
#[must_use]
pub fn identify(
    _endpoint: Endpoint,
    _head: &RequestHead<'_>,
    _context: &Context<'_>,
) -> Identified {
    Identified {
        chain: Vec::new(),
        prompt_bytes: 0,
        prompt_tokens: None,
        identity: Identity::Bytes,
        turn: 1,
        session: None,
        session_source: KeySource::None,
        opening: None,
        scenario: None,
        leading: None,
        previous_response: None,
        extra_prompts: 0,
    }
}
