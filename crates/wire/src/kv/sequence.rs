//! What a sequence number means: the next one, a gap, a new life of the engine.
//!
//! The live stream and a replay have marks of their own. A publisher never goes back, so a live number
//! that is not above the last live one begins a new life; a live number that a replay has brought
//! already is no new life, it was only faster the other way (unless it was made later than that).
//!
//! A gap says only which numbers are missing, not whose they are: an engine that restarted while nobody
//! listened may have passed the old number already. So after a lost connection the replay is asked for
//! from the last number that was applied, and [`Tracker::same_life`] compares the time of that batch.

/// What to do with a live message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLive {
    /// It is the next one: apply it.
    Apply,
    /// `from..=to` are missing. Ask for them, then show this message again, or [`Tracker::give_up`].
    Gap {
        /// The first that is missing.
        from: u64,
        /// The last that is missing.
        to: u64,
    },
    /// The engine has begun anew. Forget the worker's blocks, [`Tracker::restart`], and show it again.
    Restart,
    /// A replay brought it already.
    Duplicate,
}

/// What to do with a replayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReplay {
    /// It is the next one: apply it.
    Apply,
    /// Apply it, but `from..=to` are lost: the engine does not keep them any more.
    ApplyAfterLoss {
        /// The first that is lost.
        from: u64,
        /// The last that is lost.
        to: u64,
    },
    /// It was applied already.
    Duplicate,
}

/// Where one publisher's streams stand.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// The last live number that was applied, or was a duplicate.
    live: Option<u64>,
    /// The last replayed number that was applied.
    replayed: Option<u64>,
    /// Number and time of the last batch that was applied, either way.
    mark: Option<(u64, f64)>,
}

impl Tracker {
    /// The number that is applied next.
    #[must_use]
    pub fn next(&self) -> u64 {
        let last = self.live.max(self.replayed);
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Whether nothing was seen yet in this life.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.live.is_none() && self.replayed.is_none()
    }

    /// A live message arrives, made at `ts` by the engine's clock (not a number where it cannot be read).
    pub fn on_live(&mut self, seq: u64, ts: f64) -> OnLive {
        if self.live.is_some_and(|last| seq <= last) {
            return OnLive::Restart;
        }
        let next = self.next();
        if seq < next && self.mark.is_some_and(|(_, applied)| ts > applied) {
            return OnLive::Restart;
        }
        if seq > next {
            return OnLive::Gap {
                from: next,
                to: seq - 1,
            };
        }
        self.live = Some(seq);
        if seq < next {
            OnLive::Duplicate
        } else {
            OnLive::Apply
        }
    }

    /// A replayed message arrives.
    pub fn on_replay(&mut self, seq: u64) -> OnReplay {
        let next = self.next();
        if seq < next {
            return OnReplay::Duplicate;
        }
        self.replayed = Some(seq);
        if seq == next {
            OnReplay::Apply
        } else {
            OnReplay::ApplyAfterLoss {
                from: next,
                to: seq - 1,
            }
        }
    }

    /// What is missing before the live number `seq` will not come: goes on with `seq`, which is to be
    /// shown again. Returns how many messages are lost for good.
    pub fn give_up(&mut self, seq: u64) -> u64 {
        let lost = seq.saturating_sub(self.next());
        if lost > 0 {
            self.replayed = Some(seq - 1);
            self.mark = None;
        }
        lost
    }

    /// The engine has begun anew.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    /// Notes the time of a batch that was applied.
    pub fn applied(&mut self, seq: u64, ts: f64) {
        self.mark = Some((seq, ts));
    }

    /// Where a replay must begin that can tell whether the engine is still in the life we know.
    #[must_use]
    pub fn proof(&self) -> Option<u64> {
        self.mark.map(|(seq, _)| seq)
    }

