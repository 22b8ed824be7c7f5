//! `session`: the hash of the conversation says where it sits, within bounds of load.
//!
//! A conversation without a home goes down the rendezvous order of its key (Thaler and Ravishankar
//! 1998) and takes the first worker that is within its bounds, so that routers with the same
//! members agree without talking, a new worker takes about 1/(n+1) of the conversations, and a
//! removed one gives up only its own. Three bounds, all over the candidates:
//! - requests: `running + 1 <= max(ceil(bound x mean), floor)` (see `bound.rs`);
//! - tokens: `load <= bound x mean load + floor x (this prompt + 128)`;
//! - conversations: `sessions + 1 <= max(floor(bound x mean), ceil(mean), session_floor)`; those
//!   that were placed and not accepted yet count too, or a burst would find nobody at home.
//!
//! An engine that keeps one conversation in each of its slots (llama.cpp) has room for so many and
//! no more: a new one goes where a slot is free, evenness or not; where none is, to the worker whose
//! least recently served conversation is idle for longest, because that one is lost.
//!
//! A conversation with a home stays there until `load(home) > escape x (mean load of the others +
//! what a move would lose) + 128 x floor`, all in tokens: a move makes the engine compute again what
//! the home should still hold, so a long conversation bears more than a short one. Then it goes
//! down the same order, and where it settles is its new home: it does not bounce back. The home is
//! corrected by what is known of the cache: from turn 2 on, a worker that holds at least half of
//! the prompt, and more than the home does, is where this conversation really sat (its client
//! changed its key, its home restarted, or its key is that of a common opening).
//!
//! At a first turn there is little to lose, so the tighter bounds of a new conversation hold even
//! where the key has a home; and a home means nothing at a first turn whose key was derived from
//! its content. So a popular key, or many one-shots with one opening, spread.
//!
//! Source: consistent hashing with bounded loads (see `bound.rs`); the rest is ours.
//! Defaults: `bound` 1.25, `floor` 4, `session_floor` 2, `escape` 2, `hold_seconds` 0.5 (a seat of
//! a busy engine comes free every few hundred ms; computing 20k tokens anew takes over a second).
//! Score: the rendezvous weight as a share of the largest possible; more is better.

use super::bound::{Bound, FACTOR, FLOOR, total_load, total_running};
use super::config::{number, seconds, whole};
use super::pending::Pending;
use super::{
    Answer, Candidate, OptionError, OptionValue, Policy, Question, REQUEST_TOKENS, any_seat,
    by_load, position, rendezvous,
};
use crate::decision::Reason;
use crate::ids::{SessionKey, WorkerId};
use crate::request::{Arrival, KeySource};
use crate::rng::Rng;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

/// The settings of `session`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How far above the mean a worker may be for new conversations (times); 1 to 100.
    pub bound: f64,
    /// Requests on one worker that are never too many; 1 to 1,000,000.
    pub floor: u32,
    /// Conversations on one worker that are never too many; 1 to 1,000,000.
    pub session_floor: u32,
    /// How far a home's load may be above that of the others, and what a move would lose, before
    /// it is left (times); 1 to 100.
    pub escape: f64,
    /// How long to wait for a seat at home; the pool's `hold_max` bounds it.
    pub hold: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bound: FACTOR,
            floor: FLOOR,
            session_floor: 2,
            escape: 2.0,
            hold: Duration::from_millis(500),
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] =
        &["bound", "floor", "session_floor", "escape", "hold_seconds"];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "bound" => self.bound = number(value, 1.0, 100.0, "a number from 1 to 100")?,
            "floor" => self.floor = whole(value)?,
            "session_floor" => self.session_floor = whole(value)?,
            "escape" => self.escape = number(value, 1.0, 100.0, "a number from 1 to 100")?,
            "hold_seconds" => self.hold = seconds(value)?,
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; its state is who is on the way.
pub struct Session {
    options: Options,
    pending: Pending,
    /// By candidate: conversations at home there or on the way. Kept for its memory.
    conversations: Vec<u32>,
}

