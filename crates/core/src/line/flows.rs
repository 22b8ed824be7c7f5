//! Requests of several flows in the order of their finish tags.
//!
//! Formula: a request that joins gets `F = max(V, last F of its flow) + cost`; the least `F` goes
//! first, and `V` becomes the `F` of the one that went. A flow with many requests gets one place
//! per round, whatever it has waiting; one that comes new stands behind the present round, so that
//! a stream of new flows does not keep an old one waiting.
//! Source: Golestani, "A Self-Clocked Fair Queueing Scheme" (INFOCOM 1994).

use super::ticket::{Num, Ticket};
use crate::time::Nanos;
use alloc::collections::BTreeMap;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// Charge by finish tag and place.
    entries: BTreeMap<(Num, u64), f64>,
    /// When they came, and their tags, by place; kept only where `aged`.
    ages: BTreeMap<u64, (Nanos, Num)>,
    pub(crate) aged: bool,
    /// Of each flow that waits: how many, and the last tag.
    flows: HashMap<u64, (u32, f64), FxBuildHasher>,
    virtual_time: f64,
}

impl Flows {
    /// Takes a request in; `cost`: what it counts among the flows.
    pub(crate) fn join(&mut self, ticket: &mut Ticket, cost: f64) {
        let flow = self.flows.entry(ticket.flow).or_default();
        let tag = *ticket
            .tag
            .get_or_insert_with(|| self.virtual_time.max(flow.1) + cost);
        flow.0 += 1;
        flow.1 = flow.1.max(tag);
        self.entries
            .insert((Num(tag), ticket.place), ticket.charge());
        if self.aged {
            self.ages.insert(ticket.place, (ticket.arrived, Num(tag)));
        }
    }

    pub(crate) fn leave(&mut self, ticket: &Ticket) -> bool {
        let at = ticket.tag.map(|tag| (Num(tag), ticket.place));
        if at.and_then(|at| self.entries.remove(&at)).is_none() {
            return false;
        }
        if self.aged {
            self.ages.remove(&ticket.place);
        }
        if let Some(flow) = self.flows.get_mut(&ticket.flow) {
            flow.0 = flow.0.saturating_sub(1);
            if flow.0 == 0 {
                self.flows.remove(&ticket.flow);
            }
        }
        true
    }

    /// It went: the round it stood in is the present one.
    pub(crate) fn served(&mut self, ticket: &Ticket) {
        if let Some(tag) = ticket.tag {
            self.virtual_time = self.virtual_time.max(tag);
        }
    }

    /// Place and charge of the next; one that has waited for longer than `overdue` before others.
    pub(crate) fn head(&self, now: Nanos, overdue: Option<Duration>) -> Option<(u64, f64)> {
        if let Some(limit) = overdue
            && let Some((place, (arrived, tag))) = self.ages.first_key_value()
            && now.since(*arrived) > limit
        {
            let charge = self.entries.get(&(*tag, *place))?;
            return Some((*place, *charge));
        }
        let ((_, place), charge) = self.entries.first_key_value()?;
        Some((*place, *charge))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn holds(&self, place: u64) -> bool {
        self.entries.keys().any(|(_, own)| *own == place)
    }
}
