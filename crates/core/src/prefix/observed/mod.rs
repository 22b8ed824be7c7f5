//! Observed residency: what workers themselves say they hold, by KV events.
//!
//! Engine block hashes stay opaque. An event carries token ids and the engine's name of the parent;
//! from these our own chain is built, in blocks of our own size, whatever the engine's is. An
//! *owner* is one rank of one worker; "no rank" and rank 0 are different owners.
//!
//! - `batch`: what we are told; `apply`: what that changes. `owner`: engine block to our blocks, gaps. `parking`: orphans.
//! - `places`: our block to the set of its holders; `sets`: each set kept once.
//! - `ages`: what an engine evicts next; `leaving`: what of it goes for requests that were dispatched.
//! - `sightings`: the look-up. `check`: the invariants.
//!
//! What always holds (and [`Observed::check`] verifies): a block is in an owner's set exactly as
//! long as an entry of that owner says so; nothing behind a gap, and nothing without its root, is
//! a match; what is not certain is not known: after a loss a rank begins with nothing.

mod ages;
mod apply;
mod batch;
mod check;
mod leaving;
mod owner;
mod parking;
mod places;
mod recent;
mod sets;
mod sightings;

#[cfg(test)]
mod tests;

pub use batch::{EngineHash, Group, KvBatch, KvEvent, KvState, Removed, Stored, Tier};
pub use leaving::Claiming;
pub use sightings::{Sighting, Sightings};

use self::leaving::Leaving;
use self::owner::Owner;
use self::parking::Parking;
use self::places::Places;
use self::recent::Recent;
use crate::limits::{OWNERS_MAX, WORKERS_MAX};
use crate::request::BlockHash;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Bytes of an entry, its share of a table at its emptiest included.
const ENTRY_BYTES: usize = 28;
/// Bytes of a place, likewise.
const PLACE_BYTES: usize = 20;
/// Bytes of an entry's span or open end (estimate).
const UNEVEN_BYTES: usize = 96;
/// Of the bound, one part in so many is for parked tokens.
const PARKED_PARTS: usize = 16;

/// What came of events so far; each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Engine blocks that were stored.
    pub stored: u64,
    /// Engine blocks that were removed.
    pub removed: u64,
    /// Removals of blocks that were not known: they change nothing.
    pub removed_unknown: u64,
    /// Removals after which a copy remained.
    pub copies_remained: u64,
    /// Blocks parked because their parent was not known.
    pub parked: u64,
    /// Parked blocks that gave way to later ones.
    pub parked_dropped: u64,
    /// Caches cleared or begun anew.
    pub cleared: u64,
    /// Events of groups that decide nothing.
    pub ignored: u64,
    /// Events that contradict themselves.
    pub malformed: u64,
    /// Blocks that there was no room for.
    pub over_bound: u64,
    /// Times that a rank became uncertain, or had too many gaps to be kept.
    pub distrusted: u64,
}

/// How the events of a worker stand, over its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Ranks whose events say all that they hold.
    pub live: u32,
    /// Ranks that hold more than their events say.
    pub uncertain: u32,
}

/// Who said they hold what.
pub struct Observed {
    owners: Vec<Option<Owner>>,
    free: Vec<u32>,
    ids: HashMap<(u32, Option<u32>), u32, FxBuildHasher>,
    /// By slot.
    flows: Vec<Flow>,
    /// By slot: when it was last heard.
    heard: Vec<Option<Nanos>>,
    /// By slot: tokens in a block of the engine, the most that an event said; 0: none did.
    sizes: Vec<u32>,
    places: Places,
    parking: Parking,
    recent: Recent,
    leaving: Leaving,
    counts: KvCounts,
    /// Entries of all owners, and those of them that are uneven.
    entries: usize,
    uneven: usize,
    token_block: usize,
    bytes_max: usize,
    /// For the blocks of one entry.
    buffer: Vec<BlockHash>,
    bytes_buffer: Vec<u8>,
}

impl Observed {
    /// Nothing known. Our blocks have `token_block` tokens (at least 1); it never takes more than
    /// about `bytes_max` bytes. What happened less than `recent` ago is remembered for
    /// [`Self::removed_lately`].
    #[must_use]
    pub fn new(token_block: u32, bytes_max: usize, recent: Duration) -> Self {
        Self {
            owners: Vec::new(),
            free: Vec::new(),
            ids: HashMap::with_hasher(FxBuildHasher),
            flows: Vec::new(),
            heard: Vec::new(),
            sizes: Vec::new(),
            places: Places::new(),
            parking: Parking::new(bytes_max / PARKED_PARTS / 4),
            recent: Recent::new(recent),
            leaving: Leaving::default(),
            counts: KvCounts::default(),
            entries: 0,
            uneven: 0,
            token_block: token_block.max(1) as usize,
            bytes_max,
            buffer: Vec::new(),
            bytes_buffer: Vec::new(),
        }
    }

