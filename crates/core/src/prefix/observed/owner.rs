//! What one owner (a rank of a worker) said of its blocks.
//!
//! Each engine block has an entry, found by the engine's name for it. An entry that is not there
//! any more stays as a *gap* while blocks that follow it are: nothing behind a gap is a match.

use super::ages::{AGE_BITS, Ages};
use super::batch::{EngineHash, KvState};
use super::places::{GONE, Places, member};
use crate::prefix::slab::{NONE, Slab};
use crate::prefix::table::Table;
use crate::request::BlockHash;
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Parts of the table of names.
const NAME_SHARDS: usize = 16;

/// Tiers that an entry can be in, as bits.
const TIERS: u32 = 0b111;
/// More of our blocks end in it than one: see `Owner::spans`.
const SPAN: u32 = 1 << 3;
/// It does not end where a block of ours ends: see `Owner::open`.
const OPEN: u32 = 1 << 4;
/// When it was last used: see `ages`.
const USED_AT: u32 = 5;
const USED: u32 = ((1 << AGE_BITS) - 1) << USED_AT;
/// What one more child adds.
const CHILD: u32 = 1 << (USED_AT + AGE_BITS);
/// So many children are not counted any more: it is never without.
pub(super) const CHILDREN_MAX: u32 = u32::MAX / CHILD;

/// An engine block; 20 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    name: [u32; 2],
    /// Our last block that ends in it; NONE where none does.
    place: u32,
    /// The entry before it; NONE at the beginning of a chain.
    pub(super) parent: u32,
    /// Tiers, flags, when it was last used, and the count of children.
    bits: u32,
}

impl Entry {
    fn name(self) -> EngineHash {
        u64::from(self.name[1]) << 32 | u64::from(self.name[0])
    }

    pub(super) fn children(self) -> u32 {
        self.bits / CHILD
    }

    fn one_child_more(&mut self) {
        if self.children() < CHILDREN_MAX {
            self.bits += CHILD;
        }
    }

    fn one_child_less(&mut self) {
        if self.children() < CHILDREN_MAX {
            self.bits -= CHILD;
        }
    }

    /// It is in some tier; else it is a gap, or a free place.
    pub(super) fn is_there(self) -> bool {
        self.bits & TIERS != 0
    }

    /// The tick of its last use.
    pub(super) fn used(self) -> u32 {
        (self.bits & USED) >> USED_AT
    }

    pub(super) fn set_used(&mut self, tick: u32) {
        self.bits = self.bits & !USED | tick << USED_AT;
    }
}

/// The end of an entry that does not end where a block of ours does.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// The last block's hash, or the seed.
    hash: BlockHash,
    /// Tokens since.
    pending: Vec<u32>,
}

/// Nothing beyond `limit` blocks is held of a chain whose block `at` is `hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// NONE: of any chain.
    at: u32,
    hash: BlockHash,
    limit: u32,
}

/// Where a chain goes on.
#[derive(Default)]
pub(super) struct End {
    pub(super) hash: BlockHash,
    pub(super) pending: Vec<u32>,
    pub(super) entry: Option<u32>,
}

pub(super) struct Owner {
    pub(super) slot: u32,
    pub(super) rank: Option<u32>,
    pub(super) state: KvState,
    /// Lives of its cache so far, from 0.
    pub(super) epoch: u32,
    /// Tokens in one of its blocks: the most that an event said in this life; 0: none did.
    pub(super) block_size: u32,
    pub(super) entries: Slab<Entry>,
    pub(super) ages: Ages,
    /// Some of it was told to be in another tier than the nearest.
    pub(super) far: bool,
    by_name: Table,
    /// By entry: our blocks that end in it, but the last.
    spans: HashMap<u32, SmallVec<[u32; 4]>, FxBuildHasher>,
    /// By entry.
    open: HashMap<u32, Open, FxBuildHasher>,
    /// By our block and tier: how many more entries say the same of it than one. Two long blocks
    /// of the engine may begin with the same block of ours.
    again: Again,
    /// By entry.
    gaps: HashMap<u32, Gap, FxBuildHasher>,
    last_gap: u32,
    /// Entries that are there.
    pub(super) held: u64,
}

/// Where a name goes in the table; engines' hashes need not be spread.
fn spread(name: EngineHash) -> u64 {
    let wide = u128::from(name) * 0x9e37_79b9_7f4a_7c15;
    (wide >> 64) as u64 ^ wide as u64
}

type Again = HashMap<(u32, u32), u32, FxBuildHasher>;

/// One entry more says that the owner has our block in this tier.
fn hold(again: &mut Again, places: &mut Places, place: u32, owner: u32, tier: u32) {
    if places.word_of(place, owner) & 1 << tier == 0 {
        places.toggle(place, member(owner, tier));
    } else {
        *again.entry((place, tier)).or_default() += 1;
    }
}

/// One entry less says so.
fn unhold(again: &mut Again, places: &mut Places, place: u32, owner: u32, tier: u32) {
    if !again.is_empty()
        && let Some(more) = again.get_mut(&(place, tier))
    {
        *more -= 1;
        if *more == 0 {
            again.remove(&(place, tier));
        }
    } else {
        places.toggle(place, member(owner, tier));
    }
}

