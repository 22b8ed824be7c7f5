//! Error bodies and error events in each family's shape.

use crate::endpoint::{Endpoint, Family};

/// An error body. `code` is a stable word (OpenAI's `code`), `param` the field at fault.
#[must_use]
pub fn body(
    _family: Family,
    _status: u16,
    _code: &str,
    _message: &str,
    _param: Option<&str>,
) -> Vec<u8> {
    Vec::new()
}

/// An error as one whole event, for a stream that fails after its head was sent.
#[must_use]
pub fn event(_endpoint: Endpoint, _code: &str, _message: &str) -> Vec<u8> {
    Vec::new()
}
