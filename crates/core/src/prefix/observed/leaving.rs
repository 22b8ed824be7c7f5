//! Blocks that are about to go: a full worker makes room for what was dispatched to it, and tells of
//! that only when the step is done. Until then what goes next is not promised to others.
//!
//! `missing = claimed - (capacity - reserved - held - running)`, in blocks of the engine: `claimed` is what
//! requests that were dispatched, and not yet seen to be computed, need beyond what they found
//! there, each `ceil((prompt + 1) / block) - found`; each request that runs has one block more
//! that no event told of. So many blocks go, in the order of `ages`.

use super::Observed;
use super::batch::EngineHash;
use crate::ids::AttemptId;
use crate::request::BlockHash;
use crate::time::Nanos;
use alloc::vec::Vec;
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// Blocks that an engine keeps for itself (vLLM: its null block).
const RESERVED: u64 = 1;

/// What was dispatched to a worker.
pub struct Claiming<'a> {
    /// To which.
    pub slot: u32,
    /// As what.
    pub attempt: AttemptId,
    /// Its chain, of which the worker has `matched` blocks.
    pub chain: &'a [BlockHash],
    /// Leading blocks that are there.
    pub matched: u32,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens that the worker's cache holds.
    pub capacity_tokens: u64,
    /// Other requests of ours on the worker.
    pub running: u32,
}

/// A dispatch that was not seen to be computed yet.
struct Claim {
    attempt: AttemptId,
    /// Our first block that it must compute.
    first: BlockHash,
    /// Our last block in a whole block of the engine: what stores it completes the prompt.
    last: Option<BlockHash>,
    /// Engine blocks that it still needs.
    need: u64,
    /// What is to go for it.
    going: Vec<BlockHash>,
    /// Where what was seen of it ends.
    tail: Option<Tail>,
    /// It ended, and its events come until then or never; None: it runs.
    until: Option<Nanos>,
}

/// An entry of an owner, and its name: places are used again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tail {
    owner: u32,
    entry: u32,
    name: EngineHash,
}

#[derive(Default)]
pub(super) struct Leaving {
    /// By slot.
    claims: HashMap<u32, Vec<Claim>, FxBuildHasher>,
    /// By slot and block of ours: whether it is the first in its engine block.
    blocks: HashMap<(u32, BlockHash), bool, FxBuildHasher>,
    /// By slot: engine blocks among them.
    counts: HashMap<u32, u64, FxBuildHasher>,
    /// Where the chains of requests end that were seen to be computed, and run.
    tails: HashMap<AttemptId, Tail, FxBuildHasher>,
}

impl Leaving {
    /// Whether anybody waits for events of the worker.
    pub(super) fn waits(&self, slot: u32) -> bool {
        !self.claims.is_empty() && self.claims.contains_key(&slot)
    }

    /// Its engine block is gone. `block` is our first in it.
    pub(super) fn gone(&mut self, slot: u32, block: BlockHash) {
        if !self.blocks.is_empty() && self.blocks.remove(&(slot, block)) == Some(true) {
            self.uncount(slot);
        }
    }

    fn uncount(&mut self, slot: u32) {
        if let Some(count) = self.counts.get_mut(&slot) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&slot);
            }
        }
    }

    /// All claims on the worker end.
    pub(super) fn forget(&mut self, slot: u32) {
        for claim in self.claims.remove(&slot).unwrap_or_default() {
            self.stay(slot, claim);
        }
    }

    /// What was to go for it stays.
    fn stay(&mut self, slot: u32, claim: Claim) {
        for block in claim.going {
            if self.blocks.remove(&(slot, block)) == Some(true) {
                self.uncount(slot);
            }
        }
    }

    fn end(&mut self, slot: u32, over: impl Fn(&Claim) -> bool) {
        let Some(claims) = self.claims.get_mut(&slot) else {
            return;
        };
        let ended: Vec<Claim> = claims.extract_if(.., |claim| over(claim)).collect();
        if claims.is_empty() {
            self.claims.remove(&slot);
        }
        for claim in ended {
            self.stay(slot, claim);
        }
    }

    /// Claims end whose events did not come in time.
    pub(super) fn lapse(&mut self, now: Nanos) {
        let slots: Vec<u32> = self.claims.keys().copied().collect();
        for slot in slots {
            self.end(slot, |claim| claim.until.is_some_and(|until| until <= now));
        }
    }

    pub(super) fn count(&self, slot: u32) -> u64 {
        self.counts.get(&slot).copied().unwrap_or(0)
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.allocation_size() + self.tails.allocation_size()
    }

    pub(super) fn consistent(&self) -> bool {
        let firsts = self.blocks.values().filter(|first| **first).count() as u64;
        let claimed = self.claims.values().flatten();
        firsts == self.counts.values().sum::<u64>()
            && self.claims.values().all(|claims| !claims.is_empty())
            && self.blocks.len() <= claimed.map(|claim| claim.going.len()).sum()
    }
}

impl Observed {
    /// How many of the leading blocks, from their end, are about to go from the worker.
    #[must_use]
    pub fn leaving(&self, slot: u32, leading: &[BlockHash]) -> u32 {
        let blocks = &self.leaving.blocks;
        if blocks.is_empty() {
            return 0;
        }
        let goes = |block: &&BlockHash| blocks.contains_key(&(slot, **block));
        leading.iter().rev().take_while(goes).count() as u32
    }

