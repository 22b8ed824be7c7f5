//! A request's identity: chain, session, opening, turn.

use crate::keys::{mix, model_key, response_key, seeds};
use crate::session;
use maitred_core::ids::{ResponseKey, SessionKey};
use maitred_core::prefix::ChainBuilder;
use maitred_core::request::{BlockHash, Identity, KeySource};
use maitred_wire::content::{self, Section, Sink};
use maitred_wire::fields;
use maitred_wire::json::token_ids;
use maitred_wire::opening::{Collector, Opening, continues_response};
use maitred_wire::{Endpoint, RequestHead};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Bytes of a rendering that `leading` covers. Short enough to be equal across the conversations of
/// one application, long enough to tell applications apart.
pub const LEADING_BYTES: usize = 512;

/// Bytes of a rendering that a picture, sound or file stands for, filled with the hash of its URL
/// or its encoded bytes. Engines turn a picture into some hundred to some thousand tokens, however
/// long its encoding is; this is about a thousand.
pub const MEDIA_BYTES: usize = 4096;

/// What surrounds a request: who sent it, to which pool, and how the pool cuts blocks.
pub struct Context<'a> {
    /// Seed of the chain; see [`crate::scope()`], and where the pool has a tokenizer
    /// [`crate::scope::with_text`].
    pub scope: u64,
    /// Whose keys these are: the isolation value of the tenant, or of an anonymous caller's
    /// credential; 0 without.
    pub tenant: u64,
    /// Tells callers of one tenant apart where nothing else does (hash of peer or forwarded
    /// address); 0 where they are not told apart. With `tenant` 0 too, content gives no session.
    pub client_scope: u64,
    /// The pool's number or hash.
    pub pool: u64,
    /// Bytes of one block of a rendering.
    pub block_bytes: usize,
    /// Tokens of one block of a token prompt.
    pub token_block: usize,
    /// The pool's configured session headers, lower case, in order.
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
    /// Bytes of the rendering that `chain` stands for, the unfilled last block included.
    pub prompt_bytes: u64,
    /// Prompt tokens where exactly known.
    pub prompt_tokens: Option<u32>,
    /// How the chain was made.
    pub identity: Identity,
    /// 1 for a first request; assistant messages in the history + 1.
    pub turn: u32,
    /// The conversation; equal to `opening` where only content tells.
    pub session: Option<SessionKey>,
    /// Where `session` came from.
    pub session_source: KeySource,
    /// Hash of the opening, scoped by pool, tenant, client and model. None where the request has no
    /// text, or continues a stored response (whose opening the worker holds).
    pub opening: Option<SessionKey>,
    /// Named or derived prompt version, in the chain's scope.
    pub scenario: Option<SessionKey>,
    /// Hash of the leading text in the chain's scope.
    pub leading: Option<SessionKey>,
    /// The response that it continues.
    pub previous_response: Option<ResponseKey>,
    /// Prompts beyond the first.
    pub extra_prompts: u32,
    /// The engine may take the prompt from its cache.
    pub reads_cache: bool,
}

impl Identified {
    /// A request that was not read: nothing is known of it but its size.
    #[must_use]
    pub fn unread(prompt_bytes: u64) -> Self {
        Self {
            chain: Vec::new(),
            prompt_bytes,
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
            reads_cache: true,
        }
    }
}

/// Feeds one walk over the request to the chain, the leading text and the opening.
struct Reader<'a> {
    /// None: only the bytes are counted.
    chain: Option<ChainBuilder>,
    bytes: u64,
    leading: [u8; LEADING_BYTES],
    leading_len: usize,
    collector: Collector<'a>,
    tokens: Option<&'a [u8]>,
}

impl Reader<'_> {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if let Some(chain) = &mut self.chain {
            chain.push(bytes);
        }
        let room = &mut self.leading[self.leading_len..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.leading_len += taken;
    }
}

