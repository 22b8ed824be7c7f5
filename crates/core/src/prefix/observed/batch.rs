//! What a worker says of its cache, in our words: no dialect, no bytes.
//!
//! The caller decodes the engine's messages and resolves what only it can know: the seed of the
//! scope that a chain begins in (model, adapter, salt), and which cache group is the main one.

use alloc::vec::Vec;

/// The name that the engine gives to one of its blocks. Opaque: it means nothing elsewhere.
pub type EngineHash = u64;

/// Where a block lies; the nearer first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// In the memory of the accelerator: usable at once.
    #[default]
    Device,
    /// In the memory of the host: to be loaded.
    Host,
    /// On a disk or in a shared store.
    Disk,
}

/// Which of the engine's caches an event is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Group {
    /// The main (full) attention: it decides what a prefix is worth. Also engines with one cache.
    #[default]
    Main,
    /// A sliding window, a state, or a kind that is not known: counted, else ignored.
    Other,
}

/// Blocks that were stored, each following the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The engine's names of the blocks, in the order of the chain.
    pub hashes: Vec<EngineHash>,
    /// The block before the first; None: the chain begins here.
    pub parent: Option<EngineHash>,
    /// Token ids of these blocks only: `hashes.len() * block_size` of them.
    pub tokens: Vec<u32>,
    /// Tokens in one block of the engine; at least 1.
    pub block_size: u32,
    /// Seed of our chain where `parent` is None: the scope. Children inherit it.
    pub root_seed: u64,
    /// What else makes a block differ from others of equal tokens (multimodal items): the number
    /// of a block in `hashes`, and the hash of its keys, in order. From that block on the chain is
    /// another: `hash = xxh3_64(keys, seed = hash)` before its first token.
    pub extra: Vec<(u32, u64)>,
    /// Where they lie now.
    pub tier: Tier,
    /// In which cache.
    pub group: Group,
}

/// Blocks that are gone from a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The engine's names of the blocks.
    pub hashes: Vec<EngineHash>,
    /// From where.
    pub tier: Tier,
    /// Copies of each that remain there, in the order of `hashes`, where the engine counts them.
    /// What is missing is taken for 0, so that we under-count rather than believe too much.
    pub remaining: Vec<u32>,
    /// Of which cache.
    pub group: Group,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks were stored.
    Stored(Stored),
    /// Blocks are gone.
    Removed(Removed),
    /// All blocks of the rank are gone: a new epoch of its cache.
    Cleared,
}

/// Events in the order in which they happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvBatch {
    /// The events.
    pub events: Vec<KvEvent>,
}

impl KvBatch {
    /// Engine blocks that the events name; a `Cleared` counts as one.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.events.iter().map(KvEvent::blocks).sum()
    }

    /// The same events in batches of at most `blocks_max` blocks each (at least 1), so that no call
    /// takes long: hand them to the scheduler one by one, and let it decide between them. Long
    /// events are cut; what is cut off names the last block before the cut as its parent.
    #[must_use]
    pub fn split(self, blocks_max: usize) -> Vec<Self> {
        let most = blocks_max.max(1);
        let mut batches = Vec::new();
        let (mut open, mut room) = (Self::default(), most);
        for event in self.events {
            let mut rest = Some(event);
            while let Some(event) = rest.take() {
                if room == 0 {
                    batches.push(core::mem::take(&mut open));
                    room = most;
                }
                let (part, after) = event.cut(room);
                room -= part.blocks().min(room);
                open.events.push(part);
                rest = after;
            }
        }
        if !open.events.is_empty() {
            batches.push(open);
        }
        batches
    }
}

impl KvEvent {
    fn blocks(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.hashes.len(),
            Self::Removed(removed) => removed.hashes.len(),
            Self::Cleared => 1,
        }
    }

    /// The first `most` blocks of it (at least 1), and what is left.
    fn cut(self, most: usize) -> (Self, Option<Self>) {
        match self {
            Self::Stored(mut first) if first.hashes.len() > most && first.fits() => {
                let rest = first.split_off(most);
                (Self::Stored(first), Some(Self::Stored(rest)))
            }
            Self::Removed(mut first) if first.hashes.len() > most => {
                let hashes = first.hashes.split_off(most);
                let counted = first.remaining.len().min(most);
                let remaining = first.remaining.split_off(counted);
                let rest = Removed {
                    hashes,
                    remaining,
                    ..first
                };
                (Self::Removed(first), Some(Self::Removed(rest)))
            }
            whole => (whole, None),
        }
    }
}

impl Stored {
    /// Cuts it before block `at` (which is in it, and not the first), and returns what follows.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let hashes = self.hashes.split_off(at);
        let tokens = self.tokens.split_off(at * self.block_size as usize);
        let cut = (self.extra).partition_point(|(block, _)| (*block as usize) < at);
        let mut extra = self.extra.split_off(cut);
        for (block, _) in &mut extra {
            *block -= at as u32;
        }
        Self {
            parent: self.hashes.last().copied(),
            hashes,
            tokens,
            extra,
            ..*self
        }
    }

    /// Whether it is what it should be: as many tokens as its blocks have, keys in order.
    pub(super) fn fits(&self) -> bool {
        let tokens = self.hashes.len().checked_mul(self.block_size as usize);
        self.block_size > 0
            && tokens == Some(self.tokens.len())
            && self.extra.is_sorted_by(|a, b| a.0 < b.0)
            && (self.extra.last()).is_none_or(|(block, _)| (*block as usize) < self.hashes.len())
    }
}

/// How far the events of a rank can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvState {
    /// They come without a gap. A rank whose first event came without a word is this, too.
    Live,
    /// Some were lost, or could not be read: what was known is forgotten. What comes from now on is
    /// true again, but not all that the rank holds, so that our own dispatches predict as without
    /// events, until `Live` is said.
    Uncertain,
    /// The engine began anew (its sequence did): its cache is empty. `Live` afterwards.
    Restarted,
}
