//! A live request: waiting in the line, or sitting on a worker.

use crate::cost::Mark;
use crate::decision::Belief;
use crate::ids::{AttemptId, WorkerId};
use crate::line::ticket::{Standing, Ticket};
use crate::miss::Moved;
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
    /// Prompt tokens that it was believed to hold.
    pub(super) matched: u32,
    pub(super) accepted: bool,
    pub(super) first_token: bool,
    /// The caller was asked to abort it: how it ends says nothing of the worker.
    pub(super) aborted: bool,
    /// What the worker's meter is told of it.
    pub(super) mark: Mark,
    /// Why it went elsewhere than the one before it in its session, if it did.
    pub(super) why: Moved,
    /// Seconds by which its worker was busier than the least busy one, and that it held for it.
    pub(super) affinity_cost: f64,
    /// Requests that a second of its work delays by a second: itself, and its share of those that wait.
    pub(super) delays: f64,
    /// The worker's count of retracted beliefs when it was dispatched.
    pub(super) taken_back: u32,
}

/// A request from its arrival to its end.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) guest: Box<Arrival>,
    /// What the line knows of it; its place there is kept over attempts.
    pub(super) ticket: Ticket,
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
    pub(super) hold: Hold,
    /// Since when it held first.
    pub(super) held_since: Option<Nanos>,
    /// Affinity is followed, as the gate says.
    pub(super) follows: bool,
    pub(super) give_up: Nanos,
    /// No worker could take it: refused at this time unless one turns up.
    pub(super) no_worker_until: Option<Nanos>,
    /// Its entry among the timers.
    pub(super) timer: Option<Nanos>,
}

impl Request {
    /// It is in the line.
    pub(super) fn waits(&self) -> bool {
        self.ticket.standing != Standing::Out
    }

    /// How it stands in the line where nothing keeps it from a seat but that none is free.
    pub(super) fn asking(&self) -> Standing {
        if self.attempts > 0 {
            Standing::Returned
        } else {
            Standing::Ready
        }
    }

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