    /// Whether any rank of any worker ever sent an event (and was not removed since).
    #[must_use]
    pub fn any(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Blocks that wait for their parents.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parking.len()
    }

    /// How the worker's events stand.
    #[must_use]
    pub fn flow(&self, slot: u32) -> Flow {
        self.flows.get(slot as usize).copied().unwrap_or_default()
    }

    /// When the worker's last events were applied; None: it sent none.
    #[must_use]
    pub fn heard(&self, slot: u32) -> Option<Nanos> {
        self.heard.get(slot as usize).copied().flatten()
    }

    /// Of so many leading blocks of ours, those that the engine can use for a prompt of that many tokens: it
    /// has blocks of its own size, and computes at least the last token itself.
    #[must_use]
    pub fn usable(&self, slot: u32, blocks: u32, prompt_tokens: u32) -> u32 {
        let size = self.block_size(slot);
        if size == 0 {
            return blocks;
        }
        let ours = self.token_block as u64;
        let tokens = (u64::from(blocks) * ours).min(u64::from(prompt_tokens.saturating_sub(1)));
        ((tokens - tokens % u64::from(size)) / ours) as u32
    }

    /// Tokens in one of the engine's own blocks, as its events say; 0: they do not.
    #[must_use]
    pub fn block_size(&self, slot: u32) -> u32 {
        self.sizes.get(slot as usize).copied().unwrap_or(0)
    }

    /// Engine blocks that are about to go from the worker.
    #[must_use]
    pub fn leaving_blocks(&self, slot: u32) -> u64 {
        self.leaving.count(slot)
    }

    /// Whether this is the worker's only rank that is known of (or would be, when it speaks).
    #[must_use]
    pub fn only_rank(&self, slot: u32, rank: Option<u32>) -> bool {
        let Flow { live, uncertain } = self.flow(slot);
        let known = u32::from(self.ids.contains_key(&(slot, rank)));
        live + uncertain == known
    }

    /// What came of events so far.
    #[must_use]
    pub fn counts(&self) -> KvCounts {
        self.counts
    }

    /// Engine blocks that the worker's ranks said they hold.
    #[must_use]
    pub fn blocks(&self, slot: u32) -> u64 {
        let theirs = self.owners.iter().flatten().filter(|o| o.slot == slot);
        theirs.map(|owner| owner.held).sum()
    }

    /// Lives of the rank's cache that its events told of, from 0; None: it never sent any.
    #[must_use]
    pub fn epoch(&self, slot: u32, rank: Option<u32>) -> Option<u32> {
        let id = *self.ids.get(&(slot, rank))?;
        self.owner(id).map(|owner| owner.epoch)
    }

    /// Bytes of memory allocated (estimate).
    #[must_use]
    pub fn bytes(&self) -> usize {
        let owners: usize = self.owners.iter().flatten().map(Owner::bytes).sum();
        self.places.bytes()
            + owners
            + self.parking.bytes()
            + self.recent.bytes()
            + self.leaving.bytes()
    }

    /// Applies events of a rank, in their order. Returns whether its cache began a new life in them.
    /// `note`: what is removed is to be remembered for [`Self::removed_lately`].
    pub fn apply(
        &mut self,
        slot: u32,
        rank: Option<u32>,
        batch: KvBatch,
        note: bool,
        now: Nanos,
    ) -> bool {
        let Some(id) = self.admit(slot, rank) else {
            self.counts.over_bound += batch.blocks() as u64;
            return false;
        };
        self.heard[slot as usize] = Some(now);
        let mut cleared = false;
        for event in batch.events {
            match event {
                KvEvent::Stored(Stored {
                    group: Group::Other,
                    ..
                })
                | KvEvent::Removed(Removed {
                    group: Group::Other,
                    ..
                }) => self.counts.ignored += 1,
                KvEvent::Stored(stored) => self.stored(id, stored),
                KvEvent::Removed(removed) => self.removed(id, &removed, note.then_some(now)),
                KvEvent::Cleared => {
                    self.begin_anew(id);
                    cleared = true;
                }
            }
        }
        cleared
    }

