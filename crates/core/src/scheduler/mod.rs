//! The scheduler of one pool: what happens to a request between its arrival and its end.

mod config;

pub use config::{Breaker, ConfigError, LostResponse, PoolConfig, Probes};

use crate::ids::WorkerId;
use crate::input::{Effect, Input};
use crate::pool::{Availability, Gauges, Seats};
use crate::time::Nanos;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// A worker as the admin API and the metrics show it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Who.
    pub worker: WorkerId,
    /// Its stable identity.
    pub identity: u64,
    /// Whether it gets new work.
    pub availability: Availability,
    /// Attempts with an open lease.
    pub running: u32,
    /// Uncached prompt tokens dispatched and not yet answered.
    pub prefill_tokens: u64,
    /// Tokens of all requests on it.
    pub resident_tokens: u64,
    /// Its limits.
    pub seats: Seats,
    /// Blocks it is believed to hold.
    pub believed_blocks: u64,
    /// Sessions at home on it.
    pub sessions: u32,
    /// Lives of its cache so far, from 0.
    pub epoch: u32,
    /// Its last word, and the word's age.
    pub gauges: Option<(Gauges, Duration)>,
}

/// The scheduler of one pool.
pub struct Scheduler {
    config: PoolConfig,
}

impl Scheduler {
    /// A pool without workers.
    ///
    /// # Errors
    /// A setting is out of its range; the error names it.
    pub fn new(config: PoolConfig, _seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config })
    }

    /// Takes one input and appends what is to be done to `effects`, in order. `now` never runs
    /// backwards between calls. Inputs about requests, attempts or workers that are not known
    /// (any more) change nothing.
    pub fn handle(&mut self, _now: Nanos, _input: Input, _effects: &mut Vec<Effect>) {}

    /// When `handle(Tick)` is due next, if anything waits for time to pass.
    #[must_use]
    pub fn next_wake(&self) -> Option<Nanos> {
        None
    }

    /// The id that the next worker to be added must have.
    #[must_use]
    pub fn next_worker_id(&self) -> WorkerId {
        WorkerId {
            slot: 0,
            generation: 0,
        }
    }

    /// All workers, in slot order.
    #[must_use]
    pub fn workers(&self, _now: Nanos) -> Vec<WorkerView> {
        Vec::new()
    }

    /// Requests in the line.
    #[must_use]
    pub fn line_len(&self) -> usize {
        0
    }

    /// Bytes that predicted residency takes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        0
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Checks every invariant; for tests and the simulator.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
