//! How many requests an engine runs at once, learnt from its own waiting queue: what it cannot run
//! yet waits better in our line, where it can still go elsewhere and does so in our order.
//!
//! Formula, at each of the engine's reports of `running` and `waiting`; `own` are our leases on it:
//! - `runs = running * min(own, running + waiting) / (running + waiting)`: our part of what it runs
//!   (where it does not tell `running`: `own - waiting`).
//! - `waiting > 1`: `limit = runs + 1`, and `most = max(runs, most - most / 8)`.
//! - `waiting = 0` while `own >= limit`: `limit + max(1, limit / 2)` but not beyond `most`; from
//!   `most` on `limit + 1`.
//! - else the limit stays. With `waiting <= 1`: `most = max(most, runs)`.
//!
//! Until the engine was seen to let more than one wait there is no limit. One may wait, so that the
//! engine has somebody as soon as a place is free. A report that is late says nothing new: for each
//! `stale_after` of its age the limit is one more, so that a limit learnt in a bad moment does not
//! outlive the reports. It is never 0, so an engine that we send nothing to is always tried again.
//!
//! Source: additive increase and a decrease upon congestion as in TCP (Chiu and Jain, "Analysis of
//! the Increase and Decrease Algorithms", 1989); the engine tells how much it runs, so the decrease
//! is to what was measured and not to a half; `most` is the slow-start threshold.

use crate::time::Nanos;
use core::time::Duration;

/// Requests that may wait in the engine.
const WAITING_MOST: u32 = 1;
/// What the engine was once seen to run is forgotten by this part each time that more wait.
const FORGOTTEN: u32 = 8;

/// What was learnt of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learnt {
    limit: Option<u32>,
    most: u32,
    /// Of the last report with `waiting`.
    at: Nanos,
    stale_after: Duration,
}

impl Learnt {
    /// Nothing yet.
    pub(crate) fn new(stale_after: Duration) -> Self {
        Self {
            limit: None,
            most: 0,
            at: Nanos::default(),
            stale_after,
        }
    }

    /// The engine's word. Returns whether there is more room by it.
    pub(crate) fn heard(
        &mut self,
        running: Option<u32>,
        waiting: Option<u32>,
        own: u32,
        now: Nanos,
    ) -> bool {
        let Some(waiting) = waiting else {
            return false;
        };
        self.at = now;
        let runs = our_part(running, waiting, own);
        if waiting > WAITING_MOST {
            self.most = runs.max(self.most - self.most / FORGOTTEN);
            self.limit = Some(runs.saturating_add(WAITING_MOST).max(1));
            return false;
        }
        self.most = self.most.max(runs);
        let Some(limit) = self.limit.filter(|limit| waiting == 0 && own >= *limit) else {
            return false;
        };
        let faster = limit.saturating_add((limit / 2).max(1)).min(self.most);
        self.limit = Some(faster.max(limit.saturating_add(1)));
        true
    }

    /// Requests at once; None: nothing was learnt.
    pub(crate) fn limit(&self, now: Nanos) -> Option<u32> {
        let age = now.since(self.at).as_nanos();
        let late = age / self.stale_after.as_nanos().max(1);
        let more = u32::try_from(late).unwrap_or(u32::MAX);
        self.limit.map(|limit| limit.saturating_add(more))
    }
}

/// Our part of what the engine runs.
fn our_part(running: Option<u32>, waiting: u32, own: u32) -> u32 {
    let Some(running) = running else {
        return own.saturating_sub(waiting);
    };
    let all = u64::from(running) + u64::from(waiting);
    if all == 0 {
        return 0;
    }
    let ours = u64::from(running) * u64::from(own).min(all) / all;
    u32::try_from(ours).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Learnt, Nanos};
    use core::time::Duration;

    const NOW: Nanos = Nanos(0);
    const STALE: Duration = Duration::from_secs(5);

    fn after(words: &[(u32, u32, u32)]) -> Learnt {
        let mut learnt = Learnt::new(STALE);
        for (running, waiting, own) in words {
            learnt.heard(Some(*running), Some(*waiting), *own, NOW);
        }
        learnt
    }

    fn limit(words: &[(u32, u32, u32)]) -> Option<u32> {
        after(words).limit(NOW)
    }

    #[test]
    fn there_is_no_limit_until_more_than_one_waits() {
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[(200, 0, 200), (200, 1, 201)]), None);
        assert_eq!(limit(&[(16, 4, 20)]), Some(17));
        assert_eq!(limit(&[(16, 4, 20), (16, 1, 17)]), Some(17), "it is met");
    }

    #[test]
    fn it_comes_back_fast_to_what_was_seen_and_then_by_one() {
        // A long prompt held all others up for a moment: 14 are still remembered.
        let mut words = alloc::vec![(16, 4, 20), (2, 15, 17)];
        assert_eq!(limit(&words), Some(3));
        for (own, next) in [
            (3, 4),
            (4, 6),
            (6, 9),
            (9, 13),
            (13, 14),
            (14, 15),
            (15, 16),
        ] {
            words.push((own, 0, own));
            assert_eq!(limit(&words), Some(next), "from {own}");
        }
    }

    #[test]
    fn what_was_not_used_up_says_nothing() {
        assert_eq!(limit(&[(16, 4, 20), (5, 0, 5)]), Some(17));
    }

    #[test]
    fn what_others_sent_is_not_ours() {
        // 16 run of 24, of which 12 are ours: 8 and one.
        assert_eq!(limit(&[(16, 8, 12)]), Some(9));
        assert_eq!(limit(&[(16, 8, 0)]), Some(1), "never none");
        // Some of ours are still on their way.
        assert_eq!(limit(&[(16, 2, 30)]), Some(17));
    }

    #[test]
    fn what_is_not_told_is_not_zero() {
        let mut learnt = after(&[(16, 4, 20)]);
        assert!(!learnt.heard(Some(0), None, 17, NOW));
        assert_eq!(learnt.limit(NOW), Some(17));
        let mut untold = Learnt::new(STALE);
        untold.heard(None, Some(4), 20, NOW);
        assert_eq!(untold.limit(NOW), Some(17));
    }

    #[test]
    fn it_does_not_outlive_the_reports() {
        let learnt = after(&[(2, 9, 11)]);
        let limit = |seconds: u64| learnt.limit(Nanos(seconds * 1_000_000_000));
        assert_eq!(
            [limit(4), limit(5), limit(14), limit(25)],
            [Some(3), Some(4), Some(5), Some(8)]
        );
    }
}
