//! An observer beside an event stream: it reads what passes and changes nothing.

use crate::endpoint::Endpoint;
use crate::usage::WireUsage;

/// Bytes of one event that are kept to be read, unless set otherwise.
pub const EVENT_BYTES_MAX_DEFAULT: usize = 256 * 1024;

/// Reads a server-sent event stream in whatever pieces it comes.
#[derive(Debug)]
pub struct StreamObserver {
    _endpoint: Endpoint,
}

impl StreamObserver {
    /// An observer of an answer of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self::with_event_bytes_max(endpoint, EVENT_BYTES_MAX_DEFAULT)
    }

    /// As [`Self::new`], with another bound on the bytes of one event that are kept.
    #[must_use]
    pub fn with_event_bytes_max(endpoint: Endpoint, _bytes_max: usize) -> Self {
        Self {
            _endpoint: endpoint,
        }
    }

    /// The next bytes of the stream.
    pub fn push(&mut self, _bytes: &[u8]) {}

    /// Whether anything was written: content, reasoning or tool deltas, of any choice.
    #[must_use]
    pub fn first_token(&self) -> bool {
        false
    }

    /// Token counts said so far; of several complete ones the last.
    #[must_use]
    pub fn usage(&self) -> WireUsage {
        WireUsage::default()
    }

    /// The id that a later request can continue (`resp_...`).
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        None
    }

    /// Whether the family's terminal marker has passed.
    #[must_use]
    pub fn finished(&self) -> bool {
        false
    }

    /// Whether an error event or chunk has passed.
    #[must_use]
    pub fn error(&self) -> bool {
        false
    }

    /// Whether the engine ended a choice with `finish_reason: "abort"` (vLLM does when told to stop).
    #[must_use]
    pub fn aborted(&self) -> bool {
        false
    }

    /// Whether the bytes so far end between two events.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        true
    }

    /// Events with data so far. Comments do not count: they are no sign of life.
    #[must_use]
    pub fn data_events(&self) -> u64 {
        0
    }

    /// Events that were too long to be read.
    #[must_use]
    pub fn skipped_events(&self) -> u64 {
        0
    }
}
