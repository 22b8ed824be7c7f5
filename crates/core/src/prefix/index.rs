//! Predicted residency: for a chain, how many leading blocks each worker is believed to hold.

use crate::request::BlockHash;
use crate::time::Nanos;
use alloc::vec::Vec;

/// The answer of [`Index::matches`]; reused between calls, so that none allocates.
#[derive(Default)]
pub struct Matches {
    blocks_by_slot: Vec<u32>,
}

impl Matches {
    /// Leading blocks that the worker in `slot` holds.
    #[must_use]
    pub fn blocks(&self, slot: u32) -> u32 {
        self.blocks_by_slot.get(slot as usize).copied().unwrap_or(0)
    }
}

/// Who holds what.
pub struct Index {
    _bytes_max: usize,
}

impl Index {
    /// An empty index that never takes more than about `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            _bytes_max: bytes_max,
        }
    }

    /// Fills `out` with the leading blocks of `chain` that each worker holds.
    pub fn matches(&self, _chain: &[BlockHash], _out: &mut Matches) {}

    /// The worker now holds the whole chain, most recently used of all it holds. Evicts the
    /// worker's least recently used blocks beyond its capacity, and the pool's beyond the bound.
    pub fn insert(&mut self, _slot: u32, _chain: &[BlockHash], _now: Nanos) {}

    /// The worker holds at most the first `keep` blocks of the chain (and nothing that follows).
    pub fn truncate(&mut self, _slot: u32, _chain: &[BlockHash], _keep: usize) {}

    /// The worker's KV capacity in blocks; None: only the pool's bound holds.
    pub fn set_capacity(&mut self, _slot: u32, _blocks: Option<u64>) {}

    /// The worker holds nothing any more.
    pub fn forget(&mut self, _slot: u32) {}

    /// Blocks the worker is believed to hold.
    #[must_use]
    pub fn blocks(&self, _slot: u32) -> u64 {
        0
    }

    /// Bytes of memory in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        0
    }
}
