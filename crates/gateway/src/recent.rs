//! The last attempts, for `/explain`: a ring in memory, shared with the record sink.

use maitred_records::AttemptRecord;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Attempts kept.
pub const RECENT_MAX: usize = 4_096;

/// The last [`RECENT_MAX`] attempt records.
#[derive(Default)]
pub struct Recent {
    ring: Mutex<VecDeque<Arc<AttemptRecord>>>,
}

impl Recent {
    /// Adds a record; drops the oldest beyond the bound.
    pub fn push(&self, record: Arc<AttemptRecord>) {
        let dropped = {
            let mut ring = self.ring.lock();
            let dropped = (ring.len() >= RECENT_MAX).then(|| ring.pop_front());
            ring.push_back(record);
            dropped
        };
        // Freed outside of the lock.
        drop(dropped);
    }

    /// All attempts of a request, in the order of their number.
    #[must_use]
    pub fn of(&self, request_id: &str) -> Vec<Arc<AttemptRecord>> {
        let mut found: Vec<_> = self
            .ring
            .lock()
            .iter()
            .filter(|record| record.request_id.as_str() == request_id)
            .cloned()
            .collect();
        found.sort_by_key(|record| record.attempt);
        found
    }
}
