//! Numbered places for values, reused after removal.
//!
//! It grows by small chunks that never move: no copy of megabytes in the middle of a decision, and
//! no half-empty doubled buffer that would count against the memory bound.

use alloc::vec::Vec;
use core::mem::size_of;
use core::ops;

/// No place: the end of every list.
pub(in crate::prefix) const NONE: u32 = u32::MAX;

/// Places in one chunk.
const CHUNK: usize = 128;

/// What one heap allocation costs beside its contents (estimate for common allocators).
pub(in crate::prefix) const ALLOCATION_BYTES: usize = 16;

pub(in crate::prefix) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    /// Places that are free again; each holds the default value until reused.
    free: Vec<u32>,
    /// Places ever handed out, the free ones included.
    used: usize,
}

impl<T: Default> Slab<T> {
    /// Bytes of one place.
    pub(in crate::prefix) const PLACE_BYTES: usize = size_of::<T>();
    /// Bytes of one chunk, its own cost included.
    pub(in crate::prefix) const CHUNK_BYTES: usize =
        CHUNK * size_of::<T>() + size_of::<Vec<T>>() + ALLOCATION_BYTES;

    pub(in crate::prefix) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }

    /// Values held.
    pub(in crate::prefix) fn len(&self) -> usize {
        self.used - self.free.len()
    }

    /// Bytes allocated, free places included.
    pub(in crate::prefix) fn bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK_BYTES + self.free.capacity() * size_of::<u32>()
    }

    pub(in crate::prefix) fn insert(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self[place] = value;
            return place;
        }
        let place = self.used;
        if place.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[place / CHUNK].push(value);
        self.used += 1;
        place as u32
    }

    pub(in crate::prefix) fn remove(&mut self, place: u32) -> T {
        self.free.push(place);
        core::mem::take(&mut self[place])
    }

    /// Moves all values to the lowest places, in order, and gives the rest of the memory back.
    /// Returns the new place of each old one.
    pub(in crate::prefix) fn compact(&mut self) -> Vec<u32> {
        let old = core::mem::replace(self, Self::new());
        let mut moved = alloc::vec![0; old.used];
        for place in old.free {
            moved[place as usize] = NONE;
        }
        // Each old chunk is freed as soon as it has been read.
        for (value, moved) in old.chunks.into_iter().flatten().zip(&mut moved) {
            if *moved != NONE {
                *moved = self.insert(value);
            }
        }
        moved
    }

    /// All values with their places.
    pub(in crate::prefix) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let mut free = alloc::vec![false; self.used];
        for place in &self.free {
            free[*place as usize] = true;
        }
        (0_u32..)
            .zip(self.chunks.iter().flatten())
            .zip(free)
            .filter_map(|(item, free)| (!free).then_some(item))
    }

    /// All values, those in free places (defaults) included.
    pub(in crate::prefix) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }
}

impl<T> ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

impl<T> ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}
