//! What a look-up in the index finds.

use alloc::vec::Vec;

/// The answer of [`Index::matches`](super::Index::matches); reused between calls, so that none
/// allocates.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    /// By slot; zero wherever the slot is not in `found`.
    blocks_by_slot: Vec<u32>,
    /// Slots that hold something of the chain: what to clear, without looking at all others.
    found: Vec<u32>,
    best: u32,
    /// For the look-up itself: the nodes on the path, each with the blocks matched before it and
    /// in it.
    pub(super) path: Vec<(u32, u32, u32)>,
}

impl Matches {
    /// Leading blocks that the worker in `slot` holds.
    #[must_use]
    pub fn blocks(&self, slot: u32) -> u32 {
        self.blocks_by_slot.get(slot as usize).copied().unwrap_or(0)
    }

    /// The most leading blocks that any worker holds; 0 where none holds the first.
    #[must_use]
    pub fn best(&self) -> u32 {
        self.best
    }

    /// Slots that hold at least the first block, each with its count, in no order that means
    /// anything (but equal calls give equal orders).
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.found.iter().map(|&slot| (slot, self.blocks(slot)))
    }

    /// Forgets what was found and makes room for slots below `slots`.
    pub(super) fn reset(&mut self, slots: usize) {
        for slot in self.found.drain(..) {
            if let Some(blocks) = self.blocks_by_slot.get_mut(slot as usize) {
                *blocks = 0;
            }
        }
        self.best = 0;
        self.path.clear();
        if self.blocks_by_slot.len() < slots {
            self.blocks_by_slot.resize(slots, 0);
            self.found.reserve(slots);
        }
    }

    /// Slots found so far.
    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// `slot` holds `blocks` leading blocks (at least 1), unless more was said before.
    pub(super) fn add(&mut self, slot: u32, blocks: u32) {
        if let Some(known @ 0) = self.blocks_by_slot.get_mut(slot as usize) {
            *known = blocks;
            self.found.push(slot);
            self.best = self.best.max(blocks);
        }
    }
}
