//! Remembers what was made of bytes, within a budget of bytes: the ids of texts, and messages as
//! templates get them.

use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Locks into which entries are parted, so that threads seldom meet.
const SHARDS: usize = 16;

/// What an entry costs beside what is kept: two map slots, a shared pointer's counts.
const ENTRY_BYTES: usize = 96;

/// What the memo did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoCounts {
    /// Texts found.
    pub hits: u64,
    /// Texts not found.
    pub misses: u64,
    /// Bytes of the texts found.
    pub hit_bytes: u64,
    /// Bytes of the texts not found.
    pub missed_bytes: u64,
    /// Bytes held now, overhead estimated.
    pub bytes: u64,
}

struct Entry<V> {
    kept: V,
    /// Bytes counted for it.
    weight: usize,
    /// Whether it was used since it was last passed over.
    used: bool,
}

/// One part: second-chance order, so that a hit moves nothing.
struct Shard<V> {
    entries: HashMap<u128, Entry<V>, FxBuildHasher>,
    order: std::collections::VecDeque<u128>,
    bytes: usize,
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        Self {
            entries: HashMap::default(),
            order: std::collections::VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<V> Shard<V> {
    /// Drops what is oldest and was not used, until `bytes` more fit into `budget`.
    fn make_room(&mut self, bytes: usize, budget: usize) {
        while self.bytes + bytes > budget {
            let Some(key) = self.order.pop_front() else {
                return;
            };
            match self.entries.get_mut(&key) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.order.push_back(key);
                }
                _ => {
                    if let Some(gone) = self.entries.remove(&key) {
                        self.bytes -= gone.weight;
                    }
                }
            }
        }
    }
}

/// A memo by the hash of the bytes that something was made of.
pub(crate) struct Memo<V> {
    shards: Vec<Mutex<Shard<V>>>,
    /// Bytes that one shard may hold.
    budget: usize,
    hits: AtomicU64,
    misses: AtomicU64,
    hit_bytes: AtomicU64,
    missed_bytes: AtomicU64,
}

impl<V: Clone> Memo<V> {
    /// A memo of `bytes` at most.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            budget: bytes / SHARDS,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            missed_bytes: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: u128) -> Option<&Mutex<Shard<V>>> {
        // The map takes the low bits.
        self.shards.get((key >> 120) as usize % SHARDS)
    }

    /// What was made of `length` bytes.
    pub(crate) fn get(&self, key: u128, length: usize) -> Option<V> {
        let found = self.shard(key).and_then(|shard| {
            let mut shard = shard.lock();
            let entry = shard.entries.get_mut(&key)?;
            entry.used = true;
            Some(entry.kept.clone())
        });
        let (count, bytes) = if found.is_some() {
            (&self.hits, &self.hit_bytes)
        } else {
            (&self.misses, &self.missed_bytes)
        };
        count.fetch_add(1, Relaxed);
        bytes.fetch_add(length as u64, Relaxed);
        found
    }

    /// Counts as found what was not looked for, because something larger was found.
    pub(crate) fn count_hits(&self, count: usize, bytes: usize) {
        self.hits.fetch_add(count as u64, Relaxed);
        self.hit_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Keeps what takes `bytes`, and drops others for it. What does not fit at all is not kept.
    pub(crate) fn insert(&self, key: u128, kept: &V, bytes: usize) {
        let weight = bytes + ENTRY_BYTES;
        if weight > self.budget {
            return;
        }
        let Some(shard) = self.shard(key) else {
            return;
        };
        let mut shard = shard.lock();
        if shard.entries.contains_key(&key) {
            return;
        }
        shard.make_room(weight, self.budget);
        shard.bytes += weight;
        shard.order.push_back(key);
        let entry = Entry {
            kept: kept.clone(),
            weight,
            used: false,
        };
        shard.entries.insert(key, entry);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }

    pub(crate) fn counts(&self) -> MemoCounts {
        let bytes: usize = self.shards.iter().map(|s| s.lock().bytes).sum();
        MemoCounts {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            hit_bytes: self.hit_bytes.load(Relaxed),
            missed_bytes: self.missed_bytes.load(Relaxed),
            bytes: bytes as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn ids(n: u32) -> Arc<[u32]> {
        (0..n).collect()
    }

    fn weight(ids: &[u32]) -> usize {
        size_of_val(ids) + ENTRY_BYTES
    }

    fn insert(memo: &Memo<Arc<[u32]>>, key: u128, n: u32) {
        let ids = ids(n);
        memo.insert(key, &ids, size_of_val(&*ids));
    }

    #[test]
    fn held_bytes_never_pass_the_budget_and_used_entries_stay() {
        // Three entries of 10 ids a shard; all keys go to shard 0.
        let memo = Memo::new(SHARDS * 3 * weight(&ids(10)));
        for key in 0..3 {
            insert(&memo, key, 10);
        }
        assert!(memo.get(0, 5).is_some());
        insert(&memo, 3, 10);
        assert!(memo.get(0, 5).is_some(), "used");
        assert!(memo.get(1, 5).is_none(), "oldest and not used");
        for key in 4..100 {
            insert(&memo, key, 1 + key as u32 % 20);
            assert!(memo.counts().bytes <= 3 * weight(&ids(10)) as u64);
        }
        insert(&memo, 1_000, 1_000);
        assert!(memo.get(1_000, 5).is_none(), "larger than the budget");
        let counts = memo.counts();
        assert_eq!((counts.hits, counts.misses), (2, 2));
        assert_eq!((counts.hit_bytes, counts.missed_bytes), (10, 10));
        memo.clear();
        assert_eq!(memo.counts().bytes, 0);
    }
}
