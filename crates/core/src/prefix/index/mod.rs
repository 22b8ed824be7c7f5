//! Predicted residency: for a chain, how many leading blocks each worker is believed to hold.
//!
//! A compressed radix tree over block hashes. A node is a *run* of blocks; its *holders* say which
//! workers hold how many of its leading blocks (the *depth*). One table finds the child of a node by
//! the child's first hash. Hashes are chained, so two runs that agree in one block agree in all
//! before it: a run is compared by one look at its end, and only where that differs bisected for the
//! place where they part. A look-up costs the nodes on the path and their holders, not the blocks.
//!
//! What always holds (and [`Index::check`] verifies):
//! - What a worker holds is closed towards the beginning: who holds any of a child holds all of its
//!   parent's run.
//! - Each worker's *holdings* (its depth in one run) are in order of last use, and none is older than
//!   what hangs below it. So the oldest one is always a leaf, and taking blocks off its end is
//!   least-recently-used eviction, exact to the block.
//! - A run is as long as its deepest holder's depth; what nobody holds is not kept.
//! - Memory is bounded at every return from `insert`.
//!
//! It does not know what an engine really holds; that is for others to compare.

mod bound;
mod check;
mod holdings;
mod tree;

use self::holdings::{Holding, Possessions};
use self::tree::{Node, Opening, equal_blocks};
use super::Matches;
use crate::limits::{CHAIN_BLOCKS_MAX, WORKERS_MAX};
use crate::prefix::slab::{NONE, Slab};
use crate::request::BlockHash;
use crate::time::Nanos;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// Time in units of 2^20 ns, about a millisecond; it wraps.
fn tick(now: Nanos) -> u32 {
    (now.0 >> 20) as u32
}

/// Who holds what.
pub struct Index {
    nodes: Slab<Node>,
    holdings: Slab<Holding>,
    /// The node under a parent that begins with a hash.
    openings: HashTable<Opening>,
    /// By slot.
    workers: Vec<Possessions>,
    /// Bytes allocated for runs, and for holder lists that do not lie in their node.
    run_bytes: usize,
    holder_bytes: usize,
    bytes_max: usize,
    /// The time of the last insertion.
    tick: u32,
    /// Nodes that lost all children but one since the last call, to be joined with it if they can.
    lonely: Vec<u32>,
}

