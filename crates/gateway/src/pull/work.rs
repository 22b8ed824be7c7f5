//! A request on its way to a worker that pulls, and how it may be lost there.

use super::desk::Desk;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What a worker is asked to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// The client's own request.
    Request {
        method: String,
        /// Path and query.
        target: String,
        headers: Vec<(String, String)>,
        /// The client's bytes.
        body: Bytes,
    },
    /// One prompt, as the AI Horde puts it.
    Prompt {
        /// Prompt and options, a JSON object.
        payload: serde_json::Value,
        /// The model that the client named.
        model: Option<String>,
    },
}

/// A request as a worker gets it.
#[derive(Debug)]
pub(crate) struct Job {
    /// Its name between us and the worker.
    pub(crate) id: String,
    pub(crate) work: Work,
    pub(crate) handing: Handing,
}

/// How a job was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The poll that was to get it was gone.
    NotTaken,
    /// Its worker's connection broke.
    Broken,
    /// Its worker said nothing for too long.
    Silent,
    /// Its worker has it not, by its own list.
    Missing,
    /// No answer came in the time that a job may take.
    Expired,
    /// Its worker dropped it without a word and asked for another.
    Dropped,
    /// Its worker began a new life.
    Reborn,
    /// Its worker left.
    Left,
    /// Its worker gave it back.
    Faulted,
}

impl Loss {
    /// The name in metrics, records and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NotTaken => "not_taken",
            Self::Broken => "broken",
            Self::Silent => "silent",
            Self::Missing => "missing",
            Self::Expired => "expired",
            Self::Dropped => "dropped",
            Self::Reborn => "reborn",
            Self::Left => "left",
            Self::Faulted => "faulted",
        }
    }

    /// Whether nobody said that it was lost: it was only concluded from silence. Such a request is
    /// given to another worker once, so that one that silences workers can not go through them all.
    pub(crate) fn is_silence(self) -> bool {
        matches!(
            self,
            Self::Silent | Self::Missing | Self::Expired | Self::Dropped
        )
    }
}

/// A job between a poll and the connection it leaves on. Dropping it before it was written loses
/// the job at once: a worker that went away at that very moment need not be waited for.
#[derive(Debug)]
pub(crate) struct Handing(Option<(DeskRef, String)>);

struct DeskRef(Arc<Desk>);

impl std::fmt::Debug for DeskRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desk")
    }
}

impl Handing {
    pub(super) fn new(desk: Arc<Desk>, job: String) -> Self {
        Self(Some((DeskRef(desk), job)))
    }

    /// It was written.
    fn done(&mut self) {
        self.0 = None;
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        if let Some((desk, job)) = self.0.take() {
            desk.0.lose(&job, Loss::NotTaken);
        }
    }
}

/// The body of an answer to a worker.
pub(super) struct Said {
    bytes: Option<Bytes>,
    handing: Option<Handing>,
}

impl Said {
    pub(super) fn plain(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: Some(bytes.into()).filter(|bytes| !bytes.is_empty()),
            handing: None,
        }
    }

    pub(super) fn job(bytes: impl Into<Bytes>, handing: Handing) -> Self {
        Self {
            bytes: Some(bytes.into()),
            handing: Some(handing),
        }
    }
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if let Some(mut handing) = self.handing.take() {
            handing.done();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |b| b.len() as u64))
    }
}
