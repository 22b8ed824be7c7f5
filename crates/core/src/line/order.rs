//! What a fairness policy is: the order in which those are offered who could sit.

use super::drain::Drain;
use super::ticket::{Bill, Ticket};
use super::{FairnessConfig, LineKind};
use super::{dlpm, fcfs, las, promise, round_robin, turn_priority, vtc};
use crate::time::Nanos;
use alloc::boxed::Box;
use core::time::Duration;

/// What goes before one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ahead {
    pub(crate) charge: f64,
    /// How many requests, where that is known.
    pub(crate) requests: f64,
}

impl Ahead {
    pub(crate) fn of_charge(charge: f64) -> Self {
        Self {
            charge: charge.max(0.0),
            requests: 0.0,
        }
    }
}

/// The order of one band among requests that wait for the same workers. Those who hold for one
/// worker, and those who do not fit for the moment, are out of it until they may sit again.
pub(crate) trait Order: Send {
    /// It waits for a seat. One that joins again keeps the tag of the first time.
    fn join(&mut self, ticket: &mut Ticket);

    /// It does not wait for a seat any more, for whatever reason.
    fn leave(&mut self, ticket: &Ticket);

    /// The place of the next one. Asking changes nothing for others but that the answer, once
    /// given, stays until it has left.
    fn head(&mut self, now: Nanos, drain: &Drain) -> Option<u64>;

    /// It sits, for the first time; it is not in the order.
    fn served(&mut self, ticket: &Ticket, now: Nanos);

    /// It was served, and this is what it took.
    fn settled(&mut self, _ticket: &Ticket, _actual: Bill, _now: Nanos) {}

    /// Whether it may hold for its worker, now that its turn came.
    fn may_hold(&self, _ticket: &Ticket) -> bool {
        true
    }

    /// It holds; it is not in the order.
    fn hold(&mut self, _ticket: &mut Ticket) {}

    /// It holds no more.
    fn unhold(&mut self, _ticket: &Ticket) {}

    /// It is in the order, and is the next of its line.
    fn goes_next(&mut self, _ticket: &Ticket) {}

    /// The place of one who waits or holds and was passed as much as may be: it goes before this one.
    fn before(&self, _ticket: &Ticket) -> Option<u64> {
        None
    }

    /// The most that may be dispatched before one of that line and charge that comes now, its own
    /// not included; `whole`: with the whole share of the new line, or with its floor, whatever is
    /// in force.
    fn ahead(&self, line: LineKind, charge: f64, whole: Option<bool>) -> Ahead;

    /// The longest predicted start with which a request of that line is taken.
    fn start_within(&self, _line: LineKind) -> Option<Duration> {
        None
    }

    /// The quantile of drain times that predictions go by.
    fn quantile(&self) -> f64 {
        0.5
    }

    /// The line's share of the dispatched charge while both wait.
    fn share(&self, _line: LineKind) -> Option<f64> {
        None
    }

    /// The least that this share may come down to.
    fn share_floor(&self, _line: LineKind) -> Option<f64> {
        None
    }

    /// Whether the whole share of the new line can be promised for later.
    fn whole_later(&self) -> bool {
        true
    }

    /// What goes for each of that line and charge, its own included, while others wait too, with
    /// the share that can be promised for later.
    fn pace(&self, _line: LineKind, charge: f64) -> Ahead {
        Ahead {
            charge,
            requests: 1.0,
        }
    }

    /// Whether its own accounts are right.
    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl FairnessConfig {
    /// The policy itself, with fresh state.
    pub(crate) fn build(&self) -> Box<dyn Order> {
        match self {
            Self::Fcfs => Box::new(fcfs::Fcfs::default()),
            Self::RoundRobin => Box::new(round_robin::RoundRobin::default()),
            Self::Las(o) => Box::new(las::Las::new(o.clone())),
            Self::TurnPriority(o) => Box::new(turn_priority::TurnPriority::new(o.clone())),
            Self::Vtc(o) => Box::new(vtc::Vtc::new(o.clone())),
            Self::Dlpm(o) => Box::new(dlpm::Dlpm::new(o.clone())),
            Self::Promise(o) => Box::new(promise::Promise::new(o.clone())),
        }
    }
}
