//! Where sessions last settled: least recently used first out, expiring, counted per worker.

use super::Home;
use super::held::{CacheSlots, Held};
use crate::ids::{SessionKey, WorkerId};
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: SessionKey,
    home: Home,
    newer: u32,
    older: u32,
}

/// The homes of a pool's sessions. The list runs from the newest to the oldest use, so expiry and
/// eviction both take from its end.
pub(crate) struct Homes {
    by_key: HashMap<SessionKey, u32, FxBuildHasher>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// By slot; homes never outlive their worker, so the slot is enough.
    counts: Vec<u32>,
    /// By slot, as far as one was ever told of.
    held: Vec<Held>,
    max: usize,
    idle: Duration,
}

impl Homes {
    /// At most `max` homes, each forgotten `idle` after its last use.
    pub(crate) fn new(max: usize, idle: Duration) -> Self {
        Self {
            by_key: HashMap::with_hasher(FxBuildHasher),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            counts: Vec::new(),
            held: Vec::new(),
            max: max.max(1),
            idle,
        }
    }

    /// The session's home, if it is not expired.
    pub(crate) fn get(&self, key: SessionKey, now: Nanos) -> Option<Home> {
        let index = *self.by_key.get(&key)?;
        let home = self.entries.get(index as usize)?.home;
        (now.since(home.used) <= self.idle).then_some(home)
    }

