//! Attempts: one try after another on workers that the scheduler names, until something reaches the client.

mod pulling;

use super::{Call, Shard, priority};
use crate::attempt::Guest;
use crate::headers::{Outbound, clean_response, is_event_stream, request_head};
use crate::relay::{Cut, Deadlines, RelayBody, Source, Stream, joined, settle, within};
use crate::reply::Problem;
use crate::upstream::{BodyBroken, Conn, ExchangeError, Head, Upstream};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use maitred_core::Decision;
use maitred_core::decision::PredictionSource;
use maitred_core::request::{Failure, Usage};
use maitred_wire::answer;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of an answer that are collected before its head is sent on, so that an answer cut short
/// is an error and not a broken transfer.
const COLLECT_MAX: u64 = 64 << 10;
/// The longest wait that a worker's `Retry-After` may ask for.
const RETRY_AFTER_MAX: u64 = 3_600;

/// Headers that say how an answer came about.
static WORKER: HeaderName = HeaderName::from_static("x-maitred-worker");
static POLICY: HeaderName = HeaderName::from_static("x-maitred-policy");
static PLACED: HeaderName = HeaderName::from_static("x-maitred-placed");
static PREDICTED: HeaderName = HeaderName::from_static("x-maitred-predicted-cached-tokens");
static ATTEMPTS: HeaderName = HeaderName::from_static("x-maitred-attempts");

/// The worker's name, where clients may see it: unless it was given one it is an address.
fn shown<'a>(shard: &Shard, worker: &'a Upstream) -> Option<&'a str> {
    shard.gateway.config.expose.then_some(worker.name.as_str())
}

/// What one try came to.
enum Tried {
    /// The whole answer; its attempt is closed.
    Whole(Response<RelayBody>),
    /// An answer that goes on.
    Open(Opened),
    /// The worker can not serve it, and said so, or said nothing. Another may try.
    Again(Option<Response<RelayBody>>),
    /// Nothing more is tried; the attempt is closed.
    Over(Problem),
}

/// An answer whose end has not come yet.
struct Opened {
    status: StatusCode,
    headers: HeaderMap,
    source: Source,
    /// What was read of it.
    pieces: Vec<Bytes>,
    events: bool,
}

/// Tries until there is an answer. (No `async fn`: that would keep what it is given twice, and
/// thousands may wait in here.)
#[allow(clippy::manual_async_fn)]
pub(super) fn attend<'a>(
    shard: &'a Shard,
    call: &'a Call,
    mut guest: Guest,
    body: Bytes,
) -> impl Future<Output = Result<Response<RelayBody>, Problem>> + Send + 'a {
    async move {
        let config = &shard.gateway.config;
        // Who waits has no timer of its own: the scheduler has it.
        let mut deadlines: Option<Deadlines> = None;
        let mut last: Option<Response<RelayBody>> = None;
        let mut worker: Option<Arc<Upstream>> = None;
        let silences = AtomicU8::new(0);
        loop {
            let upstream = match guest.seat().await {
                Ok(upstream) => upstream,
                Err((refusal, retry_after)) => {
                    let name = worker.as_ref().and_then(|w| shown(shard, w));
                    // A worker's own refusal says more than ours.
                    return last.ok_or_else(|| Problem::refused(refusal, retry_after, name));
                }
            };
            let timeouts = &config.timeouts;
            let mut limits = deadlines
                .take()
                .unwrap_or_else(|| Deadlines::new(timeouts, call.arrived));
            limits.first_byte(timeouts.first_byte);
            worker = Some(Arc::clone(&upstream));
            let body = priority::body_for(&shard.gateway, &guest, &upstream, &body);
            let attempt = Try {
                shard,
                call,
                upstream,
                silences: &silences,
            };
            // Apart, so that a request takes that room only while it sits.
            let tried = Box::pin(attempt.run(&mut guest, &mut limits, &body)).await;
            match tried {
                Tried::Over(problem) => return Err(problem),
                Tried::Again(None) => {}
                Tried::Again(Some(mut kept)) => {
                    attempt.expose(guest.decision(), kept.headers_mut());
                    last = Some(kept);
                }
                Tried::Whole(mut response) => {
                    attempt.expose(guest.decision(), response.headers_mut());
                    return Ok(response);
                }
                Tried::Open(mut open) => {
                    attempt.expose(guest.decision(), &mut open.headers);
                    return Ok(open.into_response(guest, limits));
                }
            }
            deadlines = Some(limits);
        }
    }
}

impl Opened {
    fn into_response(self, guest: Guest, deadlines: Deadlines) -> Response<RelayBody> {
        let status = self.status.as_u16();
        let stream = Stream::new(guest, self.source, deadlines, self.events, status);
        let body = RelayBody::stream(stream.with_read(self.pieces));
        respond(self.status, self.headers, body)
    }
}

fn respond(status: StatusCode, headers: HeaderMap, body: RelayBody) -> Response<RelayBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// One try on one worker.
struct Try<'a> {
    shard: &'a Shard,
    call: &'a Call,
    upstream: Arc<Upstream>,
    /// How often the request was lost in silence.
    silences: &'a AtomicU8,
}

