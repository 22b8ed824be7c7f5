//! Answers of the admin API, and how its bodies are read.

use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Names that an error about an unknown one lists.
const NAMES_MAX: usize = 20;

/// Bytes of a request body.
const BODY_MAX: usize = 1 << 20;
/// The whole body must be there by then.
const BODY_WAIT: Duration = Duration::from_secs(10);

pub(super) type Answer = Response<Full<Bytes>>;

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) field: Option<String>,
    pub(super) message: String,
}

impl Wrong {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        field: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            code,
            field: field.map(str::to_owned),
            message: message.into(),
        }
    }

    /// A field is wrong.
    pub(super) fn field(field: &str, message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid-field",
            Some(field),
            message,
        )
    }

    /// Something that the path names is not there.
    pub(super) fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", None, message)
    }

    /// No such pool or worker; says which there are.
    pub(super) fn unknown<'a>(
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut known: Vec<String> = known
            .take(NAMES_MAX + 1)
            .map(|name| format!("`{name}`"))
            .collect();
        if known.len() > NAMES_MAX {
            known.truncate(NAMES_MAX);
            known.push("...".to_owned());
        }
        let list = if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        };
        Self::missing(format!("no {what} `{name}`; there are: {list}"))
    }

    pub(super) fn answer(&self) -> Answer {
        json_answer(
            self.status,
            &json!({ "error": {
                "code": self.code,
                "field": self.field,
                "message": self.message,
            }}),
        )
    }
}

pub(super) fn json_answer(status: StatusCode, body: &Value) -> Answer {
    text_answer(status, "application/json", body.to_string())
}

pub(super) fn text_answer(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer
}

/// A request's JSON object, taken apart field by field.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads the body; an empty one is an empty object.
    pub(super) async fn read(body: Incoming) -> Result<Self, Wrong> {
        let wrong =
            |message: &str| Wrong::new(StatusCode::BAD_REQUEST, "invalid-body", None, message);
        let read = tokio::time::timeout(BODY_WAIT, Limited::new(body, BODY_MAX).collect());
        let bytes = match read.await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return Err(wrong("the body is larger than 1 MiB, or broke off")),
            Err(_) => return Err(wrong("the body did not come within 10 s")),
        };
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(wrong("the body must be a JSON object")),
            Err(error) => Err(wrong(&format!("the body is not JSON: {error}"))),
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        // The order of the other fields does not matter, the speed neither.
        self.0.shift_remove(key).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, Wrong> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text)),
            Some(_) => Err(Wrong::field(key, "must be a text that is not empty")),
        }
    }

    pub(super) fn count(&mut self, key: &str) -> Result<Option<u64>, Wrong> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(count) if count >= 1 => Ok(Some(count)),
                _ => Err(Wrong::field(key, "must be a whole number, at least 1")),
            },
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, Wrong> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(Wrong::field(key, "must be true or false")),
        }
    }

    /// What is left over is unknown.
    pub(super) fn finish(self, known: &str) -> Result<(), Wrong> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(Wrong::field(
                key,
                format!("unknown field; known here: {known}"),
            )),
        }
    }
}
