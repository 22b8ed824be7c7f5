//! How much may be kept: each worker's capacity, and the pool's bound in bytes.

use super::Index;
use super::holdings::{HOLDER_BYTES, Holding, Possessions};
use super::tree::{Node, Opening};
use crate::prefix::slab::{NONE, Slab};
use crate::request::BlockHash;
use core::mem::size_of;

/// Of the bound, one part in so many is not filled: free places, and chunks begun, live there.
const RESERVE_PARTS: usize = 16;
/// And never less than this: two chunks of each slab.
const RESERVE_BYTES_MIN: usize = 2 * (Slab::<Node>::CHUNK_BYTES + Slab::<Holding>::CHUNK_BYTES);
/// At the bound, one part in so many is freed at one time.
const BATCH_PARTS: usize = 64;
/// Bytes that a chain takes beside its blocks: a node, a holding, a table entry (estimate).
const CHAIN_BYTES: usize = 512;

impl Possessions {
    /// What the worker's holdings may weigh, in bytes.
    fn weight(&self) -> u64 {
        self.blocks * size_of::<BlockHash>() as u64 + u64::from(self.holdings) * HOLDER_BYTES as u64
    }
}

impl Index {
    /// Evicts the worker's least recently used blocks, deepest first, down to its capacity.
    pub(super) fn evict_beyond_capacity(&mut self, slot: u32) {
        let Possessions {
            blocks, capacity, ..
        } = self.workers[slot as usize];
        let mut excess = blocks.saturating_sub(capacity);
        while excess > 0
            && let Some(oldest) = self.oldest(slot)
        {
            let depth = u64::from(self.depth(oldest));
            let fewer = depth.saturating_sub(excess);
            self.shorten(oldest, fewer as u32, false);
            excess = excess.saturating_sub(depth - fewer);
        }
    }

    /// The longest chain that fits the bound when nothing else is kept.
    pub(super) fn chain_blocks_max(&self) -> usize {
        self.live_max().saturating_sub(CHAIN_BYTES) / size_of::<BlockHash>()
    }

    /// Joins what can be joined, and gets back below the bound, at the cost of the workers that take most.
    pub(super) fn enforce_bound(&mut self) {
        let live_max = self.live_max();
        if self.live_bytes() > live_max {
            let target = live_max - (self.bytes_max / BATCH_PARTS).min(live_max);
            while let excess @ 1.. = self.live_bytes().saturating_sub(target)
                && self.evict_from_heaviest(excess as u64)
            {}
        }
        self.join_lonely();
        if self.bytes() > self.bytes_max {
            self.compact();
        }
    }

    /// Compacts where much of what is allocated is not in use.
    pub(super) fn give_back(&mut self) {
        let live = self.live_bytes();
        if self.bytes() - live > live / 8 + RESERVE_BYTES_MIN || self.nodes.len() == 0 {
            self.compact();
        }
        if self.openings.capacity() > 8 * self.openings.len() {
            self.openings
                .shrink_to(2 * self.openings.len(), Opening::place);
        }
    }

    /// Bytes that may be in use.
    fn live_max(&self) -> usize {
        let reserve = (self.bytes_max / RESERVE_PARTS).max(RESERVE_BYTES_MIN);
        self.bytes_max.saturating_sub(reserve)
    }

    /// Bytes in use: without places that are free again.
    pub(super) fn live_bytes(&self) -> usize {
        self.nodes.len() * Slab::<Node>::PLACE_BYTES
            + self.holdings.len() * Slab::<Holding>::PLACE_BYTES
            + self.openings.allocation_size()
            + self.run_bytes
            + self.holder_bytes
    }

    /// Evicts from the worker with most bytes up to a quarter of them, and not more than `excess`
    /// asks for. False where nobody holds anything.
    fn evict_from_heaviest(&mut self, excess: u64) -> bool {
        let heaviest = (0_u32..)
            .zip(&self.workers)
            .map(|(slot, worker)| (worker.weight(), slot))
            .max();
        let Some((weight, slot)) = heaviest.filter(|(weight, _)| *weight > 0) else {
            return false;
        };
        let target = weight - (weight / 4).clamp(1, excess.max(1));
        while let over @ 1.. = self.workers[slot as usize].weight().saturating_sub(target)
            && let Some(oldest) = self.oldest(slot)
        {
            let blocks = over.div_ceil(size_of::<BlockHash>() as u64);
            let fewer = u64::from(self.depth(oldest)).saturating_sub(blocks);
            self.shorten(oldest, fewer as u32, true);
        }
        true
    }

    /// Moves everything to the lowest places and frees the rest.
    fn compact(&mut self) {
        let nodes = self.nodes.compact();
        let holdings = self.holdings.compact();
        let moved = |places: &[u32], place: &mut u32| {
            if *place != NONE {
                *place = places[*place as usize];
            }
        };
        for node in self.nodes.values_mut() {
            moved(&nodes, &mut node.parent);
            for holder in &mut node.holders {
                moved(&holdings, &mut holder.holding);
            }
        }
        for holding in self.holdings.values_mut() {
            moved(&nodes, &mut holding.node);
            for link in [
                &mut holding.older,
                &mut holding.newer,
                &mut holding.above,
                &mut holding.below,
                &mut holding.left,
                &mut holding.right,
            ] {
                moved(&holdings, link);
            }
        }
        for worker in &mut self.workers {
            moved(&holdings, &mut worker.oldest);
            moved(&holdings, &mut worker.newest);
        }
        for opening in self.openings.iter_mut() {
            moved(&nodes, &mut opening.node);
        }
        self.openings.shrink_to(self.openings.len(), Opening::place);
    }
}
