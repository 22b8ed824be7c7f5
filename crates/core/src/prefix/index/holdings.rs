//! Who holds how much of which run, in order of use.
//!
//! A holding is one worker's part in one node. It hangs in two lists: the worker's order of use,
//! and the tree of the worker's own holdings (so that what follows a cut is found without looking
//! at what others hold there).

use super::Index;
use super::tree::Holders;
use crate::prefix::slab::{ALLOCATION_BYTES, NONE};
use core::mem::size_of;

/// A worker's part in a node, as the node lists it: what a look-up reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holder {
    pub(super) slot: u32,
    /// Leading blocks of the node's run that it holds; at least 1.
    pub(super) depth: u32,
    pub(super) holding: u32,
}

/// The same part, as the worker lists it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    /// NONE in a free place.
    pub(super) node: u32,
    pub(super) slot: u32,
    /// Neighbours in the worker's order of use.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// The same worker's holding in the node's parent.
    pub(super) above: u32,
    /// The same worker's holdings in the node's children: the first, and the ring of the rest.
    pub(super) below: u32,
    pub(super) left: u32,
    pub(super) right: u32,
    /// When it was last used: see `super::tick`.
    pub(super) used: u32,
}

impl Default for Holding {
    fn default() -> Self {
        Self {
            node: NONE,
            slot: 0,
            older: NONE,
            newer: NONE,
            above: NONE,
            below: NONE,
            left: NONE,
            right: NONE,
            used: 0,
        }
    }
}

/// All that one worker holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Possessions {
    pub(super) oldest: u32,
    pub(super) newest: u32,
    /// How many holdings.
    pub(super) holdings: u32,
    pub(super) blocks: u64,
    /// Blocks it can hold; `u64::MAX` where that is not known.
    pub(super) capacity: u64,
}

impl Default for Possessions {
    fn default() -> Self {
        Self {
            oldest: NONE,
            newest: NONE,
            holdings: 0,
            blocks: 0,
            capacity: u64::MAX,
        }
    }
}

impl Index {
    /// The worker's least recently used holding: always a leaf of what it holds.
    pub(super) fn oldest(&self, slot: u32) -> Option<u32> {
        let oldest = self.workers.get(slot as usize)?.oldest;
        (oldest != NONE).then_some(oldest)
    }

    /// Blocks in a holding.
    pub(super) fn depth(&self, holding: u32) -> u32 {
        let Holding { node, slot, .. } = self.holdings[holding];
        self.nodes[node].holder(slot).map_or(0, |h| h.depth)
    }

    /// The worker holds at least `depth` blocks of the node's run; its holding in the node's
    /// parent is `above` (not looked at where it holds some already).
    pub(super) fn hold(&mut self, slot: u32, node: u32, depth: u32, above: u32) -> u32 {
        match self.nodes[node].place_of(slot) {
            Ok(at) => {
                let holder = &mut self.nodes[node].holders[at];
                let more = depth.saturating_sub(holder.depth);
                holder.depth += more;
                self.workers[slot as usize].blocks += u64::from(more);
                holder.holding
            }
            Err(at) => {
                let holding = self.holdings.insert(Holding {
                    node,
                    slot,
                    ..Holding::default()
                });
                self.hang_below(above, holding);
                self.place_newest(holding);
                let holder = Holder {
                    slot,
                    depth,
                    holding,
                };
                let listed = &mut self.nodes[node];
                self.holder_bytes -= listed.holder_bytes();
                listed.holders.insert(at, holder);
                self.holder_bytes += listed.holder_bytes();
                let worker = &mut self.workers[slot as usize];
                worker.blocks += u64::from(depth);
                worker.holdings += 1;
                holding
            }
        }
    }

    /// For a split: a new holding in `upper`, between `lower` and the one above it, and just newer
    /// than `lower`. The caller lists it in the node.
    pub(super) fn hold_above(&mut self, lower: u32, upper: u32) -> u32 {
        let Holding {
            slot,
            newer,
            above,
            used,
            ..
        } = self.holdings[lower];
        self.unhang(lower);
        let holding = self.holdings.insert(Holding {
            node: upper,
            slot,
            older: lower,
            newer,
            used,
            ..Holding::default()
        });
        self.hang_below(above, holding);
        self.hang_below(holding, lower);
        self.holdings[lower].newer = holding;
        let worker = &mut self.workers[slot as usize];
        worker.holdings += 1;
        if newer == NONE {
            worker.newest = holding;
        } else {
            self.holdings[newer].older = holding;
        }
        holding
    }

