//! `fcfs`: first come, first served.
//!
//! Formula: the least place, which is the order of arrival.
//! Source: common knowledge; the baseline. Options: none.

use super::LineKind;
use super::drain::Drain;
use super::order::{Ahead, Order};
use super::ticket::Ticket;
use crate::time::Nanos;
use alloc::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Fcfs {
    entries: BTreeMap<u64, f64>,
    charge: f64,
}

impl Order for Fcfs {
    fn join(&mut self, ticket: &mut Ticket) {
        self.entries.insert(ticket.place, ticket.charge());
        self.charge += ticket.charge();
    }

    fn leave(&mut self, ticket: &Ticket) {
        if let Some(charge) = self.entries.remove(&ticket.place) {
            self.charge -= charge;
        }
    }

    fn head(&mut self, _now: Nanos, _drain: &Drain) -> Option<u64> {
        self.entries.first_key_value().map(|(place, _)| *place)
    }

    fn served(&mut self, _ticket: &Ticket, _now: Nanos) {}

    fn ahead(&self, _line: LineKind, _charge: f64, _whole: Option<bool>) -> Ahead {
        Ahead::of_charge(self.charge)
    }
}
