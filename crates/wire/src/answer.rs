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
    /// The engine ended a choice with `finish_reason: "abort"`: the answer was given up.
    pub aborted: bool,
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
            // SGLang's own endpoint.
            b"meta_info" if endpoint == Endpoint::Other => reports.usage(&value, Input::Whole),
            b"timings" => reports.timings(&value),
            b"error" => facts.error |= is_error(&value),
            b"choices" => {
                facts.aborted = value.elements().any(|choice| {
                    let reason = choice.get("finish_reason");
                    reason.is_some_and(|r| r.raw() == br#""abort""#)
                });
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(endpoint: Endpoint, body: &str) -> [Option<u32>; 3] {
        let usage = read(endpoint, body.as_bytes()).usage;
        [
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
        ]
    }

    #[test]
    fn cached_tokens_have_three_states() {
        let of = |details: &str| {
            let body =
                format!(r#"{{"usage":{{"prompt_tokens":9,"completion_tokens":2{details}}}}}"#);
            usage(Endpoint::Chat, &body)[1]
        };
        assert_eq!(of(""), None);
        assert_eq!(of(r#","prompt_tokens_details":null"#), None);
        assert_eq!(
            of(r#","prompt_tokens_details":{"cached_tokens":null}"#),
            None
        );
        assert_eq!(
            of(r#","prompt_tokens_details":{"cached_tokens":0}"#),
            Some(0)
        );
        assert_eq!(
            of(r#","prompt_tokens_details":{"cached_tokens":8}"#),
            Some(8)
        );
    }

    #[test]
    fn every_familys_prompt_is_whole() {
        let anthropic = r#"{"type":"message","id":"msg_1","usage":{"input_tokens":12,"cache_read_input_tokens":988,"output_tokens":3}}"#;
        assert_eq!(
            usage(Endpoint::Messages, anthropic),
            [Some(1000), Some(988), Some(3)]
        );
        let written = r#"{"usage":{"input_tokens":2,"cache_read_input_tokens":0,"cache_creation_input_tokens":98}}"#;
        assert_eq!(
            usage(Endpoint::Messages, written),
            [Some(100), Some(0), None]
        );
        let responses = r#"{"id":"resp_1","error":null,"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":8}}"#;
        assert_eq!(
            usage(Endpoint::Responses, responses),
            [Some(9), Some(4), Some(8)]
        );
        let facts = read(Endpoint::Responses, responses.as_bytes());
        assert_eq!(
            (facts.response_id.as_deref(), facts.error),
            (Some("resp_1"), false)
        );
        let rerank = r#"{"usage":{"total_tokens":56}}"#;
        assert_eq!(usage(Endpoint::Rerank, rerank), [Some(56), None, None]);
        let timings = r#"{"timings":{"cache_n":136,"prompt_n":1,"predicted_n":8}}"#;
        assert_eq!(
            usage(Endpoint::Chat, timings),
            [Some(137), Some(136), Some(8)]
        );
        assert_eq!(usage(Endpoint::Chat, "not json"), [None, None, None]);
    }

    #[test]
    fn an_error_under_any_status_is_an_error() {
        let error = |body: &str| read(Endpoint::Chat, body.as_bytes()).error;
        assert!(error(r#"{"choices":null,"error":{"code":429}}"#));
        assert!(error(
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#
        ));
        assert!(!error(r#"{"choices":[],"error":null}"#));
        assert!(!error(r#"{"choices":[]}"#));
        let aborted = |body: &str| read(Endpoint::Chat, body.as_bytes()).aborted;
        assert!(aborted(
            r#"{"choices":[{"finish_reason":"stop"},{"index":1,"finish_reason":"abort"}]}"#
        ));
        assert!(!aborted(
            r#"{"choices":[{"message":{"content":"abort"},"finish_reason":"stop"}]}"#
        ));
    }
}
