//! One request, from its head to its answer.

mod admit;
mod caller;
mod exchange;
mod heartbeat;
mod local;
mod priority;
mod scope;
mod tokens;

use crate::attempt::{Guest, Story, unix_ms};
use crate::body::{self, BodyFailure};
use crate::decode::{Coding, DecodeError};
use crate::gateway::Gateway;
use crate::headers::{Passing, REQUEST_ID, text_of};
use crate::listener::{Attended, HeadWatch};
use crate::relay::RelayBody;
use crate::reply::Problem;
use crate::request_id::{request_id, traceparent};
use admit::Admitted;
use bytes::Bytes;
use caller::Caller;
use http::header::{CONTENT_ENCODING, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use maitred_records::Name;
use maitred_wire::{Endpoint, Family};
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Bodies larger than this are parsed and hashed off the event loop.
const INLINE_MAX: usize = 256 << 10;
/// The same where a pool has a chat template: rendering takes longer than hashing.
const INLINE_RENDERED_MAX: usize = 64 << 10;

/// Bodies up to this length get memory of their own when their request has to wait: the connection's
/// read buffer, which they are a part of, may be much larger.
const APART_MAX: usize = 64 << 10;

/// One thread of the data path.
pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) gateway: Arc<Gateway>,
    /// Bounds the work on large bodies, over all threads.
    pub(crate) heavy: Arc<Semaphore>,
}

/// One client connection.
pub(crate) struct Client {
    pub(crate) shard: Arc<Shard>,
    pub(crate) peer: IpAddr,
    /// The raw heads of an HTTP/1 connection.
    pub(crate) heads: Option<Arc<HeadWatch>>,
}

impl Client {
    /// The present request was read; what comes is the next one's.
    fn read_on(&self) {
        if let Some(heads) = &self.heads {
            heads.next();
        }
    }
}

/// What every step needs to know of a request.
#[derive(Clone)]
pub(crate) struct Call {
    /// Without target and headers once the request is in a pool: they are in `passing` then.
    pub(crate) parts: Parts,
    pub(crate) passing: Passing,
    /// Whose shapes the client expects.
    pub(crate) family: Family,
    pub(crate) endpoint: Endpoint,
    pub(crate) request_id: HeaderValue,
    pub(crate) traceparent: HeaderValue,
    pub(crate) arrived: Instant,
    pub(crate) caller: Caller,
    /// The body came in a coding and was decoded.
    pub(crate) decoded: bool,
    pub(crate) has_body: bool,
}

/// Serves one request. (No `async fn`: that would keep what it is given twice.)
pub(crate) fn serve(
    client: Arc<Client>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<RelayBody>, Infallible>> + Send {
    let gateway = &client.shard.gateway;
    let (parts, body) = request.into_parts();
    let endpoint = Endpoint::of(parts.method.as_str(), parts.uri.path());
    let origin = local::allowed_origin(&gateway.config, &parts.headers);
    let mut call = Call {
        traceparent: traceparent(&parts.headers),
        request_id: request_id(&parts.headers),
        arrived: Instant::now(),
        caller: Caller::default(),
        decoded: false,
        has_body: false,
        family: family_of(endpoint, &parts.headers),
        passing: Passing::default(),
        endpoint,
        parts,
    };
    async move {
        let mut response = match respond(&client, &mut call, body).await {
            Ok(response) => response,
            Err(problem) => {
                if let Some(heads) = client.heads.as_ref().filter(|_| problem.close) {
                    heads.linger();
                }
                problem.response(call.family)
            }
        };
        if call.parts.method == Method::HEAD {
            response = local::without_body(response);
        }
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID.clone(), call.request_id.clone());
        if let Some(origin) = origin {
            local::allow(headers, origin);
        }
        Ok(response)
    }
}

