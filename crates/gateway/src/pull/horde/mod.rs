//! The AI Horde's API for text workers, as far as such a worker needs it: see `docs/pull.md`.
//!
//! What its workers rely on: whatever is no success is a JSON object with a text `message`; "nothing
//! for you" is a success; every key of a pop's answer is there.

mod check;
mod pop;
mod submit;
mod workers;

use super::broker::{Broker, Refused};
use super::line::Line;
use super::routes::{self, Reply};
use crate::body::{self, BodyFailure};
use crate::config::PullToken;
use check::Faults;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Everybody's key at the public Horde, and the default of its workers.
const ANONYMOUS: &str = "0000000000";
/// A body's pieces come at least this often.
const READ_WAIT: Duration = Duration::from_secs(30);
/// Bytes of what a worker says of itself, and of a text that it made.
const ASK_MAX: usize = 256 << 10;
const TEXT_MAX: usize = 8 << 20;

/// Whether the path is one of this API.
pub(super) fn is_ours(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Answers one call.
pub(super) async fn answer(broker: &Broker, line: &Line, parts: &Parts, body: Incoming) -> Reply {
    let path = parts.uri.path();
    let path = path.strip_prefix("/api/v2").unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let answered = match (&parts.method, path) {
        (&Method::POST, "/generate/text/pop") => {
            let popped = pop::pop(broker, line, &parts.headers, body).await;
            return popped.unwrap_or_else(Wrong::into_reply);
        }
        (&Method::POST, "/generate/text/submit") => {
            submit::submit(broker, &parts.headers, body).await
        }
        (&Method::GET, "/status/heartbeat") => Ok(json!({
            "message": "OK",
            "version": env!("CARGO_PKG_VERSION"),
        })),
        (&Method::GET, "/find_user") => workers::find_user(broker, &parts.headers),
        (method, path) => match path.strip_prefix("/workers/") {
            Some(name) if method == Method::GET => workers::show(broker, &parts.headers, name),
            Some(name) if method == Method::PUT => {
                workers::change(broker, &parts.headers, name, body).await
            }
            _ => Err(Wrong::plain(
                StatusCode::NOT_FOUND,
                "There is no such path here.",
            )),
        },
    };
    match answered {
        Ok(value) => routes::reply(StatusCode::OK, &value),
        Err(wrong) => wrong.into_reply(),
    }
}

/// An answer that is no success.
#[derive(Debug)]
struct Wrong {
    status: StatusCode,
    message: String,
    /// The Horde's word for it.
    rc: Option<&'static str>,
    /// What is wrong with which field.
    errors: Option<Map<String, Value>>,
}

impl Wrong {
    fn plain(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            rc: None,
            errors: None,
        }
    }

    fn new(status: StatusCode, rc: &'static str, message: impl Into<String>) -> Self {
        Self {
            rc: Some(rc),
            ..Self::plain(status, message)
        }
    }

    fn forbidden(rc: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, rc, message)
    }

    fn invalid(errors: Map<String, Value>) -> Self {
        Self {
            errors: Some(errors),
            ..Self::plain(StatusCode::BAD_REQUEST, "Input payload validation failed")
        }
    }

    fn into_reply(self) -> Reply {
        let mut body = json!({"message": self.message});
        if let Some(rc) = self.rc {
            body["rc"] = json!(rc);
        }
        if let Some(errors) = self.errors {
            body["errors"] = Value::Object(errors);
        }
        routes::reply(self.status, &body)
    }
}

impl From<&Refused> for Wrong {
    fn from(refused: &Refused) -> Self {
        match refused {
            Refused::NotYours => Self::forbidden(
                "WrongCredentials",
                "That worker name belongs to somebody else.",
            ),
            Refused::NameNotAllowed => Self::forbidden(
                "WorkerInviteOnly",
                "This API key may not be used by a worker of that name.",
            ),
            Refused::TooMany => Self::forbidden(
                "TooManyWorkers",
                "There are as many workers as there may be.",
            ),
            Refused::NoPool(message) | Refused::PoolNotAllowed(message) => {
                Self::forbidden("WorkerInviteOnly", message.clone())
            }
        }
    }
}

/// The JSON object of a body. Of nobody whose key is unknown a body is read.
async fn read(
    headers: &HeaderMap,
    body: Incoming,
    most: usize,
) -> Result<Map<String, Value>, Wrong> {
    let bad = |message: &str| Wrong::plain(StatusCode::BAD_REQUEST, message);
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let is_json = |kind: &str| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json")
    };
    if !kind.is_some_and(is_json) {
        return Err(bad("The Content-Type must be application/json."));
    }
    let declared = body::declared(headers);
    let bytes = body::collect(body, declared, most, READ_WAIT).await;
    let bytes = bytes.map_err(|failure| match failure {
        BodyFailure::TooLarge => Wrong::plain(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("The body is larger than {most} bytes."),
        ),
        BodyFailure::Late | BodyFailure::Gone => bad("The body broke off."),
    })?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("The body must be a JSON object.")),
        Err(error) => Err(bad(&format!("The body is not JSON: {error}"))),
    }
}

/// The key that was sent; none is a fault of validation.
fn key(headers: &HeaderMap) -> Result<&str, Wrong> {
    let key = headers.get("apikey").and_then(|key| key.to_str().ok());
    let key = key.map(str::trim).filter(|key| !key.is_empty());
    key.ok_or_else(|| {
        let mut faults = Faults::default();
        faults.missing("apikey", "the HTTP headers");
        Wrong::invalid(faults.found)
    })
}

/// Whose key was sent.
fn token<'b>(broker: &'b Broker, headers: &HeaderMap) -> Result<&'b PullToken, Wrong> {
    let key = key(headers)?;
    broker.owner(key).ok_or_else(|| match key {
        ANONYMOUS => Wrong::forbidden(
            "AnonForbiddenWorker",
            "Anonymous workers are not taken: set the API key that this maitred's operator gave you.",
        ),
        _ => Wrong::new(
            StatusCode::UNAUTHORIZED,
            "InvalidAPIKey",
            "No worker token of this maitred has that API key.",
        ),
    })
}

/// The name that the worker has here: a Horde name may have any characters. One that had to be
/// changed gets digits of its hash, so that different names stay different.
fn worker_name(horde: &str) -> String {
    let clean = |c: char| match c.is_ascii_alphanumeric() || "._:-/[]".contains(c) {
        true => c,
        false => '_',
    };
    let name: String = horde.chars().map(clean).collect();
    if name == horde {
        return name;
    }
    let hash = crate::config::hash_token(horde);
    let digits: String = hash
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{name}-{digits}")
}

#[cfg(test)]
mod tests {
    use super::worker_name;
    use crate::config::valid_name;

    #[test]
    fn names_are_ours_and_stay_different() {
        assert_eq!(worker_name("gpu-1"), "gpu-1");
        // SHA-256 of the name begins so, by another program.
        assert_eq!(worker_name("Example Scribe"), SCRIBE);
        assert_ne!(worker_name("a b"), worker_name("a_b"));
        assert_ne!(worker_name("a b"), worker_name("a\u{e9}b"));
        assert!(valid_name(&worker_name(&"\u{1f600}".repeat(100))));
    }

    const SCRIBE: &str = "Example_Scribe-2a11d60d";
}
