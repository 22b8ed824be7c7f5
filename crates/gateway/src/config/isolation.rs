//! Whose caches are apart: `isolation`, `inject_cache_salt` and `revision` of a pool.

use super::problem::Problem;
use super::settings::PoolSettings;
use super::tree::{Field, Section};

/// What tells the scopes of one pool's callers apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing: all callers share one cache, whatever they send as `cache_salt`. True of engines
    /// that do not know salts (llama.cpp, TGI).
    Pool,
    /// The tenant, and the `cache_salt` that it sends. Anonymous callers are one tenant, of whom
    /// those who send a credential are apart from those who do not know it.
    Tenant,
    /// The `cache_salt` that the client sends, and nothing else: what vLLM and SGLang do by
    /// themselves, so the default is what is true of them.
    #[default]
    Salt,
}

impl Isolation {
    /// The name in the configuration file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Tenant => "tenant",
            Self::Salt => "salt",
        }
    }
}

/// A pool's isolation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsolationSettings {
    /// What tells scopes apart.
    pub mode: Isolation,
    /// Whether requests get a `cache_salt` of their tenant's, so that the engine keeps the caches
    /// apart and not only the gateway's belief.
    pub inject_cache_salt: bool,
}

/// Takes a pool's settings.
pub(super) fn read(
    section: &mut Section<'_>,
    pool: &mut PoolSettings,
    problems: &mut Vec<Problem>,
) {
    let isolation = &mut pool.isolation;
    section.set(
        problems,
        "isolation",
        &mut isolation.mode,
        |field| match field.text()? {
            "pool" => Ok(Isolation::Pool),
            "tenant" => Ok(Isolation::Tenant),
            "salt" => Ok(Isolation::Salt),
            _ => Err(field.problem("must be pool, tenant or salt")),
        },
    );
    if let Some(field) = section.take("inject_cache_salt") {
        match field.flag() {
            Ok(flag) => isolation.inject_cache_salt = flag,
            Err(problem) => problems.push(problem),
        }
        if isolation.inject_cache_salt && isolation.mode != Isolation::Tenant {
            problems.push(field.problem("needs `isolation: tenant`: the salt is the tenant's"));
        }
    }
    section.set(
        problems,
        "revision",
        &mut pool.revision,
        |field: &Field<'_>| field.text().map(|revision| Some(revision.to_owned())),
    );
}

/// What must hold between a pool's isolation and the rest. `salts`: there is a `salt_secret`.
pub(super) fn check(
    section: &Section<'_>,
    pool: &PoolSettings,
    salts: bool,
    problems: &mut Vec<Problem>,
) {
    let inject = pool.isolation.inject_cache_salt;
    if inject && !salts {
        problems.push(section.problem(
            "inject_cache_salt",
            "needs `salt_secret` (at the top level): salts are made with it",
        ));
    }
    let events = pool.workers.iter().any(|worker| worker.kv_events.is_some());
    if events && let Err(why) = pool.isolation.allows_events() {
        problems.push(section.problem("isolation", why));
    }
}

impl IsolationSettings {
    /// Whether KV events can be followed.
    ///
    /// # Errors
    /// Why they say nothing: engines report blocks without a tenant, and nothing of them would ever match.
    pub(crate) fn allows_events(&self) -> Result<(), &'static str> {
        if self.mode == Isolation::Tenant && !self.inject_cache_salt {
            return Err(
                "with `kv_events`, tenants are only apart with `inject_cache_salt: true`: an engine that gets no salt shares its cache among them",
            );
        }
        Ok(())
    }
}
