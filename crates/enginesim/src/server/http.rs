//! Paths, statuses, headers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ask::{self, Ask, Family, Refusal};
use super::body::{Body, TokenStream, Totals};
use super::replica::{Part, Replica};
use super::reply::Reply;
use super::{metrics, tokenize};
use crate::model::{SubmitError, Usage};
use crate::tokens;

/// Largest request body, bytes.
const BODY_MAX: usize = 64 << 20;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Numbers of an embedding.
const EMBEDDING_LEN: u64 = 16;

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Answers one request; whatever goes wrong is an answer too.
pub(super) async fn answer(
    replica: Arc<Replica>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    if let Some(family) = generates(&head.method, head.uri.path()) {
        let body = match read(body).await {
            Ok(body) => body,
            Err(refusal) => return Ok(refused(family, &refusal)),
        };
        if let Some(zero) = &replica.zero
            && let Some((body, kind)) = zero.answer(family, &body)
        {
            return Ok(reply(StatusCode::OK, kind, body));
        }
        let given = head.headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
        let request_id = given.map_or_else(|| fresh_id(&replica), str::to_owned);
        let mut response = generate(&replica, family, &body, &request_id)
            .await
            .unwrap_or_else(|refusal| refused(family, &refusal));
        if let Ok(value) = HeaderValue::from_str(&request_id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        return Ok(response);
    }
    let response = match (&head.method, head.uri.path()) {
        (&Method::GET, "/health" | "/ping") => {
            reply(StatusCode::OK, "text/plain", Body::Whole(None))
        }
        (&Method::GET, "/version") => {
            ok(&json!({"version": concat!(env!("CARGO_PKG_VERSION"), "+maitred.engine")}))
        }
        (&Method::GET, "/v1/models") => ok(&models(&replica)),
        (&Method::GET, "/metrics") => reply(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            Body::from(metrics::text(&replica)),
        ),
        (&Method::POST, "/reset_prefix_cache") => {
            replica.reset_cache();
            reply(StatusCode::OK, "text/plain", Body::Whole(None))
        }
        (&Method::POST, "/kv_events/restart") => {
            replica.restart_kv();
            reply(StatusCode::OK, "text/plain", Body::Whole(None))
        }
        (&Method::POST, "/kv_events/disconnect") => {
            replica.disconnect_kv();
            reply(StatusCode::OK, "text/plain", Body::Whole(None))
        }
        (&Method::POST, path @ ("/tokenize" | "/detokenize" | "/v1/messages/count_tokens")) => {
            let family = if path.starts_with("/v1/messages") {
                Family::Messages
            } else {
                Family::Chat
            };
            match read(body)
                .await
                .and_then(|body| tokenize::answer(path, &body, replica.context_tokens))
            {
                Ok(value) => ok(&value),
                Err(refusal) => refused(family, &refusal),
            }
        }
        _ => {
            let body = json!({"detail": "Not Found"}).to_string();
            reply(StatusCode::NOT_FOUND, "application/json", Body::from(body))
        }
    };
    Ok(response)
}

fn generates(method: &Method, path: &str) -> Option<Family> {
    if method != Method::POST {
        return None;
    }
    match path {
        "/v1/chat/completions" => Some(Family::Chat),
        "/v1/completions" => Some(Family::Completions),
        "/v1/responses" => Some(Family::Responses),
        "/v1/messages" => Some(Family::Messages),
        "/v1/embeddings" => Some(Family::Embeddings),
        _ => None,
    }
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    match Limited::new(body, BODY_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(Refusal::bad(
            format!("the body could not be read: {error}"),
            None,
        )),
    }
}

async fn generate(
    replica: &Arc<Replica>,
    family: Family,
    body: &[u8],
    request_id: &str,
) -> Result<Response<Body>, Refusal> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|e| Refusal::bad(format!("the body is not JSON: {e}"), None))?;
    let Ask {
        prompts,
        n,
        max_tokens,
        limited,
        stream,
        include_usage,
        salt,
    } = ask::parse(family, &body, &replica.served_model)?;
    let prefix = match family {
        Family::Chat => "chatcmpl-",
        Family::Completions => "cmpl-",
        Family::Responses => "resp_",
        Family::Messages => "msg_",
        Family::Embeddings => "embd-",
    };
    let reply_head = Reply {
        family,
        id: format!("{prefix}{request_id}"),
        model: replica.served_model.clone(),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
        include_usage,
        finish: if limited { "length" } else { "stop" },
        tells_cached: true,
    };
    let first_prompt = prompts.first().map_or(0, Vec::len);
    // Without a named length the reply ends where the context does.
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = replica.context_tokens.saturating_sub(longest).max(1);
    let max_tokens = if limited {
        max_tokens
    } else {
        max_tokens.min(room)
    };
    let jobs: Vec<(Vec<u32>, u64)> = prompts
        .into_iter()
        .flat_map(|prompt| {
            (0..n).map(move |choice| {
                let seed = tokens::reply_seed(&prompt, choice as u64);
                (prompt.clone(), seed)
            })
        })
        .collect();
    let seeds: Vec<u64> = jobs.iter().map(|(_, seed)| *seed).collect();
    let mut call = replica.call(jobs, max_tokens, salt).map_err(not_taken)?;
    if stream && family != Family::Embeddings {
        let stream = TokenStream::new(reply_head, call, first_prompt, n);
        return Ok(reply(
            StatusCode::OK,
            "text/event-stream; charset=utf-8",
            Body::Tokens(Box::new(stream)),
        ));
    }
    let mut ids = vec![Vec::new(); call.choices()];
    let mut totals = Totals::new(n);
    let mut unfinished = call.choices();
    while unfinished > 0 {
        match call.parts.recv().await {
            Some((choice, Part::First { token, .. } | Part::Token(token))) => {
                ids[choice].push(token);
            }
            Some((choice, Part::Done(usage))) => {
                totals.add(choice, usage);
                unfinished -= 1;
            }
            None => {
                return Err(Refusal {
                    status: 500,
                    message: "the engine stopped".to_owned(),
                    param: None,
                });
            }
        }
    }
    if family == Family::Embeddings {
        return Ok(ok(&embeddings(&reply_head, &seeds, totals.usage)));
    }
    let texts: Vec<String> = ids.iter().map(|ids| tokens::text_of(ids)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Ok(ok(&reply_head.whole(&texts, totals.usage)))
}

