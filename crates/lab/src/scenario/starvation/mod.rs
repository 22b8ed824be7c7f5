//! Starvation: deep conversations that never end, and newcomers who want to begin.
//!
//! By default 16 slots on four workers, 20 s of service, 2 s of think time, 60 deep conversations and 788 newcomers of
//! five turns at 0.2/s: about 4.7 times what the slots can take. [`Starvation::at_load`] scales both kinds of clients.
//! Every policy gets the same clients with the same seed. The engines are seats (see
//! [`SeatsEngine`](crate::sim::SeatsEngine)) unless told otherwise.

mod clients;
mod sums;
mod table;
#[cfg(test)]
mod tests;

pub use clients::Clients;
pub use sums::{Sums, Waits};
pub use table::{LEGEND, table};

use std::time::Duration;

use maitred_core::line::{FairnessConfig, promise};
use maitred_core::place::{OptionValue, PolicyConfig};
use maitred_core::scheduler::PoolConfig;
use maitred_core::time::Nanos;

use crate::sim::{EngineKind, Run, Service, Setup, SetupError, run};

/// Tokens in a block.
const BLOCK_TOKENS: u32 = 64;
/// Group of the deep conversations' requests.
pub const DEEP: u16 = 0;
/// Group of the newcomers' requests.
pub const NEWCOMER: u16 = 1;

/// The situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Starvation {
    /// Workers.
    pub workers: u32,
    /// Slots of each.
    pub slots: u32,
    /// How long a request takes its slot.
    pub service: Service,
    /// Between an answer and the session's next request.
    pub think: Duration,
    /// Conversations that were there before and never end.
    pub deep: u32,
    /// The turn at which they are found.
    pub deep_turn: u32,
    /// Newcomers.
    pub newcomers: u32,
    /// How many come in a second, on average.
    pub rate: f64,
    /// Turns of each.
    pub turns: u32,
    /// The share of refused newcomers who come once more at the time they were told; 0 to 1.
    pub retry_share: f64,
    /// The longest wait that policies other than `promise` grant.
    pub rivals_wait: Duration,
    /// Tokens that each worker's cache holds. The default has room for all deep conversations: what is lost is then
    /// lost to the order and the placement, not to the size of the cache.
    pub kv_tokens: u64,
    /// Placement.
    pub placement: PolicyConfig,
    /// Seed of everything.
    pub seed: u64,
}

impl Default for Starvation {
    fn default() -> Self {
        Self {
            workers: 4,
            slots: 4,
            service: Service::Fixed(Duration::from_secs(20)),
            think: Duration::from_secs(2),
            deep: 60,
            deep_turn: 30,
            newcomers: 788,
            rate: 0.2,
            turns: 5,
            retry_share: 0.1,
            rivals_wait: Duration::from_secs(60),
            kv_tokens: 1_048_576,
            placement: PolicyConfig::default(),
            seed: 1,
        }
    }
}

impl Starvation {
    /// What clients would take if nobody waited, over what there is: 1 is full.
    #[must_use]
    pub fn load(&self) -> f64 {
        let service = self.service_seconds();
        let deep = f64::from(self.deep) / (service + self.think.as_secs_f64());
        let newcomers = self.rate * f64::from(self.turns);
        (deep + newcomers) / self.capacity()
    }

    /// The same situation with both kinds of clients scaled to that load. Newcomers come over the same time.
    #[must_use]
    pub fn at_load(&self, load: f64) -> Self {
        let factor = load / self.load();
        let scaled = |count: u32| (f64::from(count) * factor).round() as u32;
        Self {
            deep: scaled(self.deep),
            newcomers: scaled(self.newcomers),
            rate: self.rate * factor,
            ..self.clone()
        }
    }

    /// Requests a second that the slots can take.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers * self.slots) / self.service_seconds()
    }

    /// How long newcomers come.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.newcomers) / self.rate.max(1e-9))
    }

    /// The pool under that fairness policy: its name, and options after colons
    /// (`promise:new_share=0.3:start_within_seconds=5`).
    ///
    /// # Errors
    /// No such policy or option, or a value that it does not take.
    pub fn pool(&self, fairness: &str) -> Result<PoolConfig, String> {
        let mut parts = fairness.split(':');
        let name = parts.next().unwrap_or_default();
        let mut config = FairnessConfig::named(name).map_err(|error| format!("{name}: {error}"))?;
        for part in parts {
            let wrong = |error: &dyn std::fmt::Display| format!("{name}: {part}: {error}");
            let (option, value) = part
                .split_once('=')
                .ok_or_else(|| wrong(&"must be option=value"))?;
            let value: f64 = value.parse().map_err(|error| wrong(&error))?;
            config
                .set(option, OptionValue::Number(value))
                .map_err(|error| wrong(&error))?;
        }
        let max_wait = match config {
            FairnessConfig::Promise(_) => PoolConfig::default().max_wait,
            _ => self.rivals_wait,
        };
        Ok(PoolConfig {
            policy: self.placement.clone(),
            fairness: config,
            token_block: BLOCK_TOKENS,
            max_wait,
            ..PoolConfig::default()
        })
    }

    /// Plays it in a pool and sums it up.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn play(
        &self,
        pool: PoolConfig,
        watch: &mut dyn FnMut(Nanos, u64),
    ) -> Result<Sums, SetupError> {
        let start_within = match &pool.fairness {
            FairnessConfig::Promise(options) => options.start_within,
            _ => promise::Options::default().start_within,
        };
        let run = self.run(pool, watch)?;
        Ok(Sums::of(self, &run, start_within))
    }

    /// Plays it and returns every request.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn run(
        &self,
        pool: PoolConfig,
        watch: &mut dyn FnMut(Nanos, u64),
    ) -> Result<Run, SetupError> {
        let worker = EngineKind::Seats {
            slots: self.slots,
            service: self.service,
            block_tokens: BLOCK_TOKENS,
            kv_tokens: self.kv_tokens,
        };
        let setup = Setup {
            pool,
            workers: vec![worker; self.workers as usize],
            reports: None,
            kv_events: None,
            fleet: Vec::new(),
            until: Some(Nanos::default() + self.length()),
            seed: self.seed,
        };
        run(setup, &mut Clients::new(self, BLOCK_TOKENS), watch)
    }

    fn service_seconds(&self) -> f64 {
        match self.service {
            Service::Fixed(time) | Service::Drawn(time) => time.as_secs_f64(),
        }
    }
}
