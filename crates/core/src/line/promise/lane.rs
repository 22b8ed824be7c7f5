//! One of the two lines: who waits in it, who of them holds, and on whose account the other line went.

use crate::line::groups::Groups;
use crate::line::ticket::Ticket;
use crate::time::Nanos;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// One that holds for its worker.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) place: u64,
    pub(super) charge: f64,
    /// What its own and the other line had been charged when it came.
    pub(super) since: [f64; 2],
    /// Dispatches of its line when it held first.
    pub(super) held_at: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) tenants: Groups,
    /// Those who go before all others, the first one first: place and charge.
    next: VecDeque<(u64, f64)>,
    /// The head that was compared with the other line's: it stays until it leaves.
    offered: Option<(u64, f64)>,
    /// The head when the other line went last: that went on its account. Kept when it holds.
    pub(super) guarantor: Option<u64>,
    pub(super) holders: Vec<Holder>,
    /// Charge and number of those who ask for a seat, and of those who hold.
    pub(super) charge: f64,
    pub(super) waiting: u32,
    /// Charge dispatched so far, the largest of one that came, and how many went.
    pub(super) gone: f64,
    pub(super) largest: f64,
    pub(super) dispatches: u64,
}

impl Lane {
    /// One in which those who are overdue go first.
    pub(super) fn aged() -> Self {
        Self {
            tenants: Groups::aged(),
            ..Self::default()
        }
    }

    /// Place and charge of the next.
    pub(super) fn head(&mut self, now: Nanos, overdue: Option<Duration>) -> Option<(u64, f64)> {
        if let Some(next) = self.next.front() {
            return Some(*next);
        }
        if self.offered.is_none() {
            self.offered = self.tenants.head(now, overdue);
        }
        self.offered
    }

    /// Nobody waits in it, not even for a worker.
    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty() && self.holders.is_empty()
    }

    pub(super) fn join(&mut self, ticket: &mut Ticket) {
        self.came(ticket.charge());
        self.charge += ticket.charge();
        self.waiting += 1;
        self.tenants.join(ticket, ticket.charge());
    }

    /// One of that charge came.
    pub(super) fn came(&mut self, charge: f64) {
        self.largest = self.largest.max(charge);
    }

    /// It asks for a seat no more.
    pub(super) fn leave(&mut self, ticket: &Ticket) {
        if !self.tenants.leave(ticket) {
            return;
        }
        self.charge = (self.charge - ticket.charge()).max(0.0);
        self.waiting -= 1;
        self.next.retain(|(place, _)| *place != ticket.place);
        if self.offered.is_some_and(|(place, _)| place == ticket.place) {
            self.offered = None;
        }
    }

    /// It goes before all others of the line.
    pub(super) fn goes_next(&mut self, ticket: &Ticket) {
        self.next.retain(|(place, _)| *place != ticket.place);
        self.next.push_front((ticket.place, ticket.charge()));
    }

    pub(super) fn hold(&mut self, ticket: &Ticket, since: [f64; 2], held_at: u64) {
        self.came(ticket.charge());
        self.charge += ticket.charge();
        self.waiting += 1;
        self.holders.push(Holder {
            place: ticket.place,
            charge: ticket.charge(),
            since,
            held_at,
        });
    }

    pub(super) fn unhold(&mut self, ticket: &Ticket) {
        self.holders.retain(|holder| holder.place != ticket.place);
        self.charge = (self.charge - ticket.charge()).max(0.0);
        self.waiting -= 1;
    }

    /// Charge of one of those who wait: those who come will be like them.
    pub(super) fn each(&self) -> f64 {
        (self.charge / f64::from(self.waiting.max(1))).max(1.0)
    }

    /// How many of the line went since it held first.
    pub(super) fn passes(&self, held_at: u64) -> u64 {
        self.dispatches.saturating_sub(held_at)
    }

    /// On whose account the other line went last, if that one still waits here and is not this one.
    pub(super) fn debtor(&self, place: u64) -> Option<u64> {
        let waits = |own: u64| {
            self.holders.iter().any(|holder| holder.place == own) || self.tenants.holds(own)
        };
        self.guarantor.filter(|own| *own != place && waits(*own))
    }
}
