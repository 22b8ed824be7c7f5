//! `round_robin`: one request of each flow in turn.
//!
//! Formula: finish tags of cost 1 (see `flows.rs`): each flow that waits has one request per round,
//! and a flow that comes new joins behind the present round.
//! Source: Nagle, "On Packet Switches with Infinite Storage" (RFC 970). Options: none.

use super::LineKind;
use super::drain::Drain;
use super::flows::Flows;
use super::order::{Ahead, Order};
use super::ticket::Ticket;
use crate::time::Nanos;

#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    flows: Flows,
    charge: f64,
}

impl Order for RoundRobin {
    fn join(&mut self, ticket: &mut Ticket) {
        self.flows.join(ticket, 1.0);
        self.charge += ticket.charge();
    }

    fn leave(&mut self, ticket: &Ticket) {
        if self.flows.leave(ticket) {
            self.charge -= ticket.charge();
        }
    }

    fn head(&mut self, now: Nanos, _drain: &Drain) -> Option<u64> {
        self.flows.head(now, None).map(|(place, _)| place)
    }

    fn served(&mut self, ticket: &Ticket, _now: Nanos) {
        self.flows.served(ticket);
    }

    fn ahead(&self, _line: LineKind, _charge: f64, _whole: Option<bool>) -> Ahead {
        Ahead::of_charge(self.charge)
    }
}
