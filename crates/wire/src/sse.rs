//! An observer beside an event stream: it reads what passes and changes nothing.
//!
//! Bytes may come in any pieces, one at a time even. At most one event is kept, up to a bound; what
//! is longer is passed over and counted, but its end is still found.

mod lines;
mod read;

use crate::endpoint::Endpoint;
use crate::usage::{Reports, WireUsage};
use lines::Lines;

/// Bytes of one event that are kept to be read, unless set otherwise.
pub const EVENT_BYTES_MAX_DEFAULT: usize = 256 * 1024;

/// What the events so far have said.
#[derive(Debug, Default)]
struct Seen {
    first_token: bool,
    finished: bool,
    error: bool,
    aborted: bool,
    reports: Reports,
    response_id: Option<String>,
}

/// Reads a server-sent event stream in whatever pieces it comes.
#[derive(Debug)]
pub struct StreamObserver {
    endpoint: Endpoint,
    lines: Lines,
    seen: Seen,
}

impl StreamObserver {
    /// An observer of an answer of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self::with_event_bytes_max(endpoint, EVENT_BYTES_MAX_DEFAULT)
    }

    /// As [`Self::new`], with another bound on the bytes of one event that are kept.
    #[must_use]
    pub fn with_event_bytes_max(endpoint: Endpoint, bytes_max: usize) -> Self {
        Self {
            endpoint,
            lines: Lines::new(bytes_max),
            seen: Seen::default(),
        }
    }

    /// The next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let (endpoint, seen) = (self.endpoint, &mut self.seen);
        self.lines
            .push(bytes, &mut |event| seen.event(endpoint, &event));
    }

    /// Whether anything was written: content, reasoning or tool deltas, of any choice.
    #[must_use]
    pub fn first_token(&self) -> bool {
        self.seen.first_token
    }

    /// Token counts said so far. Later reports lie over earlier ones.
    #[must_use]
    pub fn usage(&self) -> WireUsage {
        self.seen.reports.normalised()
    }

    /// The id that a later request can continue (`resp_...`).
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.seen.response_id.as_deref()
    }

    /// Whether the family's terminal marker has passed.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.seen.finished
    }

    /// Whether an error event or chunk has passed.
    #[must_use]
    pub fn error(&self) -> bool {
        self.seen.error
    }

    /// Whether the engine ended a choice with `finish_reason: "abort"` (vLLM does so when it is
    /// told to stop).
    #[must_use]
    pub fn aborted(&self) -> bool {
        self.seen.aborted
    }

    /// Whether the bytes so far end between two events.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.lines.at_boundary()
    }

    /// Events with data so far. Comments do not count: they are no sign of life.
    #[must_use]
    pub fn data_events(&self) -> u64 {
        self.lines.data_events
    }

    /// Events that were too long to be read whole.
    #[must_use]
    pub fn skipped_events(&self) -> u64 {
        self.lines.skipped_events
    }
}

#[cfg(test)]
mod tests;