/// Vectors that depend on the prompt and on nothing else.
fn embeddings(head: &Reply, seeds: &[u64], usage: Usage) -> Value {
    let data: Vec<Value> = seeds
        .iter()
        .enumerate()
        .map(|(index, seed)| {
            let numbers: Vec<f64> = (0..EMBEDDING_LEN)
                .map(|at| {
                    let draw = xxh3_64_with_seed(&at.to_le_bytes(), *seed) >> 40;
                    draw as f64 / f64::from(1_u32 << 23) - 1.0
                })
                .collect();
            json!({"object": "embedding", "index": index, "embedding": numbers})
        })
        .collect();
    json!({"id": head.id, "object": "list", "created": head.created, "model": head.model, "data": data,
        "usage": head.usage(usage)})
}

fn not_taken(error: SubmitError) -> Refusal {
    let (status, param) = match error {
        SubmitError::QueueFull { .. } => (503, None),
        SubmitError::TooLong { .. } => (400, Some("max_tokens")),
        SubmitError::Empty => (400, Some("prompt")),
        SubmitError::Duplicate { .. } => (500, None),
    };
    Refusal {
        status,
        message: error.to_string(),
        param,
    }
}

fn models(replica: &Replica) -> Value {
    let name = &replica.served_model;
    json!({"object": "list", "data": [{"id": name, "object": "model", "created": replica.started.as_secs(),
        "owned_by": "vllm", "root": name, "parent": null, "max_model_len": replica.context_tokens, "permission": []}]})
}

fn fresh_id(replica: &Replica) -> String {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let start = replica.started.as_nanos() as u64;
    format!(
        "{:016x}{serial:016x}",
        xxh3_64_with_seed(&serial.to_le_bytes(), start)
    )
}

fn refused(family: Family, refusal: &Refusal) -> Response<Body> {
    let kind = match (family, refusal.status) {
        (Family::Messages, 400) => "invalid_request_error",
        (Family::Messages, 404) => "not_found_error",
        (Family::Messages, 503) => "overloaded_error",
        (Family::Messages, _) => "api_error",
        (_, 404) => "NotFoundError",
        (_, 400) => "BadRequestError",
        (_, 503) => "ServiceUnavailableError",
        _ => "InternalServerError",
    };
    let message = &refusal.message;
    let body = if family == Family::Messages {
        json!({"type": "error", "error": {"type": kind, "message": message}})
    } else {
        json!({"error": {"message": message, "type": kind, "param": refusal.param, "code": refusal.status}})
    };
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = reply(status, "application/json", Body::from(body.to_string()));
    if refusal.status == 503 {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn ok(value: &Value) -> Response<Body> {
    reply(
        StatusCode::OK,
        "application/json",
        Body::from(value.to_string()),
    )
}

fn reply(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
