//! Placement: which of the workers that could take a request is the best one for it.
//!
//! One policy, one file: the formula, its source and its defaults stand at the top of it. To add
//! one: a file here and its arms in `config.rs`.
//!
//! Rules common to all are kept by the scheduler, not by the policies: candidates never include a
//! worker that failed this request, is not ready, drains, or does not list the model.
//!
//! Rules common to all that are kept here: a request that nothing binds is placed by load alone
//! ([`least_loaded`]); a worker without a free seat is chosen only where the policy would rather
//! wait for it, or where no candidate has one; ties are broken by the seeded generator.

use crate::cost::Rates;
use crate::decision::Reason;
use crate::ids::{SessionKey, WorkerId};
use crate::request::Arrival;
use crate::rng::Rng;
use crate::session::{CacheSlots, Home};
use crate::time::Nanos;
use core::time::Duration;

pub mod adaptive;
mod bound;
pub mod cache_aware;
pub mod chwbl;
mod config;
pub mod dualmap;
pub mod dynamo_cost;
pub mod least_load;
pub mod lmetric;
mod pending;
pub mod pin;
pub mod power_of_two;
pub mod preble;
pub mod random;
pub mod round_robin;
pub mod scenario;
pub mod session;
pub mod smetric;
pub mod soft_affinity;
pub mod sticky_until_saturated;
#[cfg(test)]
mod testing;
mod ttft;

pub use config::{OptionError, OptionValue, PolicyConfig};
pub(crate) use config::{number, seconds, whole};

/// A worker that could take the request, as the ledger and the index know it at this moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Who.
    pub worker: WorkerId,
    /// Its stable identity, for rendezvous hashing and rings.
    pub identity: u64,
    /// Requests on it: our own leases, or the engine's own count where that is fresh and larger
    /// (other routers' work), never less than our leases.
    pub running: u32,
    /// Uncached prompt tokens dispatched to it and not yet answered.
    pub prefill_tokens: u64,
    /// Tokens of all our requests on it (prompts and what they may grow to).
    pub resident_tokens: u64,
    /// Share of its KV cache in use by its own last word, 0 where unknown.
    pub kv_usage: f32,
    /// Requests at once, where that is set or learnt.
    pub slots: Option<u32>,
    /// Seconds of work that were dispatched to it in a second, lately.
    pub busy: f64,
    /// Seconds of prefill, as expected, that stand before a newcomer.
    pub ahead_seconds: f64,
    /// Our requests on it whose first token came.
    pub decoding: u32,
    /// Times that its work takes longer than the pool's costs say.
    pub pace: f64,
    /// Seconds to bring back what of `matched_tokens` does not lie in device memory.
    pub reload_seconds: f64,
    /// Whether it has a free seat on both axes for this request.
    pub seat: bool,
    /// Leading blocks of this prompt that we believe it holds.
    pub matched_blocks: u32,
    /// The same in tokens (estimated where the identity is bytes).
    pub matched_tokens: u32,
    /// Live sessions that have their home on it.
    pub sessions: u32,
    /// Its slots, where it keeps one conversation in each.
    pub cache_slots: Option<CacheSlots>,
    /// When it last took a request that nobody was warm for.
    pub last_cold: Nanos,
}

impl Candidate {
    /// The load that every policy means by "load", in tokens of prefill that the engine could do in
    /// the same time: what stands before a newcomer's first token (open prefill), and what will
    /// share its steps (every request, and the caches that each step reads).
    ///
    /// `prefill_tokens + REQUEST_TOKENS x running + resident_tokens / RESIDENT_PER_TOKEN`.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.prefill_tokens
            .saturating_add(u64::from(self.running) * REQUEST_TOKENS)
            .saturating_add(self.resident_tokens / RESIDENT_PER_TOKEN)
    }
}

impl Candidate {
    /// Seconds that a newcomer waits there before anything of it is computed, and by which those who
    /// decode slow it down.
    #[must_use]
    pub fn busy_seconds(&self, rates: &Rates) -> f64 {
        self.ahead_seconds + self.pace * rates.per_decoding() * f64::from(self.decoding)
    }

