//! The scheduler of one pool: what happens to a request between its arrival and its end.
//!
//! - `arrive`: place, hold, wait, dispatch; `door`: admit, refuse, tell when; `candidates`: who could take it, and who does.
//! - `attempt`: accepted, first token, finished, failed, cancelled; what they do to lease, belief,
//!   home and health.
//! - `fleet`: workers come, go, drain, report; a new life of a cache.
//! - `costs`: what attempts teach of costs, and what affinity was worth.
//! - `residency`: what workers are believed to hold, by their own word and by ours.
//! - `lineage`: what became of each token of a served prompt, and what staying would have meant.
//! - `queue`: the line: tickets, classes, holders, free seats; `lines`: how it is shown.
//! - `wake`: what happens because time passed, and the pass over the line.
//! - `explain`: the decision record. `check`: the invariants.

mod arrive;
mod attempt;
mod candidates;
mod check;
mod config;
mod costs;
mod door;
mod explain;
mod fleet;
mod lineage;
mod lines;
mod queue;
mod request;
mod residency;
mod wake;

#[cfg(test)]
mod tests;

pub use config::{Breaker, ConfigError, LostResponse, PoolConfig, Probes};

use crate::cost::{Costs, Gate};
use crate::ids::{RequestId, WorkerId};
use crate::input::{Effect, Input};
use crate::limits::{LINEAGES_MAX, RESPONSES_MAX};
use crate::line::Line;
use crate::line::ticket::ClassId;
use crate::miss::Lineages;
use crate::place::{Policy, PolicyConfig};
use crate::pool::fleet::Fleet;
use crate::pool::ratio::BytesPerToken;
use crate::pool::{Availability, Gauges, Seats};
use crate::prefix::observed::{Flow, KvCounts};
use crate::prefix::{Index, Observed};
use crate::rng::Rng;
use crate::session::homes::Homes;
use crate::session::responses::Responses;
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

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
    /// Times that its work takes longer than the pool's costs say, as learnt.
    pub pace: f64,
    /// Requests at once as it was learnt from the engine's own queue; None: nothing was, or it is not.
    pub slots_learnt: Option<u32>,
    /// Requests that it waits for; None: it does not pull, it is sent what has a seat.
    pub polls: Option<u32>,
    /// Blocks it is believed to hold by our own dispatches.
    pub believed_blocks: u64,
    /// Blocks (of the engine) that it said it holds, over all ranks.
    pub observed_blocks: u64,
    /// Of those, blocks that it is about to evict for what was dispatched to it.
    pub leaving_blocks: u64,
    /// How its KV events stand; all zero: it sends none.
    pub events: Flow,
    /// Its answers say that it caches nothing: what we predict of it does not count.
    pub not_caching: bool,
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
    policy: Box<dyn Policy>,
    rng: Rng,
    fleet: Fleet,
    /// Every live request; boxed so that taking one out and putting it back moves a pointer.
    requests: HashMap<RequestId, Box<request::Request>, FxBuildHasher>,
    line: Line,
    homes: Homes,
    openings: Homes,
    responses: Responses,
    lineages: Lineages,
    index: Index,
    observed: Observed,
    /// When predictions of workers whose events flow are next looked through.
    lapse_at: Nanos,
    ratio: BytesPerToken,
    costs: Costs,
    gate: Gate,
    /// The ratio with which the index's capacities were set.
    capacity_ratio: f64,
    scratch: candidates::Scratch,
    timers: BTreeSet<(Nanos, wake::Due)>,
    /// The wake-up that the caller was last asked for.
    told: Option<Nanos>,
    /// The next arrival's place in the line.
    next_place: u64,
    now: Nanos,
    /// A seat may have become free since the line was last served.
    room: bool,
    /// Who could take what has changed since the line was last reviewed.
    fleet_changed: bool,
    /// Which workers there are, or which requests they take, has changed since.
    members_changed: bool,
    /// Every worker takes every request; and the class of those whom all could take.
    alike: bool,
    everyone: Option<ClassId>,
    /// The line is being served; those who did not fit in this pass.
    passing: bool,
    misfits: Vec<u64>,
}

impl Scheduler {
    /// A pool without workers.
    ///
    /// # Errors
    /// A setting is out of its range; the error names it.
    pub fn new(config: PoolConfig, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        let ratio = BytesPerToken::new();
        Ok(Self {
            policy: config.policy.build(),
            rng: Rng::new(seed),
            fleet: Fleet::default(),
            requests: HashMap::with_hasher(FxBuildHasher),
            line: Line::default(),
            homes: Homes::new(config.sessions_max, config.session_idle),
            openings: Homes::new(config.sessions_max, config.session_idle),
            responses: Responses::new(RESPONSES_MAX),
            lineages: Lineages::new(config.sessions_max.min(LINEAGES_MAX)),
            index: Index::new(config.index_bytes_max),
            observed: Observed::new(
                config.token_block,
                config.observed_bytes_max,
                config.predicted_life,
            ),
            lapse_at: Nanos::default(),
            ratio,
            costs: Costs::new(),
            gate: Gate::new(),
            capacity_ratio: ratio.get(),
            scratch: candidates::Scratch::default(),
            timers: BTreeSet::new(),
            told: None,
            next_place: 0,
            now: Nanos::default(),
            room: false,
            fleet_changed: false,
            members_changed: false,
            alike: false,
            everyone: None,
            passing: false,
            misfits: Vec::new(),
            config,
        })
    }

