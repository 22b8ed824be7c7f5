//! Answers that come as one JSON document.

use crate::endpoint::{Endpoint, Family};
use crate::json::{self, Value};
use crate::usage::{Input, Reports, WireUsage};

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

/// Nesting up to which answers are read; deeper ones give no facts.
const DEPTH_MAX: usize = 512;

/// How `input_tokens` counts in answers of an endpoint.
pub(crate) fn input_of(endpoint: Endpoint) -> Input {
    match endpoint.family() {
        Family::Anthropic => Input::Uncached,
        Family::OpenAi => Input::Whole,
    }
}

/// Whether the value of a top-level `error` member says that there is one.
pub(crate) fn is_error(value: &Value<'_, '_>) -> bool {
    value.is_filled() && value.bool() != Some(false)
}

/// Reads a whole answer. A body that is not JSON gives no facts.
#[must_use]
pub fn read(endpoint: Endpoint, body: &[u8]) -> AnswerFacts {
    let mut facts = AnswerFacts::default();
    let Ok(long) = json::check(body, DEPTH_MAX) else {
        return facts;
    };
    let mut reports = Reports::default();
    for (key, value) in Value::document(body, &long).members() {
        match key {
            b"usage" => reports.usage(&value, input_of(endpoint)),
            b"timings" => reports.timings(&value),
            b"error" => facts.error |= is_error(&value),
            b"type" => facts.error |= value.raw() == br#""error""#,
            b"id" => {
                let id = value.string();
                let id = id.filter(|id| continuable(endpoint, id));
                facts.response_id = id.map(|id| id.into_owned());
            }
            _ => {}
        }
    }
    facts.usage = reports.normalised();
    facts
}

/// Whether an answer's id is one that a later request can name as the one it continues.
pub(crate) fn continuable(endpoint: Endpoint, id: &str) -> bool {
    (endpoint == Endpoint::Responses && !id.is_empty()) || id.starts_with("resp_")
}
