//! The scope: the seed of every chain.

use crate::keys::{mix, seeds};
use xxhash_rust::xxh3::xxh3_64_with_seed;

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
pub fn scope(parts: &Scope<'_>) -> u64 {
    mix(
        seeds::SCOPE,
        &[
            parts.pool,
            parts.isolation,
            xxh3_64_with_seed(parts.model.as_bytes(), seeds::SCOPE),
            xxh3_64_with_seed(parts.cache_salt, seeds::SCOPE),
        ],
    )
}

/// A scope with template and tokenizer in it: `digest` is `TextModel::digest`. All chains
/// of one pool's token identity must use it, those from engines' events too.
#[must_use]
pub fn with_text(scope: u64, digest: u64) -> u64 {
    mix(seeds::TEXT, &[scope, digest])
}
