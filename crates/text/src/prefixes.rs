//! Chains of prompts seen before: a follow-up's is taken up where the one before it ended.

use crate::identify::LEADING_BYTES;
use crate::keys::{mix, seeds};
use crate::memo::Memo;
use crate::scope::token_seed;
use crate::tokenizer::{Cut, CutPart, Ids, Plan, Tokenizer, TokenizerError};
use maitred_core::ids::SessionKey;
use maitred_core::prefix::ChainBuilder;
use maitred_core::request::BlockHash;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// Ends of a prompt's parts that are looked for, from the last one back.
const LOOKED_FOR_MAX: usize = 64;

/// Tokens that the leading text has; prefixes with fewer are not kept.
const LEADING_TOKENS: usize = LEADING_BYTES / 4;

/// How a chain over tokens is seeded and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutting {
    /// What the chain is scoped by; the model's digest should be in it, see
    /// [`crate::scope::with_text`].
    pub scope: u64,
    /// Tokens of a block; at least 1.
    pub token_block: usize,
}

/// A prompt's chain over its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenChain {
    /// Hashes of the full blocks.
    pub chain: Vec<BlockHash>,
    /// How many tokens.
    pub tokens: u32,
    /// Hash of the leading tokens in the chain's scope; None without tokens.
    pub leading: Option<SessionKey>,
}

/// A prompt on its way to its chain: what is known of it, and what is left to do.
pub struct ChainPlan {
    plan: Plan,
    cutting: Cutting,
    start: Option<Arc<Prefix>>,
    /// Parts of the plan after which a prefix is to be kept, and what it is kept by.
    kept: Vec<(usize, u128)>,
}

impl ChainPlan {
    /// Tokens of the prefix that was seen before as a whole.
    #[must_use]
    pub fn known_tokens(&self) -> usize {
        self.start.as_ref().map_or(0, |start| start.tokens)
    }

    /// See [`Plan::missing_bytes`].
    #[must_use]
    pub fn missing_bytes(&self) -> usize {
        self.plan.missing_bytes()
    }
}

/// The chain of a prompt up to the end of one of its parts.
#[derive(Debug)]
struct Prefix {
    blocks: Box<[BlockHash]>,
    /// Bytes of the block that was not full yet.
    open: Box<[u8]>,
    tokens: usize,
    leading: Option<SessionKey>,
}

/// Remembers prefixes by their parts and by how their chains were cut.
pub(crate) struct Prefixes {
    memo: Memo<Arc<Prefix>>,
    /// One that nobody outside can foresee.
    seed: u64,
}

impl Prefixes {
    /// Holds `bytes` at most.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            memo: Memo::new(bytes),
            seed: RandomState::new().hash_one(0),
        }
    }

    /// Bytes held, overhead estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.memo.counts().bytes
    }

    /// Looks for the longest prefix seen before, and looks up what follows it.
    pub(crate) fn plan(&self, tokenizer: &Tokenizer, cut: Cut, cutting: Cutting) -> ChainPlan {
        let ends = self.ends(&cut, cutting);
        let mut latest = ends.iter().rev().take(LOOKED_FOR_MAX);
        let found = latest.find_map(|&(at, key)| Some((at, self.memo.get(key, 0)?)));
        let (from, start) = found.map_or((0, None), |(at, prefix)| (at, Some(prefix)));
        let plan = tokenizer.look_up(cut, from);
        // The next turn goes on at the last end; another answer to this one, before what is new.
        let new = plan.first_missing().map_or(usize::MAX, |at| from + at);
        let before_new = ends.iter().rev().find(|(at, _)| *at <= new);
        let mut kept: Vec<(usize, u128)> =
            before_new.into_iter().chain(ends.last()).copied().collect();
        kept.retain(|(at, _)| *at > from);
        kept.dedup();
        kept.iter_mut().for_each(|(at, _)| *at -= from);
        ChainPlan {
            plan,
            cutting,
            start,
            kept,
        }
    }

    /// The number of parts up to each added token, and what they are known by.
    fn ends(&self, cut: &Cut, cutting: Cutting) -> Vec<(usize, u128)> {
        let mut known = xxh3_128_with_seed(&[u8::from(cut.special)], self.seed)
            ^ (u128::from(cutting.scope) << 64)
            ^ (cutting.token_block as u128);
        let mut ends = Vec::with_capacity(cut.parts.len());
        for (at, part) in cut.parts.iter().enumerate() {
            let (mark, key) = match part {
                CutPart::Token(id) => (0, u128::from(*id)),
                CutPart::Text { key, .. } => (1, *key),
            };
            let mut bytes = [mark; 33];
            let (before, this) = bytes.split_at_mut(16);
            before.copy_from_slice(&known.to_le_bytes());
            this[..16].copy_from_slice(&key.to_le_bytes());
            known = xxh3_128_with_seed(&bytes, self.seed);
            if matches!(part, CutPart::Token(_)) {
                ends.push((at + 1, known));
            }
        }
        ends
    }

    /// The chain; tokenises what is missing, and remembers it.
    ///
    /// # Errors
    /// The tokenizer fails on the text.
    pub(crate) fn chain(
        &self,
        tokenizer: &Tokenizer,
        plan: ChainPlan,
    ) -> Result<TokenChain, TokenizerError> {
        let Cutting { scope, token_block } = plan.cutting;
        let block = token_block.max(1);
        let ids = tokenizer.finish(plan.plan)?;
        let start = plan.start.as_deref();
        let room = start.map_or(0, |s| s.blocks.len()) + ids.count() / block + 1;
        let seed = token_seed(scope);
        let mut chain =
            ChainBuilder::with_buffer(seed, block.saturating_mul(4), Vec::with_capacity(room));
        let mut tokens = 0;
        if let Some(start) = start {
            chain.resume(&start.blocks, &start.open);
            tokens = start.tokens;
        }
        let leading = match start {
            Some(start) => start.leading,
            None => leading(&ids, scope),
        };
        let mut kept = plan.kept.into_iter().peekable();
        for (at, part) in ids.parts().enumerate() {
            chain.push_tokens(part);
            tokens += part.len();
            let ended = (at + 1).checked_sub(ids.before());
            while let Some((_, key)) = kept.next_if(|(end, _)| Some(*end) == ended) {
                if tokens >= LEADING_TOKENS {
                    self.keep(key, &chain, tokens, leading);
                }
            }
        }
        Ok(TokenChain {
            chain: chain.finish().0,
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            leading,
        })
    }

    fn keep(&self, key: u128, chain: &ChainBuilder, tokens: usize, leading: Option<SessionKey>) {
        let prefix = Prefix {
            blocks: chain.blocks().into(),
            open: chain.open().into(),
            tokens,
            leading,
        };
        let bytes = size_of_val(&*prefix.blocks) + prefix.open.len() + size_of::<Prefix>();
        self.memo.insert(key, &Arc::new(prefix), bytes);
    }
}

/// Hash of the first tokens in the chain's scope; None without tokens.
pub(crate) fn leading(ids: &Ids, scope: u64) -> Option<SessionKey> {
    let mut first = [0; LEADING_BYTES];
    let mut filled = 0;
    let all = ids.parts().flatten();
    for (four, id) in first.as_chunks_mut::<4>().0.iter_mut().zip(all) {
        *four = id.to_le_bytes();
        filled += 4;
    }
    let first = first.get(..filled).filter(|some| !some.is_empty())?;
    let seed = mix(seeds::LEADING, &[scope]);
    Some(SessionKey(xxh3_64_with_seed(first, seed)))
}
