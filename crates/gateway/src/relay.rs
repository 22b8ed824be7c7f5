//! The way back: a worker's answer goes to the client piece by piece, untouched, only as fast as the
//! client takes it; an observer beside it reads first token, usage and errors.

mod deadlines;
mod waiting;

pub(crate) use deadlines::{Cut, Deadlines, within};
pub(crate) use waiting::{Answer, Waiting};

use crate::attempt::Guest;
use crate::pull::{Loss, Pulled};
use crate::reply::code_of;
use crate::upstream::{BodyBroken, Conn, Framing, Upstream};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use maitred_core::request::{Failure, Usage};
use maitred_wire::answer::{self, AnswerFacts};
use maitred_wire::{StreamObserver, WireUsage, error};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// Bytes of a document that are kept to be read at its end.
const DOCUMENT_MAX: usize = 1 << 20;

/// A worker's answer on its connection. Dropping it before its end closes the connection.
pub(crate) struct Source {
    conn: Option<Conn>,
    /// Of a worker that pulls, in place of a connection.
    pulled: Option<Box<Pulled>>,
    framing: Framing,
    reusable: bool,
    upstream: Arc<Upstream>,
    shard: usize,
}

impl Source {
    pub(crate) fn new(
        conn: Conn,
        framing: Framing,
        reusable: bool,
        upstream: Arc<Upstream>,
        shard: usize,
    ) -> Self {
        Self {
            conn: Some(conn),
            pulled: None,
            framing,
            reusable,
            upstream,
            shard,
        }
    }

    /// The answer of a worker that pulls.
    pub(crate) fn pulled(pulled: Pulled, upstream: Arc<Upstream>, shard: usize) -> Self {
        Self {
            conn: None,
            pulled: Some(Box::new(pulled)),
            framing: Framing::Close,
            reusable: false,
            upstream,
            shard,
        }
    }

    /// How a worker that pulls lost the job, once its answer broke off.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.pulled.as_ref()?.loss()
    }

    fn close(&mut self) {
        self.conn = None;
        self.pulled = None;
    }

    /// Bytes still to come, where the head said so.
    pub(crate) fn length(&self) -> Option<u64> {
        self.framing.length()
    }

    pub(crate) fn worker(&self) -> &str {
        &self.upstream.name
    }

    /// The next piece; at the end the connection goes to the idle ones.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyBroken>> {
        if let Some(pulled) = &mut self.pulled {
            return pulled.poll_data(cx);
        }
        let Some(conn) = &mut self.conn else {
            return Poll::Ready(Ok(None));
        };
        let piece = std::task::ready!(conn.poll_body(&mut self.framing, cx));
        if matches!(piece, Ok(None))
            && let Some(conn) = self.conn.take()
            && self.reusable
        {
            self.upstream.give_back(self.shard, conn);
        }
        if piece.is_err() {
            self.conn = None;
        }
        Poll::Ready(piece)
    }
}

/// Engine's counts in the scheduler's type.
pub(crate) fn usage_of(usage: WireUsage) -> Usage {
    Usage {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        output_tokens: usage.output_tokens,
    }
}

/// What looks on.
enum Observer {
    Events(Box<StreamObserver>),
    Document { kept: Vec<Bytes>, length: usize },
}

/// An answer under way to the client.
pub(crate) struct Stream {
    guest: Guest,
    source: Source,
    deadlines: Deadlines,
    observer: Observer,
    /// What was read before the head was sent on.
    before: VecDeque<Bytes>,
    status: u16,
    events_seen: u64,
    responded: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Relaying,
    /// What there is was handed over; the transfer breaks off after it was flushed.
    Breaking {
        flushed: bool,
    },
    Done,
}

impl Stream {
    pub(crate) fn new(
        guest: Guest,
        source: Source,
        deadlines: Deadlines,
        events: bool,
        status: u16,
    ) -> Self {
        let observer = if events {
            Observer::Events(Box::new(StreamObserver::new(guest.endpoint())))
        } else {
            Observer::Document {
                kept: Vec::new(),
                length: 0,
            }
        };
        Self {
            guest,
            source,
            deadlines,
            observer,
            before: VecDeque::new(),
            status,
            events_seen: 0,
            responded: false,
            state: State::Relaying,
        }
    }

    /// Puts in front what was read already.
    pub(crate) fn with_read(mut self, pieces: impl IntoIterator<Item = Bytes>) -> Self {
        self.before.extend(pieces);
        self
    }

    fn observe(&mut self, data: &Bytes) {
        let now = Instant::now();
        self.guest.life(now.into_std());
        match &mut self.observer {
            Observer::Document { kept, length } => {
                *length = length.saturating_add(data.len());
                if *length <= DOCUMENT_MAX {
                    kept.push(data.clone());
                }
                self.deadlines.data(now);
                self.guest.first_token();
            }
            Observer::Events(observer) => {
                observer.push(data);
                let events = observer.data_events();
                if events != self.events_seen {
                    self.events_seen = events;
                    self.deadlines.data(now);
                }
                if observer.first_token() || (events > 0 && !self.guest.endpoint().generates()) {
                    self.guest.first_token();
                }
                if !self.responded
                    && let Some(id) = observer.response_id()
                {
                    self.responded = true;
                    self.guest.responded(id);
                }
            }
        }
    }

