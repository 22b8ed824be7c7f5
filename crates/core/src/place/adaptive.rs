//! `adaptive`: the least expected delay in seconds, one's own and that of others.
//!
//! Formula, for each worker, with the costs that the pool learnt from its own answers ([`Rates`]):
//! - **first token**: the prefill that stands before it, what decoders add, its own prefill of what
//!   is not cached there, and bringing back what lies in a slower tier;
//! - **others**: what its prefill of `w` seconds delays those who come meanwhile and after it:
//!   `w (l w / 2 + q) / (1 - u)`, with `l` prefills dispatched in a second, `q` requests that wait, on
//!   a worker or in the line, and `u` the share of the pool that is in use (of its prefill or of its
//!   slots, the larger: what binds decides). It is the derivative of the wait of a queue (Pollaczek and
//!   Khinchine). It counts [`OTHERS_WEIGHT`], because a copy of a shared beginning serves others too;
//! - **turns to come** (at a first turn): `t r u (2 - u) / (1 - u)^2`: a conversation stays where it
//!   begins, so each of its `t` further turns adds to the waits of a worker of load `u`, its own and
//!   those of others: the derivative of `u^2 / (1 - u)`, with the `r` seconds that a prefill that is
//!   waited for still takes.
//!
//! A first turn goes where the sum is least, among the workers that have not too many conversations
//! already (`even_cap` of `bound.rs`, so that no opening gathers a herd while the pool is idle and
//! all waits are 0); those that were placed and not accepted yet count too. Equal sums go by the
//! rendezvous order of the key, so that routers agree without talking.
//!
//! A follow-up goes home, unless the sum there is larger than the least by more than the fixed part
//! of a prefill (`a`, a step or two): whom a move saves less is not moved, and where it goes is its new
//! home, with what it computed there, so it does not go back. Moving computes again what the home
//! holds, so a long conversation bears more than a short one, and each bears less in an idle pool
//! than in a full one. Where the home has no seat, it waits for one as long as that is expected to
//! cost less than sitting elsewhere.
//!
//! While affinity does not pay (see `cost/gate.rs`) load alone decides.
//!
//! Source: ours. The costs of prefill in seconds are Preble's and Mooncake's idea, the two terms for
//! others are queueing theory. Options: none. Score: the sum in seconds, or the load where load
//! decided; less is better.
//!
//! [`Rates`]: crate::cost::Rates

use super::bound::Bound;
use super::pending::Pending;
use super::{Answer, Candidate, Policy, Question, any_seat, by_load, cold, position, rendezvous};
use crate::decision::Reason;
use crate::ids::{SessionKey, WorkerId};
use crate::request::{Arrival, KeySource};
use crate::rng::Rng;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

/// The fullest that a pool or a worker is taken to be: beyond it the formulas have no limit.
const BUSY_MOST: f64 = 0.9;

/// What a second of others weighs against one's own. Tried in virtual time: at 1 a beginning that many
/// share stays on one worker for too long, at 0 a full pool computes too much twice.
const OTHERS_WEIGHT: f64 = 0.3;

/// Conversations on one worker that are never too many.
const SESSION_FLOOR: u32 = 2;

/// The longest that it asks to hold for a seat; the pool's `hold_max` bounds it.
const HOLD_SECONDS: f64 = 60.0;

/// The policy; its state is who is on the way.
#[derive(Default)]
pub struct Adaptive {
    pending: Pending,
    /// By candidate: conversations at home there or on the way. Kept for its memory.
    conversations: Vec<u32>,
}

/// What a second of prefill costs others.
struct Others {
    /// Prefills dispatched in a second, to one worker.
    rate: f64,
    /// Requests that wait, for one worker.
    waiting: f64,
    free: f64,
}

impl Others {
    fn new(question: &Question<'_>) -> Self {
        let rates = &question.rates;
        let (mut open, mut running, mut slots) = (0, 0, 0);
        for c in question.candidates {
            open += u64::from(c.running.saturating_sub(c.decoding));
            if let Some(seats) = c.slots {
                running += u64::from(c.running);
                slots += u64::from(seats);
            }
        }
        let seated = running as f64 / slots.max(1) as f64;
        let waiting = open.saturating_add(u64::from(question.waiting)) as f64;
        Self {
            rate: rates.busy / rates.work_seconds.max(1e-6),
            waiting: waiting / question.candidates.len().max(1) as f64,
            free: 1.0 - rates.busy.max(seated).min(BUSY_MOST),
        }
    }

    fn seconds(&self, work: f64) -> f64 {
        OTHERS_WEIGHT * work * (self.rate * work / 2.0 + self.waiting) / self.free
    }
}

/// Waits that one more unit of load brings to a worker, in units of what a prefill still takes.
fn crowd(c: &Candidate) -> f64 {
    let seated = c
        .slots
        .map_or(0.0, |slots| f64::from(c.running) / f64::from(slots.max(1)));
    let u = c.busy.max(seated).min(BUSY_MOST);
    u * (2.0 - u) / ((1.0 - u) * (1.0 - u))
}

/// Whether the key was derived from the content, so that others may have it.
fn derived(guest: &Arrival) -> bool {
    matches!(guest.session_source, KeySource::Content | KeySource::None)
}

/// One question with what is worked out for it.
struct View<'a> {
    candidates: &'a [Candidate],
    scores: &'a [f64],
    conversations: &'a [u32],
    key: Option<SessionKey>,
    seated: bool,
}

