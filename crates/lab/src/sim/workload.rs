//! Who asks for what, and what became of it.

use std::time::Duration;

use maitred_core::decision::{Decision, Reason};
use maitred_core::ids::TenantId;
use maitred_core::request::{BlockHash, Failure, Refusal};
use maitred_core::time::Nanos;

/// One request as its client sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The conversation it belongs to.
    pub session: u64,
    /// A label of the workload's own, for the sums.
    pub group: u16,
    /// Who pays.
    pub tenant: TenantId,
    /// 1 for a first request.
    pub turn: u32,
    /// How often it was sent before.
    pub tries: u32,
    /// The chain of the prompt's full blocks.
    pub chain: Vec<BlockHash>,
    /// All prompt tokens, the unfilled last block included.
    pub prompt_tokens: u32,
    /// Tokens of the answer, exactly.
    pub output_tokens: u32,
    /// The client gives up so long after it sent it, unless the first token came.
    pub patience: Option<Duration>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// Answered in full.
    Served,
    /// Refused by the scheduler.
    Refused {
        /// Why.
        refusal: Refusal,
        /// What the client was told.
        retry_after: Option<Duration>,
    },
    /// The client's patience ended.
    GaveUp,
    /// The worker failed it and nobody tried again.
    Failed(Failure),
    /// The simulation ended before it did.
    Open,
}

/// One request from its arrival to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// As in [`Ask`].
    pub session: u64,
    /// As in [`Ask`].
    pub group: u16,
    /// As in [`Ask`].
    pub tenant: TenantId,
    /// As in [`Ask`].
    pub turn: u32,
    /// As in [`Ask`].
    pub tries: u32,
    /// As in [`Ask`].
    pub prompt_tokens: u32,
    /// As in [`Ask`].
    pub output_tokens: u32,
    /// When it came.
    pub arrived: Nanos,
    /// When its last attempt was sent to a worker; None: never.
    pub dispatched: Option<Nanos>,
    /// When its first token came.
    pub first_token: Option<Nanos>,
    /// When it ended, however; the end of the simulation where it did not.
    pub ended: Nanos,
    /// How it ended.
    pub end: End,
    /// Slot of the worker that served it last.
    pub worker: Option<u32>,
    /// Why that one.
    pub reason: Option<Reason>,
    /// Prompt tokens that the scheduler believed to be there.
    pub predicted_tokens: u32,
    /// Prompt tokens that the warmest of the explained candidates was believed to have; at least `predicted_tokens`.
    pub warmest_tokens: u32,
    /// Prompt tokens that were there; None: it was not served.
    pub cached_tokens: Option<u32>,
    /// Attempts.
    pub attempts: u32,
    /// What the queue charged for it, as estimated; 0: it never was dispatched.
    pub charged: u64,
    /// Its start was predicted from what the scheduler had measured.
    pub promised: bool,
    /// When it was dispatched, first turns and follow-ups both waited (it counted among them).
    pub contested: bool,
}

impl Outcome {
    /// It was sent to a worker.
    pub(crate) fn sits(&mut self, decision: &Decision, now: Nanos) {
        self.dispatched = Some(now);
        self.worker = Some(decision.worker.slot);
        self.reason = Some(decision.reason);
        self.predicted_tokens = decision.predicted_cached_tokens;
        let matched = decision.candidates.iter().map(|c| c.matched_tokens).max();
        self.warmest_tokens = matched.unwrap_or(0).max(self.predicted_tokens);
        self.charged = decision.queueing.charge;
        self.promised = decision.queueing.predicted_start.is_some();
        self.attempts += 1;
    }

    /// From its arrival to its dispatch, or to its end where it never was dispatched.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.dispatched.unwrap_or(self.ended).since(self.arrived)
    }

    /// From its arrival to its first token.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.first_token.map(|at| at.since(self.arrived))
    }

    /// For each token after the first; None where there was none.
    #[must_use]
    pub fn tpot(&self) -> Option<Duration> {
        let more = self.output_tokens.checked_sub(1).filter(|more| *more > 0)?;
        (self.end == End::Served).then(|| Some(self.ended.since(self.first_token?) / more))?
    }

    /// Uncached prompt tokens and twice the tokens of the answer: what the queue
    /// charges, as it turned out.
    #[must_use]
    pub fn charge(&self) -> u64 {
        let cached = self.cached_tokens.unwrap_or(self.predicted_tokens);
        u64::from(self.prompt_tokens.saturating_sub(cached)) + 2 * u64::from(self.output_tokens)
    }

    /// Whether the scheduler turned it away in the moment it came.
    #[must_use]
    pub fn refused_at_the_door(&self) -> bool {
        matches!(self.end, End::Refused { .. }) && self.ended == self.arrived
    }
}

/// The clients.
pub trait Workload {
    /// The next session's first request and when it is sent; in order of time.
    fn start(&mut self) -> Option<(Nanos, Ask)>;

    /// What the session does now that this request of it ended: the next request (or the same once more) and how long
    /// after the end it is sent. None: it leaves.
    fn next(&mut self, last: &Outcome) -> Option<(Duration, Ask)>;

    /// What else is sent because of that end, by whomever: asked after each `next` until it says nothing more.
    fn more(&mut self) -> Option<(Duration, Ask)> {
        None
    }
}
