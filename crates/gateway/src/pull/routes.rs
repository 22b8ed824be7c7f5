//! The workers' listener and the long-poll API on it: see `docs/pull.md`.

use super::answering::{self, Ended};
use super::broker::{Ask, Broker, Refused};
use super::desk::Speaks;
use super::line::Line;
use super::past::End;
use super::work::{Job, Said, Work};
use super::{horde, waiting};
use crate::body;
use crate::config::{PullToken, valid_name};
use crate::metrics::{Popped, Submitted};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitred_core::pool::RequestLimits;
use serde::Deserialize;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections of workers at once.
const CONNECTIONS_MAX: usize = 4_096;
/// A connection that sends no request head is closed after this long; a slow body, too.
const READ_WAIT: Duration = Duration::from_secs(30);
/// Bytes of what a worker says of itself.
const ASK_MAX: usize = 256 << 10;
/// Models that one worker may list, and the length of their names.
const MODELS_MAX: usize = 256;
const MODEL_BYTES_MAX: usize = 512;
/// Jobs that one worker may say it has.
const JOBS_MAX: usize = 1_024;

pub(super) type Reply = Response<Said>;

/// Serves workers until it is dropped.
pub(crate) async fn serve(broker: Arc<Broker>, listener: TcpListener) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "pull: cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Best effort: without it answers are a little later.
        let _ = stream.set_nodelay(true);
        let broker = Arc::clone(&broker);
        let line = Line::new(stream);
        connections.spawn(async move {
            let same = line.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let (broker, line) = (Arc::clone(&broker), same.clone());
                async move { Ok::<Reply, Infallible>(answer(&broker, &line, request).await) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(READ_WAIT)
                .serve_connection(TokioIo::new(line), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "pull: connection ended");
            }
            drop(seat);
        });
    }
}

async fn answer(broker: &Broker, line: &Line, request: Request<Incoming>) -> Reply {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if horde::is_ours(path) {
        return horde::answer(broker, line, &parts, body).await;
    }
    let Some(path) = path.strip_prefix("/pull/v1/") else {
        return wrong(StatusCode::NOT_FOUND, "not-found", None, "no such path");
    };
    let bearer = bearer(&parts.headers);
    let Some(token) = bearer.and_then(|token| broker.owner(token)) else {
        let message = match bearer {
            None => "send `Authorization: Bearer` with a worker token",
            Some(_) => "no entry of `pull.tokens` has that token",
        };
        return wrong(StatusCode::UNAUTHORIZED, "unauthorized", None, message);
    };
    let segments: Vec<&str> = path.splitn(3, '/').collect();
    match (&parts.method, segments.as_slice()) {
        (&Method::POST, ["pop"]) => pop(broker, line, token, body).await,
        (&Method::POST, ["heartbeat"]) => heartbeat(broker, token, body).await,
        (&Method::POST, ["jobs", job, "answer"]) => job_answer(broker, token, job, body).await,
        (&Method::DELETE, ["workers", name]) => leave(broker, token, name),
        (&Method::DELETE, ["workers", a, b]) => leave(broker, token, &format!("{a}/{b}")),
        _ => wrong(StatusCode::NOT_FOUND, "not-found", None, "no such path"),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let token = value
        .strip_prefix("Bearer ")
        .or_else(|| value.strip_prefix("bearer "))?;
    Some(token.trim()).filter(|token| !token.is_empty())
}

pub(super) fn reply(status: StatusCode, body: &serde_json::Value) -> Reply {
    json_reply(status, Said::plain(body.to_string()))
}

/// The same of a body that is written already.
pub(super) fn json_reply(status: StatusCode, body: Said) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    reply
}

fn wrong(status: StatusCode, code: &str, field: Option<&str>, message: &str) -> Reply {
    let body = json!({"error": {"code": code, "field": field, "message": message}});
    reply(status, &body)
}

