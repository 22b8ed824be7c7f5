//! The closed set of what the scheduler is told, and the closed set of what it asks for.

use crate::decision::Decision;
use crate::ids::{AttemptId, RequestId, ResponseKey, WorkerId};
use crate::line::{FairnessConfig, Tenants};
use crate::miss::Misses;
use crate::place::PolicyConfig;
use crate::pool::{FleetChange, Report};
use crate::prefix::{KvBatch, KvState};
use crate::request::{Arrival, Failure, Refusal, RetryAfter, Usage};
use crate::time::Nanos;
use alloc::boxed::Box;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request came.
    Arrive(Box<Arrival>),
    /// The client is gone, or the caller gave the request up, at whatever stage.
    Cancel(RequestId),
    /// The worker took the attempt: a response head with success came back.
    Accepted(AttemptId),
    /// The first token of the answer came. Prefill is over.
    FirstToken(AttemptId),
    /// The answer (or the worker's own deterministic refusal, a 4xx) is complete.
    Finished {
        /// Which.
        attempt: AttemptId,
        /// What the engine said.
        usage: Usage,
        /// Whether the worker served it (2xx), or answered with a client error (4xx): a client
        /// error neither warms a cache nor counts for or against the worker.
        served: bool,
    },
    /// The attempt ended without an answer.
    Failed {
        /// Which.
        attempt: AttemptId,
        /// How.
        failure: Failure,
        /// No byte reached the client and the caller is willing to try another worker.
        retry: bool,
        /// The worker's own `Retry-After`.
        retry_after: Option<RetryAfter>,
    },
    /// The worker gave out an id that later requests may continue.
    Responded {
        /// Which attempt.
        attempt: AttemptId,
        /// The id.
        response: ResponseKey,
    },
    /// A worker that pulls waits for so many requests now: all of its open polls, not those that were
    /// added, so that a poll that was lost can not be counted for ever. Each dispatch to it takes
    /// one.
    Pop {
        /// Who.
        worker: WorkerId,
        /// Its open polls.
        seats: u32,
    },
    /// A probe's or a scrape's result.
    Report {
        /// Of whom.
        worker: WorkerId,
        /// What.
        report: Report,
    },
    /// What a worker says of its cache, in the order in which it happened. At most
    /// `KV_BLOCKS_AT_ONCE` blocks: a larger batch goes through [`KvBatch::split`] and comes in
    /// parts, so that decisions are made between them. Of a batch that is larger all the same
    /// nothing is taken, and the rank is uncertain.
    KvEvents {
        /// Of whom.
        worker: WorkerId,
        /// Which data-parallel rank of it; None (not the same as 0): the engine names none.
        rank: Option<u32>,
        /// What happened.
        batch: Box<KvBatch>,
    },
    /// How a rank's events come; a rank whose first events came without a word is live. After an
    /// [`Effect::Epoch`] that says so the caller reads its events again from the start of its buffer,
    /// where the engine has one: what was known is forgotten.
    KvState {
        /// Of whom.
        worker: WorkerId,
        /// Which rank of it.
        rank: Option<u32>,
        /// Live, with a gap, or begun anew.
        state: KvState,
    },
    /// Workers come, go, drain.
    Fleet(FleetChange),
    /// Switch the placement policy. State that the new one can use (residency, homes) is kept.
    SetPolicy(PolicyConfig),
    /// Switch the fairness of the line. Those who wait keep their places in the order of arrival.
    SetFairness(FairnessConfig),
    /// The tenants' terms changed. They hold for whoever arrives from now on.
    SetTenants(Box<Tenants>),
    /// Nothing but the passing of time; due at `next_wake`.
    Tick,
}

/// Something to be done by the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Open this attempt now. Its lease is held until `Finished`, `Failed` or `Cancel` comes.
    Dispatch(Box<Decision>),
    /// Answer the client that it will not be served.
    Refuse {
        /// Which request; it is forgotten here.
        request: RequestId,
        /// Why.
        refusal: Refusal,
        /// When it may try again, where that is known.
        retry_after: Option<RetryAfter>,
    },
    /// A served attempt is accounted for: each token of its prompt has a cause or was cached.
    Account {
        /// Which.
        attempt: AttemptId,
        /// What became of its prompt's tokens.
        misses: Misses,
    },
    /// Abort this attempt (its worker was removed or its drain deadline passed). The caller still
    /// owes `Failed` or `Cancel` for it.
    Abort(AttemptId),
    /// Call `handle(Tick)` at this time unless something else comes first.
    Wake(Nanos),
    /// A worker's availability changed; for logs and gauges.
    Availability {
        /// Who.
        worker: WorkerId,
        /// To what.
        state: crate::pool::Availability,
    },
    /// A worker's cache began a new life: whatever it held is gone.
    Epoch {
        /// Who.
        worker: WorkerId,
        /// The number of its present life, from 0.
        epoch: u32,
        /// Its KV events are to be read again: what they said is forgotten. They are not where they
        /// themselves told of the new life.
        read_again: bool,
    },
}
