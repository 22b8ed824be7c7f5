//! What is simulated, and what comes of it.

use std::time::Duration;

use maitred_core::line::LinesView;
use maitred_core::scheduler::{ConfigError, PoolConfig};
use maitred_core::time::Nanos;

use super::engine::EngineKind;
use super::workload::{Outcome, Workload};
use super::world::World;

/// The watcher is called once in so many events.
const WATCH_EVERY: u64 = 1 << 14;

/// What the scheduler hears of its engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reports {
    /// Between two looks at the gauges.
    pub every: Duration,
    /// How old a look is when the scheduler hears of it.
    pub delay: Duration,
}

/// What happens to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// The worker of that number (from 0, in order of joining) is gone; what runs on it fails.
    Lose(usize),
    /// It gets no new work.
    Drain(usize),
    /// Its process dies, what runs on it fails, and it is back, cold, so long after.
    Restart(usize, Duration),
    /// One more worker joins, cold.
    Join(EngineKind),
}

/// What is simulated, but for the clients.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The pool. Its `token_block` must be that of the workload's chains.
    pub pool: PoolConfig,
    /// The workers.
    pub workers: Vec<EngineKind>,
    /// Gauges; None: the engines tell nothing.
    pub reports: Option<Reports>,
    /// How old KV events are when the scheduler hears of them; None: the engines tell none. Engines of seats never do.
    pub kv_events: Option<Duration>,
    /// What happens to the fleet, and when.
    pub fleet: Vec<(Nanos, FleetEvent)>,
    /// When the simulation ends; None: when nothing is left to happen.
    pub until: Option<Nanos>,
    /// Seed of the scheduler's choices and of drawn service times.
    pub seed: u64,
}

/// A setup that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// A setting of the pool is out of its range.
    #[error("{0}")]
    Pool(ConfigError),
    /// There is nobody to serve.
    #[error("workers must be at least one")]
    NoWorkers,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// One per request, in order of their ends; those that had not ended come last, by number.
    pub outcomes: Vec<Outcome>,
    /// When it ended.
    pub ended: Nanos,
    /// Events handled.
    pub events: u64,
    /// Most requests that waited at once.
    pub line_most: usize,
    /// The queue as it was at the end, with what it counted.
    pub lines: LinesView,
    /// Jobs that engines sent back to their own queues for want of memory.
    pub preemptions: u64,
}

/// Simulates. `watch` is told now and then how far it is: the virtual time and the events so far.
///
/// # Errors
/// [`SetupError`].
pub fn run(
    setup: Setup,
    workload: &mut dyn Workload,
    watch: &mut dyn FnMut(Nanos, u64),
) -> Result<Run, SetupError> {
    let mut world = World::new(setup, workload)?;
    let mut events = 0_u64;
    let mut now = Nanos::default();
    while let Some(at) = world.step() {
        now = at;
        events += 1;
        if events.is_multiple_of(WATCH_EVERY) {
            watch(now, events);
        }
    }
    Ok(world.close(now, events))
}
