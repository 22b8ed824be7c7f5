//! Keys: seeded hashes of names and ids, equal in every process.

use maitred_core::ids::{ModelKey, ResponseKey};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One seed per kind of key, so that equal bytes of two kinds are two keys.
pub(crate) mod seeds {
    pub(crate) const MODEL: u64 = 0x6d6f_6465_6c00_0001;
    pub(crate) const RESPONSE: u64 = 0x7265_7370_0000_0001;
    pub(crate) const SCOPE: u64 = 0x7363_6f70_6500_0001;
    pub(crate) const EXPLICIT: u64 = 0x7365_7373_0000_0001;
    pub(crate) const OPENING: u64 = 0x6f70_656e_0000_0001;
    pub(crate) const SCENARIO: u64 = 0x7363_656e_0000_0001;
    pub(crate) const NAMED_SCENARIO: u64 = 0x7363_656e_0000_0002;
    pub(crate) const LEADING: u64 = 0x6c65_6164_0000_0001;
    pub(crate) const MEDIA: u64 = 0x6d65_6469_0000_0001;
    pub(crate) const TEXT: u64 = 0x7465_7874_0000_0001;
    pub(crate) const TOKENS: u64 = 0x746f_6b73_0000_0001;
}

/// Numbers into one.
pub(crate) fn mix(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed, |hash, part| {
        xxh3_64_with_seed(&part.to_le_bytes(), hash)
    })
}

/// The key of a model or adapter name; used for requests and for what workers list.
#[must_use]
pub fn model_key(name: &str) -> ModelKey {
    ModelKey(xxh3_64_with_seed(name.as_bytes(), seeds::MODEL))
}

/// The key of a response id in a tenant (`tenant`: the tenant id's number).
#[must_use]
pub fn response_key(tenant: u64, id: &str) -> ResponseKey {
    ResponseKey(xxh3_64_with_seed(
        id.as_bytes(),
        mix(seeds::RESPONSE, &[tenant]),
    ))
}