    /// Those who wait for blocks of the worker.
    pub fn claimants(&self, slot: u32) -> impl Iterator<Item = AttemptId> + '_ {
        let claims = self.leaving.claims.get(&slot);
        claims.into_iter().flatten().map(|claim| claim.attempt)
    }

    /// A dispatch claims room. Returns how many blocks of the engine have to go for it: the caller
    /// says with [`Self::give_way`] what else is in use there. Nothing is known of a worker with several
    /// ranks or tiers, nor of one whose events are not complete.
    pub fn claim(&mut self, claiming: &Claiming<'_>) -> usize {
        let slot = claiming.slot;
        let (Some(id), Some(first)) = (
            self.alone(slot),
            claiming.chain.get(claiming.matched as usize),
        ) else {
            return 0;
        };
        let Some(owner) = self.owner(id).filter(|o| o.block_size > 0 && !o.far) else {
            return 0;
        };
        let size = u64::from(owner.block_size);
        let capacity = claiming.capacity_tokens / size;
        if owner.held > capacity {
            // It holds more than it was said that it can.
            return 0;
        }
        let found = u64::from(claiming.matched) * self.token_block as u64 / size;
        let need = (u64::from(claiming.prompt_tokens) + 1).div_ceil(size);
        let need = need.saturating_sub(found);
        let held = owner.held;
        let whole = u64::from(claiming.prompt_tokens) / size * size / self.token_block as u64;
        let last = claiming.chain[..whole.min(claiming.chain.len() as u64) as usize].last();
        let claims = self.leaving.claims.entry(slot).or_default();
        let waiting = claims.iter().filter(|claim| claim.until.is_none()).count() as u64;
        let running = u64::from(claiming.running).saturating_sub(waiting);
        let claimed = need + claims.iter().map(|claim| claim.need).sum::<u64>();
        claims.push(Claim {
            attempt: claiming.attempt,
            first: *first,
            last: last.copied(),
            need,
            going: Vec::new(),
            tail: None,
            until: None,
        });
        let room = capacity.saturating_sub(RESERVED + held + running);
        let going = self.leaving.count(slot);
        let missing = claimed.saturating_sub(room).saturating_sub(going);
        missing.min(held) as usize
    }

    /// So many blocks go for the attempt that just claimed room, but none of those in use.
    pub fn give_way(
        &mut self,
        slot: u32,
        missing: usize,
        in_use: &HashSet<BlockHash, FxBuildHasher>,
    ) {
        let Some(id) = self.alone(slot) else {
            return;
        };
        let Self {
            owners,
            leaving,
            places,
            ..
        } = self;
        let Some(owner) = owners.get_mut(id as usize).and_then(Option::as_mut) else {
            return;
        };
        let stays = |block| in_use.contains(&block) || leaving.blocks.contains_key(&(slot, block));
        let going = owner.going(missing, places, stays);
        let claims = leaving.claims.get_mut(&slot);
        let Some(claim) = claims.and_then(|claims| claims.last_mut()) else {
            return;
        };
        for (block, first) in going {
            if leaving.blocks.insert((slot, block), first).is_none() {
                claim.going.push(block);
                *leaving.counts.entry(slot).or_default() += u64::from(first);
            }
        }
    }

    /// Forgets claims of requests that are over whose events did not come in time.
    pub fn lapse(&mut self, now: Nanos) {
        self.leaving.lapse(now);
    }

    /// The attempt is over. `until`: events of it may still come until then.
    pub fn ended(&mut self, slot: u32, attempt: AttemptId, until: Option<Nanos>) {
        let mut tail = self.leaving.tails.remove(&attempt);
        if let Some(claims) = self.leaving.claims.get_mut(&slot)
            && let Some(claim) = claims.iter_mut().find(|claim| claim.attempt == attempt)
        {
            tail = tail.or(claim.tail);
            claim.until = until;
            if until.is_none() || tail.is_some() {
                self.leaving.end(slot, |claim| claim.attempt == attempt);
            }
        }
        if let Some(tail) = tail
            && let Some(owner) = self.owners.get_mut(tail.owner as usize)
            && let Some(owner) = owner.as_mut().filter(|owner| owner.slot == slot)
            && owner.find(tail.name) == Some(tail.entry)
        {
            owner.tick();
            owner.touch(tail.entry);
        }
    }

    /// Blocks were stored after the entry `before`, `count` of the engine's, among which ours in
    /// `blocks`, up to the entry `last`: whose claim was that?
    pub(super) fn computed(
        &mut self,
        owner: u32,
        before: Option<u32>,
        (last, name): (u32, EngineHash),
        blocks: &[BlockHash],
        count: u64,
    ) {
        let Some(slot) = self.owner(owner).map(|owner| owner.slot) else {
            return;
        };
        let Some(claims) = self.leaving.claims.get_mut(&slot) else {
            return;
        };
        let tail = Tail {
            owner,
            entry: last,
            name,
        };
        let mut over = false;
        for claim in claims {
            let goes_on = claim.tail.is_some_and(|tail| Some(tail.entry) == before);
            let completes = claim.last.is_some_and(|last| blocks.contains(&last));
            if goes_on || completes || blocks.contains(&claim.first) {
                claim.need = if completes {
                    0
                } else {
                    claim.need.saturating_sub(count)
                };
                claim.tail = Some(tail);
                // The last block of a prompt is nearly never full.
                over |= claim.need <= 1;
                if claim.need <= 1 && claim.until.is_none() {
                    self.leaving.tails.insert(claim.attempt, tail);
                }
            }
        }
        if over {
            self.leaving
                .end(slot, |claim| claim.tail.is_some() && claim.need <= 1);
        }
    }

    /// The worker's one rank, where its events are complete.
    fn alone(&self, slot: u32) -> Option<u32> {
        let flow = self.flow(slot);
        if (flow.live, flow.uncertain) != (1, 0) {
            return None;
        }
        let unnamed = self.ids.get(&(slot, None));
        unnamed.or_else(|| self.ids.get(&(slot, Some(0)))).copied()
    }
}