impl View<'_> {
    fn takes(&self, index: usize) -> bool {
        self.candidates[index].seat || !self.seated
    }

    /// The least sum of those that pass; equal ones by the key's order.
    fn least(&self, pass: impl Fn(usize) -> bool) -> Option<usize> {
        let order = |i: usize| {
            let identity = self.candidates[i].identity;
            self.key.map_or(0, |key| rendezvous(key, identity))
        };
        let mut best: Option<usize> = None;
        for i in (0..self.candidates.len()).filter(|i| pass(*i)) {
            let better = |b: usize| match self.scores[i].total_cmp(&self.scores[b]) {
                core::cmp::Ordering::Less => true,
                core::cmp::Ordering::Equal => order(i) > order(b),
                core::cmp::Ordering::Greater => false,
            };
            if best.is_none_or(better) {
                best = Some(i);
            }
        }
        best
    }

    /// Whether one more conversation finds a slot of its own, where that is how it is kept.
    fn has_slot(&self, index: usize) -> bool {
        let c = &self.candidates[index];
        c.cache_slots.is_none_or(|slots| {
            let coming = self.conversations[index].saturating_sub(c.sessions);
            slots.taken.saturating_add(coming) < slots.size
        })
    }

    /// The worker whose next slot to be lost was served longest ago.
    fn idlest(&self) -> Option<usize> {
        (0..self.candidates.len())
            .filter(|i| self.takes(*i))
            .filter_map(|i| Some((self.candidates[i].cache_slots?.oldest, i)))
            .min()
            .map(|(_, i)| i)
    }

    /// Where a conversation begins.
    fn first(&self) -> Option<usize> {
        let all = self.conversations.iter().map(|n| u64::from(*n)).sum();
        let n = self.candidates.len();
        let cap = Bound::default().even_cap(all, n, SESSION_FLOOR);
        let even = |i: usize| u64::from(self.conversations[i]) < cap;
        self.least(|i| self.takes(i) && self.has_slot(i) && even(i))
            .or_else(|| self.least(|i| self.takes(i) && self.has_slot(i)))
            .or_else(|| self.idlest())
            .or_else(|| self.least(|i| self.takes(i)))
    }
}

impl Adaptive {
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

/// The sums of all candidates.
fn weigh(question: &Question<'_>, scores: &mut [f64]) {
    let others = Others::new(question);
    let rates = &question.rates;
    let context = u64::from(question.prompt_tokens);
    let turns = if question.guest.turn > 1 {
        0.0
    } else {
        rates.turns_left * rates.residual_seconds
    };
    for (score, c) in scores.iter_mut().zip(question.candidates) {
        let new = question.uncached(c).max(1);
        let work = c.pace * rates.saved_seconds(new, context);
        let first_token = c.first_token_seconds(rates, new, context);
        *score = first_token + others.seconds(work) + turns * crowd(c);
    }
}

/// At home, if that is no worse than elsewhere or worth its wait for a seat.
fn stays(question: &Question<'_>, view: &View<'_>, home: usize) -> Option<Answer> {
    let c = &view.candidates[home];
    let wait = if view.takes(home) {
        0.0
    } else {
        // One of those who sit there leaves.
        question.rates.service_seconds / f64::from(c.running.max(1))
    };
    let margin = c.pace * question.rates.prefill[0];
    let gain = view
        .least(|i| i != home && view.takes(i))
        .map_or(HOLD_SECONDS, |other| {
            view.scores[other] + margin - view.scores[home]
        });
    (gain >= wait).then(|| Answer {
        choice: home,
        reason: Reason::Home,
        hold: Duration::from_secs_f64(gain.clamp(1e-3, HOLD_SECONDS)),
    })
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let guest = question.guest;
        let key = guest.session.or(guest.opening);
        if !question.follows || (key.is_none() && cold(candidates)) {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        }
        weigh(question, scores);
        self.count(candidates, question.now);
        let view = View {
            candidates,
            scores,
            conversations: &self.conversations,
            key,
            seated: any_seat(candidates),
        };
        let settled = question.home.map(|home| home.worker);
        let later = guest.turn > 1;
        let home = key
            .and_then(|key| settled.or(self.pending.worker(key)))
            .filter(|_| later || !derived(guest));
        let at_home = home.and_then(|worker| position(candidates, worker));
        if let Some(answer) = at_home.and_then(|home| stays(question, &view, home)) {
            return answer;
        }
        let choice = if home.is_some() || later {
            view.least(|i| view.takes(i))
        } else {
            view.first()
        };
        let Some(choice) = choice else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        let longest = candidates.iter().map(|c| c.matched_blocks).max();
        let warm = longest.is_some_and(|l| l > 0 && candidates[choice].matched_blocks == l);
        let reason = match at_home {
            Some(home) if view.takes(home) => Reason::Escape,
            Some(_) => Reason::HomeUnavailable,
            None if warm => Reason::Warmest,
            None if home.is_some() => Reason::HomeUnavailable,
            None if cold(candidates) => Reason::LeastLoad,
            None => Reason::Escape,
        };
        if let Some(key) = key
            && settled.is_none()
            && candidates[choice].seat
        {
            let worker = candidates[choice].worker;
            self.pending.insert(key, worker, question.now);
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
