//! A pulled answer, read piece by piece as the client takes it.

use super::desk::{Answer, Claim};
use crate::upstream::BodyBroken;
use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// The body of a worker's answer. Dropping it before its end tells the worker that nobody reads on.
pub(crate) struct Pulled {
    begun: Option<Bytes>,
    rest: Option<Incoming>,
    done: Option<oneshot::Sender<()>>,
    claim: Claim,
}

impl Pulled {
    pub(crate) fn new(answer: Answer, claim: Claim) -> Self {
        Self {
            begun: Some(answer.begun).filter(|begun| !begun.is_empty()),
            rest: answer.rest,
            done: Some(answer.done),
            claim,
        }
    }

    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyBroken>> {
        if self.done.is_none() {
            return Poll::Ready(Ok(None));
        }
        if let Some(begun) = self.begun.take() {
            return Poll::Ready(Ok(Some(begun)));
        }
        if Pin::new(&mut self.claim.lost).poll(cx).is_ready() {
            return Poll::Ready(Err(BodyBroken));
        }
        while let Some(body) = &mut self.rest {
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    self.claim.heard();
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Poll::Ready(Ok(Some(data)));
                    }
                }
                Some(Err(_)) => return Poll::Ready(Err(BodyBroken)),
                None => self.rest = None,
            }
        }
        // An upload whose connection is gone looks like one that ended: then nobody waits for our word.
        match self.done.take().map(|done| done.send(())) {
            Some(Ok(())) => Poll::Ready(Ok(None)),
            _ => Poll::Ready(Err(BodyBroken)),
        }
    }
}
