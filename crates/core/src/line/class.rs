//! Requests that wait for the same workers.
//!
//! Who could take a request follows from its model, its size and its binding. Requests with equal
//! sets of workers are one class: they compete for the same seats, so they share one order and its
//! accounts. A class whose workers have no room is passed over as a whole, whatever stands in it.
//! Where classes share workers, the one that got the least charge goes first, and one that comes
//! new is lifted to the least of those who wait.

use super::FairnessConfig;
use super::drain::Drain;
use super::order::Order;
use super::terms::Band;
use super::ticket::{Num, Standing, Ticket};
use crate::ids::WorkerId;
use crate::limits::HOLDERS_MAX;
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

struct Slot {
    order: Box<dyn Order>,
    ready: usize,
    /// Charge that its floor has earned and not used.
    credit: f64,
}

pub(crate) struct Class {
    /// Who could take its requests, in slot order.
    pub(crate) workers: Vec<WorkerId>,
    bands: Vec<Slot>,
    /// Those who sat before, by place.
    returned: BTreeSet<u64>,
    pub(crate) waiting: usize,
    pub(crate) holding: usize,
    /// Charge that it got, against that of other classes.
    pub(crate) tag: f64,
    pub(crate) drain: Drain,
    /// Dispatches of its requests.
    pub(crate) dispatches: u64,
}

impl Class {
    pub(crate) fn new(workers: Vec<WorkerId>, fairness: &FairnessConfig, bands: usize) -> Self {
        let slot = |_| Slot {
            order: fairness.build(),
            ready: 0,
            credit: 0.0,
        };
        Self {
            workers,
            bands: (0..bands.max(1)).map(slot).collect(),
            returned: BTreeSet::new(),
            waiting: 0,
            holding: 0,
            tag: 0.0,
            drain: Drain::default(),
            dispatches: 0,
        }
    }

    fn slot(&mut self, ticket: &Ticket) -> &mut Slot {
        let last = self.bands.len() - 1;
        &mut self.bands[usize::from(ticket.band).min(last)]
    }

    pub(crate) fn order(&self, band: u16) -> &dyn Order {
        let last = self.bands.len() - 1;
        &*self.bands[usize::from(band).min(last)].order
    }

    /// Whether anybody in it asks for a seat.
    pub(crate) fn asks(&self) -> bool {
        !self.returned.is_empty() || self.bands.iter().any(|slot| slot.ready > 0)
    }

    /// Whether anybody else of it asks for a seat.
    pub(crate) fn others_ask(&self, ticket: &Ticket) -> bool {
        let ready: usize = self.bands.iter().map(|slot| slot.ready).sum();
        ready > usize::from(ticket.standing == Standing::Ready)
    }

    pub(crate) fn stand(&mut self, ticket: &mut Ticket, standing: Standing) {
        match ticket.standing {
            Standing::Ready => {
                let slot = self.slot(ticket);
                slot.order.leave(ticket);
                slot.ready -= 1;
                if slot.ready == 0 {
                    slot.credit = 0.0;
                }
            }
            Standing::Returned => {
                self.returned.remove(&ticket.place);
            }
            Standing::Holding => {
                self.holding -= 1;
                self.slot(ticket).order.unhold(ticket);
            }
            Standing::Out | Standing::Misfit => {}
        }
        ticket.standing = standing;
        match standing {
            Standing::Ready => {
                let slot = self.slot(ticket);
                slot.order.join(ticket);
                slot.ready += 1;
            }
            Standing::Returned => {
                self.returned.insert(ticket.place);
            }
            Standing::Holding => {
                self.holding += 1;
                self.slot(ticket).order.hold(ticket);
            }
            Standing::Out | Standing::Misfit => {}
        }
    }

    pub(crate) fn goes_next(&mut self, ticket: &Ticket) {
        self.slot(ticket).order.goes_next(ticket);
    }

    pub(crate) fn may_hold(&mut self, ticket: &Ticket) -> bool {
        self.holding < HOLDERS_MAX && self.slot(ticket).order.may_hold(ticket)
    }

    /// The next one to be offered a seat.
    pub(crate) fn head(&mut self, bands: &[Band], now: Nanos) -> Option<u64> {
        if let Some(place) = self.returned.first() {
            return Some(*place);
        }
        let ready = |(index, slot): (usize, &Slot)| (slot.ready > 0).then_some(index);
        let first = self.bands.iter().enumerate().find_map(ready)?;
        // A later band whose floor has earned what its next request takes goes before.
        let owed = (first + 1..self.bands.len()).find(|index| {
            let slot = &self.bands[*index];
            let floor = bands.get(*index).map_or(0.0, |band| band.floor);
            slot.ready > 0 && floor > 0.0 && slot.credit > 0.0
        });
        let slot = &mut self.bands[owed.unwrap_or(first)];
        slot.order.head(now, &self.drain)
    }

    /// One of it is dispatched for the first time, from the line or past it.
    pub(crate) fn served(&mut self, ticket: &Ticket, bands: &[Band], now: Nanos) {
        let charge = ticket.charge();
        self.dispatches += 1;
        self.tag += charge;
        let own = usize::from(ticket.band).min(self.bands.len() - 1);
        for (index, slot) in self.bands.iter_mut().enumerate() {
            let floor = bands.get(index).map_or(0.0, |band| band.floor);
            if slot.ready > 0 {
                slot.credit += floor * charge;
            }
            if index == own {
                slot.credit = (slot.credit - charge).max(-charge);
                slot.order.served(ticket, now);
            }
        }
        self.drain.steady.taken(now);
        if self.waiting > 0 {
            self.drain.dispatched(charge, now);
        }
    }

    pub(crate) fn settled(&mut self, ticket: &Ticket, actual: super::ticket::Bill, now: Nanos) {
        self.slot(ticket).order.settled(ticket, actual, now);
    }

    pub(crate) fn key(&self) -> Num {
        Num(self.tag)
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        for slot in &self.bands {
            slot.order.check()?;
        }
        Ok(())
    }
}
