//! What the line knows of a request, and what a request is charged.

use super::LineKind;
use crate::ids::{RequestId, TenantId, WorkerId};
use crate::time::Nanos;
use core::cmp::Ordering;
use core::time::Duration;

/// What a token of the answer is charged, where a token of uncached prompt is charged 1: an engine
/// takes one step for each, and the prompt's tokens share theirs (DESIGN section 7).
pub(crate) const OUTPUT_WEIGHT: f64 = 2.0;

/// A number that has a total order, for use as a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Num(pub(crate) f64);

impl Eq for Num {}

impl PartialOrd for Num {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Num {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Tokens that a request takes: estimated when it comes, reported when it is served.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bill {
    /// All prompt tokens.
    pub(crate) prompt: u64,
    /// Of them, those that no worker was believed to hold.
    pub(crate) uncached: u64,
    /// Tokens of the answer.
    pub(crate) output: u64,
}

impl Bill {
    /// Uncached prompt tokens and twice the tokens of the answer; at least 1.
    pub(crate) fn charge(&self) -> f64 {
        (self.uncached as f64 + OUTPUT_WEIGHT * self.output as f64).max(1.0)
    }
}

/// Which requests wait for the same workers: see `class.rs`.
pub(crate) type ClassId = u32;

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not in the line.
    #[default]
    Out,
    /// In the order of its band.
    Ready,
    /// It sat before and goes before all who have not.
    Returned,
    /// Its turn came, and it holds for its worker.
    Holding,
    /// Its turn came, and it did not fit; it is back in the order after this pass.
    Misfit,
}

/// A request in the line, or one that came through it and sits.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) request: RequestId,
    /// The order of arrival.
    pub(crate) place: u64,
    pub(crate) arrived: Nanos,
    pub(crate) tenant: TenantId,
    pub(crate) weight: f64,
    pub(crate) flow: u64,
    pub(crate) band: u16,
    pub(crate) line: LineKind,
    pub(crate) turn: u32,
    pub(crate) bytes: u64,
    /// As estimated when it came; what the accounts of the line go by.
    pub(crate) bill: Bill,
    /// Leading prompt tokens that some worker was believed to hold when it came.
    pub(crate) matched: u32,
    pub(crate) class: ClassId,
    pub(crate) standing: Standing,
    /// For whom it holds.
    pub(crate) held_for: Option<WorkerId>,
    /// The class whose accounts were charged for it.
    pub(crate) charged: Option<ClassId>,
    /// When it would start, as predicted at the door.
    pub(crate) predicted: Option<Duration>,
    /// That rests on what was measured.
    pub(crate) measured: bool,
    /// It starts with the whole share of its line, whatever is in force.
    pub(crate) whole: bool,
    /// Its place in the order of its flows, given when it first joins.
    pub(crate) tag: Option<f64>,
    /// What both lines had been charged when it came.
    pub(crate) since: Option<[f64; 2]>,
    /// Dispatches of its line when it held first.
    pub(crate) held_at: Option<u64>,
    /// Dispatches of its class when its turn came first.
    pub(crate) turn_came: Option<u64>,
}

impl Ticket {
    /// It stands in another order from now on.
    pub(crate) fn forget_order(&mut self) {
        (self.tag, self.turn_came) = (None, None);
        (self.since, self.held_at) = (None, None);
    }

    pub(crate) fn charge(&self) -> f64 {
        self.bill.charge()
    }
}