impl Session {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            pending: Pending::default(),
            conversations: Vec::new(),
        }
    }

    /// Counts the conversations of each candidate.
    fn count(&mut self, candidates: &[Candidate], now: Nanos) {
        self.pending.expire(now);
        self.conversations.clear();
        self.conversations.extend(
            candidates
                .iter()
                .map(|c| c.sessions.saturating_add(self.pending.count(c.worker))),
        );
    }
}

/// The candidates with their sums, as the bounds need them.
struct View<'a> {
    candidates: &'a [Candidate],
    options: &'a Options,
    conversations: &'a [u32],
    seated: bool,
    load: u64,
    cap: u64,
    load_cap: u64,
    session_cap: u64,
}

impl<'a> View<'a> {
    fn new(question: &Question<'a>, options: &'a Options, conversations: &'a [u32]) -> Self {
        let candidates = question.candidates;
        let n = candidates.len();
        let bound = Bound {
            factor: options.bound,
            floor: options.floor,
        };
        let load = total_load(candidates);
        let sessions = conversations.iter().map(|n| u64::from(*n)).sum();
        Self {
            candidates,
            options,
            conversations,
            seated: any_seat(candidates),
            load,
            cap: bound.cap(total_running(candidates), n),
            load_cap: bound.load_cap(load, n, question.prompt_tokens),
            session_cap: bound.even_cap(sessions, n, options.session_floor),
        }
    }

    /// Within the tight bounds, with a seat.
    fn takes(&self, c: &Candidate) -> bool {
        (c.seat || !self.seated) && u64::from(c.running) < self.cap && c.load() <= self.load_cap
    }

    /// Within the generous bound of a home that holds `lost` tokens of the prompt.
    fn bears(&self, c: &Candidate, lost: f64) -> bool {
        let others = self.candidates.len() - 1;
        if others == 0 {
            return true;
        }
        // A saturated sum would make the mean of the others too small, never wrap.
        let mean = self.load.saturating_sub(c.load()) as f64 / others as f64;
        let floor = (u64::from(self.options.floor) * REQUEST_TOKENS) as f64;
        c.load() as f64 <= self.options.escape * (mean + lost) + floor
    }

    /// Whether one more conversation finds a slot of its own, where that is how it is kept.
    fn has_slot(&self, index: usize) -> bool {
        let candidate = &self.candidates[index];
        candidate.cache_slots.is_none_or(|slots| {
            // Those on their way are not in a slot yet.
            let coming = self.conversations[index].saturating_sub(candidate.sessions);
            slots.taken.saturating_add(coming) < slots.size
        })
    }

    /// The worker whose next slot to be lost was served longest ago; among equals the first in the
    /// key's order.
    fn idlest(&self, key: SessionKey, pass: impl Fn(usize) -> bool) -> Option<usize> {
        let passing = self.candidates.iter().enumerate().filter(|(i, _)| pass(*i));
        passing
            .filter_map(|(index, c)| Some((index, c.identity, c.cache_slots?.oldest)))
            .min_by_key(|(_, identity, oldest)| (*oldest, Reverse(rendezvous(key, *identity))))
            .map(|(index, ..)| index)
    }

    /// First in the key's order of those that pass, and the first of all.
    fn first(&self, key: SessionKey, pass: impl Fn(usize) -> bool) -> (Option<usize>, usize) {
        let mut best: Option<(u64, usize)> = None;
        let mut first = (0, 0);
        for (index, candidate) in self.candidates.iter().enumerate() {
            let weight = rendezvous(key, candidate.identity);
            if index == 0 || weight > first.0 {
                first = (weight, index);
            }
            if pass(index) && best.is_none_or(|(w, _)| weight > w) {
                best = Some((weight, index));
            }
        }
        (best.map(|(_, index)| index), first.1)
    }
}

/// The worker that holds at least half of the prompt and more than `than` blocks, if any; among
/// equals the first in the key's order.
fn warmest(question: &Question<'_>, key: SessionKey, than: u32) -> Option<usize> {
    question
        .candidates
        .iter()
        .enumerate()
        .filter(|(_, c)| {
            c.matched_blocks > than && c.matched_blocks as usize * 2 >= question.guest.chain.len()
        })
        .max_by_key(|(_, c)| (c.matched_blocks, rendezvous(key, c.identity)))
        .map(|(index, _)| index)
}

