//! For a chain: how many of its leading blocks each worker said it holds.
//!
//! Along a chain, holders only drop out (gaps are looked at separately). So where two places of it
//! have the same set of holders, nobody ends between them, and a bisection finds the ends: it costs
//! the different sets on the chain, not its blocks.

use super::Observed;
use super::places::GONE;
use super::sets::EMPTY;
use crate::limits::CHAIN_BLOCKS_MAX;
use crate::request::BlockHash;
use alloc::vec::Vec;

/// What a worker said it holds of a chain: that of its best rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Leading blocks, in whatever tier.
    pub blocks: u32,
    /// Leading blocks in device memory. (This and `host` are exact while tiers lose the ends of
    /// chains first, as engines do.)
    pub device: u32,
    /// Leading blocks in device or host memory.
    pub host: u32,
    /// The rank that holds most; None: the engine names no ranks (or nothing is held).
    pub rank: Option<u32>,
}

/// The answer of [`Observed::matches`]; reused between calls, so that none allocates.
#[derive(Clone, Debug, Default)]
pub struct Sightings {
    by_slot: Vec<Sighting>,
    slots: Vec<u32>,
    /// By owner: leading blocks by the farthest tier that counts.
    ends: Vec<[u32; 3]>,
    owners: Vec<u32>,
    /// Stretches still to be looked at: first and last block, each with its set.
    stretches: Vec<[u32; 4]>,
}

impl Sightings {
    /// What the worker in `slot` said.
    #[must_use]
    pub fn get(&self, slot: u32) -> Sighting {
        self.by_slot.get(slot as usize).copied().unwrap_or_default()
    }

    /// Slots that hold at least the first block, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Sighting)> + '_ {
        self.slots.iter().map(|slot| (*slot, self.get(*slot)))
    }

    /// Forgets what was found.
    pub fn clear(&mut self) {
        for slot in self.slots.drain(..) {
            if let Some(sighting) = self.by_slot.get_mut(slot as usize) {
                *sighting = Sighting::default();
            }
        }
        self.owners.clear();
        self.stretches.clear();
    }
}

/// By tier: which ends a block there counts for (device; device or host; any).
const COUNTS_FOR: [[bool; 3]; 3] = [
    [true, true, true],
    [false, true, true],
    [false, false, true],
];

impl Observed {
    /// Fills `out` with what each worker said it holds of the chain.
    pub fn matches(&self, chain: &[BlockHash], out: &mut Sightings) {
        out.clear();
        let chain = &chain[..chain.len().min(CHAIN_BLOCKS_MAX)];
        let Some(first) = chain.first() else {
            return;
        };
        let first = self.places.set_of(*first);
        if first == EMPTY {
            return;
        }
        let whole = chain.len() as u32;
        out.ends.resize(self.owners.len(), [0; 3]);
        for held in self.places.sets.members(first) {
            let (owner, tier) = (held >> 2, held & 3);
            if tier == GONE {
                continue;
            }
            let ends = &mut out.ends[owner as usize];
            if out.owners.last() != Some(&owner) {
                *ends = [0; 3];
                out.owners.push(owner);
            }
            for (end, counts) in ends.iter_mut().zip(COUNTS_FOR[tier as usize]) {
                if counts {
                    *end = whole;
                }
            }
        }
        out.stretches.push([0, first, whole, EMPTY]);
        while let Some([from, holders, to, fewer]) = out.stretches.pop() {
            if holders == fewer {
                continue;
            }
            if to - from == 1 {
                self.part(holders, fewer, to, &mut out.ends);
                continue;
            }
            let middle = from.midpoint(to);
            let set = self.places.set_of(chain[middle as usize]);
            out.stretches.push([middle, set, to, fewer]);
            out.stretches.push([from, holders, middle, set]);
        }
        self.fold(chain, out);
    }

    /// Our blocks in as many engine blocks of `block_size` tokens as lie in `blocks` of ours.
    fn whole_blocks(&self, blocks: u32, block_size: u32) -> u32 {
        let ours = self.token_block as u64;
        let tokens = u64::from(blocks) * ours;
        ((tokens - tokens % u64::from(block_size.max(1))) / ours) as u32
    }

    /// Who is in one set but not in that of the next block ends there.
    fn part(&self, holders: u32, fewer: u32, end: u32, ends: &mut [[u32; 3]]) {
        let held = self.places.sets.members(holders);
        let mut next = self.places.sets.members(fewer);
        let words = |list: &[u32], owner: u32| {
            let theirs = list.iter().take_while(|m| **m >> 2 == owner);
            theirs.fold((0_usize, 0_u32), |(n, bits), m| {
                (n + 1, bits | 1 << (m & 3))
            })
        };
        let mut rest = held;
        while let Some(owner) = rest.first().map(|member| member >> 2) {
            let (count, before) = words(rest, owner);
            rest = &rest[count..];
            let skip = next.iter().take_while(|m| **m >> 2 < owner).count();
            next = &next[skip..];
            let (_, after) = words(next, owner);
            let Some(ends) = ends.get_mut(owner as usize) else {
                continue;
            };
            for (tiers, at) in [0b001, 0b011, 0b111].into_iter().zip(ends.iter_mut()) {
                if before & tiers != 0 && after & tiers == 0 {
                    *at = (*at).min(end);
                }
            }
        }
    }

    /// From owners to workers: each is as good as its best rank.
    fn fold(&self, chain: &[BlockHash], out: &mut Sightings) {
        for id in out.owners.drain(..) {
            let Some(owner) = self.owner(id) else {
                continue;
            };
            let limit = owner.limit(chain);
            // A block of ours within an engine's block that goes on otherwise is of no use: engines
            // reuse whole blocks.
            let whole = |end: u32| self.whole_blocks(end.min(limit), owner.block_size);
            let [device, host, blocks] = out.ends[id as usize].map(whole);
            if blocks == 0 {
                continue;
            }
            let slot = owner.slot as usize;
            if out.by_slot.len() <= slot {
                out.by_slot.resize(slot + 1, Sighting::default());
            }
            let best = &mut out.by_slot[slot];
            if best.blocks == 0 {
                out.slots.push(owner.slot);
            }
            if (blocks, device) > (best.blocks, best.device) {
                *best = Sighting {
                    blocks,
                    device,
                    host,
                    rank: owner.rank,
                };
            }
        }
    }
}
