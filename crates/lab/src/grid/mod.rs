//! Placement x fairness x load x seeds, each cell a simulation of its own, several at a time.
//!
//! Cells share nothing but the plan that they play, so the number of threads changes no result.

mod frontier;
mod named;
mod paired;
mod prepared;
mod slo;
mod spread;
mod sums;
mod table;
#[cfg(test)]
mod tests;
mod timeline;

pub use frontier::{FRONTIER_LEGEND, frontier, frontier_table};
pub use named::{fairness, fleet_event, placement};
pub use paired::{Paired, Way, paired, paired_table};
pub use prepared::{Prepared, offered_load};
pub use slo::Slo;
pub use spread::Spread;
pub use sums::{FirstTurns, Quantiles, Sums};
pub use table::{LEGEND, rows, table};
pub(crate) use table::{aligned, lines};
pub use timeline::Timeline;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use maitred_core::line::FairnessConfig;
use maitred_core::place::PolicyConfig;
use maitred_core::request::Identity;
use maitred_core::scheduler::PoolConfig;
use maitred_core::time::Nanos;
use maitred_enginesim::model;
use serde::Serialize;

use crate::plan::{Clients, Manners, Plan};
use crate::sim::{EngineKind, FleetEvent, Reports, Run, Setup, SetupError, run};

/// Where a plan comes from: by seed, and by the factor by which there is more of it than as it stands.
pub type Source<'a> = dyn Fn(u64, f64) -> Plan + Sync + 'a;
/// What happens to the fleet at which share of the plan's length.
pub type FleetShares = Vec<(f64, FleetEvent)>;

/// What all cells have in common.
#[derive(Clone, Debug)]
pub struct Room {
    /// Workers at the beginning.
    pub workers: u32,
    /// Each of them; its `block_tokens` are set to the plan's.
    pub engine: model::Config,
    /// Gauges as the scheduler hears them; None: the engines tell nothing.
    pub reports: Option<Reports>,
    /// How old KV events are when the scheduler hears them; None: there are none.
    pub kv_events: Option<Duration>,
    /// What happens to the fleet, and when.
    pub fleet: Vec<(Nanos, FleetEvent)>,
    /// The same, at shares of the plan's length.
    pub fleet_shares: FleetShares,
    /// How clients take refusals.
    pub manners: Manners,
    /// What counts as good.
    pub slo: Slo,
    /// Requests that arrive before are simulated, but not counted.
    pub warm_up: Duration,
    /// The longest wait in the line.
    pub max_wait: Duration,
}

impl Default for Room {
    /// Eight workers with the engine model's defaults, gauges every half second and 50 ms old, no KV events.
    fn default() -> Self {
        Self {
            workers: 8,
            engine: model::Config::default(),
            reports: Some(Reports {
                every: Duration::from_millis(500),
                delay: Duration::from_millis(50),
            }),
            kv_events: None,
            fleet: Vec::new(),
            fleet_shares: Vec::new(),
            manners: Manners::default(),
            slo: Slo::default(),
            warm_up: Duration::ZERO,
            max_wait: PoolConfig::default().max_wait,
        }
    }
}

/// The axes.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Placement policies, each with the text that named it.
    pub placements: Vec<(String, PolicyConfig)>,
    /// Fairness policies, likewise.
    pub fairness: Vec<(String, FairnessConfig)>,
    /// Offered loads (see [`offered_load`]); None: the plan as it stands.
    pub loads: Vec<Option<f64>>,
    /// Seeds of plan, engines and scheduler.
    pub seeds: Vec<u64>,
}

impl Axes {
    /// How many cells there are.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.placements.len() * self.fairness.len() * self.loads.len() * self.seeds.len()
    }
}

