//! A set of numbers, each found by the hash of what it stands for: what a hash table of `u32` is, with
//! less air in it.
//!
//! It is divided into shards, so that it never grows all at once, and a shard grows by a fifth and not to
//! twice its size. A shard is an array of lines of 64 bytes, each with 12 places, a byte of hash for
//! each, and a count of those that wanted to be in it or before it but found no place there: a look-up goes on
//! to the next line while that is not zero. So nothing is left behind by what is removed.

use alloc::vec::Vec;
use core::mem::size_of;

/// Places in a line.
const PLACES: usize = 12;
/// Of all places, so many in a hundred are taken when a shard grows, and then it has so many lines in a hundred.
const FULL: usize = 85;
const GROWN: usize = 120;

/// A byte for each place, in the low 12 of 16: 1, and the highest bit.
const ONES: u128 = 0x0101_0101_0101_0101_0101_0101;
const HIGH: u128 = ONES << 7;

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    values: [u32; PLACES],
    /// By place: the tag of what is there, 0 where it is free; then, as a `u32`, how many looked for a
    /// place here and went on.
    bytes: [u8; 16],
}

const EMPTY: Line = Line {
    values: [0; PLACES],
    bytes: [0; 16],
};

/// Places, as the highest bits of their bytes.
struct Places(u128);

impl Iterator for Places {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = (self.0 != 0).then(|| self.0.trailing_zeros() as usize / 8);
        self.0 &= self.0.wrapping_sub(1);
        at
    }
}

impl Line {
    /// All places with this tag, and perhaps one more after each.
    fn tagged(&self, tag: u8) -> Places {
        let differs = u128::from_le_bytes(self.bytes) ^ (ONES * u128::from(tag));
        Places(differs.wrapping_sub(ONES) & !differs & HIGH)
    }

    fn passed(&self) -> u32 {
        (u128::from_le_bytes(self.bytes) >> 96) as u32
    }

    fn set_passed(&mut self, passed: u32) {
        self.bytes[PLACES..].copy_from_slice(&passed.to_le_bytes());
    }
}

#[derive(Clone, Default)]
struct Shard {
    lines: Vec<Line>,
    len: usize,
}

/// Where a hash is looked for first in so many lines, and its tag (not 0). Bits 8 to 39 and the top ones, because
/// shards are told apart by those between.
fn home(hash: u64, lines: usize) -> (usize, u8) {
    let spread = u64::from((hash >> 8) as u32);
    (
        ((spread * lines as u64) >> 32) as usize,
        (hash >> 56) as u8 | 1,
    )
}

impl Shard {
    fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        if self.len == 0 {
            return None;
        }
        let (mut line, tag) = home(hash, self.lines.len());
        // All lines may have been passed, at different times.
        for _ in 0..self.lines.len() {
            let here = &self.lines[line];
            for at in here.tagged(tag) {
                if here.bytes[at] == tag && is(here.values[at]) {
                    return Some((line, at));
                }
            }
            if here.passed() == 0 {
                break;
            }
            line = self.after(line);
        }
        None
    }

    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() {
            0
        } else {
            line + 1
        }
    }

    fn insert(&mut self, hash: u64, value: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 100 > self.lines.len() * PLACES * FULL {
            let lines = (self.lines.len() * GROWN / 100).max(self.lines.len() + 1);
            self.resize(lines, hash_of);
        }
        self.put(hash, value);
    }

    fn put(&mut self, hash: u64, value: u32) {
        let (mut line, tag) = home(hash, self.lines.len());
        loop {
            let here = &mut self.lines[line];
            if let Some(at) = here.tagged(0).next() {
                (here.values[at], here.bytes[at]) = (value, tag);
                self.len += 1;
                return;
            }
            here.set_passed(here.passed() + 1);
            line = self.after(line);
        }
    }

    fn remove(&mut self, hash: u64, is: impl FnMut(u32) -> bool) -> bool {
        let Some((line, at)) = self.find(hash, is) else {
            return false;
        };
        let (mut before, _) = home(hash, self.lines.len());
        while before != line {
            let passed = self.lines[before].passed();
            self.lines[before].set_passed(passed - 1);
            before = self.after(before);
        }
        self.lines[line].bytes[at] = 0;
        self.len -= 1;
        true
    }

    fn resize(&mut self, lines: usize, hash_of: impl Fn(u32) -> u64) {
        let mut fresh = Vec::new();
        fresh.reserve_exact(lines);
        fresh.resize(lines, EMPTY);
        let old = core::mem::replace(&mut self.lines, fresh);
        self.len = 0;
        for line in &old {
            let taken = line.values.iter().zip(line.bytes);
            for (value, _) in taken.filter(|(_, tag)| *tag != 0) {
                self.put(hash_of(*value), *value);
            }
        }
    }
}