    /// Takes one input and appends what is to be done to `effects`, in order. `now` never runs
    /// backwards between calls. Inputs about requests, attempts or workers that are not known
    /// (any more) change nothing.
    pub fn handle(&mut self, now: Nanos, input: Input, effects: &mut Vec<Effect>) {
        let now = now.max(self.now);
        self.now = now;
        // First what time alone brought about, so that those who waited come before a newcomer.
        self.run_due(now, effects);
        self.homes.expire(now);
        self.openings.expire(now);
        self.serve(now, effects);
        match input {
            Input::Arrive(guest) => self.arrive(guest, now, effects),
            Input::Cancel(request) => self.cancel(request, now, effects),
            Input::Accepted(attempt) => self.accepted(attempt, now, effects),
            Input::FirstToken(attempt) => self.first_token(attempt, now, effects),
            Input::Finished {
                attempt,
                usage,
                served,
            } => self.finished(attempt, usage, served, now, effects),
            Input::Failed {
                attempt,
                failure,
                retry,
                retry_after,
            } => {
                let end = attempt::Failed {
                    failure,
                    retry,
                    retry_after,
                };
                self.failed(attempt, end, now, effects);
            }
            Input::Responded { attempt, response } => self.responded(attempt, response),
            Input::Pop { worker, seats } => self.pop(worker, seats),
            Input::Report { worker, report } => self.report(worker, report, now, effects),
            Input::KvEvents {
                worker,
                rank,
                batch,
            } => self.kv_events(worker, rank, *batch, now),
            Input::KvState {
                worker,
                rank,
                state,
            } => self.kv_state(worker, rank, state, effects),
            Input::Fleet(change) => self.fleet_change(change, now, effects),
            Input::SetPolicy(policy) => self.set_policy(policy),
            Input::SetFairness(fairness) => self.set_fairness(fairness, now),
            Input::SetTenants(tenants) => self.config.tenants = *tenants,
            Input::Tick => {}
        }
        self.serve(now, effects);
        self.tell_wake(now, effects);
    }

    /// When `handle(Tick)` is due next, if anything waits for time to pass.
    #[must_use]
    pub fn next_wake(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The id that the next worker to be added must have. With `WORKERS_MAX` workers there is no
    /// such id; adding the one given then changes nothing.
    #[must_use]
    pub fn next_worker_id(&self) -> WorkerId {
        self.fleet.next_id()
    }

    /// All workers, in slot order.
    #[must_use]
    pub fn workers(&self, now: Nanos) -> Vec<WorkerView> {
        let view = |worker: &crate::pool::worker::Worker| WorkerView {
            worker: worker.id,
            identity: worker.identity,
            availability: worker.availability,
            running: worker.ledger.running,
            prefill_tokens: worker.ledger.prefill_tokens,
            resident_tokens: worker.ledger.resident_tokens,
            seats: worker.seats,
            pace: worker.meter.pace(),
            slots_learnt: worker.slots_learnt(now),
            polls: worker.polls,
            believed_blocks: self.index.blocks(worker.id.slot),
            observed_blocks: self.observed.blocks(worker.id.slot),
            leaving_blocks: self.observed.leaving_blocks(worker.id.slot),
            events: self.observed.flow(worker.id.slot),
            not_caching: self.not_caching(worker),
            sessions: self.homes.sessions(worker.id.slot),
            epoch: worker.epoch,
            gauges: worker.word.map(|word| (word.gauges, now.since(word.at))),
        };
        self.fleet.iter().map(view).collect()
    }

    /// Requests in the line.
    #[must_use]
    pub fn line_len(&self) -> usize {
        self.line.len()
    }

    /// Requests that are known: in the line or on a worker.
    #[must_use]
    pub fn requests_len(&self) -> usize {
        self.requests.len()
    }

    /// Bytes that predicted residency takes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Bytes that observed residency takes.
    #[must_use]
    pub fn observed_bytes(&self) -> usize {
        self.observed.bytes()
    }

    /// What came of KV events so far.
    #[must_use]
    pub fn kv_counts(&self) -> KvCounts {
        self.observed.counts()
    }

    /// Bytes of rendering per prompt token, as learnt from finished attempts.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.ratio.get()
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
        self.check_invariants()
    }

    fn set_policy(&mut self, policy: PolicyConfig) {
        self.policy = policy.build();
        self.config.policy = policy;
        self.tell_members();
        self.end_holds(self.now);
        self.room = true;
    }

    fn tell_members(&mut self) {
        let members: Vec<(WorkerId, u64)> = self.fleet.iter().map(|w| (w.id, w.identity)).collect();
        self.policy.members(&members);
    }
}