/// The shapes that the client expects: by endpoint, else by what only one family's clients send.
fn family_of(endpoint: Endpoint, headers: &HeaderMap) -> Family {
    let shared = matches!(endpoint, Endpoint::Other | Endpoint::Models);
    if shared && headers.contains_key("anthropic-version") {
        return Family::Anthropic;
    }
    endpoint.family()
}

async fn respond(
    client: &Client,
    call: &mut Call,
    body: Incoming,
) -> Result<Response<RelayBody>, Problem> {
    let gateway = &client.shard.gateway;
    if let Some(response) = local::respond(gateway, call) {
        client.read_on();
        return Ok(response);
    }
    if local::asks_for_models(call) {
        call.caller = caller::resolve(client, &call.parts.headers)?;
        client.read_on();
        return Ok(local::models(gateway, call));
    }
    let mut admitted = match admitted(client, call, body).await {
        Ok(admitted) => admitted,
        Err(problem) => {
            story(gateway, call.endpoint, &call.request_id, None)
                .rejected(problem.status.as_u16(), problem.code);
            return Err(problem);
        }
    };
    tokens::finish(&mut admitted).await;
    let headers = std::mem::take(&mut call.parts.headers);
    let uri = std::mem::take(&mut call.parts.uri);
    let tenant_header = gateway.config.tenant_header.as_deref();
    call.passing = Passing::of(&uri, &headers, call.decoded, tenant_header);
    drop((headers, uri));
    let Admitted {
        pool,
        arrival,
        mut body,
        stream,
        model,
        origin,
        roles_renamed,
        ..
    } = admitted;
    pool.metrics.identity(arrival.identity, origin.as_str());
    let mut story = story(gateway, call.endpoint, &call.request_id, Some(model));
    story.stream = stream;
    story.identity_fallback = origin.fallback();
    story.roles_renamed = roles_renamed;
    story.owner = call.caller.identity.number();
    story.attended = client.heads.as_ref().map(Attended::new);
    let heartbeat = pool.settings.queue_heartbeat;
    let guest = Guest::arrive(story, pool, arrival);
    if !guest.ticket().is_decided() && body.len() <= APART_MAX {
        body = Bytes::copy_from_slice(&body);
    }
    if stream && !heartbeat.is_zero() && call.parts.method == Method::POST {
        return heartbeat::attend(&client.shard, call, guest, body, heartbeat).await;
    }
    exchange::attend(&client.shard, call, guest, body).await
}

/// A request was refused whose head could not be read.
pub(crate) fn rejected_unread(
    client: &Client,
    endpoint: Endpoint,
    request_id: &HeaderValue,
    problem: &Problem,
) {
    story(&client.shard.gateway, endpoint, request_id, None)
        .rejected(problem.status.as_u16(), problem.code);
}

fn story(
    gateway: &Arc<Gateway>,
    endpoint: Endpoint,
    request_id: &HeaderValue,
    model: Option<Arc<crate::metrics::ModelMetrics>>,
) -> Story {
    Story {
        gateway: Arc::clone(gateway),
        request_id: Name::from(text_of(request_id).unwrap_or_default()),
        endpoint,
        model: model.unwrap_or_else(|| gateway.metrics.unrouted()),
        stream: false,
        owner: 0,
        time_ms: unix_ms(),
        attended: None,
        identity_fallback: None,
        roles_renamed: 0,
    }
}

/// Everything up to the pool's scheduler.
async fn admitted(client: &Client, call: &mut Call, body: Incoming) -> Result<Admitted, Problem> {
    let gateway = &client.shard.gateway;
    if gateway.is_closing() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "closing",
            "the gateway is shutting down",
        )
        .closing());
    }
    check_head(client, call)?;
    call.caller = caller::resolve(client, &call.parts.headers)?;
    let body = read_body(client, call, body).await?;
    client.read_on();
    call.has_body = !body.is_empty();
    let rendered = gateway.pools.iter().any(|pool| pool.text.is_some());
    let inline_max = if rendered {
        INLINE_RENDERED_MAX
    } else {
        INLINE_MAX
    };
    if body.len() <= inline_max {
        return admit::admit(gateway, &call.parts, call.endpoint, call.caller, body);
    }
    let _turn = client.shard.heavy.acquire().await;
    let (gateway, endpoint, caller) = (Arc::clone(gateway), call.endpoint, call.caller);
    // The head goes along and comes back: large bodies are rare, heads are small.
    let parts = call.parts.clone();
    let work = move || admit::admit(&gateway, &parts, endpoint, caller, body);
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the request could not be read",
        ))
    })
}