    /// The worker's answer is complete: what was it?
    fn complete(&mut self) {
        self.state = State::Done;
        match &mut self.observer {
            Observer::Events(observer) => {
                let usage = usage_of(observer.usage());
                let ended = observer.finished() || !self.guest.endpoint().generates();
                if observer.error() {
                    self.guest
                        .failed(Failure::ServerError, Some(self.status), usage);
                } else if ended && !observer.aborted() {
                    self.guest.served(usage, self.status);
                } else {
                    // It ended without the family's end mark, or the engine gave it up in words that
                    // look like an end: nothing is invented, but it was cut.
                    self.guest
                        .failed(Failure::Truncated, Some(self.status), usage);
                }
            }
            Observer::Document { kept, length } => {
                let facts = if *length <= DOCUMENT_MAX {
                    answer::read(self.guest.endpoint(), &joined(kept))
                } else {
                    AnswerFacts::default()
                };
                settle(&mut self.guest, &facts, self.status);
            }
        }
    }

    /// The answer breaks off. In an event stream the client is told by the family's error event.
    fn breaks(&mut self, failure: Failure) -> Option<Bytes> {
        let usage = match &self.observer {
            Observer::Events(observer) => usage_of(observer.usage()),
            Observer::Document { .. } => Usage::default(),
        };
        self.guest.failed(failure, Some(self.status), usage);
        self.source.close();
        self.state = State::Breaking { flushed: false };
        let Observer::Events(observer) = &self.observer else {
            return None;
        };
        // Within an event the error would become a part of it.
        observer.at_boundary().then(|| {
            let message = format!(
                "worker `{}` broke off: {}",
                self.source.worker(),
                failure.as_str()
            );
            Bytes::from(error::event(
                self.guest.endpoint(),
                502,
                code_of(failure),
                &message,
            ))
        })
    }

    fn poll_relay(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let piece = match self.before.pop_front() {
            Some(piece) => Poll::Ready(Ok(Some(piece))),
            None => self.source.poll_data(cx),
        };
        let failure = match piece {
            Poll::Ready(Ok(Some(data))) => {
                self.observe(&data);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Poll::Ready(Ok(None)) => {
                self.complete();
                return Poll::Ready(None);
            }
            Poll::Ready(Err(BodyBroken)) => {
                if let Some(why) = self.source.loss() {
                    self.guest.lost(why, false);
                }
                Failure::Truncated
            }
            Poll::Pending => {
                self.guest.tell();
                if self.guest.poll_aborted(cx).is_ready() {
                    Failure::Truncated
                } else {
                    std::task::ready!(self.deadlines.poll(cx))
                }
            }
        };
        match self.breaks(failure) {
            Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
            None => self.poll_frame(cx),
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.state {
            State::Done => Poll::Ready(None),
            State::Relaying => self.poll_relay(cx),
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
        }
    }
}

impl Drop for Stream {
    /// A client that leaves between the end mark and the end of the transfer has its answer.
    fn drop(&mut self) {
        if self.state == State::Relaying
            && let Observer::Events(observer) = &self.observer
            && observer.finished()
        {
            self.complete();
        }
    }
}

/// The end of an attempt whose whole document was read.
pub(crate) fn settle(guest: &mut Guest, facts: &AnswerFacts, status: u16) {
    let usage = usage_of(facts.usage);
    if let Some(id) = &facts.response_id {
        guest.responded(id);
    }
    if facts.error {
        guest.failed(Failure::ServerError, Some(status), usage);
    } else if facts.aborted {
        guest.failed(Failure::Truncated, Some(status), usage);
    } else {
        guest.served(usage, status);
    }
}

/// Pieces as one.
pub(crate) fn joined(pieces: &mut Vec<Bytes>) -> Bytes {
    match pieces.len() {
        0 => Bytes::new(),
        1 => pieces.pop().unwrap_or_default(),
        _ => {
            let mut whole = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
            for piece in pieces.drain(..) {
                whole.extend_from_slice(&piece);
            }
            whole.freeze()
        }
    }
}

/// The transfer to the client ends abnormally: no final chunk, or a reset stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker's answer broke off")]
pub(crate) struct Broken;

/// The body of an answer to a client.
pub(crate) enum RelayBody {
    Whole(Option<Bytes>),
    Stream(Box<Stream>),
    /// The head was sent; what the answer is, is not known yet.
    Waiting(Box<Waiting>),
}

impl RelayBody {
    pub(crate) fn whole(body: Bytes) -> Self {
        Self::Whole((!body.is_empty()).then_some(body))
    }

    pub(crate) fn stream(stream: Stream) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl Body for RelayBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream(stream) => stream.poll_frame(cx),
            Self::Waiting(waiting) => waiting.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Stream(stream) => stream.state == State::Done,
            Self::Waiting(waiting) => waiting.is_done(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Stream(_) | Self::Waiting(_) => SizeHint::default(),
        }
    }
}
