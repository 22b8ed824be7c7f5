//! Keys: hashes of names and ids.

use maitred_core::ids::{ModelKey, ResponseKey};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The key of a model or adapter name; used for requests and for what workers list.
#[must_use]
pub fn model_key(name: &str) -> ModelKey {
    ModelKey(xxh3_64_with_seed(name.as_bytes(), 0x6d6f_6465_6c00_0001))
}

/// The key of a response id in a tenant (`tenant`: the tenant id's number).
#[must_use]
pub fn response_key(tenant: u64, id: &str) -> ResponseKey {
    ResponseKey(xxh3_64_with_seed(
        id.as_bytes(),
        tenant ^ 0x7265_7370_6f6e_7365,
    ))
}
