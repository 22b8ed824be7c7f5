//! Which conversations an engine holds, where it keeps one in each slot (llama.cpp): a slot's cache
//! is lost to the next conversation that is served in it, and the slot that is idle for longest is
//! taken first.

use crate::ids::SessionKey;
use crate::time::Nanos;
use alloc::collections::VecDeque;

/// Slots of one worker that are followed; of more, only so many.
const SLOTS_MAX: u32 = 256;

/// The slots of an engine that keeps one conversation in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSlots {
    /// How many there are; 1 or more.
    pub size: u32,
    /// How many of them hold a conversation that may come back.
    pub taken: u32,
    /// When the conversation that would be lost next was last served.
    pub oldest: Nanos,
}

/// The conversations in one worker's slots.
#[derive(Default)]
pub(super) struct Held {
    /// 0: it keeps its cache in another way.
    size: usize,
    /// From the one idle for longest to the one served last.
    keys: VecDeque<SessionKey>,
}

impl Held {
    /// So many slots; None: it keeps its cache in another way.
    pub(super) fn resize(&mut self, size: Option<u32>) {
        self.size = size.map_or(0, |size| size.min(SLOTS_MAX) as usize);
        while self.keys.len() > self.size {
            self.keys.pop_front();
        }
    }

    /// It was served.
    pub(super) fn serve(&mut self, key: SessionKey) {
        if self.size == 0 {
            return;
        }
        self.leave(key);
        if self.keys.len() >= self.size {
            self.keys.pop_front();
        }
        self.keys.push_back(key);
    }

    /// It will not come back here.
    pub(super) fn leave(&mut self, key: SessionKey) {
        if let Some(at) = self.keys.iter().position(|k| *k == key) {
            self.keys.remove(at);
        }
    }

    /// `used`: when a conversation was last served.
    pub(super) fn slots(&self, used: impl Fn(SessionKey) -> Nanos) -> Option<CacheSlots> {
        (self.size > 0).then(|| CacheSlots {
            size: self.size as u32,
            taken: self.keys.len() as u32,
            oldest: self.keys.front().map_or(Nanos::default(), |key| used(*key)),
        })
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = SessionKey> + '_ {
        self.keys.iter().copied()
    }
}
