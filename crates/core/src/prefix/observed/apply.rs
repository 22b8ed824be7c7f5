//! What events change.

use super::batch::{Removed, Stored};
use super::owner::End;
use super::{ENTRY_BYTES, Observed};
use crate::limits::GAPS_MAX;
use crate::request::BlockHash;
use crate::time::Nanos;
use alloc::vec::Vec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

impl Observed {
    pub(super) fn stored(&mut self, id: u32, stored: Stored) {
        // Claimed orphans, mostly none.
        let mut open = Vec::new();
        let mut next = Some(stored);
        while let Some(stored) = next {
            self.take(id, stored, &mut open);
            next = open.pop();
        }
    }

    /// Extends the chain, and claims into `open` those that waited for it; or lets it wait.
    fn take(&mut self, id: u32, stored: Stored, open: &mut Vec<Stored>) {
        if !stored.fits() {
            self.counts.malformed += 1;
            return;
        }
        let Some(start) = self.start(id, &stored) else {
            self.park(id, stored);
            return;
        };
        self.extend(id, start, &stored);
        if !self.parking.is_empty() {
            for hash in &stored.hashes {
                open.extend(self.parking.claim(id, *hash));
            }
        }
    }

    fn park(&mut self, id: u32, stored: Stored) {
        self.counts.parked += stored.hashes.len() as u64;
        self.counts.parked_dropped += self.parking.park(id, stored) as u64;
    }

    /// Where the event's first block begins; None where its parent is not known.
    fn start(&self, id: u32, stored: &Stored) -> Option<End> {
        match stored.parent {
            Some(parent) => {
                let owner = self.owner(id)?;
                Some(owner.end(owner.find(parent)?, &self.places))
            }
            None => Some(End {
                hash: stored.root_seed,
                ..End::default()
            }),
        }
    }

    fn extend(&mut self, id: u32, mut end: End, stored: &Stored) {
        let tier = stored.tier as u32;
        let block_size = stored.block_size as usize;
        let mut extra = stored.extra.iter().peekable();
        let blocks = stored.tokens.chunks_exact(block_size);
        let before = end.entry;
        let waited = self.owners[id as usize]
            .as_ref()
            .is_some_and(|owner| self.leaving.waits(owner.slot));
        let mut ours = Vec::new();
        let mut last = None;
        self.used(id, before.filter(|_| stored.hashes.len() > 1));
        for (at, (name, tokens)) in (0_u32..).zip(stored.hashes.iter().zip(blocks)) {
            let keys = extra.next_if(|(block, _)| *block == at);
            let full = self.live_bytes() + ENTRY_BYTES > self.bytes_max;
            let Some(owner) = &mut self.owners[id as usize] else {
                return;
            };
            let known = owner.find(*name);
            if known.is_none() && full {
                self.counts.over_bound += u64::from(stored.hashes.len() as u32 - at);
                break;
            }
            self.counts.stored += 1;
            let uneven = owner.uneven();
            if let Some(entry) = known {
                owner.set_tier(id, entry, tier, &mut self.places);
                self.uneven = self.uneven + owner.uneven() - uneven;
                end = owner.end(entry, &self.places);
                continue;
            }
            if let Some((_, keys)) = keys {
                end.hash = xxh3_64_with_seed(&keys.to_le_bytes(), end.hash);
            }
            owner.block_size = owner.block_size.max(stored.block_size);
            let size = &mut self.sizes[owner.slot as usize];
            *size = owner.block_size.max(*size);
            self.buffer.clear();
            end.push(
                tokens,
                self.token_block,
                &mut self.buffer,
                &mut self.bytes_buffer,
            );
            let entry = owner.add(id, *name, tier, &self.buffer, &end, &mut self.places);
            self.entries += 1;
            self.uneven = self.uneven + owner.uneven() - uneven;
            end.entry = Some(entry);
            if waited {
                ours.extend_from_slice(&self.buffer);
                last = Some((entry, *name));
            }
        }
        if let Some(last) = last {
            self.computed(id, before, last, &ours, stored.hashes.len() as u64);
        }
    }

    /// The rank uses its cache up to `entry`. Where a chain gets one block more, it is mostly a running
    /// request's: what is before that was used when it began.
    fn used(&mut self, id: u32, entry: Option<u32>) {
        if let Some(owner) = &mut self.owners[id as usize] {
            owner.tick();
            if let Some(entry) = entry {
                owner.touch(entry);
            }
        }
    }

    pub(super) fn removed(&mut self, id: u32, removed: &Removed, note: Option<Nanos>) {
        for (at, name) in removed.hashes.iter().enumerate() {
            if removed.remaining.get(at).is_some_and(|copies| *copies > 0) {
                self.counts.copies_remained += 1;
                continue;
            }
            let Some(owner) = &mut self.owners[id as usize] else {
                return;
            };
            let Some(entry) = owner.find(*name) else {
                let parked =
                    !self.parking.is_empty() && self.parking.remove(id, *name, removed.tier);
                let count = if parked {
                    &mut self.counts.removed
                } else {
                    &mut self.counts.removed_unknown
                };
                *count += 1;
                continue;
            };
            self.counts.removed += 1;
            let (entries, uneven) = (owner.len(), owner.uneven());
            let gone = owner.clear_tier(id, entry, removed.tier as u32, &mut self.places);
            self.entries -= entries - owner.len();
            self.uneven = self.uneven + owner.uneven() - uneven;
            if let Some(block) = gone {
                self.leaving.gone(owner.slot, block);
                if let Some(now) = note {
                    self.recent.note(owner.slot, block, now);
                }
            }
            if owner.gaps() > GAPS_MAX {
                self.counts.distrusted += 1;
                self.purge(id);
            }
        }
    }
}

impl End {
    /// Goes on by these tokens; hashes of the blocks of `token_block` tokens that they fill go to
    /// `blocks`. The same chain as `ChainBuilder::push_tokens` makes.
    fn push(
        &mut self,
        tokens: &[u32],
        token_block: usize,
        blocks: &mut Vec<BlockHash>,
        bytes: &mut Vec<u8>,
    ) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let missing = token_block - self.pending.len();
            let Some((fill, after)) = rest.split_at_checked(missing) else {
                self.pending.extend_from_slice(rest);
                return;
            };
            // Nearly always `fill` is the whole block.
            bytes.resize(4 * token_block, 0);
            let (first, second) = bytes.split_at_mut(4 * self.pending.len());
            write(first, &self.pending);
            write(second, fill);
            self.pending.clear();
            self.hash = xxh3_64_with_seed(bytes, self.hash);
            blocks.push(self.hash);
            rest = after;
        }
    }
}

/// Token ids as bytes, least significant first, as `ChainBuilder::push_tokens` has them.
fn write(bytes: &mut [u8], tokens: &[u32]) {
    for (four, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
        *four = token.to_le_bytes();
    }
}
