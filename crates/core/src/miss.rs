//! Where the warmth went: one cause for each prompt token that the engine did not serve from its cache.
//!
//! A conversation has a lineage: the prompts that it sent before, in families, because a coding agent's
//! sub-agents and side calls go under one session key and have nothing to do with each other. The
//! ancestor of a request is the prompt of its session with which it has most in common; it continues
//! that family where it shares at least half of it, or where it is the very next turn of one and no
//! shorter (a beginning that changes with each turn, as a clock in it does, shares nothing and is no new
//! family). Then, of the tokens that were not served from the cache:
//! - those that the ancestor had too: `unknown` where the engine does not say what it served; else
//!   `moved` where the ancestor was computed on another worker, with why; `restarted` where it was the
//!   same in an earlier life; `evicted` where it was the same;
//! - those that the ancestor had in another scope (tenant, adapter, weights, template): `scope`;
//! - those in whose place the ancestor had others: `diverged`;
//! - the rest: `new`. So is the last block: an engine always computes a prompt's end.
//!
//! Causes and cached tokens add up to the prompt, exactly, whatever the engine says. Where it does not
//! say, the cached ones count among `unknown`: unknown is not zero.
//!
//! Of an ancestor's chain so many hashes are kept as [`MARKS`]; each covers all before it. A prompt that
//! continues its ancestor is found exactly; where it parts from it within, that is known up to a mark.

use crate::decision::Reason;
use crate::ids::{SessionKey, WorkerId};
use crate::request::BlockHash;
use alloc::collections::VecDeque;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Hashes kept of a chain, at most.
pub const MARKS: usize = 64;

/// Families of one session; of more the least recently continued is forgotten.
pub const FAMILIES_MAX: usize = 4;

/// Why a request was not where its ancestor had been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moved {
    /// The home or warmest worker was left for its load.
    Escape,
    /// It could not take the request: down, draining, or no seat in time.
    Unavailable,
    /// An earlier attempt failed there.
    Retry,
    /// The policy does not go by where it was.
    Policy,
}

impl Moved {
    /// Why a decision of that reason led elsewhere.
    #[must_use]
    pub fn of(reason: Reason) -> Self {
        match reason {
            Reason::Escape | Reason::Bounded => Self::Escape,
            Reason::HomeUnavailable | Reason::OnlyOne => Self::Unavailable,
            Reason::Retry => Self::Retry,
            _ => Self::Policy,
        }
    }

    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Escape => "escape",
            Self::Unavailable => "unavailable",
            Self::Retry => "retry",
            Self::Policy => "policy",
        }
    }
}

/// One served request.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The chain of its full blocks.
    pub chain: &'a [BlockHash],
    /// Tokens of one block; under byte identity as they are on average.
    pub block_tokens: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of them, served from the cache, where the engine says so.
    pub cached_tokens: Option<u32>,
    /// 1 for a first request.
    pub turn: u32,
    /// What its chain was seeded with.
    pub scope: u64,
    /// Who served it, in which life of its cache.
    pub worker: WorkerId,
    /// See `worker`.
    pub epoch: u32,
    /// Why it went there.
    pub reason: Reason,
}

/// What became of the tokens of one prompt. All but `cached` are causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// Served from the cache, as the engine says.
    pub cached: u32,
    /// No ancestor had them.
    pub new: u32,
    /// The ancestor had others in their place.
    pub diverged: u32,
    /// The ancestor had them in another scope.
    pub scope: u32,
    /// The ancestor had them on another worker, for this reason.
    pub moved: u32,
    /// Why `moved` is not 0.
    pub moved_why: Option<Moved>,
    /// The same worker had them and dropped them.
    pub evicted: u32,
    /// The same worker had them in an earlier life.
    pub restarted: u32,
    /// An ancestor had them, and the engine does not say what it served.
    pub unknown: u32,
}

