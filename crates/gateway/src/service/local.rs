//! What is answered here, without a worker: the root, health, the models, and what browsers ask first.

use super::Call;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::relay::RelayBody;
use crate::reply::json;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use maitred_core::pool::Availability;
use maitred_wire::{Endpoint, Family};
use serde_json::{Value, json as value};

/// The answer, where the request is one of ours that needs no key.
pub(super) fn respond(gateway: &Gateway, call: &Call) -> Option<Response<RelayBody>> {
    let method = &call.parts.method;
    let path = call.parts.uri.path();
    if *method == Method::OPTIONS && !gateway.config.cors_origins.is_empty() {
        return Some(preflight(&call.parts.headers));
    }
    if *method != Method::GET && *method != Method::HEAD {
        return None;
    }
    match path {
        "/" => Some(text(StatusCode::OK, "maitred\n")),
        "/health" | "/healthz" | "/readyz" | "/ping" => Some(health(gateway)),
        "/livez" => Some(text(StatusCode::OK, "alive\n")),
        _ => None,
    }
}

/// The answer to HEAD: the length of what is not sent. Over HTTP/2 nobody else leaves the body out.
pub(super) fn without_body(mut response: Response<RelayBody>) -> Response<RelayBody> {
    if let RelayBody::Whole(Some(body)) = response.body() {
        let length = HeaderValue::from(body.len());
        let headers = response.headers_mut();
        headers.entry(CONTENT_LENGTH).or_insert(length);
        *response.body_mut() = RelayBody::Whole(None);
    }
    response
}

fn text(status: StatusCode, body: &'static str) -> Response<RelayBody> {
    let mut response = Response::new(RelayBody::whole(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Whether any worker could take a request.
fn health(gateway: &Gateway) -> Response<RelayBody> {
    let ready = gateway.pools.iter().any(|pool| {
        pool.driver
            .workers()
            .iter()
            .any(|w| w.availability == Availability::Ready)
    });
    if ready && !gateway.is_closing() {
        json(StatusCode::OK, Bytes::from_static(br#"{"status":"ok"}"#))
    } else {
        json(
            StatusCode::SERVICE_UNAVAILABLE,
            Bytes::from_static(br#"{"status":"no worker is ready"}"#),
        )
    }
}

/// Whether the models are asked for: those who may call may know them.
pub(super) fn asks_for_models(call: &Call) -> bool {
    let method = &call.parts.method;
    call.endpoint == Endpoint::Models && (*method == Method::GET || *method == Method::HEAD)
}

/// All models of all pools, or the one that the path names.
pub(super) fn models(gateway: &Gateway, call: &Call) -> Response<RelayBody> {
    let path = call.parts.uri.path().trim_end_matches('/');
    let wanted = path.split_once("/models/").map(|(_, name)| name);
    let mut names: Vec<String> = Vec::new();
    for pool in &gateway.pools {
        for name in pool.model_names() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let Some(wanted) = wanted else {
        let list: Vec<Value> = names.iter().map(|n| model(n)).collect();
        let body = value!({
            "object": "list",
            "data": list,
            "first_id": names.first(),
            "last_id": names.last(),
            "has_more": false,
        });
        return json(StatusCode::OK, body.to_string().into());
    };
    match names.iter().find(|n| n.as_str() == wanted) {
        Some(name) => json(StatusCode::OK, model(name).to_string().into()),
        None => super::admit::unknown_model(wanted, &names).response(Family::OpenAi),
    }
}

/// In the words of both families.
fn model(name: &str) -> Value {
    value!({
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "maitred",
        "type": "model",
        "display_name": name,
    })
}

/// The request's origin, where it is one that may call.
pub(super) fn allowed_origin(config: &Config, headers: &HeaderMap) -> Option<HeaderValue> {
    if config.cors_origins.is_empty() {
        return None;
    }
    let origin = headers.get(ORIGIN)?;
    let known = config
        .cors_origins
        .iter()
        .any(|o| o == "*" || o.as_bytes() == origin.as_bytes());
    known.then(|| origin.clone())
}

/// Lets the page of that origin read the answer.
pub(super) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, x-maitred-reason, retry-after"),
    );
}

/// Browsers ask before they send, without a credential.
fn preflight(headers: &HeaderMap) -> Response<RelayBody> {
    let mut response = Response::new(RelayBody::whole(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let out = response.headers_mut();
    out.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"),
    );
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        out.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    out.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}