    /// The session settled there. On the same worker the longest chain stays known.
    pub(crate) fn settle(&mut self, key: SessionKey, worker: WorkerId, blocks: u32, now: Nanos) {
        self.expire(now);
        let mut home = Home {
            worker,
            used: now,
            blocks,
        };
        if let Some(&index) = self.by_key.get(&key) {
            self.unlink(index);
            if let Some(entry) = self.entries.get_mut(index as usize) {
                let old = entry.home;
                if old.worker == worker {
                    home.blocks = home.blocks.max(old.blocks);
                }
                entry.home = home;
                self.count(old.worker, false);
                self.count(worker, true);
                self.leave(old.worker, key);
            }
            self.serve(worker, key);
            self.link_newest(index);
            return;
        }
        if self.by_key.len() >= self.max {
            self.drop_oldest();
        }
        let entry = Entry {
            key,
            home,
            newer: NONE,
            older: NONE,
        };
        let index = if let Some(index) = self.free.pop() {
            if let Some(place) = self.entries.get_mut(index as usize) {
                *place = entry;
            }
            index
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        self.by_key.insert(key, index);
        self.count(worker, true);
        self.serve(worker, key);
        self.link_newest(index);
    }

    /// The session used its home until now, if that is still the worker.
    pub(crate) fn touch(&mut self, key: SessionKey, worker: WorkerId, now: Nanos) {
        if let Some(&index) = self.by_key.get(&key)
            && let Some(entry) = self.entries.get_mut(index as usize)
            && entry.home.worker == worker
        {
            entry.home.used = now;
            self.serve(worker, key);
            self.unlink(index);
            self.link_newest(index);
        }
    }

    /// Drops what is expired.
    pub(crate) fn expire(&mut self, now: Nanos) {
        while let Some(entry) = self.entries.get(self.oldest as usize) {
            if now.since(entry.home.used) <= self.idle {
                break;
            }
            self.drop_oldest();
        }
    }

    /// Drops every home on the worker: it is gone, or its cache is a new one.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if self.sessions(worker.slot) == 0 {
            return;
        }
        let mut index = self.oldest;
        while let Some(entry) = self.entries.get(index as usize).copied() {
            if entry.home.worker == worker {
                self.drop_entry(index);
            }
            index = entry.newer;
        }
    }

    /// Sessions at home on the worker in that slot.
    pub(crate) fn sessions(&self, slot: u32) -> u32 {
        self.counts.get(slot as usize).copied().unwrap_or(0)
    }

    /// The worker in that slot keeps one conversation in each of `size` slots of its own; None: it
    /// keeps its cache in another way.
    pub(crate) fn set_cache_slots(&mut self, slot: u32, size: Option<u32>) {
        let slot = slot as usize;
        if slot >= self.held.len() && size.is_some() {
            self.held.resize_with(slot + 1, Held::default);
        }
        if let Some(held) = self.held.get_mut(slot) {
            held.resize(size);
        }
    }

    /// What the worker in that slot keeps in its own slots, where it keeps its cache so.
    pub(crate) fn cache_slots(&self, slot: u32) -> Option<CacheSlots> {
        self.held.get(slot as usize)?.slots(|key| self.used(key))
    }

    fn used(&self, key: SessionKey) -> Nanos {
        let index = self.by_key.get(&key).copied().unwrap_or(NONE);
        let entry = self.entries.get(index as usize);
        entry.map_or(Nanos::default(), |entry| entry.home.used)
    }

    fn serve(&mut self, worker: WorkerId, key: SessionKey) {
        if let Some(held) = self.held.get_mut(worker.slot as usize) {
            held.serve(key);
        }
    }

    fn leave(&mut self, worker: WorkerId, key: SessionKey) {
        if let Some(held) = self.held.get_mut(worker.slot as usize) {
            held.leave(key);
        }
    }

    fn drop_oldest(&mut self) {
        if self.oldest != NONE {
            self.drop_entry(self.oldest);
        }
    }

    fn drop_entry(&mut self, index: u32) {
        self.unlink(index);
        if let Some(entry) = self.entries.get(index as usize).copied() {
            self.by_key.remove(&entry.key);
            self.count(entry.home.worker, false);
            self.leave(entry.home.worker, entry.key);
            self.free.push(index);
        }
    }

    fn count(&mut self, worker: WorkerId, up: bool) {
        let slot = worker.slot as usize;
        if slot >= self.counts.len() {
            self.counts.resize(slot + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(slot) {
            debug_assert!(up || *count > 0);
            *count = if up {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(Entry { newer, older, .. }) = self.entries.get(index as usize).copied() else {
            return;
        };
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, index: u32) {
        let before = self.newest;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.newer = NONE;
            entry.older = before;
        }
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    /// Whether the counts, the list and the map agree; for the scheduler's own check.
    pub(crate) fn consistent(&self) -> bool {
        let mut counts = alloc::vec![0_u32; self.counts.len()];
        let mut seen = 0;
        let mut index = self.oldest;
        let mut last = Nanos::default();
        while let Some(entry) = self.entries.get(index as usize) {
            let Some(count) = counts.get_mut(entry.home.worker.slot as usize) else {
                return false;
            };
            *count += 1;
            seen += 1;
            if seen > self.by_key.len()
                || self.by_key.get(&entry.key) != Some(&index)
                || entry.home.used < last
            {
                return false;
            }
            last = entry.home.used;
            index = entry.newer;
        }
        let held = self.held.iter().enumerate().all(|(slot, held)| {
            let mut last = Nanos::default();
            held.keys().all(|key| {
                let home = self
                    .by_key
                    .get(&key)
                    .and_then(|i| self.entries.get(*i as usize));
                home.is_some_and(|entry| {
                    let ordered = last <= entry.home.used;
                    last = entry.home.used;
                    ordered && entry.home.worker.slot as usize == slot
                })
            })
        });
        seen == self.by_key.len() && seen <= self.max && counts == self.counts && held
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Homes, Nanos, SessionKey, WorkerId};

    fn w(slot: u32) -> WorkerId {
        WorkerId {
            slot,
            generation: 0,
        }
    }

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn settles_moves_and_keeps_the_longest_chain() {
        let mut homes = Homes::new(4, Duration::from_secs(10));
        homes.settle(SessionKey(1), w(0), 7, at(0));
        homes.settle(SessionKey(1), w(0), 5, at(1));
        assert_eq!(homes.get(SessionKey(1), at(1)).map(|h| h.blocks), Some(7));
        homes.settle(SessionKey(1), w(2), 5, at(2));
        assert_eq!(homes.get(SessionKey(1), at(2)).map(|h| h.blocks), Some(5));
        assert_eq!((homes.sessions(0), homes.sessions(2)), (0, 1));
        assert!(homes.consistent());
    }

    #[test]
    fn expires_when_idle_and_evicts_the_least_recently_used() {
        let mut homes = Homes::new(2, Duration::from_secs(10));
        homes.settle(SessionKey(1), w(0), 1, at(0));
        homes.settle(SessionKey(2), w(0), 1, at(1));
        homes.touch(SessionKey(1), w(0), at(2));
        homes.touch(SessionKey(2), w(1), at(9));
        homes.settle(SessionKey(3), w(1), 1, at(3));
        assert!(homes.get(SessionKey(2), at(3)).is_none(), "evicted");
        assert!(homes.get(SessionKey(1), at(12)).is_some());
        assert!(homes.get(SessionKey(1), at(13)).is_none(), "expired");
        homes.expire(at(13));
        assert_eq!((homes.sessions(0), homes.sessions(1)), (0, 1));
        assert!(homes.consistent());
    }

    #[test]
    fn slots_hold_those_that_were_served_last() {
        let mut homes = Homes::new(100, Duration::from_secs(10));
        homes.set_cache_slots(1, Some(2));
        assert_eq!(homes.cache_slots(0), None);
        let slots = |homes: &Homes| {
            assert!(homes.consistent());
            homes.cache_slots(1).map(|s| (s.size, s.taken, s.oldest))
        };
        assert_eq!(slots(&homes), Some((2, 0, at(0))));
        homes.settle(SessionKey(1), w(1), 1, at(1));
        homes.settle(SessionKey(2), w(1), 1, at(2));
        assert_eq!(slots(&homes), Some((2, 2, at(1))));
        homes.touch(SessionKey(1), w(1), at(3));
        assert_eq!(slots(&homes), Some((2, 2, at(2))));
        // A third takes the slot of the second, whose home is there all the same.
        homes.settle(SessionKey(3), w(1), 1, at(4));
        assert_eq!(slots(&homes), Some((2, 2, at(3))));
        assert_eq!(homes.sessions(1), 3);
        // Who moves away or is forgotten leaves room.
        homes.settle(SessionKey(3), w(0), 1, at(5));
        assert_eq!(slots(&homes), Some((2, 1, at(3))));
        homes.expire(at(14));
        assert_eq!(slots(&homes), Some((2, 0, at(0))));
        homes.settle(SessionKey(4), w(1), 1, at(15));
        homes.forget(w(1));
        assert_eq!(slots(&homes), Some((2, 0, at(0))));
        homes.set_cache_slots(1, None);
        assert_eq!(slots(&homes), None);
    }

    #[test]
    fn forgets_a_worker_and_only_it() {
        let mut homes = Homes::new(100, Duration::from_secs(10));
        for key in 0..50 {
            homes.settle(SessionKey(key), w((key % 5) as u32), 1, at(0));
        }
        homes.forget(w(3));
        assert_eq!((homes.sessions(3), homes.sessions(4)), (0, 10));
        assert!(homes.get(SessionKey(3), at(0)).is_none());
        assert!(homes.get(SessionKey(4), at(0)).is_some());
        assert!(homes.consistent());
    }
}
