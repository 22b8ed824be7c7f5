//! A pulled answer, read piece by piece as the client takes it.

use super::desk::{Answer, Claim};
use super::work::Loss;
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
    broke: Option<Loss>,
}

impl Pulled {
    pub(crate) fn new(answer: Answer, claim: Claim) -> Self {
        Self {
            begun: Some(answer.begun).filter(|begun| !begun.is_empty()),
            rest: answer.rest,
            done: Some(answer.done),
            claim,
            broke: None,
        }
    }

    /// Why it broke off, once it did.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.broke
    }

    fn breaks(&mut self, why: Loss) -> Poll<Result<Option<Bytes>, BodyBroken>> {
        self.broke = Some(why);
        Poll::Ready(Err(BodyBroken))
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
        if let Poll::Ready(why) = Pin::new(&mut self.claim.lost).poll(cx) {
            return self.breaks(why.unwrap_or(Loss::Broken));
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
                Some(Err(_)) => return self.breaks(Loss::Broken),
                None => self.rest = None,
            }
        }
        // An upload whose connection is gone looks like one that ended: then nobody waits for our word.
        match self.done.take().map(|done| done.send(())) {
            Some(Ok(())) => Poll::Ready(Ok(None)),
            _ => self.breaks(Loss::Broken),
        }
    }
}
