//! Requests that the HTTP library refuses by itself, because it can not read their heads. It answers
//! with a head alone; here the answer gets the body that every other refusal of ours has.

use crate::headers::REQUEST_ID;
use crate::reply::{Problem, REASON};
use crate::request_id::request_id;
use crate::service::{Client, rejected_unread};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use maitred_wire::{Endpoint, Family, error};

/// How such an answer begins; nearly every write fails this look.
const BEGIN: &[u8] = b"HTTP/1.1 4";

/// The status, if these bytes are a refusal of the HTTP library's own: a client error with no
/// fields but its own three. What passes through us or comes from us has a request id.
pub(super) fn refusal(written: &[u8]) -> Option<StatusCode> {
    if !written.starts_with(BEGIN) {
        return None;
    }
    let head = written.strip_suffix(b"\r\n\r\n")?;
    let mut lines = head.split(|b| *b == b'\n');
    let status = lines.next()?.get(9..12)?;
    let mut empty = false;
    for line in lines {
        let name = line.split(|b| *b == b':').next()?;
        match name.to_ascii_lowercase().as_slice() {
            b"content-length" => empty = line.trim_ascii_end().ends_with(b": 0"),
            b"connection" | b"date" => {}
            _ => return None,
        }
    }
    empty.then(|| StatusCode::from_bytes(status).ok()).flatten()
}

/// The whole answer in its place.
pub(super) fn answer(client: &Client, status: StatusCode, instead_of: &[u8]) -> Bytes {
    let heads = client.heads.as_ref();
    let (method, target) = heads.map(|h| h.asked()).unwrap_or_default();
    let field = |name: &str| heads.and_then(|h| h.field(name));
    let endpoint = Endpoint::of(&method, &target);
    let family = match endpoint {
        Endpoint::Other | Endpoint::Models if field("anthropic-version").is_some() => {
            Family::Anthropic
        }
        endpoint => endpoint.family(),
    };
    let mut sent = HeaderMap::new();
    let id = field("x-request-id").and_then(|id| HeaderValue::from_bytes(&id).ok());
    sent.extend(id.map(|id| (REQUEST_ID.clone(), id)));
    let id = request_id(&sent);
    let problem = problem(status);
    rejected_unread(client, endpoint, &id, &problem);
    if let Some(heads) = heads {
        // The rest of what it sends would reset the connection under the answer.
        heads.linger();
    }
    let body = error::body(
        family,
        status.as_u16(),
        problem.code,
        &problem.message,
        None,
    );
    let mut answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{REASON}: {}\r\nconnection: close\r\ncontent-length: {}\r\n{}: ",
        problem.code,
        body.len(),
        REQUEST_ID.as_str(),
    )
    .into_bytes();
    answer.extend_from_slice(id.as_bytes());
    let lines = instead_of
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii_end);
    for date in lines.filter(|line| line.starts_with(b"date:")) {
        answer.extend_from_slice(b"\r\n");
        answer.extend_from_slice(date);
    }
    answer.extend_from_slice(b"\r\n\r\n");
    answer.extend_from_slice(&body);
    answer.into()
}

fn problem(status: StatusCode) -> Problem {
    let (code, message) = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (
            "headers-too-large",
            "the request's headers are too large or too many",
        ),
        StatusCode::URI_TOO_LONG => ("uri-too-long", "the request's target is too long"),
        _ => (
            "malformed-request",
            "the request's head is not valid HTTP/1.1",
        ),
    };
    Problem::new(status, code, message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::refusal;

    #[test]
    fn only_a_bare_client_error_is_the_librarys_own() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: Sun, 29 Nov 2026 10:00:00 GMT\r\n\r\n";
        assert_eq!(refusal(bare.as_bytes()).unwrap(), 431);
        for other in [
            bare.replace("431", "200"),
            bare.replace("date:", "x-request-id: a\r\ndate:"),
            bare.replace("content-length: 0", "content-length: 10"),
            bare.replace("content-length: 0\r\n", ""),
            format!("{bare}{{}}"),
            bare[..bare.len() - 1].to_owned(),
            format!("data: {bare}"),
        ] {
            assert_eq!(refusal(other.as_bytes()), None, "{other}");
        }
    }
}