impl Try<'_> {
    async fn run(&self, guest: &mut Guest, deadlines: &mut Deadlines, body: &Bytes) -> Tried {
        if let Some(desk) = &self.upstream.desk {
            return self.ask(desk, guest, deadlines, body).await;
        }
        let (conn, head) = match self.begin(guest, deadlines, body).await {
            Ok(begun) => begun,
            Err(tried) => return tried,
        };
        guest.life(std::time::Instant::now());
        let Head {
            status,
            mut headers,
            framing,
            reusable,
        } = head;
        clean_response(&mut headers);
        let upstream = Arc::clone(&self.upstream);
        let source = Source::new(conn, framing, reusable, upstream, self.shard.index);
        if status.is_success() {
            guest.accepted();
            self.succeed(guest, deadlines, status, headers, source)
                .await
        } else {
            self.decline(guest, deadlines, status, headers, source)
                .await
        }
    }

    /// A connection with the request sent and the answer's head read.
    async fn begin(
        &self,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        body: &Bytes,
    ) -> Result<(Conn, Head), Tried> {
        let mut idle = self.upstream.take_idle(self.shard.index);
        loop {
            let mut conn = match idle.take() {
                Some(conn) => conn,
                None => self.connect(guest, deadlines).await?,
            };
            guest.sent();
            let no_body = self.call.parts.method == Method::HEAD;
            let exchange = conn.exchange(self.request(guest, body), body, no_body);
            let error = match within(guest, deadlines, exchange).await {
                Ok(Ok(head)) => return Ok((conn, head)),
                Ok(Err(error)) => error,
                Err(cut) => return Err(self.cut(guest, cut, None)),
            };
            match error {
                // The worker closed it while it was idle: the request was not read. Once, because
                // the next connection is new.
                ExchangeError::Broken { silent: true } if conn.reused => {}
                ExchangeError::Broken { .. } => {
                    guest.retry(Failure::Reset, None, None);
                    return Err(Tried::Again(None));
                }
                ExchangeError::Protocol => {
                    guest.failed(Failure::Protocol, None, Usage::default());
                    return Err(self.over(Failure::Protocol, None));
                }
            }
        }
    }

    async fn connect(&self, guest: &mut Guest, deadlines: &mut Deadlines) -> Result<Conn, Tried> {
        let limit = self.shard.gateway.config.timeouts.connect;
        let open = tokio::time::timeout(limit, Conn::open(&self.upstream.url));
        match within(guest, deadlines, open).await {
            Ok(Ok(Ok(conn))) => Ok(conn),
            Ok(Ok(Err(error))) => {
                tracing::debug!(worker = %self.upstream.name, kind = ?error.kind(), "can not connect");
                guest.retry(Failure::Connect, None, None);
                Err(Tried::Again(None))
            }
            Ok(Err(_)) => {
                guest.retry(Failure::Connect, None, None);
                Err(Tried::Again(None))
            }
            Err(cut) => Err(self.cut(guest, cut, None)),
        }
    }

    fn outbound(&self, body: &Bytes) -> Outbound<'_> {
        let call = self.call;
        let sends_length = call.has_body
            || matches!(
                call.parts.method,
                Method::POST | Method::PUT | Method::PATCH
            );
        Outbound {
            method: &call.parts.method,
            passing: &call.passing,
            request_id: &call.request_id,
            traceparent: &call.traceparent,
            body_length: sends_length.then_some(body.len()),
            pass_credentials: self.upstream.pass_credentials,
            rank: None,
        }
    }

    fn request(&self, guest: &Guest, body: &Bytes) -> Vec<u8> {
        let told = guest.decision().map(|decision| &decision.belief);
        let told = told.filter(|belief| belief.source == PredictionSource::Observed);
        let out = Outbound {
            rank: told.and_then(|belief| self.upstream.takes_rank(belief.rank?)),
            ..self.outbound(body)
        };
        request_head(
            &out,
            &self.upstream.authority,
            &self.upstream.url.base_path,
            self.upstream.authorization.as_ref(),
        )
    }

    /// The worker serves it. What is small is collected, so that its head is only sent on when the
    /// answer is whole; what streams is handed on at once.
    async fn succeed(
        &self,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        status: StatusCode,
        headers: HeaderMap,
        mut source: Source,
    ) -> Tried {
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let events = is_event_stream(content_type);
        let mut pieces = Vec::new();
        if !events {
            let whole = is_json(content_type) || source.length().is_some_and(|n| n <= COLLECT_MAX);
            let max = if whole { COLLECT_MAX } else { 0 };
            match self
                .collect(guest, deadlines, &mut source, Some(max), &mut pieces)
                .await
            {
                Ok(true) => {
                    let body = joined(&mut pieces);
                    settle(
                        guest,
                        &answer::read(guest.endpoint(), &body),
                        status.as_u16(),
                    );
                    return Tried::Whole(respond(status, headers, RelayBody::whole(body)));
                }
                Ok(false) => {}
                Err(cut) => return self.cut_off(guest, cut, status, &source),
            }
        }
        Tried::Open(Opened {
            status,
            headers,
            source,
            pieces,
            events,
        })
    }

    /// The worker answered with something else than success.
    async fn decline(
        &self,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        status: StatusCode,
        mut headers: HeaderMap,
        mut source: Source,
    ) -> Tried {
        let mut pieces = Vec::new();
        match self
            .collect(guest, deadlines, &mut source, None, &mut pieces)
            .await
        {
            Ok(true) => {}
            // An error page of that size is cut: nobody reads on, and the worker is free again.
            Ok(false) => {
                headers.remove(CONTENT_LENGTH);
                drop(source);
            }
            Err(cut) => return self.cut_off(guest, cut, status, &source),
        }
        let wait = retry_after(&headers);
        let code = status.as_u16();
        let body = RelayBody::whole(joined(&mut pieces));
        let response = respond(status, headers, body);
        match code {
            429 | 503 => {
                guest.retry(Failure::Saturated, Some(code), wait);
                Tried::Again(Some(response))
            }
            502 | 504 => {
                guest.retry(Failure::ServerError, Some(code), wait);
                Tried::Again(Some(response))
            }
            // 501: the engine has no such endpoint; as deterministic as a 4xx.
            500..=599 if code != 501 => {
                guest.failed(Failure::ServerError, Some(code), Usage::default());
                Tried::Whole(response)
            }
            _ => {
                guest.client_error(code);
                Tried::Whole(response)
            }
        }
    }

    /// Reads until the end (true), or until more than `max` bytes are there (false). None: the words
    /// are an error's and no output, of which [`COLLECT_MAX`] bytes are read.
    async fn collect(
        &self,
        guest: &mut Guest,
        deadlines: &mut Deadlines,
        source: &mut Source,
        max: Option<u64>,
        pieces: &mut Vec<Bytes>,
    ) -> Result<bool, Stop> {
        let mut length = 0_u64;
        loop {
            let piece = within(guest, deadlines, poll_fn(|cx| source.poll_data(cx))).await;
            match piece {
                Ok(Ok(Some(data))) => {
                    length += data.len() as u64;
                    pieces.push(data);
                    if max.is_some() {
                        guest.first_token();
                    }
                    deadlines.data(Instant::now());
                    if length > max.unwrap_or(COLLECT_MAX) {
                        return Ok(false);
                    }
                }
                Ok(Ok(None)) => return Ok(true),
                Ok(Err(BodyBroken)) => return Err(Stop::Broken),
                Err(cut) => return Err(Stop::Cut(cut)),
            }
        }
    }

    /// The body did not come to its end; nothing of it has reached the client.
    fn cut_off(&self, guest: &mut Guest, stop: Stop, status: StatusCode, source: &Source) -> Tried {
        match stop {
            Stop::Broken => {
                if let Some(why) = source.loss() {
                    return self.lost(guest, why);
                }
                let code = Some(status.as_u16());
                guest.failed(Failure::Truncated, code, Usage::default());
                self.over(Failure::Truncated, code)
            }
            Stop::Cut(cut) => self.cut(guest, cut, Some(status)),
        }
    }

    fn cut(&self, guest: &mut Guest, cut: Cut, status: Option<StatusCode>) -> Tried {
        let code = status.map(|s| s.as_u16());
        match cut {
            Cut::Aborted => {
                guest.retry(Failure::Reset, code, None);
                Tried::Again(None)
            }
            Cut::Late(failure) => {
                guest.failed(failure, code, Usage::default());
                self.over(failure, code)
            }
        }
    }

    fn over(&self, failure: Failure, status: Option<u16>) -> Tried {
        let name = shown(self.shard, &self.upstream);
        Tried::Over(Problem::failed(failure, name, status))
    }

    /// Says who served it and why, where the configuration wants that seen.
    fn expose(&self, decision: Option<&Decision>, headers: &mut HeaderMap) {
        if !self.shard.gateway.config.expose {
            return;
        }
        headers.insert(WORKER.clone(), self.upstream.shown_name.clone());
        let Some(decision) = decision else {
            return;
        };
        headers.insert(POLICY.clone(), HeaderValue::from_static(decision.policy));
        let placed = HeaderValue::from_static(decision.reason.as_str());
        headers.insert(PLACED.clone(), placed);
        let predicted = HeaderValue::from(decision.predicted_cached_tokens);
        headers.insert(PREDICTED.clone(), predicted);
        if decision.attempt.number > 1 {
            headers.insert(
                ATTEMPTS.clone(),
                HeaderValue::from(u16::from(decision.attempt.number)),
            );
        }
    }
}

/// Why a body was not read to its end.
enum Stop {
    Broken,
    Cut(Cut),
}

fn is_json(content_type: Option<&[u8]>) -> bool {
    content_type.is_some_and(|t| {
        t.get(..16)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"application/json"))
    })
}

/// A worker's `Retry-After` in seconds; dates are not used by engines and not read.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds.min(RETRY_AFTER_MAX)))
}