    /// For a join: `lower`, the only one below `upper` and just older than it, takes its place.
    pub(super) fn hold_once(&mut self, upper: u32, lower: u32) {
        self.unplace(upper);
        self.unhang(upper);
        let Holding { slot, above, .. } = self.holdings.remove(upper);
        self.hang_below(above, lower);
        self.workers[slot as usize].holdings -= 1;
    }

    /// The holding and all above it are now the newest of their worker: first the deepest, the
    /// beginning last, so that none is older than what hangs below it.
    pub(super) fn touch(&mut self, deepest: u32) {
        let mut holding = deepest;
        while holding != NONE {
            let Holding { slot, above, .. } = self.holdings[holding];
            if self.workers[slot as usize].newest != holding {
                self.unplace(holding);
                self.place_newest(holding);
            }
            self.holdings[holding].used = self.tick;
            holding = above;
        }
    }

    /// Takes blocks off the end of a holding below which nothing hangs; all of them where `depth`
    /// is 0. `exact`: see `trim`.
    pub(super) fn shorten(&mut self, holding: u32, depth: u32, exact: bool) {
        if depth == 0 {
            self.drop_holding(holding);
            return;
        }
        let Holding { node, slot, .. } = self.holdings[holding];
        let listed = &mut self.nodes[node];
        if let Ok(at) = listed.place_of(slot) {
            let holder = &mut listed.holders[at];
            let less = holder.depth.saturating_sub(depth);
            holder.depth -= less;
            self.workers[slot as usize].blocks -= u64::from(less);
            self.trim(node, exact);
        }
    }

    /// Removes a holding below which nothing hangs.
    pub(super) fn drop_holding(&mut self, holding: u32) {
        self.unplace(holding);
        self.unhang(holding);
        let Holding { node, slot, .. } = self.holdings.remove(holding);
        let listed = &mut self.nodes[node];
        let Ok(at) = listed.place_of(slot) else {
            return;
        };
        self.holder_bytes -= listed.holder_bytes();
        let gone = listed.holders.remove(at);
        if listed.holders.spilled() && 4 * listed.holders.len() <= listed.holders.capacity() {
            listed.holders.shrink_to_fit();
        }
        self.holder_bytes += listed.holder_bytes();
        let worker = &mut self.workers[slot as usize];
        worker.holdings -= 1;
        worker.blocks -= u64::from(gone.depth);
        if listed.holders.is_empty() {
            self.remove(node);
        } else if gone.depth as usize == listed.run.len() {
            self.trim(node, false);
        }
    }

    /// Removes all that hangs below a holding.
    pub(super) fn drop_below(&mut self, top: u32) {
        let mut at = top;
        loop {
            let Holding { below, above, .. } = self.holdings[at];
            if below != NONE {
                at = below;
            } else if at == top {
                return;
            } else {
                self.drop_holding(at);
                at = above;
            }
        }
    }

    fn place_newest(&mut self, holding: u32) {
        let worker = &mut self.workers[self.holdings[holding].slot as usize];
        let older = core::mem::replace(&mut worker.newest, holding);
        if older == NONE {
            worker.oldest = holding;
        } else {
            self.holdings[older].newer = holding;
        }
        let placed = &mut self.holdings[holding];
        (placed.older, placed.newer) = (older, NONE);
    }

    fn unplace(&mut self, holding: u32) {
        let Holding {
            slot, older, newer, ..
        } = self.holdings[holding];
        let worker = &mut self.workers[slot as usize];
        if older == NONE {
            worker.oldest = newer;
        } else {
            self.holdings[older].newer = newer;
        }
        if newer == NONE {
            worker.newest = older;
        } else {
            self.holdings[newer].older = older;
        }
    }

    fn hang_below(&mut self, above: u32, holding: u32) {
        let mut right = NONE;
        if above != NONE {
            right = core::mem::replace(&mut self.holdings[above].below, holding);
        }
        if right != NONE {
            self.holdings[right].left = holding;
        }
        let hung = &mut self.holdings[holding];
        (hung.above, hung.left, hung.right) = (above, NONE, right);
    }

    fn unhang(&mut self, holding: u32) {
        let Holding {
            above, left, right, ..
        } = self.holdings[holding];
        if left != NONE {
            self.holdings[left].right = right;
        } else if above != NONE {
            self.holdings[above].below = right;
        }
        if right != NONE {
            self.holdings[right].left = left;
        }
    }
}

/// What one more holder costs at most, for weighing workers against each other.
pub(super) const HOLDER_BYTES: usize =
    size_of::<Holders>() + size_of::<Holding>() + ALLOCATION_BYTES;