impl Owner {
    pub(super) fn new(slot: u32, rank: Option<u32>) -> Self {
        Self {
            slot,
            rank,
            state: KvState::Live,
            epoch: 0,
            block_size: 0,
            entries: Slab::new(),
            ages: Ages::default(),
            far: false,
            by_name: Table::new(NAME_SHARDS),
            spans: HashMap::with_hasher(FxBuildHasher),
            open: HashMap::with_hasher(FxBuildHasher),
            again: HashMap::with_hasher(FxBuildHasher),
            gaps: HashMap::with_hasher(FxBuildHasher),
            last_gap: NONE,
            held: 0,
        }
    }

    pub(super) fn find(&self, name: EngineHash) -> Option<u32> {
        let is = |at| self.entries[at].name() == name;
        self.by_name.find(spread(name), is)
    }

    /// Entries, gaps included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn gaps(&self) -> usize {
        self.gaps.len()
    }

    /// Where the chain goes on after an entry.
    pub(super) fn end(&self, entry: u32, places: &Places) -> End {
        let Entry { place, bits, .. } = self.entries[entry];
        let (hash, pending) = match self.open.get(&entry).filter(|_| bits & OPEN != 0) {
            Some(open) => (open.hash, open.pending.clone()),
            None => (places.hash(place), Vec::new()),
        };
        End {
            hash,
            pending,
            entry: Some(entry),
        }
    }

    /// A new entry in the tier, in which `blocks` of ours end, and which goes on at `after`
    /// (where `after.entry` still is the one before it).
    pub(super) fn add(
        &mut self,
        id: u32,
        name: EngineHash,
        tier: u32,
        blocks: &[BlockHash],
        after: &End,
        places: &mut Places,
    ) -> u32 {
        let entry = self.entries.insert(Entry {
            name: [name as u32, (name >> 32) as u32],
            place: NONE,
            parent: after.entry.unwrap_or(NONE),
            bits: 0,
        });
        let mut bits = 1 << tier;
        self.far |= tier != 0;
        if let Some((last, rest)) = blocks.split_last() {
            let mut enter = |hash: &BlockHash| {
                let place = places.enter(*hash);
                hold(&mut self.again, places, place, id, tier);
                place
            };
            if !rest.is_empty() {
                let span = rest.iter().map(&mut enter).collect();
                self.spans.insert(entry, span);
                bits |= SPAN;
            }
            self.entries[entry].place = enter(last);
        }
        if blocks.is_empty() || !after.pending.is_empty() {
            let open = Open {
                hash: after.hash,
                pending: after.pending.clone(),
            };
            self.open.insert(entry, open);
            bits |= OPEN;
        }
        self.entries[entry].bits = bits;
        self.entries[entry].set_used(self.ages.tick);
        self.held += 1;
        if let Some(parent) = after.entry {
            self.entries[parent].one_child_more();
        }
        let entries = &self.entries;
        self.by_name
            .insert(spread(name), entry, |at| spread(entries[at].name()));
        entry
    }

    /// The entry is in the tier (counted from the nearest, 0) from now on.
    pub(super) fn set_tier(&mut self, id: u32, entry: u32, tier: u32, places: &mut Places) {
        self.entries[entry].set_used(self.ages.tick);
        let bits = self.entries[entry].bits;
        if bits & 1 << tier != 0 {
            return;
        }
        self.far |= tier != 0;
        self.entries[entry].bits |= 1 << tier;
        let was_gone = bits & TIERS == 0;
        for place in self.places_of(entry) {
            hold(&mut self.again, places, place, id, tier);
            if was_gone {
                unhold(&mut self.again, places, place, id, GONE);
            }
        }
        if was_gone {
            self.held += 1;
            self.gaps.remove(&entry);
        }
    }

    /// The entry is not in the tier any more. Returns the hash of our first block in it where it
    /// is in no tier any more.
    pub(super) fn clear_tier(
        &mut self,
        id: u32,
        entry: u32,
        tier: u32,
        places: &mut Places,
    ) -> Option<BlockHash> {
        let bits = self.entries[entry].bits;
        if bits & 1 << tier == 0 {
            return None;
        }
        self.entries[entry].bits &= !(1 << tier);
        let gone = bits & TIERS == 1 << tier;
        let theirs = self.places_of(entry);
        let first = theirs.first().map(|place| places.hash(*place));
        let gap = gone && self.entries[entry].children() > 0;
        for place in &theirs {
            if gap {
                hold(&mut self.again, places, *place, id, GONE);
            }
            unhold(&mut self.again, places, *place, id, tier);
        }
        if !gone {
            return None;
        }
        self.held -= 1;
        if gap {
            let gap = self.gap(entry, places);
            self.gaps.insert(entry, gap);
            self.last_gap = entry;
        } else {
            self.free(id, entry, places);
        }
        first
    }

    /// Our blocks that end in the entry.
    pub(super) fn places_of(&self, entry: u32) -> SmallVec<[u32; 4]> {
        let Entry { place, bits, .. } = self.entries[entry];
        let mut places = SmallVec::new();
        if bits & SPAN != 0
            && let Some(span) = self.spans.get(&entry)
        {
            places.extend_from_slice(span);
        }
        if place != NONE {
            places.push(place);
        }
        places
    }

    /// Removes an entry that has no children and whose blocks were taken back, and gaps before it
    /// that have no children either then.
    fn free(&mut self, id: u32, entry: u32, places: &mut Places) {
        let mut at = entry;
        loop {
            let Entry { parent, bits, .. } = self.entries[at];
            let name = spread(self.entries[at].name());
            self.by_name.remove(name, |other| other == at);
            if bits & SPAN != 0 {
                self.spans.remove(&at);
            }
            if bits & OPEN != 0 {
                self.open.remove(&at);
            }
            self.gaps.remove(&at);
            self.entries.remove(at);
            if parent == NONE {
                return;
            }
            self.entries[parent].one_child_less();
            if self.entries[parent].bits & TIERS != 0 || self.entries[parent].children() > 0 {
                return;
            }
            at = parent;
            for place in self.places_of(at) {
                unhold(&mut self.again, places, place, id, GONE);
            }
        }
    }

    /// How many blocks of ours end in the entry.
    fn blocks_in(&self, entry: u32) -> u32 {
        let Entry { place, bits, .. } = self.entries[entry];
        let span = self.spans.get(&entry).filter(|_| bits & SPAN != 0);
        u32::from(place != NONE) + span.map_or(0, |span| span.len() as u32)
    }

    /// Our blocks from the beginning of the chain to the end of the entry.
    fn depth(&self, entry: u32) -> u32 {
        // Ends of chains go first: the gap made last is often the child.
        if let Some(gap) = self.gaps.get(&self.last_gap)
            && self.entries[self.last_gap].parent == entry
        {
            return gap.limit;
        }
        let (mut at, mut depth) = (entry, 0_u32);
        while at != NONE {
            depth += self.blocks_in(at);
            at = self.entries[at].parent;
        }
        depth
    }

    fn gap(&self, entry: u32, places: &Places) -> Gap {
        let depth = self.depth(entry);
        let at = depth.checked_sub(1).unwrap_or(NONE);
        Gap {
            at,
            hash: if at == NONE {
                0
            } else {
                self.end(entry, places).hash
            },
            limit: depth - self.blocks_in(entry),
        }
    }

    /// Blocks of the chain before the first gap in it.
    pub(super) fn limit(&self, chain: &[BlockHash]) -> u32 {
        let hit = |gap: &&Gap| gap.at == NONE || chain.get(gap.at as usize) == Some(&gap.hash);
        let limits = self.gaps.values().filter(hit).map(|gap| gap.limit);
        limits.min().unwrap_or(u32::MAX)
    }

    /// Forgets everything.
    pub(super) fn purge(&mut self, id: u32, places: &mut Places) {
        let mut again = core::mem::take(&mut self.again);
        for (entry, Entry { bits, .. }) in self.entries.iter() {
            let tiers = bits & TIERS;
            let word = if tiers == 0 { 1 << GONE } else { tiers };
            for place in self.places_of(entry) {
                for tier in (0..=GONE).filter(|tier| word & 1 << tier != 0) {
                    unhold(&mut again, places, place, id, tier);
                }
            }
        }
        let fresh = Self::new(self.slot, self.rank);
        let (state, epoch) = (self.state, self.epoch);
        *self = Self {
            state,
            epoch,
            ..fresh
        };
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.entries.bytes()
            + self.by_name.bytes()
            + self.spans.allocation_size()
            + self.open.allocation_size()
            + self.gaps.allocation_size()
            + self.again.allocation_size()
            + self.ages.bytes()
            + self
                .open
                .values()
                .map(|o| 4 * o.pending.capacity() + 16)
                .sum::<usize>()
    }

    /// Entries that need more than their place and what it is estimated at.
    pub(super) fn uneven(&self) -> usize {
        self.spans.len() + self.open.len() + self.gaps.len() + self.again.len()
    }
}

/// An entry as `check` sees it.
pub(super) struct Line {
    pub(super) entry: u32,
    pub(super) name: EngineHash,
    pub(super) parent: Option<u32>,
    pub(super) children: u32,
    pub(super) tiers: u32,
    pub(super) gap: bool,
    pub(super) places: Vec<u32>,
}

impl Owner {
    /// How often more than once the block is told of in the tier, and in how many such cases.
    pub(super) fn again(&self, place: u32, tier: u32) -> u32 {
        self.again.get(&(place, tier)).copied().unwrap_or(0)
    }

    pub(super) fn told_again(&self) -> usize {
        self.again.len()
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        self.entries.iter().map(|(at, entry)| Line {
            entry: at,
            name: entry.name(),
            parent: Some(entry.parent).filter(|parent| *parent != NONE),
            children: entry.children(),
            tiers: entry.bits & TIERS,
            gap: self.gaps.contains_key(&at),
            places: self.places_of(at).to_vec(),
        })
    }
}
