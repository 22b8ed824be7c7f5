//! From a body to a pool and an arrival: which model, which pool, which conversation. CPU work only.

use super::caller::Caller;
use super::scope::{self, Apart};
use super::tokens::{self, Origin, Pending};
use crate::attempt::next_request;
use crate::gateway::Gateway;
use crate::headers::text_of;
use crate::metrics::ModelMetrics;
use crate::pool::Pool;
use crate::pull::is_plain;
use crate::reply::Problem;
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use maitred_core::request::Identity;
use maitred_core::{Arrival, Nanos};
use maitred_text::{Context, Identified, identify_without_chain, model_key};
use maitred_wire::fields::unsupported_fields;
use maitred_wire::head::{self, RequestHead};
use maitred_wire::{BodyErrorKind, Endpoint, splice};
use std::sync::Arc;

/// Names listed in an error about an unknown model.
const NAMES_MAX: usize = 20;

/// A request that may go to a pool.
pub(crate) struct Admitted {
    pub(crate) pool: Arc<Pool>,
    pub(crate) arrival: Box<Arrival>,
    pub(crate) body: Bytes,
    pub(crate) stream: bool,
    pub(crate) model: Arc<ModelMetrics>,
    /// How its identity came about.
    pub(crate) origin: Origin,
    /// Messages that got another role.
    pub(crate) roles_renamed: u32,
    /// Tokenising that is left to be done.
    pub(crate) pending: Option<Pending>,
}

/// Reads the body as far as placement needs it.
pub(crate) fn admit(
    gateway: &Gateway,
    parts: &Parts,
    endpoint: Endpoint,
    caller: Caller,
    body: Bytes,
) -> Result<Admitted, Problem> {
    let renamed;
    // The head borrows from one handle of the body while the other goes on.
    let read = body.clone();
    let head = read_head(gateway, endpoint, &read)?;
    let Some(head) = head else {
        let pool = default_pool(gateway)?;
        let mut arrival = arrival(&caller, None, Identified::unread(body.len() as u64), None);
        arrival.deadline = deadline(gateway, pool);
        arrival.body_bytes = body.len() as u64;
        return Ok(Admitted {
            arrival: Box::new(arrival),
            stream: false,
            model: pool.metrics.other_model(),
            pool: Arc::clone(pool),
            origin: Origin::Unread,
            roles_renamed: 0,
            pending: None,
            body,
        });
    };
    if gateway.config.strict {
        refuse_unsupported(&head, endpoint)?;
    }
    let pool = Arc::clone(pool_for(gateway, endpoint, &head)?);
    let roles_renamed;
    (renamed, roles_renamed) = as_system(&pool, endpoint, &head).unzip();
    // What the worker reads is what is identified.
    let (head, body) = match &renamed {
        Some(renamed) => match read_head(gateway, endpoint, renamed)? {
            Some(head) => (head, renamed.clone()),
            None => (head, body),
        },
        None => (head, body),
    };
    let asked = head.model.as_deref();
    let apart = scope::apart(gateway, &pool, endpoint, &caller, &head)?;
    // An alias is the model itself: its cache is shared.
    let adapter = asked.filter(|m| !pool.is_configured(m));
    let scope = pool.scope(adapter, &apart.salt, apart.isolation);
    // A chain over bytes is hashed only where it will not be one over tokens.
    let expected = tokens::expected(&pool, endpoint);
    let identify = |how: fn(Endpoint, &RequestHead<'_>, &Context<'_>) -> Identified| {
        identify_in(gateway, &pool, parts, &caller, scope, |c| {
            how(endpoint, &head, c)
        })
    };
    let identified = identify(if expected {
        identify_without_chain
    } else {
        maitred_text::identify
    });
    // Where the model does not decide (unknown endpoints), a name that nobody lists keeps nobody out.
    let listed = asked
        .filter(|m| !pool.is_configured(m) && (endpoint.has_prompt() || pool.is_listed(m)))
        .map(model_key);
    let mut arrival = arrival(&caller, head.max_tokens, identified, listed);
    arrival.scope = scope;
    arrival.deadline = deadline(gateway, &pool);
    arrival.body_bytes = body.len() as u64;
    arrival.streams = head.stream || !endpoint.generates();
    let (origin, pending) = tokens::begin(&pool, endpoint, &head, scope, &mut arrival);
    if expected && arrival.identity == Identity::Bytes {
        arrival.chain = identify(maitred_text::identify).chain;
    }
    // A salt that the pool has sent can not be said in plain text.
    arrival.plain = gateway.config.pull.is_some()
        && !apart.inject
        && is_rendered(endpoint, origin)
        && is_plain(endpoint, &head);
    let model = match asked.or(pool.models.first().map(String::as_str)) {
        Some(name) => pool.metrics.model(name),
        None => pool.metrics.other_model(),
    };
    let stream = head.stream;
    let changed = changed(&pool, &apart, &head);
    Ok(Admitted {
        arrival: Box::new(arrival),
        stream,
        model,
        origin,
        roles_renamed: roles_renamed.unwrap_or_default(),
        pending,
        body: changed.unwrap_or(body),
        pool,
    })
}

