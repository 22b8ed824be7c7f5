//! Blocks whose parent is not known (yet): a subscriber that joined in the middle hears of the end
//! of a chain before its beginning. They match nothing until the parent shows up.

use super::batch::{EngineHash, Stored, Tier};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// By owner and name.
type Names<T> = HashMap<(u32, EngineHash), T, FxBuildHasher>;

pub(super) struct Parking {
    /// In the order in which they came.
    parked: BTreeMap<u64, (u32, Stored)>,
    by_parent: Names<Vec<u64>>,
    /// The event that a parked block is in.
    by_block: Names<u64>,
    next: u64,
    tokens: usize,
    tokens_max: usize,
}

impl Parking {
    pub(super) fn new(tokens_max: usize) -> Self {
        Self {
            parked: BTreeMap::new(),
            by_parent: HashMap::with_hasher(FxBuildHasher),
            by_block: HashMap::with_hasher(FxBuildHasher),
            next: 0,
            tokens: 0,
            tokens_max,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Blocks parked.
    pub(super) fn len(&self) -> usize {
        self.by_block.len()
    }

    /// Parks what follows an unknown parent. Returns how many blocks had to give way, the longest
    /// parked first (all of it, where it is too large itself). What is parked already is not
    /// parked twice.
    pub(super) fn park(&mut self, owner: u32, stored: Stored) -> usize {
        let mut given_way = 0;
        let mut rest = Some(stored);
        while let Some(mut part) = rest.take() {
            let known = |h: &EngineHash| self.by_block.contains_key(&(owner, *h));
            let first = part.hashes.first().is_some_and(known);
            let alike = part.hashes.iter().take_while(|h| known(h) == first).count();
            if alike < part.hashes.len() {
                rest = Some(part.split_off(alike));
            }
            if !first {
                given_way += self.park_new(owner, part);
            }
        }
        given_way
    }

    fn park_new(&mut self, owner: u32, stored: Stored) -> usize {
        let Some(parent) = stored
            .parent
            .filter(|_| stored.tokens.len() <= self.tokens_max)
        else {
            return stored.hashes.len();
        };
        let mut given_way = 0;
        self.tokens += stored.tokens.len();
        while self.tokens > self.tokens_max
            && let Some((id, _)) = self.parked.first_key_value()
        {
            let id = *id;
            given_way += self.take(id).map_or(0, |(_, stored)| stored.hashes.len());
        }
        let id = self.next;
        self.next += 1;
        for hash in &stored.hashes {
            self.by_block.insert((owner, *hash), id);
        }
        self.by_parent.entry((owner, parent)).or_default().push(id);
        self.parked.insert(id, (owner, stored));
        given_way
    }

    fn take(&mut self, id: u64) -> Option<(u32, Stored)> {
        let (owner, stored) = self.parked.remove(&id)?;
        self.tokens -= stored.tokens.len();
        for hash in &stored.hashes {
            self.by_block.remove(&(owner, *hash));
        }
        if let Some(parent) = stored.parent
            && let Some(ids) = self.by_parent.get_mut(&(owner, parent))
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_parent.remove(&(owner, parent));
            }
        }
        Some((owner, stored))
    }

    /// What waits for this parent, in the order in which it came.
    pub(super) fn claim(&mut self, owner: u32, parent: EngineHash) -> Vec<Stored> {
        let ids = self.by_parent.get(&(owner, parent)).cloned();
        let claimed = ids.unwrap_or_default().into_iter();
        claimed.filter_map(|id| Some(self.take(id)?.1)).collect()
    }

    /// A parked block is gone from the tier it was in; those after it wait for its return. Returns whether it was parked.
    pub(super) fn remove(&mut self, owner: u32, name: EngineHash, tier: Tier) -> bool {
        let Some(id) = self.by_block.get(&(owner, name)).copied() else {
            return false;
        };
        if self.parked.get(&id).is_none_or(|(_, s)| s.tier != tier) {
            return false;
        }
        let Some((_, mut before)) = self.take(id) else {
            return false;
        };
        let at = before.hashes.iter().position(|h| *h == name).unwrap_or(0);
        if at + 1 < before.hashes.len() {
            let after = before.split_off(at + 1);
            self.park_new(owner, after);
        }
        if at > 0 {
            before.split_off(at);
            self.park_new(owner, before);
        }
        true
    }

    /// Forgets what the owner parked.
    pub(super) fn forget(&mut self, owner: u32) {
        let theirs = |(id, (other, _)): (&u64, &(u32, Stored))| (*other == owner).then_some(*id);
        let ids: Vec<u64> = self.parked.iter().filter_map(theirs).collect();
        for id in ids {
            self.take(id);
        }
    }

    /// Bytes (estimate).
    pub(super) fn bytes(&self) -> usize {
        4 * self.tokens
            + self.by_block.allocation_size()
            + self.by_parent.allocation_size()
            + self.parked.len() * 160
            + 8 * self.by_block.len()
    }

    /// Whether its lists agree.
    pub(super) fn consistent(&self) -> bool {
        let all = || self.parked.values();
        self.tokens == all().map(|(_, s)| s.tokens.len()).sum::<usize>()
            && self.by_block.len() == all().map(|(_, s)| s.hashes.len()).sum::<usize>()
            && self.parked.len() == self.by_parent.values().map(Vec::len).sum::<usize>()
            && self.tokens <= self.tokens_max
    }
}