impl Index {
    /// An empty index that never takes more than `bytes_max` bytes (beside 32 bytes for each slot
    /// ever used). Below about 16 KiB there is no room for anything.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            nodes: Slab::new(),
            holdings: Slab::new(),
            openings: HashTable::new(),
            workers: Vec::new(),
            run_bytes: 0,
            holder_bytes: 0,
            bytes_max,
            tick: 0,
            lonely: Vec::new(),
        }
    }

    /// Fills `out` with the leading blocks of `chain` that each worker holds. Uses nothing up: what
    /// is only looked at is no younger for it.
    pub fn matches(&self, chain: &[BlockHash], out: &mut Matches) {
        out.reset(self.workers.len());
        let (mut parent, mut before, mut rest) = (NONE, 0, chain);
        while let Some(&first) = rest.first()
            && let Some(node) = self.child(parent, first)
        {
            let run = &self.nodes[node].run;
            let equal = equal_blocks(run, rest);
            out.path.push((node, before, equal as u32));
            if equal < run.len() {
                break;
            }
            (parent, before, rest) = (node, before + equal as u32, &rest[equal..]);
        }
        // The holders of a node are among those of its parent. From the deepest node on, each
        // holder counts where it is met first, and a node with no more of them than were met below
        // it need not be read: a hot opening costs its holders once, in however many runs it lies.
        while let Some((node, before, equal)) = out.path.pop() {
            let holders = &self.nodes[node].holders;
            if holders.len() > out.count() {
                for holder in holders {
                    out.add(holder.slot, before + holder.depth.min(equal));
                }
            }
        }
    }

    /// The worker now holds the whole chain, most recently used of all it holds. Evicts the
    /// worker's least recently used blocks beyond its capacity, and the pool's beyond the bound.
    /// Of a chain that is longer than the capacity, `CHAIN_BLOCKS_MAX` or the bound, the beginning
    /// is kept. Slots from `WORKERS_MAX` on are ignored. The order of use is the order of the
    /// calls; `now` does not run backwards between them.
    pub fn insert(&mut self, slot: u32, chain: &[BlockHash], now: Nanos) {
        if !self.admit(slot) {
            return;
        }
        self.tick = tick(now);
        let capacity = self.workers[slot as usize].capacity;
        let kept = (chain.len())
            .min(CHAIN_BLOCKS_MAX)
            .min(usize::try_from(capacity).unwrap_or(usize::MAX))
            .min(self.chain_blocks_max());
        let Some(kept) = chain.get(..kept).filter(|kept| !kept.is_empty()) else {
            return;
        };
        let deepest = self.extend(slot, kept);
        self.touch(deepest);
        self.evict_beyond_capacity(slot);
        self.enforce_bound();
    }

    /// The worker holds at most the first `keep` blocks of the chain: block `keep` goes, and all
    /// that follows it, on this chain or any other.
    pub fn truncate(&mut self, slot: u32, chain: &[BlockHash], keep: usize) {
        self.cut(slot, chain, keep);
        self.enforce_bound();
    }

    fn cut(&mut self, slot: u32, chain: &[BlockHash], keep: usize) {
        let (mut parent, mut before, mut rest) = (NONE, 0, chain);
        while let Some(&first) = rest.first() {
            let Some(node) = self.child(parent, first) else {
                return;
            };
            let Some(holder) = self.nodes[node].holder(slot) else {
                return;
            };
            let equal = equal_blocks(&self.nodes[node].run, rest);
            if before + equal > keep {
                if holder.depth as usize > keep - before {
                    self.drop_below(holder.holding);
                    self.shorten(holder.holding, (keep - before) as u32, false);
                }
                return;
            }
            if equal < self.nodes[node].run.len() {
                return;
            }
            (parent, before, rest) = (node, before + equal, &rest[equal..]);
        }
    }

    /// The worker's KV capacity in blocks; None: only the pool's bound holds. Evicts at once what
    /// is beyond it. Outlives `forget`.
    pub fn set_capacity(&mut self, slot: u32, blocks: Option<u64>) {
        if self.admit(slot) {
            self.workers[slot as usize].capacity = blocks.unwrap_or(u64::MAX);
            self.evict_beyond_capacity(slot);
            self.enforce_bound();
        }
    }

    /// The worker holds nothing any more of what was not used since `before` (to about a
    /// millisecond; what was last used more than 25 days earlier may be kept).
    pub fn expire(&mut self, slot: u32, before: Nanos) {
        let before = tick(before);
        let mut dropped = false;
        while let Some(oldest) = self.oldest(slot)
            && before.wrapping_sub(self.holdings[oldest].used) as i32 > 0
        {
            self.drop_holding(oldest);
            dropped = true;
        }
        if dropped {
            self.enforce_bound();
        }
    }

    /// The worker holds nothing any more. Costs what it held, and gives the memory back.
    pub fn forget(&mut self, slot: u32) {
        while let Some(oldest) = self.oldest(slot) {
            self.drop_holding(oldest);
        }
        self.join_lonely();
        self.give_back();
    }

    /// Blocks the worker is believed to hold.
    #[must_use]
    pub fn blocks(&self, slot: u32) -> u64 {
        self.workers.get(slot as usize).map_or(0, |w| w.blocks)
    }

    /// Runs that the chains are divided into: nodes of the tree.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of memory allocated, places kept for reuse included (estimate: what the allocator adds
    /// is taken for 16 bytes an allocation).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.bytes()
            + self.holdings.bytes()
            + self.openings.allocation_size()
            + self.run_bytes
            + self.holder_bytes
    }

    /// Makes sure that the slot has its place; false where no slot can be so high.
    fn admit(&mut self, slot: u32) -> bool {
        let slot = slot as usize;
        if slot < WORKERS_MAX && slot >= self.workers.len() {
            self.workers.resize_with(slot + 1, Possessions::default);
        }
        slot < WORKERS_MAX
    }

    /// Adds the chain to what the worker holds; returns its deepest holding in it. `chain` is not
    /// empty.
    fn extend(&mut self, slot: u32, chain: &[BlockHash]) -> u32 {
        let (mut parent, mut above, mut rest) = (NONE, NONE, chain);
        while let Some(&first) = rest.first() {
            let Some(mut node) = self.child(parent, first) else {
                return self.append(slot, parent, above, rest);
            };
            let found = &self.nodes[node];
            let equal = equal_blocks(&found.run, rest);
            // A node ends where chains part, and where what was used now ends within what the
            // same worker used earlier: the two have different ages from now on.
            let parts = equal < rest.len();
            let ages = || found.holder(slot).is_some_and(|h| h.depth as usize > equal);
            if equal < found.run.len() && (parts || ages()) {
                node = self.split(node, equal);
            }
            above = self.hold(slot, node, equal as u32, above);
            (parent, rest) = (node, &rest[equal..]);
        }
        above
    }

    /// Adds blocks that no child of `parent` begins with, below the worker's holding `above`.
    fn append(&mut self, slot: u32, parent: u32, above: u32, rest: &[BlockHash]) -> u32 {
        if parent != NONE && self.nodes[parent].children == 0 {
            // Nothing else hangs here: the next turn of a conversation just makes the run longer.
            self.lengthen(parent, rest);
            let depth = self.nodes[parent].run.len() as u32;
            return self.hold(slot, parent, depth, NONE);
        }
        let node = self.create(parent, rest);
        self.hold(slot, node, rest.len() as u32, above)
    }
}