/// Tokens of the prompt that a worker should still hold, if it holds that many blocks.
fn tokens_in(question: &Question<'_>, blocks: u32) -> f64 {
    let chain = question.guest.chain.len();
    if chain == 0 {
        return f64::from(question.prompt_tokens);
    }
    let share = f64::from(blocks) / chain as f64;
    f64::from(question.prompt_tokens) * share.min(1.0)
}

/// Where a conversation is believed to sit, and why that is believed.
/// `home` is where it settled, or where it is on its way to.
fn anchor(
    question: &Question<'_>,
    key: SessionKey,
    home: Option<WorkerId>,
) -> Option<(usize, Reason)> {
    let candidates = question.candidates;
    let later = question.guest.turn > 1;
    let home = home
        .and_then(|worker| position(candidates, worker))
        .filter(|_| later || !derived(question));
    let held = home.map_or(0, |index| candidates[index].matched_blocks);
    let warm = later.then(|| warmest(question, key, held)).flatten();
    warm.map(|index| (index, Reason::Warmest))
        .or(home.map(|index| (index, Reason::Home)))
}

/// Whether the key was derived from the content, so that others may have it.
fn derived(question: &Question<'_>) -> bool {
    matches!(
        question.guest.session_source,
        KeySource::Content | KeySource::None
    )
}

/// Whether the conversation stays where it is believed to sit.
fn stays(question: &Question<'_>, view: &View<'_>, index: usize, reason: Reason) -> bool {
    let seat = &question.candidates[index];
    if question.guest.turn == 1 {
        return view.takes(seat);
    }
    // What was there when it last sat there counts even if the index has dropped it.
    let remembered = match (reason, question.home) {
        (Reason::Home, Some(home)) => home.blocks,
        _ => 0,
    };
    let held = seat.matched_blocks.max(remembered);
    view.bears(seat, tokens_in(question, held))
}

impl Policy for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let Some(key) = question.guest.session.or(question.guest.opening) else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = rendezvous(key, candidate.identity) as f64 / u64::MAX as f64;
        }
        self.count(candidates, question.now);
        let view = View::new(question, &self.options, &self.conversations);
        let settled = question.home.map(|home| home.worker);
        let home = settled.or(self.pending.worker(key));
        let anchor = anchor(question, key, home);
        if let Some((choice, reason)) = anchor
            && stays(question, &view, choice, reason)
        {
            return Answer {
                choice,
                reason,
                hold: self.options.hold,
            };
        }

        // From here on it goes by the key's order. A known conversation is not held against the
        // number of conversations: it is counted already.
        let known = home.is_some();
        let takes = |index: usize| view.takes(&candidates[index]);
        let elsewhere = |index: usize| takes(index) && anchor.is_none_or(|(left, _)| left != index);
        let even = |index: usize| known || u64::from(view.conversations[index]) < view.session_cap;
        let within = |index: usize| elsewhere(index) && view.has_slot(index) && even(index);
        let (mut choice, first) = view.first(key, within);
        if choice.is_none() && candidates.iter().any(|c| c.cache_slots.is_some()) {
            choice = view.first(key, |i| elsewhere(i) && view.has_slot(i)).0;
            choice = choice.or_else(|| view.idlest(key, elsewhere));
        }
        if choice.is_none() {
            choice = view.first(key, takes).0;
        }
        let Some(choice) = choice else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        let reason = match anchor {
            Some(_) => Reason::Escape,
            None if known && !derived(question) => Reason::HomeUnavailable,
            None if choice == first => Reason::Hash,
            None => Reason::Bounded,
        };
        if settled.is_none() && candidates[choice].seat {
            self.pending
                .insert(key, candidates[choice].worker, question.now);
        }
        Answer {
            choice,
            reason,
            hold: Duration::ZERO,
        }
    }

    fn settled(&mut self, guest: &Arrival, _worker: WorkerId, _now: Nanos) {
        if let Some(key) = guest.session.or(guest.opening) {
            self.pending.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
