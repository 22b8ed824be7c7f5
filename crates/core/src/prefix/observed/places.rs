//! The blocks of our chains that anybody is known to hold, and by whom.

use super::sets::{EMPTY, Sets};
use crate::prefix::slab::Slab;
use crate::prefix::table::Table;
use crate::request::BlockHash;

/// Parts of the table.
const SHARDS: usize = 256;

/// One owner's word on one block: the owner, and where the block lies. Two low bits: the tier; 3
/// stands for "not there, but blocks that follow are".
pub(super) fn member(owner: u32, tier: u32) -> u32 {
    owner << 2 | tier
}

/// The tier of a block that is gone although others that follow it are there.
pub(super) const GONE: u32 = 3;

/// A block of our chain; 12 bytes.
#[derive(Default)]
struct Place {
    hash: [u32; 2],
    set: u32,
}

pub(super) struct Places {
    places: Slab<Place>,
    by_hash: Table,
    pub(super) sets: Sets,
}

fn join(hash: [u32; 2]) -> BlockHash {
    u64::from(hash[1]) << 32 | u64::from(hash[0])
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            places: Slab::new(),
            by_hash: Table::new(SHARDS),
            sets: Sets::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn hash(&self, place: u32) -> BlockHash {
        join(self.places[place].hash)
    }

    /// Who holds the block.
    pub(super) fn set_of(&self, hash: BlockHash) -> u32 {
        self.find(hash).map_or(EMPTY, |at| self.places[at].set)
    }

    pub(super) fn find(&self, hash: BlockHash) -> Option<u32> {
        let is = |at| join(self.places[at].hash) == hash;
        self.by_hash.find(hash, is)
    }

    /// The block's place; a new one is nobody's, and must be given to somebody at once.
    pub(super) fn enter(&mut self, hash: BlockHash) -> u32 {
        if let Some(known) = self.find(hash) {
            return known;
        }
        let place = self.places.insert(Place {
            hash: [hash as u32, (hash >> 32) as u32],
            set: EMPTY,
        });
        self.sets.retain(EMPTY);
        let places = &self.places;
        self.by_hash.insert(hash, place, |at| join(places[at].hash));
        place
    }

    /// What the owner says of the block: one bit for each tier and for GONE.
    pub(super) fn word_of(&self, place: u32, owner: u32) -> u32 {
        let members = self.sets.members(self.places[place].set);
        let from = members.partition_point(|m| *m < member(owner, 0));
        (members[from..].iter())
            .take_while(|m| **m >> 2 == owner)
            .fold(0, |bits, m| bits | 1 << (m & 3))
    }

    /// Adds the member where it is not there, and takes it away where it is. A block that nobody
    /// holds any more is forgotten.
    pub(super) fn toggle(&mut self, place: u32, member: u32) {
        let before = self.places[place].set;
        let after = self.sets.toggled(before, member);
        self.sets.retain(after);
        self.sets.release(before);
        self.places[place].set = after;
        if after == EMPTY {
            let hash = self.hash(place);
            self.by_hash.remove(hash, |at| at == place);
            self.places.remove(place);
            self.sets.release(EMPTY);
        }
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.places.bytes() + self.by_hash.bytes() + self.sets.bytes()
    }

    /// Gives back what is not in use; for when much was forgotten.
    pub(super) fn give_back(&mut self) {
        let places = &self.places;
        self.by_hash.give_back(|at| join(places[at].hash));
    }

    /// All blocks with their places and sets.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, BlockHash, u32)> + '_ {
        (self.places.iter()).map(|(at, place)| (at, join(place.hash), place.set))
    }
}