impl Misses {
    /// All tokens: those of the prompt.
    #[must_use]
    pub fn total(&self) -> u32 {
        let causes = [
            self.cached,
            self.new,
            self.diverged,
            self.scope,
            self.moved,
            self.evicted,
            self.restarted,
            self.unknown,
        ];
        causes.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// A prompt that was served.
#[derive(Clone, Debug)]
struct Family {
    marks: SmallVec<[(u32, BlockHash); MARKS]>,
    blocks: u32,
    turn: u32,
    scope: u64,
    worker: WorkerId,
    epoch: u32,
}

impl Family {
    fn of(served: &Served<'_>) -> Self {
        let blocks = served.chain.len();
        let step = blocks.div_ceil(MARKS).max(1);
        // From the end, so that the last block is one of them.
        let at = (1..=blocks).rev().step_by(step);
        let mut marks: SmallVec<_> = at
            .filter_map(|n| Some((n as u32, *served.chain.get(n - 1)?)))
            .collect();
        marks.reverse();
        Self {
            marks,
            blocks: blocks as u32,
            turn: served.turn,
            scope: served.scope,
            worker: served.worker,
            epoch: served.epoch,
        }
    }

    /// Leading blocks in common.
    fn common(&self, chain: &[BlockHash]) -> u32 {
        let same = |(n, hash): &&(u32, BlockHash)| chain.get(*n as usize - 1) == Some(hash);
        // Each hash covers all before it: those in common come first.
        let found = self.marks.partition_point(|mark| same(&mark));
        found
            .checked_sub(1)
            .and_then(|last| self.marks.get(last))
            .map_or(0, |(n, _)| *n)
    }

    fn continued_by(&self, served: &Served<'_>, common: u32) -> bool {
        let longer = served.chain.len() as u32 >= self.blocks;
        let next = served.turn > 1 && served.turn == self.turn + 1;
        (common > 0 && common * 2 >= self.blocks) || (next && longer)
    }
}

/// The lineages of a pool's sessions, bounded: the session that was served longest ago goes first.
pub struct Lineages {
    by_key: HashMap<SessionKey, Lineage, FxBuildHasher>,
    /// In order of service; an entry that is not its session's last is void.
    order: VecDeque<(SessionKey, u64)>,
    served: u64,
    max: usize,
}

#[derive(Default)]
struct Lineage {
    /// The most recently continued last.
    families: SmallVec<[Family; 1]>,
    last: u64,
}

impl Lineages {
    /// Of at most `max` sessions; at least 1.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            by_key: HashMap::with_hasher(FxBuildHasher),
            order: VecDeque::new(),
            served: 0,
            max: max.max(1),
        }
    }

    /// Sessions that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// A request was served: what became of its tokens, by what its session sent before.
    pub fn served(&mut self, session: Option<SessionKey>, served: &Served<'_>) -> Misses {
        let Some(session) = session else {
            return misses(served, None);
        };
        self.served += 1;
        let lineage = self.by_key.entry(session).or_default();
        lineage.last = self.served;
        let parent = parent(&lineage.families, served);
        let found = parent.and_then(|(at, common)| Some((lineage.families.get(at)?, common)));
        let told = misses(served, found);
        if let Some((at, _)) = parent {
            lineage.families.remove(at);
        } else if lineage.families.len() >= FAMILIES_MAX {
            lineage.families.remove(0);
        }
        lineage.families.push(Family::of(served));
        self.order.push_back((session, self.served));
        self.forget();
        told
    }

    fn forget(&mut self) {
        while self.by_key.len() > self.max || self.order.len() > 4 * self.max {
            let Some((session, at)) = self.order.pop_front() else {
                return;
            };
            let last = self.by_key.get(&session).map(|lineage| lineage.last);
            if last == Some(at) {
                self.by_key.remove(&session);
            }
        }
    }
}

/// The family that the request continues, and the blocks in common.
fn parent(families: &[Family], served: &Served<'_>) -> Option<(usize, u32)> {
    families
        .iter()
        .enumerate()
        .map(|(at, family)| (at, family.common(served.chain)))
        .filter(|(at, common)| {
            let family = families.get(*at);
            family.is_some_and(|family| family.continued_by(served, *common))
        })
        .max_by_key(|(at, common)| (*common, *at))
}

fn misses(served: &Served<'_>, ancestor: Option<(&Family, u32)>) -> Misses {
    let prompt = served.prompt_tokens;
    let tokens = |blocks: u32| ((f64::from(blocks) * served.block_tokens) as u32).min(prompt);
    let cached = served.cached_tokens.unwrap_or(0).min(prompt);
    let mut told = Misses {
        cached,
        ..Misses::default()
    };
    let mut left = prompt - cached;
    let mut take = |most: u32| {
        let taken = most.min(left);
        left -= taken;
        taken
    };
    if let Some((family, common)) = ancestor {
        // The engine computes at least the last token, and with it its block.
        let reach = f64::from(prompt.saturating_sub(1)) / served.block_tokens.max(1.0);
        let common = common.min(reach as u32);
        let missed = take(tokens(common).saturating_sub(cached));
        if served.cached_tokens.is_none() {
            told.unknown = missed;
        } else if family.worker != served.worker {
            told.moved = missed;
            told.moved_why = (missed > 0).then(|| Moved::of(served.reason));
        } else if family.epoch != served.epoch {
            told.restarted = missed;
        } else {
            told.evicted = missed;
        }
        let whole = tokens(family.blocks.min(reach as u32));
        let lost = take(whole.saturating_sub(tokens(common).max(cached)));
        if family.scope == served.scope {
            told.diverged = lost;
        } else {
            told.scope = lost;
        }
    }
    told.new = left;
    told
}

#[cfg(test)]
mod tests;