/// One cell and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Its row: cells of one row differ in their seed only.
    pub row: usize,
    /// As it was named.
    pub placement: String,
    /// As it was named.
    pub fairness: String,
    /// The load that was asked for; None: the traffic as it stood.
    pub asked: Option<f64>,
    /// The load that it came to.
    pub load: f64,
    /// The seed.
    pub seed: u64,
    /// What came of it.
    pub sums: Sums,
    /// Requests on each worker over time; for drawings.
    #[serde(skip)]
    pub timeline: Timeline,
}

/// Plays every cell, on so many threads. `watch` hears of each one that is done: how many are, of how many, and which.
/// Cells come back with seeds innermost, then fairness, placement, load: so the seeds of one row follow each other.
///
/// # Errors
/// The first cell, in that order, that could not be set up.
pub fn play(
    source: &Source<'_>,
    room: &Room,
    axes: &Axes,
    threads: usize,
    watch: &(dyn Fn(usize, usize, &Cell) + Sync),
) -> Result<Vec<Cell>, SetupError> {
    let all = axes.cells();
    let plans: Vec<OnceLock<Prepared>> = (0..axes.loads.len() * axes.seeds.len())
        .map(|_| OnceLock::new())
        .collect();
    let results: Vec<OnceLock<Result<Cell, SetupError>>> =
        (0..all).map(|_| OnceLock::new()).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(0_usize));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = results.get(at) else {
                return;
            };
            let (rest, seed) = (at / axes.seeds.len(), at % axes.seeds.len());
            let (rest, fair) = (rest / axes.fairness.len(), rest % axes.fairness.len());
            let (load, placed) = (rest / axes.placements.len(), rest % axes.placements.len());
            let plan = plans[load * axes.seeds.len() + seed].get_or_init(|| {
                let scaled = |factor: f64| source(axes.seeds[seed], factor);
                Prepared::new(&scaled, room, axes.loads[load])
            });
            let (placement, policy) = &axes.placements[placed];
            let (fairness, order) = &axes.fairness[fair];
            let result = simulate(plan, room, policy, order, axes.seeds[seed]).map(|run| Cell {
                row: at / axes.seeds.len(),
                placement: placement.clone(),
                fairness: fairness.clone(),
                asked: axes.loads[load],
                load: plan.load,
                seed: axes.seeds[seed],
                sums: Sums::of(plan, room, &run),
                timeline: Timeline::of(&run),
            });
            if let Ok(cell) = &result {
                let mut count = done.lock().unwrap_or_else(PoisonError::into_inner);
                *count += 1;
                watch(*count, all, cell);
            }
            // Each place is filled once.
            let _ = place.set(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, all.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    results
        .into_iter()
        .filter_map(OnceLock::into_inner)
        .collect()
}

/// One cell.
///
/// # Errors
/// [`SetupError`].
pub fn simulate(
    plan: &Prepared,
    room: &Room,
    policy: &PolicyConfig,
    fairness: &FairnessConfig,
    seed: u64,
) -> Result<Run, SetupError> {
    let worker = EngineKind::Batch(model::Config {
        block_tokens: plan.plan.block_tokens as usize,
        ..room.engine.clone()
    });
    let length = plan.plan.span().as_nanos() as f64;
    let mut fleet = room.fleet.clone();
    fleet.extend(room.fleet_shares.iter().map(|(share, event)| {
        let at = Nanos((share * length) as u64);
        (at, event.clone())
    }));
    for (_, event) in &mut fleet {
        if let FleetEvent::Join(kind) = event {
            *kind = worker.clone();
        }
    }
    let setup = Setup {
        pool: PoolConfig {
            policy: policy.clone(),
            fairness: fairness.clone(),
            identity: Identity::Tokens,
            token_block: plan.plan.block_tokens,
            max_wait: room.max_wait,
            ..PoolConfig::default()
        },
        workers: vec![worker; room.workers as usize],
        reports: room.reports,
        kv_events: room.kv_events,
        fleet,
        until: None,
        seed,
    };
    run(
        setup,
        &mut Clients::new(&plan.plan, room.manners),
        &mut |_, _| {},
    )
}
