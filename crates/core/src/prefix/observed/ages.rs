//! In which order an engine gives its blocks up: least recently used first, and of one chain its end
//! before its beginning, because nobody else can use what hangs on a missing block.
//!
//! Events tell what was stored, not what was used again. What is known of that: a chain that goes on
//! was used up to there, and our own requests use theirs until they end. Times are ticks of the
//! owner's own clock, one for each use, kept in spare bits of its entries.

use super::owner::Owner;
use super::places::Places;
use crate::prefix::slab::NONE;
use crate::request::BlockHash;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Bits of an entry's age.
pub(super) const AGE_BITS: u32 = 13;
/// The clock begins again after so many ticks.
const TICKS: u32 = 1 << AGE_BITS;
/// So often all entries are looked through, and what is older than `OLD` is as old as that: so that
/// no age is ever as long as the clock's round.
const LOOK_EVERY: u32 = TICKS / 2;
const OLD: u32 = TICKS / 4;
/// Of all entries, one part in so many is put in order at one time, and at least and at most so many.
const WINDOW_PARTS: usize = 32;
const WINDOW_MIN: usize = 64;
const WINDOW_MAX: usize = 1_024;

/// An owner's clock, and who goes next.
#[derive(Default)]
pub(super) struct Ages {
    pub(super) tick: u32,
    /// Ticks since all was looked through.
    since: u32,
    /// Entries and when they were used, the first to go first. Those that were used again or are
    /// gone since are passed over.
    next: VecDeque<(u32, u32)>,
}

impl Ages {
    pub(super) fn bytes(&self) -> usize {
        self.next.capacity() * 8
    }
}

/// An entry among those that are put in order.
struct Old {
    used: u32,
    age: u32,
    /// How many old ones its chain has, up to it.
    depth: u32,
    /// How many of its children are old, too.
    children: u32,
}

impl Owner {
    /// A use begins: what is touched from now on is younger than all that was before.
    pub(super) fn tick(&mut self) {
        self.ages.tick = (self.ages.tick + 1) % TICKS;
        self.ages.since += 1;
        if self.ages.since >= LOOK_EVERY {
            self.look_through(0);
        }
    }

    /// The entry and all before it are in use.
    pub(super) fn touch(&mut self, entry: u32) {
        let mut at = entry;
        while at != NONE && self.entries[at].used() != self.ages.tick {
            self.entries[at].set_used(self.ages.tick);
            at = self.entries[at].parent;
        }
    }

    /// Blocks of ours in the next `count` entries to go, but those for which `stays` (which is asked
    /// for the entry's first block) says so; the first of each entry is marked.
    pub(super) fn going(
        &mut self,
        count: usize,
        places: &Places,
        stays: impl Fn(BlockHash) -> bool,
    ) -> Vec<(BlockHash, bool)> {
        let mut looked = false;
        loop {
            while let Some((entry, used)) = self.ages.next.front().copied()
                && !self.is_still(entry, used)
            {
                self.ages.next.pop_front();
            }
            let (mut found, mut going) = (0, Vec::new());
            for (entry, used) in &self.ages.next {
                if found == count {
                    break;
                }
                let blocks = self.places_of(*entry);
                if let Some(first) = blocks.first().map(|place| places.hash(*place))
                    && self.is_still(*entry, *used)
                    && !stays(first)
                {
                    found += 1;
                    let hashes = blocks.iter().map(|place| places.hash(*place));
                    going.extend(hashes.map(|hash| (hash, hash == first)));
                }
            }
            if found == count || looked {
                return going;
            }
            self.look_through(2 * count);
            looked = true;
        }
    }

    fn is_still(&self, entry: u32, used: u32) -> bool {
        self.entries[entry].is_there() && self.entries[entry].used() == used
    }

    /// Puts the oldest in order, at least `count` of them.
    fn look_through(&mut self, count: usize) {
        self.ages.since = 0;
        let tick = self.ages.tick;
        let age = |used: u32| (tick + TICKS - used) % TICKS;
        let mut ages = Vec::with_capacity(self.entries.len());
        for entry in self.entries.values_mut().filter(|e| e.is_there()) {
            if age(entry.used()) > OLD {
                entry.set_used((tick + TICKS - OLD) % TICKS);
            }
            ages.push(age(entry.used()));
        }
        let window = (ages.len() / WINDOW_PARTS).clamp(WINDOW_MIN, WINDOW_MAX);
        let window = window.max(count).min(ages.len());
        self.ages.next.clear();
        let Some(last) = window.checked_sub(1) else {
            return;
        };
        let (_, least, _) = ages.select_nth_unstable_by_key(last, |age| Reverse(*age));
        let least = *least;
        let mut old: HashMap<u32, Old, FxBuildHasher> = HashMap::default();
        for (at, entry) in self.entries.iter().filter(|(_, e)| e.is_there()) {
            let (used, age) = (entry.used(), age(entry.used()));
            if age >= least {
                let (depth, children) = (0, 0);
                let known = Old {
                    used,
                    age,
                    depth,
                    children,
                };
                old.insert(at, known);
            }
        }
        self.put_in_order(old);
    }

    /// Ends of chains first: an entry is as young as the youngest that follows it, and one that is
    /// followed by what is not old is not old itself.
    fn put_in_order(&mut self, mut old: HashMap<u32, Old, FxBuildHasher>) {
        let mut order: Vec<(u32, u32)> = old.iter().map(|(at, e)| (e.age, *at)).collect();
        order.sort_unstable();
        for (age, entry) in &order {
            let mut at = self.entries[*entry].parent;
            if let Some(parent) = old.get_mut(&at) {
                parent.children += 1;
            }
            while let Some(parent) = old.get_mut(&at)
                && parent.age > *age
            {
                parent.age = *age;
                at = self.entries[at].parent;
            }
        }
        let young = |(_, at): &&(u32, u32)| {
            let children = old.get(at).map_or(0, |e| e.children);
            self.entries[*at].children() > children
        };
        let mut held: Vec<u32> = order.iter().filter(young).map(|(_, at)| *at).collect();
        while let Some(at) = held.pop() {
            if old.remove(&at).is_some() {
                held.push(self.entries[at].parent);
            }
        }
        // Each is walked over once.
        let mut above = Vec::new();
        for (_, entry) in &order {
            let mut at = *entry;
            while let Some(known) = old.get(&at)
                && known.depth == 0
            {
                above.push(at);
                at = self.entries[at].parent;
            }
            let mut depth = old.get(&at).map_or(0, |known| known.depth);
            while let Some(at) = above.pop() {
                depth += 1;
                if let Some(known) = old.get_mut(&at) {
                    known.depth = depth;
                }
            }
        }
        let mut next: Vec<_> = old.iter().map(|(at, e)| (*at, e)).collect();
        next.sort_unstable_by_key(|(at, e)| (Reverse(e.age), Reverse(e.depth), *at));
        self.ages.next = next.iter().map(|(at, e)| (*at, e.used)).collect();
    }
}