/// The head, where the endpoint has one. Unknown endpoints may carry anything.
fn read_head<'a>(
    gateway: &Gateway,
    endpoint: Endpoint,
    body: &'a [u8],
) -> Result<Option<RequestHead<'a>>, Problem> {
    let depth = gateway.config.limits.json_depth_max;
    match head::parse(endpoint, body, depth) {
        Ok(head) => Ok(Some(head)),
        Err(e) => {
            // What would break a worker is refused on every path; what merely is no JSON is not.
            if !endpoint.has_prompt() && e.kind != BodyErrorKind::TooDeep {
                return Ok(None);
            }
            let problem = Problem::new(StatusCode::BAD_REQUEST, "invalid-body", e.to_string());
            Err(match e.field {
                Some(field) => problem.at(field),
                None => problem,
            })
        }
    }
}

fn refuse_unsupported(head: &RequestHead<'_>, endpoint: Endpoint) -> Result<(), Problem> {
    let Some(field) = unsupported_fields(head, endpoint).next() else {
        return Ok(());
    };
    Err(Problem::new(
        StatusCode::BAD_REQUEST,
        "unsupported-field",
        format!("`{field}` is not a field of this endpoint"),
    )
    .at(field.to_owned()))
}

fn default_pool(gateway: &Gateway) -> Result<&Arc<Pool>, Problem> {
    gateway.pools.first().ok_or_else(|| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "no-workers",
            "no pool is configured",
        )
    })
}

fn pool_for<'g>(
    gateway: &'g Gateway,
    endpoint: Endpoint,
    head: &RequestHead<'_>,
) -> Result<&'g Arc<Pool>, Problem> {
    let Some(model) = head.model.as_deref() else {
        if gateway.pools.len() == 1 || !endpoint.has_prompt() {
            return default_pool(gateway);
        }
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "missing-model",
            "`model` must name one of the models served here",
        )
        .at("model"));
    };
    // A pool that names the model goes before one whose workers merely list it.
    let named = gateway.pools.iter().find(|p| p.is_configured(model));
    if let Some(pool) = named.or_else(|| gateway.pools.iter().find(|p| p.serves(model))) {
        return Ok(pool);
    }
    if !endpoint.has_prompt() {
        return default_pool(gateway);
    }
    let mut names: Vec<String> = Vec::new();
    for name in gateway.pools.iter().flat_map(|p| p.model_names()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Err(unknown_model(model, &names))
}

