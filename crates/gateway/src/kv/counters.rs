//! What happened to a worker's events.

use std::sync::atomic::{AtomicU64, Ordering};

/// Running counts; each only grows.
#[derive(Debug, Default)]
pub struct KvCounters {
    pub(super) batches: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) blocks: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) replays: AtomicU64,
    pub(super) replays_failed: AtomicU64,
    pub(super) restarts: AtomicU64,
    pub(super) uncertain: AtomicU64,
    pub(super) connections: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Messages applied.
    pub batches: u64,
    /// Events applied.
    pub events: u64,
    /// Blocks stored or removed by them.
    pub blocks: u64,
    /// Events of unknown types, left out.
    pub unknown: u64,
    /// Messages that came twice, by the live stream and by a replay.
    pub duplicates: u64,
    /// Messages that could not be read.
    pub malformed: u64,
    /// Gaps in the live stream.
    pub gaps: u64,
    /// Messages lost for good.
    pub lost: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Replays that did not come, or not to their end.
    pub replays_failed: u64,
    /// New lives of the engine.
    pub restarts: u64,
    /// Times that what was observed became doubtful.
    pub uncertain: u64,
    /// Connections made.
    pub connections: u64,
}

impl KvCounters {
    /// All counts.
    #[must_use]
    pub fn read(&self) -> KvCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KvCounts {
            batches: of(&self.batches),
            events: of(&self.events),
            blocks: of(&self.blocks),
            unknown: of(&self.unknown),
            duplicates: of(&self.duplicates),
            malformed: of(&self.malformed),
            gaps: of(&self.gaps),
            lost: of(&self.lost),
            replays: of(&self.replays),
            replays_failed: of(&self.replays_failed),
            restarts: of(&self.restarts),
            uncertain: of(&self.uncertain),
            connections: of(&self.connections),
        }
    }
}

/// Counts.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
