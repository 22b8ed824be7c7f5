//! The nodes: runs of blocks, found by parent and first hash.

use super::Index;
use super::holdings::Holder;
use crate::prefix::slab::{ALLOCATION_BYTES, NONE};
use crate::request::BlockHash;
use alloc::vec::Vec;
use core::mem::size_of;
use smallvec::SmallVec;

/// Holders of a node, by slot. Most nodes are one worker's alone.
pub(super) type Holders = SmallVec<[Holder; 1]>;

pub(super) struct Node {
    /// As long as the deepest holder's depth; empty only in a free place.
    pub(super) run: Vec<BlockHash>,
    pub(super) holders: Holders,
    pub(super) parent: u32,
    /// Nodes whose parent this is.
    pub(super) children: u32,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            run: Vec::new(),
            holders: Holders::new(),
            parent: NONE,
            children: 0,
        }
    }
}

impl Node {
    /// The worker's part in this node.
    pub(super) fn holder(&self, slot: u32) -> Option<Holder> {
        self.place_of(slot).ok().map(|at| self.holders[at])
    }

    /// Where the worker's part is in the list, or would have to be.
    pub(super) fn place_of(&self, slot: u32) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&slot, |h| h.slot)
    }

    pub(super) fn run_bytes(&self) -> usize {
        self.run.capacity() * size_of::<BlockHash>() + ALLOCATION_BYTES
    }

    pub(super) fn holder_bytes(&self) -> usize {
        if self.holders.spilled() {
            self.holders.capacity() * size_of::<Holder>() + ALLOCATION_BYTES
        } else {
            0
        }
    }
}

/// A node in the table. The hash lies in two halves: 12 bytes instead of 16.
pub(super) struct Opening {
    first: [u32; 2],
    pub(super) node: u32,
}

impl Opening {
    fn new(first: BlockHash, node: u32) -> Self {
        Self {
            first: [first as u32, (first >> 32) as u32],
            node,
        }
    }

    pub(super) fn first(&self) -> BlockHash {
        u64::from(self.first[1]) << 32 | u64::from(self.first[0])
    }

    pub(super) fn place(&self) -> u64 {
        place(self.first())
    }
}

/// Where a hash goes in the table. Chained hashes are spread well already; the multiplication (by
/// the golden ratio, folded) is for chains that come from elsewhere.
fn place(first: BlockHash) -> u64 {
    let wide = u128::from(first) * 0x9e37_79b9_7f4a_7c15;
    (wide >> 64) as u64 ^ wide as u64
}

/// Nodes noted for joining at one time; what is not noted stays divided, which costs only memory.
const LONELY_MAX: usize = 256;

/// Leading blocks in which the two agree. Their first blocks are equal.
pub(super) fn equal_blocks(run: &[BlockHash], chain: &[BlockHash]) -> usize {
    let shorter = run.len().min(chain.len());
    let equal_at = |at: usize| run.get(at) == chain.get(at);
    if shorter == 0 || equal_at(shorter - 1) {
        return shorter;
    }
    // Block `equal - 1` is equal, block `differs - 1` is not.
    let (mut equal, mut differs) = (1, shorter);
    while differs - equal > 1 {
        let middle = equal.midpoint(differs);
        if equal_at(middle - 1) {
            equal = middle;
        } else {
            differs = middle;
        }
    }
    equal
}

impl Index {
    /// The child of `parent` (NONE: of the root) that begins with this hash.
    pub(super) fn child(&self, parent: u32, first: BlockHash) -> Option<u32> {
        self.openings
            .find(place(first), |o| {
                o.first() == first && self.nodes[o.node].parent == parent
            })
            .map(|o| o.node)
    }

    /// A new node without holders. The caller gives it one at once.
    pub(super) fn create(&mut self, parent: u32, run: &[BlockHash]) -> u32 {
        let node = self.nodes.insert(Node {
            run: run.to_vec(),
            parent,
            ..Node::default()
        });
        self.run_bytes += self.nodes[node].run_bytes();
        self.enter(run[0], node);
        if parent != NONE {
            self.nodes[parent].children += 1;
        }
        node
    }

    fn enter(&mut self, first: BlockHash, node: u32) {
        self.openings
            .insert_unique(place(first), Opening::new(first, node), Opening::place);
    }

    /// Makes the run longer. The caller gives somebody the new blocks at once.
    pub(super) fn lengthen(&mut self, node: u32, blocks: &[BlockHash]) {
        let node = &mut self.nodes[node];
        self.run_bytes -= node.run_bytes();
        node.run.reserve_exact(blocks.len());
        node.run.extend_from_slice(blocks);
        self.run_bytes += node.run_bytes();
    }

    /// Removes what nobody holds from the end of the run. `exact`: to the byte; else some room is
    /// left, so that a run that loses a few blocks at a time is not copied each time.
    pub(super) fn trim(&mut self, node: u32, exact: bool) {
        let node = &mut self.nodes[node];
        if node.children != 0 {
            return;
        }
        let whole = node.run.len();
        let mut deepest = 0;
        for holder in &node.holders {
            deepest = deepest.max(holder.depth as usize);
            if deepest == whole {
                return;
            }
        }
        self.run_bytes -= node.run_bytes();
        node.run.truncate(deepest);
        if exact || node.run.capacity() > 2 * deepest {
            node.run.shrink_to_fit();
        }
        self.run_bytes += node.run_bytes();
    }

