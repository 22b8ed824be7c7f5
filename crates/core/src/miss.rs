//! Where the warmth went: one cause for each prompt token that the engine did not serve from its cache.
//!
//! A conversation has a lineage: the prompts that it sent before, in families, because a coding agent's
//! sub-agents and side calls go under one session key and have nothing to do with each other. The
//! ancestor of a request is the prompt of its session with which it has most in common; it continues
//! that family where it shares at least half of it, or where it is a later turn of one and not much
//! shorter (a beginning that changes with each turn, as a clock in it does, shares nothing and is no new
//! family). An ancestor that was not through when the request was sent had nothing to leave it; what
//! that one had of its own ancestor counts then. Of the tokens that were not served from the cache:
//! - those that the ancestor had too: `unknown` where the engine does not say what it served, or was
//!   told not to look; else `moved` where the ancestor was computed on another worker, with why;
//!   `restarted` where it was the same in an earlier life; `evicted` where it was the same;
//! - those that the ancestor had in another scope (tenant, adapter, weights, template): `scope`;
//! - those that one had in bytes and the other in tokens, which cannot be compared: `unknown`;
//! - those in whose place the ancestor had others: `diverged`;
//! - all, where the request is a follow-up and its session is not known any more: `unknown`;
//! - the rest: `new`. So is less than a block in common: engines cache whole blocks, and always compute
//!   a prompt's end.
//!
//! Causes and cached tokens add up to the prompt, exactly, whatever the engine says. Where it does not
//! say, the cached ones count among the others: unknown is not zero.
//!
//! Of an ancestor's chain so many hashes are kept as [`MARKS`]; each covers all before it. A prompt that
//! continues its ancestor is found exactly; where it parts from it within, that is known up to a mark.

use crate::ids::{SessionKey, WorkerId};
use crate::request::{BlockHash, Identity};
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Hashes kept of a chain, at most.
pub const MARKS: usize = 64;

/// Families of one session; of more the least recently continued is forgotten.
pub const FAMILIES_MAX: usize = 4;

/// Causes that a token may have.
pub const CAUSES: usize = 7;

/// Why a request went elsewhere than the one before it, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moved {
    /// The home or warmest worker was left for its load.
    Escape,
    /// It was waited for, and had no seat in time.
    HoldExpired,
    /// It had no seat.
    Full,
    /// It was draining.
    Draining,
    /// It was down, or removed.
    Down,
    /// An earlier attempt failed there.
    Retry,
    /// The policy does not go by where it was.
    Policy,
}

impl Moved {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Escape,
        Self::HoldExpired,
        Self::Full,
        Self::Draining,
        Self::Down,
        Self::Retry,
        Self::Policy,
    ];

    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Escape => "escape",
            Self::HoldExpired => "hold_expired",
            Self::Full => "full",
            Self::Draining => "draining",
            Self::Down => "down",
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
    /// How that was made.
    pub identity: Identity,
    /// Tokens of one block; under byte identity as they are on average.
    pub block_tokens: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of them, served from the cache, where the engine says so.
    pub cached_tokens: Option<u32>,
    /// The engine may have looked into its cache.
    pub reads_cache: bool,
    /// Tokens in one block of the engine's cache, where it says so; else 0.
    pub cache_block: u32,
    /// 1 for a first request.
    pub turn: u32,
    /// What its chain was seeded with.
    pub scope: u64,
    /// Who served it, in which life of its cache.
    pub worker: WorkerId,
    /// See `worker`.
    pub epoch: u32,
    /// Why it went elsewhere than the one before, if it did.
    pub why: Moved,
    /// When it was sent to its worker.
    pub dispatched: Nanos,
    /// When its answer was complete.
    pub ended: Nanos,
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
    /// An ancestor had them, or may have had them, and what became of them cannot be known.
    pub unknown: u32,
    /// Leading tokens in common with the ancestor, and who served that; None: no ancestor is known.
    pub ancestor: Option<Ancestor>,
}

/// What a request continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Leading tokens in common.
    pub common: u32,
    /// Who served it.
    pub worker: WorkerId,
}

impl Misses {
    /// The causes by their names in records and metrics.
    #[must_use]
    pub fn causes(&self) -> [(&'static str, u32); CAUSES] {
        [
            ("new", self.new),
            ("diverged", self.diverged),
            ("scope", self.scope),
            ("moved", self.moved),
            ("evicted", self.evicted),
            ("restarted", self.restarted),
            ("unknown", self.unknown),
        ]
    }

    /// All tokens: those of the prompt.
    #[must_use]
    pub fn total(&self) -> u32 {
        let causes = self.causes();
        let all = causes.iter().map(|(_, tokens)| *tokens);
        all.fold(self.cached, u32::saturating_add)
    }
}

/// Where a prompt was computed, and when it was through.
#[derive(Clone, Copy, Debug)]
struct Place {
    worker: WorkerId,
    epoch: u32,
    ended: Nanos,
}

/// A prompt that was served.
#[derive(Clone, Debug)]
struct Family {
    /// Lower halves of every `step`-th hash, counted from the end: the last block is one of them.
    marks: Box<[u32]>,
    blocks: u32,
    block_tokens: f32,
    turn: u32,
    identity: Identity,
    scope: u64,
    place: Place,
    /// What of it its own ancestor had had, in blocks, and where that was.
    before: Option<(u32, Place)>,
}

impl Family {
    fn of(served: &Served<'_>, before: Option<(u32, Place)>) -> Self {
        let blocks = served.chain.len();
        let mark = |at: u32| served.chain.get(at as usize - 1).map_or(0, |h| *h as u32);
        Self {
            marks: marked(blocks as u32).map(mark).collect(),
            blocks: blocks as u32,
            block_tokens: served.block_tokens as f32,
            turn: served.turn,
            identity: served.identity,
            scope: served.scope,
            place: served.place(),
            before,
        }
    }