/// No pool serves it; the message says what is served.
pub(super) fn unknown_model(model: &str, names: &[String]) -> Problem {
    let shown: String = model.chars().take(128).collect();
    let mut list = names
        .iter()
        .take(NAMES_MAX)
        .map(|n| format!("`{n}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > NAMES_MAX {
        list.push_str(", ...");
    }
    if list.is_empty() {
        list.push_str("none yet");
    }
    Problem::new(
        StatusCode::NOT_FOUND,
        "model_not_found",
        format!("model `{shown}` is not served here; served: {list}"),
    )
    .at("model")
}

fn identify_in(
    gateway: &Gateway,
    pool: &Pool,
    parts: &Parts,
    caller: &Caller,
    scope: u64,
    identify: impl FnOnce(&Context<'_>) -> Identified,
) -> Identified {
    let config = &gateway.config;
    let settings = &pool.settings;
    let session_headers: Vec<&str> = config.session_headers.iter().map(String::as_str).collect();
    // Many names are asked for and few headers are there: comparing is less work than hashing.
    let header = |name: &str| {
        let mut headers = parts.headers.iter();
        let found = headers.find(|(known, _)| known.as_str() == name);
        found.and_then(|(_, value)| text_of(value))
    };
    identify(&Context {
        scope,
        tenant: caller.identity.number(),
        client_scope: caller.client_scope(),
        pool: pool.key,
        block_bytes: settings.core.block_bytes as usize,
        token_block: settings.core.token_block as usize,
        session_headers: &session_headers,
        scenario_header: &config.scenario_header,
        header: &header,
    })
}

fn arrival(
    caller: &Caller,
    max_tokens: Option<u32>,
    found: Identified,
    listed: Option<maitred_core::ids::ModelKey>,
) -> Arrival {
    Arrival {
        request: next_request(),
        tenant: caller.tenant,
        flow: caller.flow(found.session),
        session: found.session,
        session_source: found.session_source,
        opening: found.opening,
        scenario: found.scenario,
        leading: found.leading,
        previous_response: found.previous_response,
        model: listed,
        turn: found.turn,
        identity: found.identity,
        scope: 0,
        chain: found.chain,
        prompt_bytes: found.prompt_bytes,
        body_bytes: 0,
        prompt_tokens: found.prompt_tokens,
        max_tokens,
        extra_prompts: found.extra_prompts,
        reads_cache: found.reads_cache,
        deadline: None,
        retryable: true,
        streams: false,
        plain: false,
    }
}

/// When the request's whole time is over, waiting included.
fn deadline(gateway: &Gateway, pool: &Pool) -> Option<Nanos> {
    let total = gateway.config.timeouts.total;
    (!total.is_zero()).then(|| pool.driver.now() + total)
}

/// The body with the name that the workers know, where the client used another configured one, and
/// with the tenant's salt, where the pool has it sent. None: the client's bytes go as they are.
fn changed(pool: &Pool, apart: &Apart<'_>, head: &RequestHead<'_>) -> Option<Bytes> {
    let name = renamed(pool, head).and_then(|own| serde_json::to_vec(own).ok());
    // Hexadecimal digits need no escapes.
    let salt = apart.inject.then(|| format!("\"{}\"", apart.salt));
    let fields: [Option<(&str, &[u8])>; 2] = [
        name.as_deref().map(|name| ("model", name)),
        salt.as_ref().map(|salt| ("cache_salt", salt.as_bytes())),
    ];
    let fields: Vec<_> = fields.into_iter().flatten().collect();
    (!fields.is_empty()).then(|| Bytes::from(splice::set_fields(head, &fields)))
}

/// Whether the pool's template renders it, where it is a chat.
fn is_rendered(endpoint: Endpoint, origin: Origin) -> bool {
    endpoint != Endpoint::Chat
        || matches!(
            origin,
            Origin::Rendered | Origin::Fallback("busy" | "tokenizer")
        )
}

/// The body with the role `developer` as `system`, for workers whose chat template does not know it.
fn as_system(pool: &Pool, endpoint: Endpoint, head: &RequestHead<'_>) -> Option<(Bytes, u32)> {
    if !pool.settings.developer_as_system || endpoint != Endpoint::Chat {
        return None;
    }
    let (body, renamed) = splice::rename_role(head, "developer", "system")?;
    Some((Bytes::from(body), renamed))
}

fn renamed<'p>(pool: &'p Pool, head: &RequestHead<'_>) -> Option<&'p str> {
    let asked = head.model.as_deref()?;
    let own = pool.settings.model.as_deref()?;
    let is_known = asked == own || !pool.is_configured(asked) || pool.is_listed(asked);
    (!is_known).then_some(own)
}
