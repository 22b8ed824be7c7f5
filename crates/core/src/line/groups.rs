//! Tenants by weighted service: the one with the least goes first.
//!
//! Formula: each tenant has a tag, its charge divided by its weight. The least tag goes, and grows
//! by `charge / weight` of what it got. One that comes back is lifted to the least tag of those who
//! wait, so that idleness is not saved up; what it owes stays. While two wait, their tags differ by
//! at most one charge over weight: whoever got more had the least tag before.
//! Source: the lift is that of the Virtual Token Counter (Sheng et al., OSDI 2024), the tags are
//! start tags as in Goyal et al., "Start-time Fair Queueing" (SIGCOMM 1996).

use super::flows::Flows;
use super::ticket::{Num, Ticket};
use crate::time::Nanos;
use alloc::collections::BTreeSet;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Tenants whose debt is remembered while they do not wait; the smallest debts are forgotten first.
const IDLE_MAX: usize = 65_536;

#[derive(Debug, Default)]
struct Member {
    tag: f64,
    inner: Flows,
}

#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: HashMap<u64, Member, FxBuildHasher>,
    /// Those who wait, and those who do not, by tag.
    active: BTreeSet<(Num, u64)>,
    idle: BTreeSet<(Num, u64)>,
    /// The least tag that anybody who waited had; never falls.
    floor: f64,
    /// Those who wait for longest may be asked for.
    aged: bool,
}

impl Groups {
    /// In which `head` can be asked for those who are overdue.
    pub(crate) fn aged() -> Self {
        Self {
            aged: true,
            ..Self::default()
        }
    }

    pub(crate) fn join(&mut self, ticket: &mut Ticket, cost: f64) {
        let key = ticket.tenant.0;
        let floor = self.least();
        let member = self.members.entry(key).or_default();
        member.inner.aged = self.aged;
        if member.inner.is_empty() {
            self.idle.remove(&(Num(member.tag), key));
            member.tag = member.tag.max(floor);
            self.active.insert((Num(member.tag), key));
        }
        member.inner.join(ticket, cost);
    }

    pub(crate) fn leave(&mut self, ticket: &Ticket) -> bool {
        let key = ticket.tenant.0;
        let Some(member) = self.members.get_mut(&key) else {
            return false;
        };
        let left = member.inner.leave(ticket);
        if left && member.inner.is_empty() {
            let tag = Num(member.tag);
            self.active.remove(&(tag, key));
            self.rest(tag, key);
        }
        left
    }

    /// One that waits no more: remembered while it owes something.
    fn rest(&mut self, tag: Num, key: u64) {
        if tag.0 > self.floor {
            self.idle.insert((tag, key));
        } else {
            self.members.remove(&key);
        }
        if self.idle.len() > IDLE_MAX {
            self.forget_least();
        }
    }

    fn forget_least(&mut self) {
        if let Some((_, key)) = self.idle.pop_first() {
            self.members.remove(&key);
        }
    }

    /// The least tag of those who wait.
    fn least(&self) -> f64 {
        self.active.first().map_or(self.floor, |(tag, _)| tag.0)
    }

    /// It went, and is in no flow any more.
    pub(crate) fn served(&mut self, ticket: &Ticket, charge: f64) {
        let key = ticket.tenant.0;
        let own = self.members.get(&key).map(|member| member.tag);
        let least = self.active.first().map(|(tag, _)| tag.0);
        let before = match (own, least) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).unwrap_or(self.floor),
        };
        self.floor = self.floor.max(before);
        if let Some(member) = self.members.get_mut(&key) {
            member.inner.served(ticket);
        }
        self.add(ticket, charge);
        while self
            .idle
            .first()
            .is_some_and(|(tag, _)| tag.0 <= self.floor)
        {
            self.forget_least();
        }
    }

    /// Adds to what its tenant was charged (less than zero: gives back).
    pub(crate) fn add(&mut self, ticket: &Ticket, charge: f64) {
        let key = ticket.tenant.0;
        let floor = self.floor;
        let member = self.members.entry(key).or_insert_with(|| Member {
            tag: floor,
            inner: Flows::default(),
        });
        let old = Num(member.tag);
        member.tag += charge / ticket.weight;
        let new = Num(member.tag);
        if !member.inner.is_empty() {
            self.active.remove(&(old, key));
            self.active.insert((new, key));
            return;
        }
        self.idle.remove(&(old, key));
        self.rest(new, key);
    }

    /// Place and charge of the next.
    pub(crate) fn head(&self, now: Nanos, overdue: Option<Duration>) -> Option<(u64, f64)> {
        let (_, key) = self.active.first()?;
        self.members.get(key)?.inner.head(now, overdue)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether the one at that place waits here.
    pub(crate) fn holds(&self, place: u64) -> bool {
        self.members
            .values()
            .any(|member| member.inner.holds(place))
    }

    /// Whether tags, sets and flows agree.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.active.len() + self.idle.len() != self.members.len() {
            return Err("tenants that are neither waiting nor remembered");
        }
        for (key, member) in &self.members {
            let at = (Num(member.tag), *key);
            let waits = !member.inner.is_empty();
            if self.active.contains(&at) != waits || self.idle.contains(&at) == waits {
                return Err("a tenant's tag is not the one it is ordered by");
            }
        }
        Ok(())
    }
}