    /// Seconds until the first token of a request with that many new tokens, the last ones of
    /// `context`.
    #[must_use]
    pub fn first_token_seconds(&self, rates: &Rates, new: u64, context: u64) -> f64 {
        let own = self.pace * rates.prefill_seconds(new, context);
        self.busy_seconds(rates) + own + self.reload_seconds
    }
}

/// What one running request weighs in [`Candidate::load`]. A request that answers with the 256
/// tokens that the pool assumes has half of them to go on average, and each step puts one of its
/// tokens through the same layers as a token of prefill: 128.
pub const REQUEST_TOKENS: u64 = 128;

/// How many resident tokens weigh as much as one token of prefill. Each of those 128 steps reads
/// the cache of every resident token: 128 KiB in a model of the 8B class, 40 ns at 3.3 TB/s, so
/// 5 us in all; a token of prefill takes 62 us at 16k tokens/s; 12, taken as 16. Without it three
/// requests of 120k tokens in decode would weigh less than ten of 500.
pub const RESIDENT_PER_TOKEN: u64 = 16;

/// What a policy is asked.
pub struct Question<'a> {
    /// The request.
    pub guest: &'a Arrival,
    /// Its prompt tokens, exact or estimated.
    pub prompt_tokens: u32,
    /// Where its session last settled, if it is known, in this pool and not expired.
    pub home: Option<Home>,
    /// Where the opening of this request (see [`Arrival::opening`]) was last served.
    pub opening_home: Option<Home>,
    /// The workers that could take it; never empty, in slot order.
    pub candidates: &'a [Candidate],
    /// Requests in the line.
    pub waiting: u32,
    /// What work costs in this pool.
    pub rates: Rates,
    /// Affinity is followed: it pays, or this request is to show whether it does.
    pub follows: bool,
    /// Now.
    pub now: Nanos,
}

impl Question<'_> {
    /// Prompt tokens that the worker would have to compute for this request: what does not match,
    /// and further prompts of a batch as long as the first.
    #[must_use]
    pub fn uncached(&self, candidate: &Candidate) -> u64 {
        let prompt = u64::from(self.prompt_tokens);
        prompt
            .saturating_sub(u64::from(candidate.matched_tokens))
            .saturating_add(prompt.saturating_mul(u64::from(self.guest.extra_prompts)))
    }
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Index into the candidates.
    pub choice: usize,
    /// Why.
    pub reason: Reason,
    /// If the choice has no free seat: how long the request would rather wait for it than sit
    /// elsewhere. Zero: sit elsewhere at once. Bounded by the pool's `hold_max`.
    pub hold: Duration,
}

/// A placement policy. It may keep state, but every bit of it must follow from the calls it got.
pub trait Policy: Send {
    /// The config name.
    fn name(&self) -> &'static str;

    /// Chooses. `scores` has one entry per candidate, NaN at first: the policy writes what it
    /// compared (meaning in the policy's file). Ties are broken by `rng`, never by position.
    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer;

    /// The request was accepted by this worker.
    fn settled(&mut self, _guest: &Arrival, _worker: WorkerId, _now: Nanos) {}

    /// The members changed: `(id, identity)` of every worker that is not being removed.
    fn members(&mut self, _members: &[(WorkerId, u64)]) {}
}

/// The least of `value` among the candidates, ties broken by `rng`. The building block of most
/// policies; `candidates` must not be empty.
pub fn least<V: PartialOrd + Copy>(
    candidates: &[Candidate],
    rng: &mut Rng,
    mut value: impl FnMut(usize, &Candidate) -> V,
) -> usize {
    let mut best: Option<(usize, V)> = None;
    let mut ties = 0_usize;
    for (index, candidate) in candidates.iter().enumerate() {
        let v = value(index, candidate);
        match best {
            None => {
                best = Some((index, v));
                ties = 1;
            }
            Some((_, b)) if v < b => {
                best = Some((index, v));
                ties = 1;
            }
            Some((_, b)) if v == b => {
                ties += 1;
                // Reservoir of one: each of the equal ones is kept with probability 1/ties.
                if rng.below(ties) == 0 {
                    best = Some((index, v));
                }
            }
            Some(_) => {}
        }
    }
    best.map_or(0, |(index, _)| index)
}

