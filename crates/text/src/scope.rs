//! The scope: the seed of every chain.

/// What a scope is made of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// The pool's number or hash.
    pub pool: u64,
    /// Model or adapter name as the request gives it (after aliases), or the pool's default.
    pub model: &'a str,
    /// The tenant's isolation value; 0 where tenants share.
    pub isolation: u64,
    /// The request's `cache_salt`, raw; empty without.
    pub cache_salt: &'a [u8],
}

/// The seed of a scope. Equal in every process and on every machine.
#[must_use]
pub fn scope(_parts: &Scope<'_>) -> u64 {
    0
}
