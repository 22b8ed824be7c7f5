//! Conversations that were placed and not accepted yet, counted by worker, so that a burst of new
//! ones does not find nobody at home everywhere. Every call costs the same however many there are.

use crate::ids::{SessionKey, WorkerId};
use crate::time::Nanos;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// How many are remembered; the oldest is forgotten beyond it.
pub(super) const PENDING_MAX: usize = 1_024;

/// When one is forgotten because nothing was heard of it: its attempt failed.
const PENDING_FOR: Duration = Duration::from_secs(60);

/// Who is on the way, and to whom.
#[derive(Default)]
pub(super) struct Pending {
    by_key: HashMap<SessionKey, (WorkerId, Nanos), FxBuildHasher>,
    /// In order of time; an entry whose time is not that of its key any more is void.
    order: VecDeque<(SessionKey, Nanos)>,
    /// By slot: the slot's life and how many are on the way to it.
    by_slot: Vec<(u32, u32)>,
}

impl Pending {
    /// Where the conversation is on its way to.
    pub(super) fn worker(&self, key: SessionKey) -> Option<WorkerId> {
        self.by_key.get(&key).map(|(worker, _)| *worker)
    }

    /// How many are on the way to this worker.
    pub(super) fn count(&self, worker: WorkerId) -> u32 {
        match self.by_slot.get(worker.slot as usize) {
            Some((generation, count)) if *generation == worker.generation => *count,
            _ => 0,
        }
    }

    /// It was placed.
    pub(super) fn insert(&mut self, key: SessionKey, worker: WorkerId, now: Nanos) {
        self.remove(key);
        while self.order.len() >= PENDING_MAX {
            self.drop_oldest();
        }
        let slot = worker.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, (0, 0));
        }
        let (generation, count) = &mut self.by_slot[slot];
        if *generation != worker.generation {
            (*generation, *count) = (worker.generation, 0);
        }
        *count += 1;
        self.by_key.insert(key, (worker, now));
        self.order.push_back((key, now));
    }

    /// It was accepted, or placed anew.
    pub(super) fn remove(&mut self, key: SessionKey) {
        let Some((worker, _)) = self.by_key.remove(&key) else {
            return;
        };
        if let Some((generation, count)) = self.by_slot.get_mut(worker.slot as usize)
            && *generation == worker.generation
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Forgets those of whom nothing was heard.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some((_, since)) = self.order.front() {
            if now.since(*since) <= PENDING_FOR {
                break;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((key, since)) = self.order.pop_front() else {
            return;
        };
        if self.by_key.get(&key).is_some_and(|(_, at)| *at == since) {
            self.remove(key);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{PENDING_MAX, Pending};
    use crate::ids::{SessionKey, WorkerId};
    use crate::time::Nanos;

    fn worker(slot: u32, generation: u32) -> WorkerId {
        WorkerId { slot, generation }
    }

    #[test]
    fn counts_follow_what_is_on_the_way() {
        let mut pending = Pending::default();
        pending.insert(SessionKey(1), worker(2, 0), Nanos(0));
        pending.insert(SessionKey(2), worker(2, 0), Nanos(0));
        // The same conversation, placed again elsewhere, counts there alone.
        pending.insert(SessionKey(1), worker(0, 0), Nanos(5));
        assert_eq!(pending.count(worker(2, 0)), 1);
        assert_eq!(pending.count(worker(0, 0)), 1);
        assert_eq!(pending.worker(SessionKey(1)), Some(worker(0, 0)));
        pending.remove(SessionKey(1));
        assert_eq!((pending.count(worker(0, 0)), pending.len()), (0, 1));
        // A void entry of the order takes nothing with it.
        pending.insert(SessionKey(1), worker(1, 0), Nanos(59_000_000_000));
        pending.expire(Nanos(61_000_000_000));
        assert_eq!((pending.count(worker(1, 0)), pending.len()), (1, 1));
    }

    #[test]
    fn a_slot_in_its_next_life_has_nobody_on_the_way() {
        let mut pending = Pending::default();
        pending.insert(SessionKey(1), worker(0, 0), Nanos(0));
        assert_eq!(pending.count(worker(0, 1)), 0);
        pending.insert(SessionKey(2), worker(0, 1), Nanos(0));
        pending.remove(SessionKey(1));
        assert_eq!(pending.count(worker(0, 1)), 1);
    }

    #[test]
    fn bounded() {
        let mut pending = Pending::default();
        for key in 0..PENDING_MAX as u64 + 10 {
            pending.insert(SessionKey(key), worker(0, 0), Nanos(key));
        }
        assert_eq!(pending.len(), PENDING_MAX);
        assert_eq!(pending.count(worker(0, 0)) as usize, PENDING_MAX);
    }
}
