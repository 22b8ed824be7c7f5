//! Whose cache a request may use, and how the engine is told.

use super::caller::Caller;
use crate::config::Isolation;
use crate::gateway::Gateway;
use crate::pool::Pool;
use crate::reply::Problem;
use http::StatusCode;
use maitred_text::Scope;
use maitred_text::scope::token_seed;
use maitred_wire::{Endpoint, RequestHead};
use std::borrow::Cow;

const SALT: &str = "cache_salt";

/// What keeps a request's cache apart from others'.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Apart<'a> {
    /// `cache_salt` as the engine gets it; empty without.
    pub(super) salt: Cow<'a, str>,
    /// The salt is ours, and has to be put into the body.
    pub(super) inject: bool,
    /// What else tells its scope from others; 0: nothing.
    pub(super) isolation: u64,
}

/// Where a salt is injected it says all: a tenant is known to the engine, and to the events it
/// sends, by nothing else.
///
/// # Errors
/// `cache_salt` cannot be read, or stands there under another spelling.
pub(super) fn apart<'a>(
    gateway: &Gateway,
    pool: &Pool,
    endpoint: Endpoint,
    caller: &Caller,
    head: &RequestHead<'a>,
) -> Result<Apart<'a>, Problem> {
    let settings = &pool.settings.isolation;
    let inject = settings.inject_cache_salt && endpoint.has_prompt();
    let sent = sent_salt(head, inject)?.unwrap_or_default();
    let tenants = settings.mode == Isolation::Tenant;
    if inject {
        let salt = gateway.tenants().salt(caller.identity, &sent);
        // The configuration is refused without a secret.
        let salt = salt.ok_or_else(|| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "there is no secret to make salts with",
            )
        })?;
        return Ok(Apart {
            salt: Cow::Owned(salt),
            inject,
            isolation: 0,
        });
    }
    Ok(Apart {
        salt: sent,
        inject,
        isolation: if tenants { caller.identity.number() } else { 0 },
    })
}

/// The client's own salt. `strict`: an engine must not be given one that we did not see.
fn sent_salt<'a>(head: &RequestHead<'a>, strict: bool) -> Result<Option<Cow<'a, str>>, Problem> {
    let wrong = |message| Problem::new(StatusCode::BAD_REQUEST, "invalid-body", message).at(SALT);
    let escaped = head.fields.iter().filter(|field| field.name.contains('\\'));
    for field in escaped.filter(|_| strict) {
        let name = serde_json::from_slice::<String>(&head.body[field.key.clone()]);
        if name.is_ok_and(|name| name == SALT) {
            return Err(wrong("`cache_salt` must be written without escapes"));
        }
    }
    match head.value(SALT) {
        Some(value) if !value.is_null() => match value.string() {
            Some(salt) => Ok(Some(salt)),
            None if strict => Err(wrong("`cache_salt` must be a string")),
            // The engine will judge it.
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

impl Pool {
    /// The seed of the chains under this adapter (None: the pool's own model) and this salt as the
    /// engine gets and reports it. `isolation` is 0 for what an engine reports: it knows no tenants,
    /// only salts. Requests and KV events go by this one function, so that they agree.
    #[must_use]
    pub fn scope(&self, adapter: Option<&str>, salt: &str, isolation: u64) -> u64 {
        let settings = &self.settings;
        let own = settings.model.as_deref().unwrap_or_default();
        let scope = maitred_text::scope(&Scope {
            pool: self.key,
            model: adapter.unwrap_or(own),
            revision: settings.revision.as_deref().unwrap_or_default(),
            isolation,
            cache_salt: match settings.isolation.mode {
                Isolation::Pool => "",
                Isolation::Tenant | Isolation::Salt => salt,
            },
        });
        match &self.text {
            Some(text) => maitred_text::scope::with_text(scope, text.model.digest()),
            None => scope,
        }
    }

    /// The seed of the token chains that an engine reports under this adapter and salt.
    #[must_use]
    pub fn reported_seed(&self, adapter: Option<&str>, salt: Option<&str>) -> u64 {
        let adapter = adapter.filter(|name| !self.is_configured(name));
        token_seed(self.scope(adapter, salt.unwrap_or_default(), 0))
    }
}
