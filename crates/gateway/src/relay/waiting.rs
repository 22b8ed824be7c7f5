//! A stream whose head was sent while its request waits in the line: comments keep it alive until
//! there is an answer. What would have been an error answer becomes the family's error event.

use super::{Broken, RelayBody};
use crate::headers::is_event_stream;
use crate::reply::Problem;
use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};
use maitred_wire::{Endpoint, error};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// What readers of event streams skip.
const COMMENT: &[u8] = b": waiting\n\n";

/// An answer in the making.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<RelayBody>, Problem>> + Send>>;

/// The body of an answer that is still in the making.
pub(crate) struct Waiting {
    endpoint: Endpoint,
    beats: Interval,
    state: State,
}

enum State {
    Waiting(Answer),
    /// The worker's own stream.
    Relaying(Pin<Box<RelayBody>>),
    /// The error was told; the transfer breaks off once that was flushed.
    Breaking {
        flushed: bool,
    },
    Done,
}

impl Waiting {
    /// A comment now, and one in each `period` until the answer is there.
    pub(crate) fn new(endpoint: Endpoint, period: Duration, answer: Answer) -> Self {
        let mut beats = tokio::time::interval_at(Instant::now(), period);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            endpoint,
            beats,
            state: State::Waiting(answer),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let State::Waiting(answer) = &mut self.state {
            let Poll::Ready(answer) = answer.as_mut().poll(cx) else {
                ready!(self.beats.poll_tick(cx));
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
            };
            match told(answer) {
                Ok(body) => self.state = State::Relaying(Box::pin(body)),
                Err(told) => {
                    self.state = State::Breaking { flushed: false };
                    let event = error::event(self.endpoint, told.status, told.code, &told.message);
                    return Poll::Ready(Some(Ok(Frame::data(event.into()))));
                }
            }
        }
        match &mut self.state {
            State::Relaying(body) => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if frame.is_none() {
                    self.state = State::Done;
                }
                Poll::Ready(frame)
            }
            State::Breaking { flushed: false } => {
                // The connection writes out what it has when its body has nothing to say.
                self.state = State::Breaking { flushed: true };
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            State::Breaking { flushed: true } => {
                self.state = State::Done;
                Poll::Ready(Some(Err(Broken)))
            }
            State::Waiting(_) | State::Done => Poll::Ready(None),
        }
    }
}

/// An error answer whose head can not be sent any more.
struct Told {
    status: u16,
    code: &'static str,
    message: String,
}

/// The stream that was promised, or what to tell in its place.
fn told(answer: Result<Response<RelayBody>, Problem>) -> Result<RelayBody, Told> {
    let response = match answer {
        Ok(response) => response,
        Err(problem) => {
            return Err(Told {
                status: problem.status.as_u16(),
                code: problem.code,
                message: problem.message.into_owned(),
            });
        }
    };
    let content_type = response.headers().get(CONTENT_TYPE);
    let events = is_event_stream(content_type.map(http::HeaderValue::as_bytes));
    let status = response.status();
    if status.is_success() && events {
        return Ok(response.into_body());
    }
    if status.is_success() {
        return Err(Told {
            status: 502,
            code: "upstream-protocol",
            message: "the worker answered with no event stream".to_owned(),
        });
    }
    let own = match response.into_body() {
        RelayBody::Whole(Some(body)) => own_message(&body),
        _ => None,
    };
    let status = status.as_u16();
    Err(Told {
        status,
        code: "upstream-error",
        message: own.unwrap_or_else(|| format!("the worker answered with status {status}")),
    })
}

/// What the worker says in its error body: both families have it at the same place.
fn own_message(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(body.get("error")?.get("message")?.as_str()?.to_owned())
}