async fn read<T: for<'de> Deserialize<'de>>(body: Incoming) -> Result<T, Reply> {
    let bad = |message: &str| wrong(StatusCode::BAD_REQUEST, "invalid-body", None, message);
    let bytes = body::collect(body, None, ASK_MAX, READ_WAIT)
        .await
        .map_err(|_| bad("the body is too large or broke off"))?;
    serde_json::from_slice(&bytes).map_err(|error| bad(&error.to_string()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pop {
    name: String,
    instance: Option<String>,
    pool: Option<String>,
    #[serde(default)]
    models: Vec<String>,
    context_max: Option<u32>,
    output_max: Option<u32>,
    slots: Option<u32>,
    /// Seconds.
    wait: Option<f64>,
}

impl Pop {
    fn fault(&self) -> Option<(&'static str, &'static str)> {
        let long = |model: &String| model.is_empty() || model.len() > MODEL_BYTES_MAX;
        if !valid_name(&self.name) {
            return Some(("name", "must be 1 to 128 letters, digits or . _ : - / [ ]"));
        }
        if self.instance.as_ref().is_some_and(|i| i.len() > 128) {
            return Some(("instance", "must have at most 128 characters"));
        }
        if self.models.len() > MODELS_MAX || self.models.iter().any(long) {
            return Some(("models", "must be at most 256 names of 1 to 512 characters"));
        }
        if self.slots == Some(0) {
            return Some(("slots", "must be at least 1"));
        }
        if self
            .wait
            .is_some_and(|wait| !(0.0..=3_600.0).contains(&wait))
        {
            return Some(("wait", "must be 0 to 3600 seconds"));
        }
        None
    }
}

async fn pop(broker: &Broker, line: &Line, token: &PullToken, body: Incoming) -> Reply {
    let pop: Pop = match read(body).await {
        Ok(pop) => pop,
        Err(reply) => return reply,
    };
    if let Some((field, message)) = pop.fault() {
        return wrong(
            StatusCode::BAD_REQUEST,
            "invalid-field",
            Some(field),
            message,
        );
    }
    let most = broker.settings.wait_max;
    let wait = pop
        .wait
        .and_then(|wait| Duration::try_from_secs_f64(wait).ok());
    let wait = wait.unwrap_or(most).min(most);
    let ask = Ask {
        shown_name: pop.name.clone(),
        name: pop.name,
        speaks: Speaks::Maitred,
        instance: pop.instance,
        agent: None,
        pool: pop.pool,
        models: pop.models,
        slots: pop.slots,
        limits: RequestLimits {
            context_max: pop.context_max,
            output_max: pop.output_max,
            tenants: token.tenant_ids(),
            plain_only: false,
        },
    };
    let counts = &broker.gateway.metrics.pull;
    let member = match broker.join(token, &ask) {
        Ok(member) => member,
        Err(refused) => {
            counts.popped(Speaks::Maitred, Popped::Refused);
            return refusal(&refused);
        }
    };
    let Some(job) = waiting::next(&member, line, wait).await else {
        counts.popped(Speaks::Maitred, Popped::Empty);
        return no_job();
    };
    let Job { id, work, handing } = job;
    let Work::Request {
        method,
        target,
        headers,
        body,
    } = work
    else {
        // Dropping it gives the request to another worker.
        return no_job();
    };
    counts.popped(Speaks::Maitred, Popped::Job);
    let head = json!({"id": id, "method": method, "path": target, "headers": headers});
    let mut bytes = BytesMut::with_capacity(512 + body.len());
    bytes.put_slice(head.to_string().as_bytes());
    bytes.put_u8(b'\n');
    bytes.put_slice(&body);
    let mut reply = Response::new(Said::job(bytes.freeze(), handing));
    let kind = HeaderValue::from_static("application/octet-stream");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

fn no_job() -> Reply {
    let mut reply = Response::new(Said::plain(Bytes::new()));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}

fn refusal(refused: &Refused) -> Reply {
    match refused {
        Refused::NotYours => wrong(
            StatusCode::FORBIDDEN,
            "not-yours",
            Some("name"),
            "that name belongs to somebody else",
        ),
        Refused::NameNotAllowed => wrong(
            StatusCode::FORBIDDEN,
            "name-not-allowed",
            Some("name"),
            "this token's `workers` do not have that name",
        ),
        Refused::PoolNotAllowed(pool) => wrong(
            StatusCode::FORBIDDEN,
            "pool-not-allowed",
            Some("pool"),
            &format!("this token's `pools` do not have `{pool}`"),
        ),
        Refused::TooMany => wrong(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-workers",
            None,
            "there are as many workers as there may be",
        ),
        Refused::NoPool(message) => {
            wrong(StatusCode::BAD_REQUEST, "no-pool", Some("pool"), message)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Beat {
    name: String,
    #[serde(default)]
    jobs: Vec<String>,
}

async fn heartbeat(broker: &Broker, token: &PullToken, body: Incoming) -> Reply {
    let beat: Beat = match read(body).await {
        Ok(beat) => beat,
        Err(reply) => return reply,
    };
    let silence = broker.settings.silence.as_secs_f64();
    let said = |known: bool, cancel: Vec<String>| {
        let said = json!({"known": known, "cancel": cancel, "silence": silence});
        reply(StatusCode::OK, &said)
    };
    let Some(member) = broker.member(&beat.name) else {
        return said(false, beat.jobs);
    };
    if !member.belongs_to(token) {
        return refusal(&Refused::NotYours);
    }
    if beat.jobs.len() > JOBS_MAX {
        return wrong(
            StatusCode::BAD_REQUEST,
            "invalid-field",
            Some("jobs"),
            "must be at most 1024 names",
        );
    }
    member.heard();
    said(true, member.desk.compare(&beat.jobs))
}

async fn job_answer(broker: &Broker, token: &PullToken, job: &str, body: Incoming) -> Reply {
    let gone = || {
        wrong(
            StatusCode::GONE,
            "cancelled",
            None,
            "nobody waits for this job (any more)",
        )
    };
    let counts = &broker.gateway.metrics.pull;
    let Some(member) = broker.holder(job) else {
        let what = match broker.past.of(job) {
            Some(End::Answered) => Submitted::Duplicate,
            Some(_) => Submitted::Late,
            None => Submitted::Unknown,
        };
        counts.submitted(Speaks::Maitred, what);
        return gone();
    };
    if !member.belongs_to(token) {
        return refusal(&Refused::NotYours);
    }
    member.heard();
    let ended = answering::take(&member, job, body).await;
    let what = match &ended {
        Ended::Read => Submitted::Taken,
        Ended::Gone => Submitted::Late,
        Ended::Taken => Submitted::Duplicate,
        Ended::Unreadable(_) => Submitted::Invalid,
    };
    counts.submitted(Speaks::Maitred, what);
    match ended {
        Ended::Read => reply(StatusCode::OK, &json!({"done": true})),
        Ended::Gone => gone(),
        Ended::Taken => wrong(
            StatusCode::CONFLICT,
            "duplicate",
            None,
            "this job is being answered already",
        ),
        Ended::Unreadable(message) => {
            wrong(StatusCode::BAD_REQUEST, "invalid-answer", None, &message)
        }
    }
}

fn leave(broker: &Broker, token: &PullToken, name: &str) -> Reply {
    match broker.member(name) {
        Some(member) if member.belongs_to(token) => {
            broker.leave(&member);
            reply(StatusCode::OK, &json!({"removed": name}))
        }
        Some(_) => refusal(&Refused::NotYours),
        None => wrong(
            StatusCode::NOT_FOUND,
            "unknown-worker",
            Some("name"),
            "no such worker",
        ),
    }
}
