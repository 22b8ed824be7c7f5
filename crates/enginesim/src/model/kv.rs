//! The block cache: reference-counted blocks in use, least-recently-used order over the free ones.
//!
//! A free block keeps its content until it is taken for something else, as in vLLM's block pool; so "free" and
//! "cached" are not opposites.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// No block: the end of the free list.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Block {
    refs: u32,
    hash: Option<u64>,
    prev: u32,
    next: u32,
}

/// KV blocks of one engine.
#[derive(Debug)]
pub struct KvCache {
    blocks: Vec<Block>,
    by_hash: HashMap<u64, u32, FxBuildHasher>,
    /// Oldest free block, the next to be taken.
    head: u32,
    tail: u32,
    free: usize,
}

impl KvCache {
    /// A cache of `blocks` empty blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let count = u32::try_from(blocks).unwrap_or(NONE - 1).min(NONE - 1);
        let mut cache = Self {
            blocks: vec![
                Block {
                    refs: 0,
                    hash: None,
                    prev: NONE,
                    next: NONE
                };
                count as usize
            ],
            by_hash: HashMap::with_hasher(FxBuildHasher),
            head: NONE,
            tail: NONE,
            free: 0,
        };
        for block in 0..count {
            cache.push_back(block);
        }
        cache
    }

    /// All blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that no sequence uses; they may still hold content.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free
    }

    /// Blocks in use by at least one sequence.
    #[must_use]
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free
    }

    /// Blocks that can be found by their hash.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.by_hash.len()
    }

    /// How many leading hashes of `chain` are present, and how many of those blocks are free now.
    #[must_use]
    pub fn matched(&self, chain: &[u64]) -> (usize, usize) {
        let mut free = 0;
        for (at, hash) in chain.iter().enumerate() {
            match self.by_hash.get(hash) {
                Some(&block) => free += usize::from(self.blocks[block as usize].refs == 0),
                None => return (at, free),
            }
        }
        (chain.len(), free)
    }

    /// Takes the block that holds `hash` for one more user.
    pub fn share(&mut self, hash: u64) -> Option<u32> {
        let block = *self.by_hash.get(&hash)?;
        if self.blocks[block as usize].refs == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].refs += 1;
        Some(block)
    }

    /// Takes the oldest free block, dropping what it held, whose hash is returned beside it. `None` when
    /// every block is in use.
    pub fn take(&mut self) -> Option<(u32, Option<u64>)> {
        let block = self.head;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        let entry = &mut self.blocks[block as usize];
        entry.refs = 1;
        let dropped = entry.hash.take();
        if let Some(hash) = dropped {
            self.by_hash.remove(&hash);
        }
        Some((block, dropped))
    }

    /// Makes a computed block findable; whether it was not before. A second block with the same content
    /// stays private.
    pub fn store(&mut self, block: u32, hash: u64) -> bool {
        let entry = &mut self.blocks[block as usize];
        let new = entry.hash.is_none() && !self.by_hash.contains_key(&hash);
        if new {
            entry.hash = Some(hash);
            self.by_hash.insert(hash, block);
        }
        new
    }

    /// One user less. A block without content goes first when the next one is needed, one with content last.
    pub fn release(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        debug_assert!(entry.refs > 0, "a block is released once per user");
        entry.refs = entry.refs.saturating_sub(1);
        if entry.refs == 0 {
            if entry.hash.is_some() {
                self.push_back(block);
            } else {
                self.push_front(block);
            }
        }
    }

    /// Forgets every content. Blocks in use stay in use, but nobody finds them any more.
    pub fn reset(&mut self) {
        self.by_hash.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
    }

    /// Counts that must agree: the free list, the references and the hash map. For tests.
    ///
    /// # Errors
    /// Says which count is off.
    pub fn check(&self) -> Result<(), String> {
        let unused = self.blocks.iter().filter(|b| b.refs == 0).count();
        let mut listed = 0;
        let mut at = self.head;
        while at != NONE {
            listed += 1;
            if listed > self.blocks.len() {
                return Err("the free list has a cycle".to_owned());
            }
            at = self.blocks[at as usize].next;
        }
        if unused != self.free || listed != self.free {
            return Err(format!(
                "free {} listed {listed} unused {unused}",
                self.free
            ));
        }
        let named = self.blocks.iter().filter(|b| b.hash.is_some()).count();
        if named != self.by_hash.len() {
            return Err(format!("named {named} mapped {}", self.by_hash.len()));
        }
        Ok(())
    }

    fn unlink(&mut self, block: u32) {
        let (prev, next) = {
            let entry = &mut self.blocks[block as usize];
            let links = (entry.prev, entry.next);
            entry.prev = NONE;
            entry.next = NONE;
            links
        };
        match prev {
            NONE => self.head = next,
            p => self.blocks[p as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            n => self.blocks[n as usize].prev = prev,
        }
        self.free -= 1;
    }

    fn push_back(&mut self, block: u32) {
        let tail = self.tail;
        let entry = &mut self.blocks[block as usize];
        entry.prev = tail;
        entry.next = NONE;
        match tail {
            NONE => self.head = block,
            t => self.blocks[t as usize].next = block,
        }
        self.tail = block;
        self.free += 1;
    }

    fn push_front(&mut self, block: u32) {
        let head = self.head;
        let entry = &mut self.blocks[block as usize];
        entry.prev = NONE;
        entry.next = head;
        match head {
            NONE => self.tail = block,
            h => self.blocks[h as usize].prev = block,
        }
        self.head = block;
        self.free += 1;
    }
}
