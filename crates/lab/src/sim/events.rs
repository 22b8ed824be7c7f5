//! The queue of events: by time, then by the order in which they were put in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use maitred_core::ids::RequestId;
use maitred_core::pool::Report;
use maitred_core::prefix::KvBatch;
use maitred_core::time::Nanos;

use super::workload::Ask;

/// Something that will happen.
#[derive(Debug)]
pub(super) enum Event {
    /// The first request of a session that the workload started.
    Start(Box<Ask>),
    /// A later request.
    Send(Box<Ask>),
    /// A client's patience ends.
    Patience(RequestId),
    /// An engine has something to say. Stale where the number is not the engine's current one.
    Engine { worker: usize, number: u64 },
    /// The scheduler's timer.
    Tick,
    /// All engines are asked for their gauges.
    Sample,
    /// What one said some time ago reaches the scheduler.
    Heard { worker: usize, report: Report },
    /// So do its KV events, of that life of its process.
    Kv {
        worker: usize,
        life: u32,
        batch: Box<KvBatch>,
    },
    /// A process that died is back.
    Back(usize),
    /// The fleet's event of that index happens.
    Fleet(usize),
}

struct Entry {
    at: Nanos,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What will happen, in order.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Entry { at, order, event }));
    }

    pub(super) fn pop(&mut self) -> Option<(Nanos, Event)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.at, entry.event))
    }
}
