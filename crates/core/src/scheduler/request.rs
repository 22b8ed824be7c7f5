//! A live request: waiting in the line, or sitting on a worker.

use crate::decision::Belief;
use crate::ids::{AttemptId, WorkerId};
use crate::pool::ledger::Lease;
use crate::request::{Arrival, Failure, RetryAfter};
use crate::time::Nanos;
use alloc::boxed::Box;
use smallvec::SmallVec;

/// Where it stands with holding for its best worker; a request holds once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It has not held yet.
    Fresh,
    /// It holds for this worker until then.
    Holding { worker: WorkerId, until: Nanos },
    /// It sits wherever a seat is.
    Spent,
}

/// An open attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: AttemptId,
    pub(super) lease: Lease,
    pub(super) dispatched: Nanos,
    /// What the worker was believed to hold before.
    pub(super) belief: Belief,
    pub(super) accepted: bool,
    pub(super) first_token: bool,
    /// The caller was asked to abort it: how it ends says nothing of the worker.
    pub(super) aborted: bool,
    /// The worker's count of retracted beliefs when it was dispatched.
    pub(super) taken_back: u32,
}

/// A request from its arrival to its end.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) guest: Box<Arrival>,
    /// Its place in the line, kept over attempts: the order of arrival.
    pub(super) place: u64,
    pub(super) arrived: Nanos,
    pub(super) prompt_tokens: u32,
    /// Attempts opened so far.
    pub(super) attempts: u8,
    /// Workers that failed it.
    pub(super) failed: SmallVec<[WorkerId; 4]>,
    pub(super) last_failure: Option<Failure>,
    /// What the worker that failed it last said of trying again.
    pub(super) retry_after: Option<RetryAfter>,
    /// None: it waits in the line.
    pub(super) attempt: Option<Attempt>,
    /// It has its place in the line.
    pub(super) waiting: bool,
    pub(super) hold: Hold,
    pub(super) give_up: Nanos,
    /// No worker could take it: refused at this time unless one turns up.
    pub(super) no_worker_until: Option<Nanos>,
    /// Its entry among the timers.
    pub(super) timer: Option<Nanos>,
    pub(super) passed_by: u32,
}

impl Request {
    /// The next time at which something happens to it in the line.
    pub(super) fn next_due(&self) -> Nanos {
        let mut due = self.give_up;
        if let Hold::Holding { until, .. } = self.hold {
            due = due.min(until);
        }
        if let Some(until) = self.no_worker_until {
            due = due.min(until);
        }
        due
    }
}
