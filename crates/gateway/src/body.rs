//! The request body, collected within its bounds.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use hyper::body::Incoming;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Bytes set aside for a body on the client's word alone.
const RESERVE_MAX: usize = 1 << 20;

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFailure {
    /// Larger than the bound.
    TooLarge,
    /// It did not come in time.
    Late,
    /// The client broke off.
    Gone,
}

/// The declared length, where there is one.
pub(crate) fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Collects the body, each piece of it within `limit` of the one before. One that is declared too
/// large is refused before a byte of it is asked for.
pub(crate) async fn collect(
    mut body: Incoming,
    declared: Option<u64>,
    max: usize,
    limit: Duration,
) -> Result<Bytes, BodyFailure> {
    if declared.is_some_and(|n| n > max as u64) {
        return Err(BodyFailure::TooLarge);
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // Most bodies are there already: no timer for them.
    let mut parts = Parts::new(declared);
    if let Some(done) = poll_fn(|cx| {
        Poll::Ready(match parts.poll(&mut body, max, cx) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        })
    })
    .await
    {
        return done.map(|()| parts.whole());
    }
    // A large body may take its time as long as it moves.
    let mut length = parts.length();
    loop {
        let moved = poll_fn(|cx| match parts.poll(&mut body, max, cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if parts.length() > length => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        match tokio::time::timeout(limit, moved).await {
            Ok(Some(result)) => return result.map(|()| parts.whole()),
            Ok(None) => length = parts.length(),
            Err(_) => return Err(BodyFailure::Late),
        }
    }
}

struct Parts {
    first: Option<Bytes>,
    more: BytesMut,
    reserve: usize,
}

impl Parts {
    fn new(declared: Option<u64>) -> Self {
        let reserve = declared
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(0)
            .min(RESERVE_MAX);
        Self {
            first: None,
            more: BytesMut::new(),
            reserve,
        }
    }

    fn length(&self) -> usize {
        self.first.as_ref().map_or(0, Bytes::len) + self.more.len()
    }

    fn poll(
        &mut self,
        body: &mut Incoming,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BodyFailure>> {
        loop {
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(_)) => return Poll::Ready(Err(BodyFailure::Gone)),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    if self.length() + data.len() > max {
                        return Poll::Ready(Err(BodyFailure::TooLarge));
                    }
                    self.push(data);
                }
            }
        }
    }

    /// A body that comes in one piece is not copied.
    fn push(&mut self, data: Bytes) {
        if self.more.is_empty() {
            match self.first.take() {
                None => {
                    self.first = Some(data);
                    return;
                }
                Some(first) => {
                    self.more
                        .reserve(self.reserve.max(first.len() + data.len()));
                    self.more.extend_from_slice(&first);
                }
            }
        }
        self.more.extend_from_slice(&data);
    }

    fn whole(&mut self) -> Bytes {
        match self.first.take() {
            Some(first) => first,
            None => std::mem::take(&mut self.more).freeze(),
        }
    }
}
