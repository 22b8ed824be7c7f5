//! The line: requests that wait for a seat, first come first served, bounded.
//!
//! A holder (one that waits for one worker) may be passed; each pass is counted.

mod config;
pub mod dlpm;
pub mod las;
pub mod promise;
mod terms;
pub mod turn_priority;
mod view;
pub mod vtc;

pub use config::FairnessConfig;
pub use terms::{Band, LineKind, LineLimits, TenantTerms, Tenants};
pub use view::{LineView, LinesView, TenantView};

use crate::ids::RequestId;
use crate::time::Nanos;
use alloc::collections::BTreeMap;
use core::ops::Bound;
use core::time::Duration;

/// A request that others passed so often (because it needs more prefill than they) gets a worker
/// kept free for it.
pub(crate) const PASSES_MAX: u32 = 64;

/// Weight of the newest interval in the drain rate.
const INTERVAL_WEIGHT: f64 = 0.2;
/// The longest wait that is advised.
const RETRY_AFTER_MAX: f64 = 30.0;

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: RequestId,
    passed_by: u32,
}

/// The waiting requests by their place, which is the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Line {
    entries: BTreeMap<u64, Entry>,
    last_seated: Option<Nanos>,
    /// Seconds between two seatings from a line that never was empty between them.
    interval: Option<f64>,
}

impl Line {
    /// Takes a place. `passed_by`: passes counted in an earlier stay.
    pub(crate) fn join(&mut self, place: u64, request: RequestId, passed_by: u32) {
        let entry = Entry { request, passed_by };
        self.entries.insert(place, entry);
    }

    /// Gives the place up; returns how many passed it.
    pub(crate) fn leave(&mut self, place: u64) -> Option<u32> {
        let entry = self.entries.remove(&place)?;
        if self.entries.is_empty() {
            self.last_seated = None;
        }
        Some(entry.passed_by)
    }

    /// One from the line was seated: a sample of the drain rate. Called before it leaves.
    pub(crate) fn seated(&mut self, now: Nanos) {
        if let Some(last) = self.last_seated {
            let sample = now.since(last).as_secs_f64();
            self.interval = Some(
                self.interval
                    .map_or(sample, |old| old + (sample - old) * INTERVAL_WEIGHT),
            );
        }
        self.last_seated = Some(now);
    }

    /// The request at that place was dispatched: everyone before it was passed.
    pub(crate) fn pass(&mut self, place: u64) {
        for (_, entry) in self.entries.range_mut(..place) {
            entry.passed_by = entry.passed_by.saturating_add(1);
        }
    }

    /// The first place after `place` (None: the head).
    pub(crate) fn after(&self, place: Option<u64>) -> Option<(u64, RequestId)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let (place, entry) = self.entries.range((from, Bound::Unbounded)).next()?;
        Some((*place, entry.request))
    }

    pub(crate) fn get(&self, place: u64) -> Option<RequestId> {
        self.entries.get(&place).map(|entry| entry.request)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, RequestId)> {
        self.entries.iter().map(|(place, e)| (*place, e.request))
    }

    /// Those among the first `most` that were passed too often, in order.
    pub(crate) fn overdue(&self, most: usize) -> impl Iterator<Item = (u64, RequestId)> {
        self.entries
            .iter()
            .take(most)
            .filter(|(_, entry)| entry.passed_by >= PASSES_MAX)
            .map(|(place, entry)| (*place, entry.request))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// When one more place will be free at the measured drain rate: whole seconds, at most 30;
    /// None where nothing was measured, or where it is below a second.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let seconds = libm::ceil(self.interval.filter(|s| *s >= 1.0)?);
        Some(Duration::from_secs(seconds.min(RETRY_AFTER_MAX) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Line, Nanos, RequestId};

    #[test]
    fn order_and_passes() {
        let mut line = Line::default();
        for place in [3, 1, 2] {
            line.join(place, RequestId(place * 10), 0);
        }
        assert_eq!(line.after(None), Some((1, RequestId(10))));
        assert_eq!(line.after(Some(1)), Some((2, RequestId(20))));
        line.pass(3);
        line.pass(2);
        assert_eq!(line.leave(1), Some(2));
        assert_eq!(line.leave(2), Some(1));
        assert_eq!(line.leave(3), Some(0));
        assert_eq!(line.leave(3), None);
    }

    #[test]
    fn advice_follows_the_drain_rate() {
        let advice = |millis: u64| {
            let mut line = Line::default();
            line.join(1, RequestId(1), 0);
            line.seated(Nanos(0));
            line.seated(Nanos(millis * 1_000_000));
            line.retry_after()
        };
        assert_eq!(Line::default().retry_after(), None);
        assert_eq!(advice(5_000), Some(Duration::from_secs(5)));
        assert_eq!(advice(20), None);
        assert_eq!(advice(100_000), Some(Duration::from_secs(30)));
    }
}