impl<'a> Sink<'a> for Reader<'a> {
    fn section(&mut self, section: Section) {
        self.collector.section(section);
    }

    fn mark(&mut self, bytes: &'a [u8]) {
        self.push(bytes);
    }

    fn span(&mut self, bytes: &'a [u8]) {
        self.push(bytes);
        self.collector.span(bytes);
    }

    fn media(&mut self, bytes: &'a [u8]) {
        let hash = xxh3_64_with_seed(bytes, seeds::MEDIA).to_le_bytes();
        for _ in 0..MEDIA_BYTES / hash.len() {
            self.push(&hash);
        }
        self.collector.media(bytes);
    }

    fn tokens(&mut self, raw: &'a [u8]) {
        self.tokens = Some(raw);
        self.collector.tokens(raw);
    }

    fn extra_prompts(&mut self, count: u32) {
        self.collector.extra_prompts(count);
    }
}

/// Identifies a request.
#[must_use]
pub fn identify(endpoint: Endpoint, head: &RequestHead<'_>, context: &Context<'_>) -> Identified {
    let chain = ChainBuilder::new(context.scope, context.block_bytes.max(1));
    identify_into(Some(chain), endpoint, head, context)
}

/// As [`identify`], without a chain over bytes: for what will have one over tokens.
#[must_use]
pub fn identify_without_chain(
    endpoint: Endpoint,
    head: &RequestHead<'_>,
    context: &Context<'_>,
) -> Identified {
    identify_into(None, endpoint, head, context)
}

fn identify_into(
    chain: Option<ChainBuilder>,
    endpoint: Endpoint,
    head: &RequestHead<'_>,
    context: &Context<'_>,
) -> Identified {
    let mut reader = Reader {
        chain,
        bytes: 0,
        leading: [0; LEADING_BYTES],
        leading_len: 0,
        collector: Collector::new(endpoint),
        tokens: None,
    };
    content::walk(endpoint, head, &mut reader);
    let opening = reader.collector.finish(head);
    let mut identified = match reader.tokens {
        Some(raw) => from_tokens(raw, token_scope(head, context.scope), context),
        None => {
            let leading = &reader.leading[..reader.leading_len];
            let seed = mix(seeds::LEADING, &[context.scope]);
            Identified {
                leading: key_of(leading, seed),
                chain: reader.chain.map(|c| c.finish().0).unwrap_or_default(),
                ..Identified::unread(reader.bytes)
            }
        }
    };
    identified.turn = opening.turn;
    identified.extra_prompts = opening.extra_prompts;
    identified.reads_cache = fields::reads_cache(head);
    set_keys(&mut identified, &opening, head, context);
    identified
}

fn key_of(bytes: &[u8], seed: u64) -> Option<SessionKey> {
    (!bytes.is_empty()).then(|| SessionKey(xxh3_64_with_seed(bytes, seed)))
}

/// A prompt that the engine is to cut is not the client's: it is like none but those cut alike.
fn token_scope(head: &RequestHead<'_>, scope: u64) -> u64 {
    if !fields::truncates(head) {
        return scope;
    }
    let of = |name| head.value(name).map_or(&b""[..], |value| value.raw());
    let [tokens, side] = [fields::TRUNCATE, fields::TRUNCATION_SIDE]
        .map(|name| xxh3_64_with_seed(of(name), seeds::TOKENS));
    mix(scope, &[tokens, side])
}

/// A chain over the client's own token ids, four bytes each.
fn from_tokens(raw: &[u8], scope: u64, context: &Context<'_>) -> Identified {
    let seed = crate::scope::token_seed(scope);
    let mut chain = ChainBuilder::new(seed, context.token_block.max(1).saturating_mul(4));
    let mut leading = Vec::with_capacity(LEADING_BYTES);
    let mut some = [0_u32; 64];
    let mut filled = 0;
    let mut count = 0_u32;
    for id in token_ids(raw) {
        some[filled] = id;
        filled += 1;
        count = count.saturating_add(1);
        if leading.len() < LEADING_BYTES {
            leading.extend_from_slice(&id.to_le_bytes());
        }
        if filled == some.len() {
            chain.push_tokens(&some);
            filled = 0;
        }
    }
    chain.push_tokens(&some[..filled]);
    let (chain, prompt_bytes) = chain.finish();
    Identified {
        identity: Identity::Tokens,
        prompt_tokens: Some(count),
        leading: key_of(&leading, mix(seeds::LEADING, &[context.scope])),
        chain,
        ..Identified::unread(prompt_bytes)
    }
}