    /// Leading blocks in common.
    fn common(&self, served: &Served<'_>) -> u32 {
        if served.identity != self.identity {
            return 0;
        }
        let hash = |at: u32| served.chain.get(at as usize - 1).map(|h| *h as u32);
        // Each hash covers all before it: those in common come first.
        let mut low = 0;
        let mut high = self.marks.len();
        let step = step(self.blocks);
        let at = |place: usize| self.blocks - (self.marks.len() - 1 - place) as u32 * step;
        while low < high {
            let middle = low + (high - low) / 2;
            if hash(at(middle)) == self.marks.get(middle).copied() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1).map_or(0, at)
    }

    /// Tokens of its first `blocks`.
    fn tokens(&self, blocks: u32) -> u32 {
        (f64::from(blocks) * f64::from(self.block_tokens)) as u32
    }

    fn continued_by(&self, served: &Served<'_>, common: u32) -> bool {
        let whole = self.tokens(self.blocks);
        let long = served.prompt_tokens >= whole / 2;
        let later = served.turn > 1 && served.turn >= self.turn;
        (common > 0 && common * 2 >= self.blocks) || (later && long)
    }
}

impl Served<'_> {
    fn place(&self) -> Place {
        Place {
            worker: self.worker,
            epoch: self.epoch,
            ended: self.ended,
        }
    }
}

/// One in so many blocks has its hash kept.
fn step(blocks: u32) -> u32 {
    blocks.div_ceil(MARKS as u32).max(1)
}

/// Counts of leading blocks whose hashes are kept, ascending; the whole is the last.
fn marked(blocks: u32) -> impl Iterator<Item = u32> {
    let step = step(blocks);
    let first = blocks - blocks.saturating_sub(1) / step * step;
    (first.max(1)..=blocks).step_by(step as usize)
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
            return misses(served, None, served.turn <= 1);
        };
        self.served += 1;
        let lineage = self.by_key.entry(session).or_default();
        lineage.last = self.served;
        let known = served.turn <= 1 || !lineage.families.is_empty();
        let parent = parent(&lineage.families, served);
        let found = parent.and_then(|(at, common)| Some((lineage.families.get(at)?, common)));
        let told = misses(served, found, known);
        let before = found.and_then(|(family, common)| past(family, common, served));
        if let Some((at, _)) = parent {
            lineage.families.remove(at);
        } else if lineage.families.len() >= FAMILIES_MAX {
            lineage.families.remove(0);
        }
        lineage.families.push(Family::of(served, before));
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
        .map(|(at, family)| (at, family.common(served)))
        .filter(|(at, common)| {
            let family = families.get(*at);
            family.is_some_and(|family| family.continued_by(served, *common))
        })
        .max_by_key(|(at, common)| (*common, *at))
}

/// Of the blocks in common, those that were through when the request was sent, and where.
fn past(family: &Family, common: u32, served: &Served<'_>) -> Option<(u32, Place)> {
    if family.place.ended <= served.dispatched {
        return Some((common, family.place));
    }
    let (blocks, place) = family.before?;
    (place.ended <= served.dispatched).then_some((common.min(blocks), place))
}

fn misses(served: &Served<'_>, ancestor: Option<(&Family, u32)>, known: bool) -> Misses {
    let prompt = served.prompt_tokens;
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
    let past = ancestor.and_then(|(family, common)| Some((family, past(family, common, served)?)));
    if let Some((family, (common, place))) = past {
        let block = served.block_tokens.max(f64::from(served.cache_block));
        let block = block.max(1.0);
        // The engine computes at least the last token, and with it its block.
        let end = f64::from(prompt.saturating_sub(1));
        let end = (f64::from((end / block) as u32) * block) as u32;
        let shared = family.tokens(common).min(end);
        // Less than a block is what engines, which cache whole ones, leave over.
        let whole = |tokens: u32| if f64::from(tokens) < block { 0 } else { tokens };
        let missed = take(whole(shared.saturating_sub(cached)));
        if served.cached_tokens.is_none() || !served.reads_cache {
            told.unknown = missed;
        } else if place.worker != served.worker {
            told.moved = missed;
            told.moved_why = (missed > 0).then_some(served.why);
        } else if place.epoch != served.epoch {
            told.restarted = missed;
        } else {
            told.evicted = missed;
        }
        // Of one that was not through, only what it had of its own ancestor is known.
        let through = family.place.ended <= served.dispatched;
        let all = if through { family.blocks } else { common };
        let all = family.tokens(all).min(end);
        let lost = take(whole(all.saturating_sub(shared.max(cached))));
        if family.scope != served.scope {
            told.scope = lost;
        } else if family.identity != served.identity {
            told.unknown += lost;
        } else {
            told.diverged = lost;
        }
        told.ancestor = Some(Ancestor {
            common: shared,
            worker: place.worker,
        });
    } else if !known {
        told.unknown = take(u32::MAX);
    }
    told.new = left;
    told
}

#[cfg(test)]
mod tests;
