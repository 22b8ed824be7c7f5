//! Placement: which of the workers that could take a request is the best one for it.
//!
//! One policy, one file: the formula, its source and its defaults stand at the top of it. To add
//! one: a file here, an arm in [`PolicyConfig`] and in [`PolicyConfig::build`].
//!
//! Rules common to all are kept by the scheduler, not by the policies: candidates never include a
//! worker that failed this request, is not ready, drains, or does not list the model.

use crate::decision::Reason;
use crate::ids::{SessionKey, WorkerId};
use crate::request::Arrival;
use crate::rng::Rng;
use crate::session::Home;
use crate::time::Nanos;
use alloc::boxed::Box;
use core::time::Duration;

pub mod least_load;

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
    /// Whether it has a free seat on both axes for this request.
    pub seat: bool,
    /// Leading blocks of this prompt that we believe it holds.
    pub matched_blocks: u32,
    /// The same in tokens (estimated where the identity is bytes).
    pub matched_tokens: u32,
    /// Live sessions that have their home on it.
    pub sessions: u32,
    /// When it last took a request that nobody was warm for.
    pub last_cold: Nanos,
}

impl Candidate {
    /// The load that every policy means by "load": what it will have to compute first, then how
    /// many share its steps. One number so that requests and tokens both count: tokens of open
    /// prefill plus [`REQUEST_TOKENS`] for each request.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.prefill_tokens + u64::from(self.running) * REQUEST_TOKENS
    }
}

/// What one running request weighs in [`Candidate::load`], in tokens of prefill: about what an
/// engine prefills in the time of a decode step's share (10 ms a step at 16k tokens/s, a few
/// sequences sharing it), so that a request in decode counts, and a long prefill counts more.
pub const REQUEST_TOKENS: u64 = 64;

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
    /// Now.
    pub now: Nanos,
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

/// Rendezvous weight of a worker for a key (Thaler and Ravishankar 1998): the member with the
/// largest wins; removing a member moves only its own keys.
#[must_use]
pub fn rendezvous(key: SessionKey, identity: u64) -> u64 {
    crate::rng::mix(key.0 ^ crate::rng::mix(identity))
}

/// A setting's value as a configuration file gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue<'a> {
    /// A number; durations are in seconds (`*_seconds`).
    Number(f64),
    /// Text.
    Text(&'a str),
    /// true or false.
    Flag(bool),
}

/// Why a policy's name or option was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionError {
    /// No such policy; the known names are in [`PolicyConfig::NAMES`].
    UnknownPolicy,
    /// The policy has no such option; its own are listed.
    UnknownOption(&'static [&'static str]),
    /// The value is of the wrong kind or out of its range, which is said.
    BadValue(&'static str),
}

/// Which policy, with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyConfig {
    /// See `least_load.rs`.
    LeastLoad,
}

impl PolicyConfig {
    /// Every policy's config name.
    pub const NAMES: &'static [&'static str] = &["least_load"];

    /// The policy of that name with its defaults.
    ///
    /// # Errors
    /// [`OptionError::UnknownPolicy`].
    pub fn named(name: &str) -> Result<Self, OptionError> {
        match name {
            "least_load" => Ok(Self::LeastLoad),
            _ => Err(OptionError::UnknownPolicy),
        }
    }

    /// The config name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        "least_load"
    }

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, _option: &str, _value: OptionValue<'_>) -> Result<(), OptionError> {
        Err(OptionError::UnknownOption(&[]))
    }

    /// The policy itself, with fresh state.
    #[must_use]
    pub fn build(&self) -> Box<dyn Policy> {
        Box::new(least_load::LeastLoad)
    }
}