/// Framing that two servers could read differently, and heads out of their bounds.
fn check_head(client: &Client, call: &Call) -> Result<(), Problem> {
    let headers = &call.parts.headers;
    if call.parts.version <= Version::HTTP_11
        && headers.contains_key(TRANSFER_ENCODING)
        && client
            .heads
            .as_ref()
            .is_none_or(|h| h.ambiguous(call.parts.method.as_str()))
    {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "ambiguous-framing",
            "a request has either Transfer-Encoding or Content-Length, not both",
        )
        .closing());
    }
    // Other codings would be left in what is taken for the body.
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if codings.any(|v| !v.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "ambiguous-framing",
            "the only Transfer-Encoding that is understood is chunked",
        )
        .closing());
    }
    if matches!(call.parts.method, Method::CONNECT | Method::TRACE) {
        return Err(Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "CONNECT and TRACE are not relayed",
        )
        .closing());
    }
    let limits = &client.shard.gateway.config.limits;
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if bytes > limits.header_max_bytes || headers.len() > limits.headers_max {
        return Err(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers-too-large",
            "the request's headers are too large or too many",
        )
        .closing());
    }
    Ok(())
}

async fn read_body(client: &Client, call: &mut Call, body: Incoming) -> Result<Bytes, Problem> {
    let config = &client.shard.gateway.config;
    let max = config.limits.body_max_bytes;
    let too_large = || {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body-too-large",
            format!("the request body is larger than {max} bytes"),
        )
    };
    let declared = body::declared(&call.parts.headers);
    let bytes = body::collect(body, declared, max, config.timeouts.header_read)
        .await
        .map_err(|failure| match failure {
            BodyFailure::TooLarge => too_large().closing(),
            BodyFailure::Late => Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "body-timeout",
                "the request body did not come in time",
            )
            .closing(),
            BodyFailure::Gone => Problem::new(
                StatusCode::BAD_REQUEST,
                "body-incomplete",
                "the request body broke off",
            )
            .closing(),
        })?;
    let Some(coding) = coding(&call.parts.headers)? else {
        return Ok(bytes);
    };
    call.decoded = true;
    let decoded = if bytes.len() > INLINE_MAX / 8 {
        let _turn = client.shard.heavy.acquire().await;
        let decode = move || coding.decode(&bytes, max);
        tokio::task::spawn_blocking(decode)
            .await
            .unwrap_or(Err(DecodeError::Corrupt))
    } else {
        coding.decode(&bytes, max)
    };
    decoded.map_err(|e| match e {
        DecodeError::TooLarge => too_large(),
        DecodeError::Corrupt => Problem::new(
            StatusCode::BAD_REQUEST,
            "body-encoding",
            "the request body is not what its Content-Encoding says",
        ),
    })
}

fn coding(headers: &HeaderMap) -> Result<Option<Coding>, Problem> {
    let Some(value) = headers.get(CONTENT_ENCODING) else {
        return Ok(None);
    };
    text_of(value).ok_or(()).and_then(Coding::of).map_err(|()| {
        Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "body-encoding",
            "Content-Encoding must be one of zstd, gzip, deflate",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{Future, serve};

    fn size_of_answer<A, B, F: Future>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Thousands may wait: what each of them keeps is bounded, and grows only on purpose.
    #[test]
    fn a_request_that_waits_keeps_little() {
        let size = size_of_answer(serve);
        assert!(size <= 2_304, "{size} bytes");
    }
}