    /// Whether a replayed batch is the very one that was applied under its number. None: that cannot be
    /// told from this one.
    #[must_use]
    pub fn same_life(&self, seq: u64, ts: f64) -> Option<bool> {
        let (marked, at) = self.mark?;
        (marked == seq).then(|| at.to_bits() == ts.to_bits())
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::{OnLive, OnReplay, Tracker};

    #[test]
    fn a_gap_is_named_and_asked_for() {
        // 1, 2, 5.
        let mut tracker = Tracker::default();
        assert_eq!(tracker.on_live(1, 1.0), OnLive::Gap { from: 0, to: 0 });
        assert_eq!(tracker.give_up(1), 1);
        assert_eq!(tracker.on_live(1, 1.0), OnLive::Apply);
        assert_eq!(tracker.on_live(2, 2.0), OnLive::Apply);
        assert_eq!(tracker.on_live(5, 5.0), OnLive::Gap { from: 3, to: 4 });
        assert_eq!(tracker.next(), 3);
        // It is replayed, with more than was missing.
        assert_eq!(tracker.on_replay(2), OnReplay::Duplicate);
        assert_eq!(tracker.on_replay(3), OnReplay::Apply);
        assert_eq!(tracker.on_replay(4), OnReplay::Apply);
        assert_eq!(tracker.on_replay(5), OnReplay::Apply);
        assert_eq!(tracker.on_live(5, 5.0), OnLive::Duplicate);
        assert_eq!(tracker.on_live(6, 6.0), OnLive::Apply);
        // It cannot be replayed.
        assert_eq!(tracker.on_live(9, 9.0), OnLive::Gap { from: 7, to: 8 });
        assert_eq!(tracker.give_up(9), 2);
        assert_eq!(tracker.on_live(9, 9.0), OnLive::Apply);
    }

    #[test]
    fn a_lower_live_number_is_a_new_life() {
        // Live 100, 101, then 0.
        let mut tracker = Tracker::default();
        tracker.give_up(100);
        assert_eq!(tracker.on_live(100, 1.0), OnLive::Apply);
        assert_eq!(tracker.on_live(101, 2.0), OnLive::Apply);
        assert_eq!(tracker.on_live(0, 3.0), OnLive::Restart);
        tracker.restart();
        assert!(tracker.is_new());
        assert_eq!(tracker.on_live(0, 3.0), OnLive::Apply);
        // The very same number is one, too.
        assert_eq!(tracker.on_live(0, 4.0), OnLive::Restart);
    }

    #[test]
    fn replay_and_live_overlap_without_doubles() {
        // A replay of 1..=50 while 40..=60 arrive live.
        let mut tracker = Tracker::default();
        let mut applied = Vec::new();
        assert_eq!(tracker.on_live(40, 40.0), OnLive::Gap { from: 0, to: 39 });
        for seq in 1..=50_u64 {
            match tracker.on_replay(seq) {
                OnReplay::Apply => {}
                OnReplay::ApplyAfterLoss { from: 0, to: 0 } => assert_eq!(seq, 1),
                other => panic!("{other:?}"),
            }
            tracker.applied(seq, seq as f64);
            applied.push(seq);
        }
        for seq in 40..=60_u64 {
            match tracker.on_live(seq, seq as f64) {
                OnLive::Apply => {
                    applied.push(seq);
                    tracker.applied(seq, seq as f64);
                }
                OnLive::Duplicate => assert!(seq <= 50),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(applied, (1..=60).collect::<Vec<_>>());
    }

    #[test]
    fn a_new_life_after_a_replay_is_told_by_its_time() {
        let mut tracker = Tracker::default();
        for seq in 0..=50_u64 {
            tracker.on_replay(seq);
            tracker.applied(seq, 100.0 + seq as f64);
        }
        // On its way when the replay was answered.
        assert_eq!(tracker.on_live(49, 149.0), OnLive::Duplicate);
        assert_eq!(tracker.on_live(50, 150.0), OnLive::Duplicate);
        let mut unseen = Tracker::default();
        unseen.on_replay(0);
        unseen.applied(0, 5.0);
        assert_eq!(unseen.on_live(0, 6.0), OnLive::Restart);
    }

    #[test]
    fn a_replay_proves_or_disproves_the_life_we_know() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.proof(), None);
        for seq in 0..3_u64 {
            assert_eq!(tracker.on_live(seq, seq as f64), OnLive::Apply);
            tracker.applied(seq, seq as f64);
        }
        assert_eq!(tracker.proof(), Some(2));
        assert_eq!(tracker.same_life(2, 2.0), Some(true));
        assert_eq!(tracker.same_life(2, 7.0), Some(false));
        assert_eq!(tracker.same_life(3, 7.0), None);
    }

    #[test]
    fn lost_replay_messages_are_named() {
        let mut tracker = Tracker::default();
        assert_eq!(
            tracker.on_replay(4),
            OnReplay::ApplyAfterLoss { from: 0, to: 3 }
        );
        assert_eq!(tracker.on_replay(5), OnReplay::Apply);
        assert_eq!(
            tracker.on_replay(8),
            OnReplay::ApplyAfterLoss { from: 6, to: 7 }
        );
        assert_eq!(tracker.next(), 9);
    }
}