    /// What the caller says of how the rank's events come.
    pub fn set_state(&mut self, slot: u32, rank: Option<u32>, state: KvState) {
        let Some(id) = self.admit(slot, rank) else {
            return;
        };
        match state {
            KvState::Live => {}
            KvState::Restarted => self.begin_anew(id),
            KvState::Uncertain => {
                self.counts.distrusted += 1;
                self.purge(id);
            }
        }
        // A new life is known to be empty: there is nothing uncertain in it.
        let state = match state {
            KvState::Restarted => KvState::Live,
            other => other,
        };
        if let Some(owner) = self.owners.get_mut(id as usize).and_then(Option::as_mut) {
            let flow = &mut self.flows[slot as usize];
            *flow.of(owner.state) -= 1;
            *flow.of(state) += 1;
            owner.state = state;
        }
    }

    /// The worker's cache is empty: all its ranks begin anew. What is known of its events stays.
    pub fn restart(&mut self, slot: u32) {
        for id in self.ids_of(slot) {
            self.begin_anew(id);
        }
    }

    /// The worker is gone.
    pub fn forget(&mut self, slot: u32) {
        for id in self.ids_of(slot) {
            self.purge(id);
            if let Some(owner) = self.owners[id as usize].take() {
                self.ids.remove(&(slot, owner.rank));
                self.free.push(id);
            }
        }
        if let Some(flow) = self.flows.get_mut(slot as usize) {
            *flow = Flow::default();
            self.sizes[slot as usize] = 0;
            self.heard[slot as usize] = None;
        }
        self.recent.forget(slot);
    }

    /// Whether the worker said not long ago that it removed this block of ours.
    #[must_use]
    pub fn removed_lately(&self, slot: u32, block: BlockHash, now: Nanos) -> bool {
        self.recent.contains(slot, block, now)
    }

    /// The worker is about to compute the block again.
    pub fn computes(&mut self, slot: u32, block: BlockHash) {
        self.recent.remove(slot, block);
    }

    fn owner(&self, id: u32) -> Option<&Owner> {
        self.owners.get(id as usize)?.as_ref()
    }

    fn ids_of(&self, slot: u32) -> Vec<u32> {
        if self.flow(slot) == Flow::default() {
            return Vec::new();
        }
        let theirs = |(id, owner): (u32, &Option<Owner>)| {
            let theirs = owner.as_ref().is_some_and(|o| o.slot == slot);
            theirs.then_some(id)
        };
        (0_u32..).zip(&self.owners).filter_map(theirs).collect()
    }

    fn admit(&mut self, slot: u32, rank: Option<u32>) -> Option<u32> {
        if let Some(id) = self.ids.get(&(slot, rank)) {
            return Some(*id);
        }
        if slot as usize >= WORKERS_MAX || self.ids.len() >= OWNERS_MAX {
            return None;
        }
        let id = self.free.pop().unwrap_or(self.owners.len() as u32);
        if id as usize == self.owners.len() {
            self.owners.push(None);
        }
        self.owners[id as usize] = Some(Owner::new(slot, rank));
        self.ids.insert((slot, rank), id);
        if self.flows.len() <= slot as usize {
            self.flows.resize(slot as usize + 1, Flow::default());
            self.sizes.resize(slot as usize + 1, 0);
            self.heard.resize(slot as usize + 1, None);
        }
        self.flows[slot as usize].live += 1;
        Some(id)
    }

    fn begin_anew(&mut self, id: u32) {
        self.counts.cleared += 1;
        self.purge(id);
        if let Some(owner) = &mut self.owners[id as usize] {
            owner.epoch = owner.epoch.wrapping_add(1);
        }
    }

    fn purge(&mut self, id: u32) {
        if let Some(owner) = &mut self.owners[id as usize] {
            self.entries -= owner.len();
            self.uneven -= owner.uneven();
            owner.purge(id, &mut self.places);
            self.leaving.forget(owner.slot);
        }
        self.parking.forget(id);
        self.places.give_back();
    }

    /// Bytes in use, at the worst of what tables take.
    fn live_bytes(&self) -> usize {
        self.entries * ENTRY_BYTES
            + self.places.len() * PLACE_BYTES
            + self.places.sets.live_bytes()
            + self.uneven * UNEVEN_BYTES
    }
}

impl Flow {
    fn of(&mut self, state: KvState) -> &mut u32 {
        match state {
            KvState::Live | KvState::Restarted => &mut self.live,
            KvState::Uncertain => &mut self.uncertain,
        }
    }
}
