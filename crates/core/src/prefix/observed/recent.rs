//! Blocks that workers removed a moment ago: what we only predict must not bring them back.

use crate::limits::REMOVED_LATELY_MAX;
use crate::request::BlockHash;
use crate::time::Nanos;
use alloc::collections::VecDeque;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// By slot and block.
type Key = (u32, BlockHash);

pub(super) struct Recent {
    life: Duration,
    at: HashMap<Key, Nanos, FxBuildHasher>,
    order: VecDeque<(Key, Nanos)>,
}

impl Recent {
    pub(super) fn new(life: Duration) -> Self {
        Self {
            life,
            at: HashMap::with_hasher(FxBuildHasher),
            order: VecDeque::new(),
        }
    }

    pub(super) fn note(&mut self, slot: u32, block: BlockHash, now: Nanos) {
        while let Some((key, at)) = self.order.front().copied()
            && (self.order.len() >= REMOVED_LATELY_MAX || at + self.life < now)
        {
            self.order.pop_front();
            if self.at.get(&key) == Some(&at) {
                self.at.remove(&key);
            }
        }
        self.at.insert((slot, block), now);
        self.order.push_back(((slot, block), now));
    }

    pub(super) fn contains(&self, slot: u32, block: BlockHash, now: Nanos) -> bool {
        let at = self.at.get(&(slot, block));
        at.is_some_and(|at| *at + self.life >= now)
    }

    pub(super) fn remove(&mut self, slot: u32, block: BlockHash) {
        self.at.remove(&(slot, block));
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.at.retain(|(other, _), _| *other != slot);
        self.order.retain(|((other, _), _)| *other != slot);
    }

    pub(super) fn bytes(&self) -> usize {
        self.at.allocation_size() + self.order.capacity() * 24
    }
}
