//! From bytes to a chain of block hashes.
//!
//! Block `i` has the hash `xxh3_64(block i, seed = hash of block i - 1)`; the seed of the first one
//! stands for the scope. So a hash covers the scope and everything before it, and two chains that
//! agree in one place agree in all places before it. The unfilled last block has no hash: no
//! engine caches it either.

use crate::limits::CHAIN_BLOCKS_MAX;
use crate::request::BlockHash;
use alloc::vec::Vec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Token ids turned into bytes at one time, in `push_tokens`.
const TOKENS_AT_ONCE: usize = 64;

/// Cuts what is pushed into fixed blocks and chains their hashes.
///
/// Where the pieces end makes no difference, only the bytes do. Beyond `CHAIN_BLOCKS_MAX` blocks
/// bytes are counted, but not hashed.
pub struct ChainBuilder {
    /// Hash of the last full block; before the first, the seed.
    hash: BlockHash,
    block_bytes: usize,
    /// Bytes of the block that is not full yet; always less than one block.
    open: Vec<u8>,
    blocks: Vec<BlockHash>,
    bytes: u64,
}

impl ChainBuilder {
    /// An empty chain in the scope that `seed` stands for; `block_bytes` is the size of a block
    /// (at least 1; zero is taken for 1).
    #[must_use]
    pub fn new(seed: u64, block_bytes: usize) -> Self {
        Self::with_buffer(seed, block_bytes, Vec::new())
    }

    /// Like `new`, and writes the hashes into `blocks`, whose contents are dropped and whose
    /// memory is reused.
    #[must_use]
    pub fn with_buffer(seed: u64, block_bytes: usize, mut blocks: Vec<BlockHash>) -> Self {
        blocks.clear();
        Self {
            hash: seed,
            block_bytes: block_bytes.max(1),
            open: Vec::new(),
            blocks,
            bytes: 0,
        }
    }

    /// Goes on where another builder of the same seed and block size stood, whose full blocks and
    /// bytes of the open one these are. To be called before anything is added.
    pub fn resume(&mut self, blocks: &[BlockHash], open: &[u8]) {
        self.blocks.extend_from_slice(blocks);
        self.open.extend_from_slice(open);
        self.hash = blocks.last().copied().unwrap_or(self.hash);
        let full = (blocks.len() as u64).saturating_mul(self.block_bytes as u64);
        self.bytes = full.saturating_add(open.len() as u64);
    }

    /// The full blocks' hashes so far.
    #[must_use]
    pub fn blocks(&self) -> &[BlockHash] {
        &self.blocks
    }

    /// Bytes of the block that is not full yet.
    #[must_use]
    pub fn open(&self) -> &[u8] {
        &self.open
    }

