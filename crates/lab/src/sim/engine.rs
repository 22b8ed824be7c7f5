//! What the simulation asks of an engine, and the kinds of engine there are.

use std::time::Duration;

use maitred_core::pool::Gauges;
use maitred_core::prefix::KvBatch;
use maitred_core::request::{BlockHash, Failure, Usage};
use maitred_core::time::Nanos;
use maitred_enginesim::model;

use super::batch::Batch;
use super::seats::SeatsEngine;

/// One attempt as an engine gets it.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Unique among the jobs inside.
    pub id: u64,
    /// The prompt's full blocks.
    pub chain: &'a [BlockHash],
    /// All prompt tokens.
    pub prompt_tokens: u32,
    /// Tokens of the answer, exactly.
    pub output_tokens: u32,
}

/// What an engine has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first token of that job came.
    FirstToken(u64),
    /// The job is done.
    Finished(u64, Usage),
}

/// An engine in virtual time. `now` never runs backwards between calls.
pub trait Engine {
    /// Takes a job.
    ///
    /// # Errors
    /// It does not take it, and says how a client would see that.
    fn submit(&mut self, now: Nanos, job: Job<'_>) -> Result<(), Failure>;

    /// Takes a job out again; one that is not inside changes nothing.
    fn cancel(&mut self, now: Nanos, id: u64);

    /// Brings the engine to `now`, appends what happened to `said` in order of time, and returns when it has something
    /// to say next. Never says a thing late: it is called at the time that it named.
    fn advance(&mut self, now: Nanos, said: &mut Vec<Progress>) -> Option<Nanos>;

    /// Its own metrics now.
    fn gauges(&self) -> Gauges;

    /// From now on it notes what happens to its cache. One that cannot tells nothing, ever.
    fn note_kv_events(&mut self) {}

    /// What happened to the cache since the last call.
    fn take_kv_events(&mut self) -> KvBatch {
        KvBatch::default()
    }

    /// Jobs that it sent back to its own queue for want of memory, ever.
    fn preemptions(&self) -> u64 {
        0
    }
}

/// How long a seat is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Always so long.
    Fixed(Duration),
    /// Drawn from an exponential distribution with this mean, cut at four times the mean.
    Drawn(Duration),
}

/// Which engine, with its constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Seats that are taken for a while, and a block cache: see [`SeatsEngine`].
    Seats {
        /// Requests at once.
        slots: u32,
        /// How long each takes.
        service: Service,
        /// Tokens in a block.
        block_tokens: u32,
        /// Tokens that the cache holds.
        kv_tokens: u64,
    },
    /// Continuous batching with chunked prefill: see [`model::Engine`].
    Batch(model::Config),
}

impl EngineKind {
    /// A fresh engine. `seed` is what drawn service times follow from.
    #[must_use]
    pub fn build(&self, seed: u64) -> Box<dyn Engine> {
        match self {
            Self::Seats {
                slots,
                service,
                block_tokens,
                kv_tokens,
            } => Box::new(SeatsEngine::new(
                *slots,
                *service,
                *block_tokens,
                *kv_tokens,
                seed,
            )),
            Self::Batch(config) => Box::new(Batch::new(config.clone())),
        }
    }

    /// Requests at once.
    #[must_use]
    pub fn slots(&self) -> u32 {
        match self {
            Self::Seats { slots, .. } => *slots,
            Self::Batch(config) => u32::try_from(config.slots).unwrap_or(u32::MAX),
        }
    }

    /// Tokens in a block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        match self {
            Self::Seats { block_tokens, .. } => *block_tokens,
            Self::Batch(config) => u32::try_from(config.block_tokens).unwrap_or(u32::MAX),
        }
    }

    /// Tokens that the KV memory holds.
    #[must_use]
    pub fn kv_tokens(&self) -> u64 {
        match self {
            Self::Seats { kv_tokens, .. } => *kv_tokens,
            Self::Batch(config) => config.kv_tokens as u64,
        }
    }
}