/// Numbers, none twice.
pub(in crate::prefix) struct Table {
    shards: Vec<Shard>,
}

impl Table {
    /// An empty one of so many shards, a power of two.
    pub(in crate::prefix) fn new(shards: usize) -> Self {
        Self {
            shards: alloc::vec![Shard::default(); shards],
        }
    }

    fn shard(&self, hash: u64) -> usize {
        (hash >> 40) as usize & (self.shards.len() - 1)
    }

    /// The number of which `is` says that it is meant, among those whose hash this may be.
    pub(in crate::prefix) fn find(&self, hash: u64, is: impl FnMut(u32) -> bool) -> Option<u32> {
        let shard = &self.shards[self.shard(hash)];
        let (line, at) = shard.find(hash, is)?;
        Some(shard.lines[line].values[at])
    }

    /// Adds a number that is not there. `hash_of` is asked for others' hashes when it has to grow.
    pub(in crate::prefix) fn insert(
        &mut self,
        hash: u64,
        value: u32,
        hash_of: impl Fn(u32) -> u64,
    ) {
        let shard = self.shard(hash);
        self.shards[shard].insert(hash, value, hash_of);
    }

    /// Removes the number of which `is` says that it is meant; whether it was there.
    pub(in crate::prefix) fn remove(&mut self, hash: u64, is: impl FnMut(u32) -> bool) -> bool {
        let shard = self.shard(hash);
        self.shards[shard].remove(hash, is)
    }

    /// Gives back what is not in use, where that is much.
    pub(in crate::prefix) fn give_back(&mut self, hash_of: impl Fn(u32) -> u64) {
        for shard in &mut self.shards {
            if shard.lines.len() * PLACES > 8 * shard.len {
                let lines = (2 * shard.len).div_ceil(PLACES);
                shard.resize(lines, &hash_of);
            }
        }
    }

    /// Bytes allocated.
    pub(in crate::prefix) fn bytes(&self) -> usize {
        let lines: usize = self.shards.iter().map(|shard| shard.lines.capacity()).sum();
        lines * size_of::<Line>() + self.shards.capacity() * size_of::<Shard>()
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Table};
    use alloc::collections::BTreeSet;
    use core::mem::size_of;

    /// Few hashes, so that lines are full and numbers go on to others.
    fn hash(value: u32) -> u64 {
        u64::from(value % 7) << 8 | u64::from(value % 3) << 40
    }

    #[test]
    fn holds_what_was_put_in_and_not_taken_out() {
        assert_eq!(size_of::<Line>(), 64);
        let mut table = Table::new(4);
        let mut known = BTreeSet::new();
        let mut next = 1_u32;
        for step in 0..4_000 {
            next = next.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            let value = next >> 16 & 511;
            let is = |other| other == value;
            assert_eq!(
                table.find(hash(value), is).is_some(),
                known.contains(&value)
            );
            if step % 1_000 < 600 && !known.contains(&value) {
                table.insert(hash(value), value, hash);
                known.insert(value);
            } else {
                assert_eq!(table.remove(hash(value), is), known.remove(&value));
            }
            if step % 1_000 == 999 {
                table.give_back(hash);
            }
        }
        for value in 0..512 {
            let found = table.find(hash(value), |other| other == value);
            assert_eq!(found.is_some(), known.contains(&value));
        }
        for value in &known {
            assert!(table.remove(hash(*value), |other| other == *value));
        }
        table.give_back(hash);
        assert!(table.bytes() <= 4 * 32);
    }

    #[test]
    fn is_nearly_full_at_every_size() {
        let spread = |value: u32| u64::from(value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut table = Table::new(16);
        for value in 0..200_000 {
            table.insert(spread(value), value, spread);
            if value > 20_000 {
                let each = table.bytes() as f64 / f64::from(value + 1);
                assert!(each < 7.7, "{each} bytes for each of {value}");
            }
        }
    }
}