    /// Removes a node that has no holders (and so no children).
    pub(super) fn remove(&mut self, node: u32) {
        let gone = self.nodes.remove(node);
        self.run_bytes -= gone.run_bytes();
        self.holder_bytes -= gone.holder_bytes();
        if let Some(&first) = gone.run.first()
            && let Ok(entry) = self.openings.find_entry(place(first), |o| o.node == node)
        {
            entry.remove();
        }
        if gone.parent != NONE {
            let children = &mut self.nodes[gone.parent].children;
            *children -= 1;
            if *children == 1 && self.lonely.len() < LONELY_MAX {
                self.lonely.push(gone.parent);
            }
        }
    }

    /// Divides a run after its first `at` blocks (0 < at < its length). The node keeps the second
    /// part and its children; returns the new node above it, with the first part. Each holder that
    /// goes beyond `at` gets a second holding, next to its first in the order of use.
    pub(super) fn split(&mut self, node: u32, at: usize) -> u32 {
        let lower = &mut self.nodes[node];
        let (first, pivot, parent) = (lower.run[0], lower.run[at], lower.parent);
        self.run_bytes -= lower.run_bytes();
        self.holder_bytes -= lower.holder_bytes();
        let second = lower.run.split_off(at);
        let mut run = core::mem::replace(&mut lower.run, second);
        run.shrink_to_fit();
        let holders = core::mem::take(&mut lower.holders);

        let upper = self.nodes.insert(Node {
            run,
            holders: Holders::new(),
            parent,
            children: 1,
        });
        self.nodes[node].parent = upper;
        if let Some(entry) = (self.openings).find_mut(place(first), |o| o.node == node) {
            entry.node = upper;
        }
        self.enter(pivot, node);

        for holder in holders {
            let Holder { depth, .. } = holder;
            if depth as usize <= at {
                self.holdings[holder.holding].node = upper;
                self.nodes[upper].holders.push(holder);
                continue;
            }
            let holding = self.hold_above(holder.holding, upper);
            self.nodes[upper].holders.push(Holder {
                depth: at as u32,
                holding,
                ..holder
            });
            self.nodes[node].holders.push(Holder {
                depth: depth - at as u32,
                ..holder
            });
        }
        for part in [upper, node] {
            self.run_bytes += self.nodes[part].run_bytes();
            self.holder_bytes += self.nodes[part].holder_bytes();
        }
        upper
    }

    /// Joins the noted nodes with their only children. Places may have been reused meanwhile:
    /// what counts is how a node is now.
    pub(super) fn join_lonely(&mut self) {
        while let Some(upper) = self.lonely.pop() {
            let Node {
                holders, children, ..
            } = &self.nodes[upper];
            let below = holders.iter().map(|h| self.holdings[h.holding].below);
            if *children == 1
                && let Some(below) = below.into_iter().find(|below| *below != NONE)
            {
                self.join(upper, self.holdings[below].node);
            }
        }
    }

    /// The reverse of `split`: the only child keeps its place and gets the blocks of its parent,
    /// unless some holder used the two at different times.
    fn join(&mut self, upper: u32, lower: u32) {
        let apart = |h: &Holder| {
            let above = self.holdings[h.holding].above;
            self.holdings[h.holding].newer != above
        };
        if self.nodes[lower].holders.iter().any(apart) {
            return;
        }
        for part in [upper, lower] {
            self.run_bytes -= self.nodes[part].run_bytes();
            self.holder_bytes -= self.nodes[part].holder_bytes();
        }
        let Node {
            mut run,
            holders,
            parent,
            ..
        } = self.nodes.remove(upper);
        let second = core::mem::take(&mut self.nodes[lower].run);
        if let Ok(entry) = (self.openings).find_entry(place(second[0]), |o| o.node == lower) {
            entry.remove();
        }
        if let Some(entry) = (self.openings).find_mut(place(run[0]), |o| o.node == upper) {
            entry.node = lower;
        }
        let at = run.len() as u32;
        run.reserve_exact(second.len());
        run.extend_from_slice(&second);

        let mut joined = Holders::with_capacity(holders.len());
        for holder in holders {
            joined.push(match self.nodes[lower].holder(holder.slot) {
                Some(deeper) => {
                    self.hold_once(holder.holding, deeper.holding);
                    Holder {
                        depth: at + deeper.depth,
                        ..deeper
                    }
                }
                None => {
                    self.holdings[holder.holding].node = lower;
                    holder
                }
            });
        }
        let node = &mut self.nodes[lower];
        (node.run, node.holders, node.parent) = (run, joined, parent);
        self.run_bytes += node.run_bytes();
        self.holder_bytes += node.holder_bytes();
    }
}