/// Session, opening, scenario and the response that is continued.
fn set_keys(
    identified: &mut Identified,
    opening: &Opening<'_>,
    head: &RequestHead<'_>,
    context: &Context<'_>,
) {
    let model = model_key(head.model.as_deref().unwrap_or_default()).0;
    let system = steady_system(opening);
    let client = [context.pool, context.tenant, context.client_scope, model];
    if let Some(id) = head.value("previous_response_id").and_then(|v| v.string()) {
        identified.previous_response = (!id.is_empty()).then(|| response_key(context.tenant, &id));
    }
    let has_text = !opening.first_user.is_empty() || !opening.system.is_empty();
    if has_text && !continues_response(head) {
        identified.opening = Some(opening_key(opening, system, head, &client));
    }
    identified.scenario = scenario(opening, system, context);
    let seed = mix(seeds::EXPLICIT, &client);
    if let Some((key, source)) = session::explicit(head, context, seed) {
        identified.session = Some(key);
        identified.session_source = source;
    } else if let Some(key) = identified.opening
        && (context.tenant != 0 || context.client_scope != 0)
    {
        identified.session = Some(key);
        identified.session_source = KeySource::Content;
    }
}

/// Adds a text without its digits: clocks, dates and counters in instructions change, the
/// conversation does not.
fn update_without_digits(hasher: &mut Xxh3, text: &[u8]) {
    /// Bytes that are looked at together; a size that compilers turn into vectors.
    const CHUNK: usize = 64;
    let mut plain = 0;
    for (n, chunk) in text.chunks(CHUNK).enumerate() {
        // No early exit: that is what makes it fast.
        let digits = chunk.iter().fold(false, |any, b| any | b.is_ascii_digit());
        if !digits {
            continue;
        }
        let mut kept = [0_u8; CHUNK];
        let mut len = 0;
        for byte in chunk {
            kept[len] = *byte;
            len += usize::from(!byte.is_ascii_digit());
        }
        hasher.update(&text[plain..n * CHUNK]);
        hasher.update(&kept[..len]);
        plain = n * CHUNK + chunk.len();
    }
    hasher.update(&text[plain..]);
}

/// Hash of the system texts' steady part, without digits; 0 where there are none.
fn steady_system(opening: &Opening<'_>) -> u64 {
    let mut texts = opening.steady_system().filter(|text| !text.is_empty());
    let Some(first) = texts.next() else { return 0 };
    let mut hasher = Xxh3::new();
    update_without_digits(&mut hasher, first);
    for text in texts {
        hasher.update(content::MESSAGE);
        update_without_digits(&mut hasher, text);
    }
    hasher.digest()
}

/// System text, then the first user message as it stands. Where several people share a credential,
/// the end user's name in the body tells them apart.
fn opening_key(
    opening: &Opening<'_>,
    system: u64,
    head: &RequestHead<'_>,
    client: &[u64],
) -> SessionKey {
    let mut hash = mix(seeds::OPENING, client);
    for field in ["user", "safety_identifier"] {
        hash = xxh3_64_with_seed(head.field(field).unwrap_or_default(), hash);
    }
    hash = mix(hash, &[system]);
    for part in &opening.first_user {
        hash = xxh3_64_with_seed(part, hash);
    }
    SessionKey(hash)
}

/// The scenario header's value, else the hash of system text and tools.
fn scenario(opening: &Opening<'_>, system: u64, context: &Context<'_>) -> Option<SessionKey> {
    // Tenants whose caches are apart have no use for each other's places.
    let scope = [context.scope];
    let named = (context.header)(context.scenario_header).map(str::trim);
    if let Some(name) = named.filter(|name| !name.is_empty()) {
        return key_of(name.as_bytes(), mix(seeds::NAMED_SCENARIO, &scope));
    }
    if opening.system.is_empty() && opening.tools.is_none() {
        return None;
    }
    let seed = mix(seeds::SCENARIO, &[context.scope, system]);
    let tools = opening.tools.unwrap_or_default();
    Some(SessionKey(xxh3_64_with_seed(tools, seed)))
}
