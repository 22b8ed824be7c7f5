//! What happened to the cache, in the words of KV events.

use std::sync::Arc;

/// Something that happened to blocks that can be found by their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// A run of blocks, each the child of the one before it, can be found now.
    Stored {
        /// The blocks, in order.
        hashes: Vec<u64>,
        /// The block before the first; none: it begins a prompt.
        parent: Option<u64>,
        /// Tokens of these blocks only.
        tokens: Vec<u32>,
        /// Cache salt of the prompt they begin.
        salt: Option<Arc<str>>,
    },
    /// A block was taken for something else.
    Removed {
        /// The block.
        hash: u64,
    },
    /// Every content was forgotten.
    Cleared,
}

/// Events that nobody took yet.
#[derive(Debug, Default)]
pub(super) struct KvLog {
    events: Vec<KvEvent>,
}

/// A prompt's whole blocks, as far as they are chained.
pub(super) struct Run<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) chain: &'a [u64],
    pub(super) block_tokens: usize,
    pub(super) salt: Option<&'a Arc<str>>,
}

impl KvLog {
    /// Block number `block` of `run` can be found now.
    pub(super) fn stored(&mut self, run: &Run<'_>, block: usize) {
        let hash = run.chain[block];
        let at = block * run.block_tokens;
        let content = &run.tokens[at..at + run.block_tokens];
        let before = block.checked_sub(1).map(|before| run.chain[before]);
        if let Some(KvEvent::Stored { hashes, tokens, .. }) = self.events.last_mut()
            && before.is_some()
            && hashes.last().copied() == before
        {
            hashes.push(hash);
            tokens.extend_from_slice(content);
            return;
        }
        self.events.push(KvEvent::Stored {
            hashes: vec![hash],
            parent: before,
            tokens: content.to_vec(),
            salt: run.salt.filter(|_| before.is_none()).cloned(),
        });
    }

    pub(super) fn removed(&mut self, hash: u64) {
        self.events.push(KvEvent::Removed { hash });
    }

    pub(super) fn cleared(&mut self) {
        self.events.push(KvEvent::Cleared);
    }

    pub(super) fn take(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }
}
