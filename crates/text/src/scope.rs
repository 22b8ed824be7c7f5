//! The scope: the seed of every chain.

use crate::keys::{mix, seeds};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a scope is made of. Where one of it differs, nothing matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// The pool's number or hash.
    pub pool: u64,
    /// Model or adapter name as the request gives it (after aliases), or the pool's default.
    pub model: &'a str,
    /// The weights' revision, as the pool's configuration names it; empty without.
    pub revision: &'a str,
    /// The tenant's isolation value; 0 where tenants share, and where the salt tells them apart.
    pub isolation: u64,
    /// `cache_salt` as the engine gets and reports it, decoded; empty without.
    pub cache_salt: &'a str,
}

/// The seed of a scope. Equal in every process and on every machine.
#[must_use]
pub fn scope(parts: &Scope<'_>) -> u64 {
    let text = |text: &str| xxh3_64_with_seed(text.as_bytes(), seeds::SCOPE);
    mix(
        seeds::SCOPE,
        &[
            parts.pool,
            parts.isolation,
            text(parts.model),
            text(parts.cache_salt),
            text(parts.revision),
        ],
    )
}

/// A scope with template and tokenizer in it: `digest` is `TextModel::digest`. All chains
/// of one pool's token identity must use it, those from engines' events too.
#[must_use]
pub fn with_text(scope: u64, digest: u64) -> u64 {
    mix(seeds::TEXT, &[scope, digest])
}

/// What chains over tokens begin with in this scope, so that none is ever equal to one over bytes.
#[must_use]
pub fn token_seed(scope: u64) -> u64 {
    mix(seeds::TOKENS, &[scope])
}

#[cfg(test)]
mod tests {
    use super::{Scope, scope, with_text};
    use std::collections::BTreeSet;

    #[test]
    fn whatever_differs_gives_a_new_scope() {
        let same = Scope {
            pool: 1,
            model: "m",
            revision: "r",
            isolation: 2,
            cache_salt: "s",
        };
        let changed = [
            same,
            Scope { pool: 2, ..same },
            Scope {
                model: "adapter",
                ..same
            },
            Scope {
                revision: "r2",
                ..same
            },
            Scope {
                revision: "",
                ..same
            },
            Scope {
                isolation: 3,
                ..same
            },
            Scope {
                isolation: 0,
                ..same
            },
            Scope {
                cache_salt: "t",
                ..same
            },
            Scope {
                cache_salt: "",
                ..same
            },
            // A text in another's place is another scope, too.
            Scope {
                model: "r",
                revision: "m",
                ..same
            },
        ];
        let mut scopes: BTreeSet<u64> = changed.iter().map(scope).collect();
        scopes.extend([1, 2].map(|digest| with_text(scope(&same), digest)));
        assert_eq!(scopes.len(), changed.len() + 2);
        assert_eq!(scope(&same), scope(&Scope { ..same }));
    }
}
