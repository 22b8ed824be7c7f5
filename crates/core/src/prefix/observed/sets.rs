//! Sets of holders, each kept once: blocks that the same ones hold share one set.
//!
//! So a run of blocks costs one set however long it is, and two blocks have the same holders if and
//! only if their sets have the same number: which is what the search in a chain goes by.

use crate::prefix::slab::{ALLOCATION_BYTES, Slab};
use alloc::vec::Vec;
use core::mem::size_of;
use hashbrown::HashTable;

/// The set of nobody.
pub(super) const EMPTY: u32 = 0;

/// Remembered changes; a power of two.
const MEMO: usize = 64;

#[derive(Default)]
struct Set {
    /// In order.
    members: Vec<u32>,
    /// Blocks that have it.
    refs: u32,
    /// XOR of its members' hashes.
    digest: u64,
    /// Tells its life from that of another set with the same number; 0: free.
    stamp: u32,
}

/// A change that was made: blocks of a run all make the same one.
#[derive(Clone, Copy, Default)]
struct Change {
    from: (u32, u32),
    member: u32,
    to: (u32, u32),
}

pub(super) struct Sets {
    sets: Slab<Set>,
    by_digest: HashTable<u32>,
    memo: [Change; MEMO],
    stamp: u32,
    buffer: Vec<u32>,
    /// Bytes of all member lists.
    member_bytes: usize,
}

/// Spreads a member's bits (SplitMix64's finalizer).
fn mix(member: u32) -> u64 {
    let n = u64::from(member).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn weight(members: &Vec<u32>) -> usize {
    members.capacity() * size_of::<u32>() + ALLOCATION_BYTES
}

impl Sets {
    pub(super) fn new() -> Self {
        let mut sets = Slab::new();
        sets.insert(Set {
            refs: 1,
            stamp: 1,
            ..Set::default()
        });
        Self {
            sets,
            by_digest: HashTable::new(),
            memo: [Change::default(); MEMO],
            stamp: 1,
            buffer: Vec::new(),
            member_bytes: 0,
        }
    }

    pub(super) fn members(&self, set: u32) -> &[u32] {
        &self.sets[set].members
    }

    pub(super) fn retain(&mut self, set: u32) {
        self.sets[set].refs += 1;
    }

    /// One block less has it; with the last it is gone.
    pub(super) fn release(&mut self, set: u32) {
        let kept = &mut self.sets[set];
        kept.refs -= 1;
        if kept.refs > 0 {
            return;
        }
        let digest = kept.digest;
        if let Ok(entry) = self.by_digest.find_entry(digest, |other| *other == set) {
            entry.remove();
        }
        let gone = self.sets.remove(set);
        self.member_bytes -= weight(&gone.members);
    }

    /// The set with `member` in it, or without: the one of the two that `set` is not. The caller
    /// retains it at once.
    pub(super) fn toggled(&mut self, set: u32, member: u32) -> u32 {
        let from = (set, self.sets[set].stamp);
        let at = (mix(member ^ set.rotate_left(16)) as usize) % MEMO;
        let known = self.memo[at];
        if known.from == from && known.member == member && self.sets[known.to.0].stamp == known.to.1
        {
            return known.to.0;
        }
        let to = self.find_or_make(set, member);
        self.memo[at] = Change {
            from,
            member,
            to: (to, self.sets[to].stamp),
        };
        to
    }

    fn find_or_make(&mut self, set: u32, member: u32) -> u32 {
        let before = &self.sets[set];
        let digest = before.digest ^ mix(member);
        let mut members = core::mem::take(&mut self.buffer);
        members.clear();
        match before.members.binary_search(&member) {
            Ok(at) => {
                members.extend_from_slice(&before.members[..at]);
                members.extend_from_slice(&before.members[at + 1..]);
            }
            Err(at) => {
                members.extend_from_slice(&before.members[..at]);
                members.push(member);
                members.extend_from_slice(&before.members[at..]);
            }
        }
        let equal = |other: &u32| self.sets[*other].members == members;
        let to = if members.is_empty() {
            EMPTY
        } else if let Some(found) = self.by_digest.find(digest, equal) {
            *found
        } else {
            self.make(&members, digest)
        };
        self.buffer = members;
        to
    }

    fn make(&mut self, members: &[u32], digest: u64) -> u32 {
        // 0 is what a free place has, 1 the empty set.
        self.stamp = self.stamp.wrapping_add(1).max(2);
        let members = members.to_vec();
        self.member_bytes += weight(&members);
        let set = self.sets.insert(Set {
            members,
            refs: 0,
            digest,
            stamp: self.stamp,
        });
        let sets = &self.sets;
        self.by_digest
            .insert_unique(digest, set, |other| sets[*other].digest);
        set
    }

    pub(super) fn bytes(&self) -> usize {
        self.sets.bytes() + self.by_digest.allocation_size() + self.member_bytes
    }

    /// Bytes in use, as far as they are bounded.
    pub(super) fn live_bytes(&self) -> usize {
        self.sets.len() * (size_of::<Set>() + 12) + self.member_bytes
    }

    /// How often each set is in use, by its number; to be compared with what blocks say.
    pub(super) fn refs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.sets.iter().map(|(set, kept)| (set, kept.refs))
    }
}