/// The least loaded candidate. Free seats come first, then [`Candidate::load`]. Among equally
/// loaded ones, where nobody holds anything of the prompt, the one that least recently took such a
/// request (so that cold prompts, and what they will evict, go round); then the generator.
/// `candidates` must not be empty.
pub fn least_loaded(candidates: &[Candidate], rng: &mut Rng) -> usize {
    let cold = cold(candidates);
    least(candidates, rng, |_, c| {
        let last_cold = if cold { c.last_cold } else { Nanos(0) };
        (!c.seat, c.load(), last_cold)
    })
}

/// The candidate that costs least by a policy's own measure. Free seats come first; equal costs go
/// as [`least_loaded`] says.
fn cheapest<V: PartialOrd + Copy>(
    candidates: &[Candidate],
    rng: &mut Rng,
    mut cost: impl FnMut(usize, &Candidate) -> V,
) -> usize {
    let cold = cold(candidates);
    least(candidates, rng, |index, c| {
        let last_cold = if cold { c.last_cold } else { Nanos(0) };
        (!c.seat, cost(index, c), c.load(), last_cold)
    })
}

/// A pure load decision, for every policy where nothing binds the request: [`least_loaded`], with
/// the loads as scores (less is better). `reason` says why load alone decided.
pub fn by_load(
    candidates: &[Candidate],
    scores: &mut [f64],
    rng: &mut Rng,
    reason: Reason,
) -> Answer {
    for (score, candidate) in scores.iter_mut().zip(candidates) {
        *score = candidate.load() as f64;
    }
    Answer {
        choice: least_loaded(candidates, rng),
        reason,
        hold: Duration::ZERO,
    }
}

/// Whether nobody holds anything of the prompt: then load alone decides, in every policy.
fn cold(candidates: &[Candidate]) -> bool {
    candidates.iter().all(|c| c.matched_blocks == 0)
}

/// Whether any candidate has a free seat; where none has, seats say nothing.
#[must_use]
pub fn any_seat(candidates: &[Candidate]) -> bool {
    candidates.iter().any(|c| c.seat)
}

/// The reason for a choice by a cost that has warmth in it: nobody was warm, the choice is the
/// warmest, the warmest has no seat, or it was left for its load.
fn warmth(candidates: &[Candidate], choice: usize) -> Reason {
    let longest = candidates.iter().map(|c| c.matched_blocks).max();
    let longest = longest.unwrap_or(0);
    if longest == 0 {
        return Reason::LeastLoad;
    }
    if candidates
        .get(choice)
        .is_some_and(|c| c.matched_blocks == longest)
    {
        return Reason::Warmest;
    }
    let mut warmest = candidates.iter().filter(|c| c.matched_blocks == longest);
    if any_seat(candidates) && warmest.all(|c| !c.seat) {
        Reason::HomeUnavailable
    } else {
        Reason::Escape
    }
}

/// The position of a worker among the candidates, if it is one.
#[must_use]
pub fn position(candidates: &[Candidate], worker: WorkerId) -> Option<usize> {
    candidates.iter().position(|c| c.worker == worker)
}

/// At home where the home is a candidate, waiting for its seat at most `hold`; else by load.
fn at_home(
    home: Home,
    hold: Duration,
    candidates: &[Candidate],
    scores: &mut [f64],
    rng: &mut Rng,
) -> Answer {
    match position(candidates, home.worker) {
        Some(choice) => Answer {
            choice,
            reason: Reason::Home,
            hold,
        },
        None => by_load(candidates, scores, rng, Reason::HomeUnavailable),
    }
}

/// Rendezvous weight of a worker for a key (Thaler and Ravishankar 1998): the member with the
/// largest wins; removing a member moves only its own keys.
#[must_use]
pub fn rendezvous(key: SessionKey, identity: u64) -> u64 {
    crate::rng::mix(key.0 ^ crate::rng::mix(identity))
}
