//! Error bodies and error events in each family's shape.

use crate::endpoint::{Endpoint, Family};
use std::fmt::Write;

/// OpenAI's `type` for a status.
fn openai_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

/// Anthropic's `type` for a status.
fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// A string as JSON, quotes included.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn openai_error(status: u16, code: &str, message: &str, param: Option<&str>) -> String {
    format!(
        r#"{{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}}"#,
        quoted(message),
        openai_type(status),
        param.map_or_else(|| String::from("null"), quoted),
        quoted(code)
    )
}

fn anthropic_error(status: u16, message: &str) -> String {
    format!(
        r#"{{"type":"error","error":{{"type":"{}","message":{}}}}}"#,
        anthropic_type(status),
        quoted(message)
    )
}

/// An error body. `code` is a stable word (OpenAI's `code`; Anthropic's shape has no place for
/// it), `param` the field at fault.
#[must_use]
pub fn body(
    family: Family,
    status: u16,
    code: &str,
    message: &str,
    param: Option<&str>,
) -> Vec<u8> {
    match family {
        Family::OpenAi => openai_error(status, code, message, param),
        Family::Anthropic => anthropic_error(status, message),
    }
    .into_bytes()
}

/// An error as one whole event, for a stream that fails after its head was sent; `status`: what the
/// head would have said.
#[must_use]
pub fn event(endpoint: Endpoint, status: u16, code: &str, message: &str) -> Vec<u8> {
    match endpoint {
        Endpoint::Messages | Endpoint::CountTokens => {
            format!(
                "event: error\ndata: {}\n\n",
                anthropic_error(status, message)
            )
        }
        // The numbers of the events before it are the engine's; 0 is what strict readers accept.
        Endpoint::Responses => format!(
            "event: error\ndata: {{\"type\":\"error\",\"code\":{},\"message\":{},\"param\":null,\"sequence_number\":0}}\n\n",
            quoted(code),
            quoted(message)
        ),
        _ => format!("data: {}\n\n", openai_error(status, code, message, None)),
    }
    .into_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn bodies_have_the_familys_shape_and_survive_any_text() {
        let message = "a \"quoted\" \\ line\nbreak \u{1} ü";
        let openai = body(Family::OpenAi, 400, "bad-field", message, Some("model"));
        let openai: Value = serde_json::from_slice(&openai).unwrap();
        assert_eq!(openai["error"]["message"], message);
        assert_eq!(openai["error"]["type"], "invalid_request_error");
        assert_eq!(openai["error"]["param"], "model");
        assert_eq!(openai["error"]["code"], "bad-field");
        let anthropic = body(Family::Anthropic, 429, "queue-full", message, None);
        let anthropic: Value = serde_json::from_slice(&anthropic).unwrap();
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "rate_limit_error");
        assert_eq!(anthropic["error"]["message"], message);
    }

    #[test]
    fn every_error_event_is_one_event_that_the_observer_knows_as_an_error() {
        for endpoint in [
            Endpoint::Chat,
            Endpoint::Completions,
            Endpoint::Responses,
            Endpoint::Messages,
        ] {
            let mut observer = crate::StreamObserver::new(endpoint);
            observer.push(&event(endpoint, 502, "upstream", "line one\nline two"));
            assert!(observer.error() && observer.at_boundary(), "{endpoint:?}");
            assert_eq!(observer.data_events(), 1);
        }
    }
}
