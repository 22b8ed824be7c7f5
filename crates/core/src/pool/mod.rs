//! Workers, their health, and the ledger of what is held on each.

use crate::ids::{ModelKey, TenantId, WorkerId};
use crate::time::Nanos;
use alloc::vec::Vec;

pub(crate) mod fleet;
pub(crate) mod health;
pub(crate) mod learnt;
pub(crate) mod ledger;
pub(crate) mod ratio;
pub(crate) mod worker;

/// What a worker can take. `None` on an axis: no bound on our side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seats {
    /// Requests at once. None: as many as the engine was seen to run without letting more than one
    /// wait, where it tells ([`crate::scheduler::PoolConfig::learn_slots`]).
    pub slots: Option<u32>,
    /// Uncached prompt tokens dispatched and not yet answered. One request larger than this may
    /// still go to a worker on which no prefill is open.
    pub prefill_tokens: Option<u64>,
    /// Tokens that its KV cache holds: bounds what we believe it still has, and the uncached prompt
    /// tokens of all requests on it. One request larger than this may go while nothing runs there.
    /// None: as its engine says.
    pub kv_tokens: Option<u64>,
    /// Conversations whose cache it keeps, where it keeps one in each slot, as llama.cpp does.
    /// `None`: it keeps its cache by blocks, or that is not known.
    pub cache_slots: Option<u32>,
}

/// What one request must be for a worker to take it. `None`: no limit, or none known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most tokens of prompt and answer together. An answer whose length is not said counts as none.
    pub context_max: Option<u32>,
    /// Most tokens of an answer. A request that does not say how long its answer may be passes.
    pub output_max: Option<u32>,
    /// Whom it serves; empty: anybody.
    pub tenants: Vec<TenantId>,
    /// It completes one plain prompt and returns one text: see [`crate::Arrival::plain`].
    pub plain_only: bool,
}

/// A worker as the caller describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Hash of its stable name (its URL, or its configured name): the identity for rendezvous
    /// hashing, equal in every router replica.
    pub identity: u64,
    /// Limits, from configuration.
    pub seats: Seats,
    /// Models and adapters it lists; empty: it serves whatever its pool serves.
    pub models: Vec<ModelKey>,
    /// Whether it may get work before the first good probe.
    pub assume_ready: bool,
    /// It asks for each of its requests: it has a seat only while it waits for one, as
    /// [`crate::Input::Pop`] says.
    pub pulls: bool,
    /// Which requests it takes.
    pub limits: RequestLimits,
}

/// Workers come, go, drain. The caller chooses the ids: see [`crate::Scheduler::next_worker_id`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetChange {
    /// A worker joins with a cold cache.
    Add(WorkerId, WorkerSpec),
    /// No new work; what runs may finish until the deadline (None: for ever).
    Drain(WorkerId, Option<Nanos>),
    /// Takes new work again after `Drain`.
    Resume(WorkerId),
    /// Gone: leases on it are released, what it held is forgotten, running attempts are aborted.
    Remove(WorkerId),
    /// Its limits changed.
    Seats(WorkerId, Seats),
    /// The models and adapters it lists changed.
    Models(WorkerId, Vec<ModelKey>),
    /// Which requests it takes changed.
    Limits(WorkerId, RequestLimits),
}

/// Whether a worker gets new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Availability {
    /// Not heard of yet, or still loading its model: no work, no blame.
    Starting,
    /// Takes work.
    Ready,
    /// The breaker is open: no work until it may be tried again.
    Broken,
    /// Probes fail: no work, unless no other worker is left.
    Unhealthy,
    /// No new work; running work finishes.
    Draining,
}

impl Availability {
    /// The name used in the admin API and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Broken => "broken",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }
}

/// What a probe or a scrape found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report {
    /// The health probe succeeded.
    Alive,
    /// The engine answers but its model is not loaded yet.
    Loading,
    /// The probe failed; `refused`: the connection was refused, so the process is not there.
    Dead {
        /// The connection was refused.
        refused: bool,
    },
    /// Bytes came from the worker on some attempt (at most one such report a second is needed).
    Bytes,
    /// The engine's own metrics.
    Gauges(Gauges),
}

/// The engine's own metrics, as far as it tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests it runs.
    pub running: Option<u32>,
    /// Requests in its own waiting queue.
    pub waiting: Option<u32>,
    /// Share of its KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache holds.
    pub kv_tokens: Option<u64>,
    /// When its process started (seconds since 1970, as engines export it). A change is a restart.
    pub started: Option<f64>,
}