    /// Adds to the rendering.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.blocks.len() >= CHAIN_BLOCKS_MAX {
            return;
        }
        let mut rest = bytes;
        if !self.open.is_empty() {
            let missing = self.block_bytes - self.open.len();
            let Some((fill, after)) = rest.split_at_checked(missing) else {
                self.open.extend_from_slice(rest);
                return;
            };
            self.open.extend_from_slice(fill);
            self.hash = xxh3_64_with_seed(&self.open, self.hash);
            self.blocks.push(self.hash);
            self.open.clear();
            rest = after;
        }
        // Whole blocks are hashed where they lie.
        let room = CHAIN_BLOCKS_MAX - self.blocks.len();
        let whole = rest.chunks_exact(self.block_bytes);
        let tail = whole.remainder();
        self.blocks.reserve(whole.len().min(room));
        for block in whole.take(room) {
            self.hash = xxh3_64_with_seed(block, self.hash);
            self.blocks.push(self.hash);
        }
        if self.blocks.len() < CHAIN_BLOCKS_MAX {
            self.open.extend_from_slice(tail);
        }
    }

    /// Adds token ids, each as 4 bytes, least significant first. So a block of 16 tokens is a
    /// block of 64 bytes: the caller who chains tokens makes the builder with
    /// `block_bytes = 4 * tokens in a block`.
    pub fn push_tokens(&mut self, tokens: &[u32]) {
        let (whole, rest) = tokens.as_chunks::<TOKENS_AT_ONCE>();
        // Of fixed length: copied by a few wide instructions.
        for some in whole {
            let mut bytes = [0_u8; 4 * TOKENS_AT_ONCE];
            for (four, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(some) {
                *four = token.to_le_bytes();
            }
            self.push(&bytes);
        }
        let mut bytes = [0_u8; 4 * TOKENS_AT_ONCE];
        for (four, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(rest) {
            *four = token.to_le_bytes();
        }
        self.push(bytes.get(..4 * rest.len()).unwrap_or_default());
    }

    /// The full blocks' hashes and the count of all bytes pushed.
    #[must_use]
    pub fn finish(self) -> (Vec<BlockHash>, u64) {
        (self.blocks, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(seed: u64, block: usize, pieces: &[&[u8]]) -> (Vec<BlockHash>, u64) {
        let mut builder = ChainBuilder::new(seed, block);
        for piece in pieces {
            builder.push(piece);
        }
        builder.finish()
    }

    #[test]
    fn hashes_are_chained_from_the_seed() {
        let (blocks, bytes) = chain(7, 4, &[b"abcdefghij"]);
        let first = xxh3_64_with_seed(b"abcd", 7);
        let second = xxh3_64_with_seed(b"efgh", first);
        assert_eq!((blocks, bytes), (alloc::vec![first, second], 10));
    }

    #[test]
    fn only_the_bytes_count_not_where_the_pieces_end() {
        let text: Vec<u8> = (0..1_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let whole = chain(1, 64, &[&text]);
        for step in [1, 3, 63, 64, 65, 200] {
            let pieces: Vec<&[u8]> = text.chunks(step).collect();
            assert_eq!(chain(1, 64, &pieces), whole, "pieces of {step}");
        }
        assert_eq!(whole.0.len(), 15);
    }

    #[test]
    fn another_scope_shares_nothing_and_a_change_divides_from_there_on() {
        let a = chain(1, 2, &[b"aabbccdd"]).0;
        let b = chain(2, 2, &[b"aabbccdd"]).0;
        assert!(a.iter().zip(&b).all(|(x, y)| x != y));
        let c = chain(1, 2, &[b"aabbXcdd"]).0;
        assert_eq!(a[..2], c[..2]);
        assert!(a[2..].iter().zip(&c[2..]).all(|(x, y)| x != y));
    }

    #[test]
    fn another_goes_on_where_one_stood() {
        let text: Vec<u8> = (0..200_u32).map(|i| (i * 7 % 251) as u8).collect();
        for at in [0, 3, 64, 100, 200] {
            let mut first = ChainBuilder::new(5, 64);
            first.push(&text[..at]);
            let mut second = ChainBuilder::new(5, 64);
            second.resume(first.blocks(), first.open());
            second.push(&text[at..]);
            assert_eq!(second.finish(), chain(5, 64, &[&text]), "at {at}");
        }
    }

    #[test]
    fn bounded_and_still_counting() {
        let text = alloc::vec![5_u8; CHAIN_BLOCKS_MAX + 10];
        let (blocks, bytes) = chain(0, 1, &[&text, &text]);
        assert_eq!(blocks.len(), CHAIN_BLOCKS_MAX);
        assert_eq!(bytes, 2 * text.len() as u64);
    }

    #[test]
    fn tokens_are_four_bytes_each_and_buffers_are_reused() {
        let tokens: Vec<u32> = (0..150).map(|i| i * 70_000).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let mut builder = ChainBuilder::with_buffer(3, 64, alloc::vec![1, 2, 3]);
        builder.push_tokens(&tokens);
        assert_eq!(builder.finish(), chain(3, 64, &[&bytes]));
    }
}
