//! `dlpm`: deficit longest prefix match.
//!
//! Formula: each tenant has a deficit. Among the tenants whose deficit is above zero, the request
//! goes whose prompt some worker holds most of; its tenant's deficit falls by the uncached prompt
//! tokens and by twice the tokens of the answer. Where nobody who waits has a deficit above zero,
//! each of them gets `quantum_tokens x weight`, until one has. A tenant that comes new, or back,
//! begins with a quantum, or with what it owes.
//! Source: Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (arXiv 2501.14312). What a
//! worker holds of a prompt is looked up when the request comes, not at every choice.
//! Defaults: `quantum_tokens` 2048 (ours: the paper tunes it to the workload).

use super::LineKind;
use super::drain::Drain;
use super::order::{Ahead, Order};
use super::ticket::{Bill, Ticket};
use crate::place::{OptionError, OptionValue, number};
use crate::time::Nanos;
use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;

/// The settings of `dlpm`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Service that each client gets in a round, in tokens.
    pub quantum: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { quantum: 2_048.0 }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "quantum_tokens" => {
                self.quantum = number(value, 1.0, 1e9, "tokens from 1 to 1000000000")?;
            }
            _ => return Err(OptionError::UnknownOption(&["quantum_tokens"])),
        }
        Ok(())
    }
}

/// Tenants that are remembered while they do not wait and owe something.
const IDLE_MAX: usize = 65_536;

#[derive(Debug, Default)]
struct Tenant {
    deficit: f64,
    weight: f64,
    waiting: BTreeSet<(Reverse<u32>, u64)>,
}

#[derive(Debug)]
pub(crate) struct Dlpm {
    options: Options,
    tenants: BTreeMap<u64, Tenant>,
    /// The best request of each tenant with a deficit above zero.
    heads: BTreeSet<(Reverse<u32>, u64, u64)>,
    charge: f64,
}

impl Dlpm {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            tenants: BTreeMap::new(),
            heads: BTreeSet::new(),
            charge: 0.0,
        }
    }

    /// Changes one tenant and keeps the heads right.
    fn change(&mut self, key: u64, change: impl FnOnce(&mut Tenant)) {
        let fresh = self.options.quantum;
        let tenant = self.tenants.entry(key).or_insert_with(|| Tenant {
            deficit: fresh,
            weight: 1.0,
            waiting: BTreeSet::new(),
        });
        let head = |tenant: &Tenant| {
            let first = tenant.waiting.first().filter(|_| tenant.deficit > 0.0);
            first.map(|(matched, place)| (*matched, *place, key))
        };
        let before = head(tenant);
        change(tenant);
        let after = head(tenant);
        let gone = tenant.waiting.is_empty() && tenant.deficit >= fresh;
        if before != after {
            before.map(|head| self.heads.remove(&head));
            after.map(|head| self.heads.insert(head));
        }
        if gone {
            self.tenants.remove(&key);
        } else if self.tenants.len() > IDLE_MAX {
            self.tenants.retain(|_, tenant| !tenant.waiting.is_empty());
        }
    }

    fn refill(&mut self) {
        // As many rounds as bring the one that owes least above zero.
        let quantum = self.options.quantum;
        let waiting = self.tenants.values().filter(|t| !t.waiting.is_empty());
        let rounds = waiting
            .map(|t| libm::floor(-t.deficit / (quantum * t.weight)) + 1.0)
            .fold(f64::INFINITY, f64::min);
        if !rounds.is_finite() {
            return;
        }
        let keys: alloc::vec::Vec<u64> = self.tenants.keys().copied().collect();
        for key in keys {
            self.change(key, |tenant| {
                let most = quantum * tenant.weight;
                tenant.deficit = (tenant.deficit + rounds * most).min(most.max(tenant.deficit));
            });
        }
    }
}

fn cost(bill: &Bill) -> f64 {
    bill.charge()
}

impl Order for Dlpm {
    fn join(&mut self, ticket: &mut Ticket) {
        let (matched, place, weight) = (Reverse(ticket.matched), ticket.place, ticket.weight);
        self.change(ticket.tenant.0, |tenant| {
            tenant.weight = weight;
            tenant.waiting.insert((matched, place));
        });
        self.charge += ticket.charge();
    }

    fn leave(&mut self, ticket: &Ticket) {
        let entry = (Reverse(ticket.matched), ticket.place);
        let mut left = false;
        self.change(ticket.tenant.0, |tenant| {
            left = tenant.waiting.remove(&entry);
        });
        if left {
            self.charge -= ticket.charge();
        }
    }

    fn head(&mut self, _now: Nanos, _drain: &Drain) -> Option<u64> {
        if self.heads.is_empty() {
            self.refill();
        }
        self.heads.first().map(|(_, place, _)| *place)
    }

    fn served(&mut self, ticket: &Ticket, _now: Nanos) {
        self.change(ticket.tenant.0, |tenant| {
            tenant.deficit -= cost(&ticket.bill);
        });
    }

    fn settled(&mut self, ticket: &Ticket, actual: Bill, _now: Nanos) {
        let more = cost(&actual) - cost(&ticket.bill);
        self.change(ticket.tenant.0, |tenant| tenant.deficit -= more);
    }

    fn ahead(&self, _line: LineKind, _charge: f64, _whole: Option<bool>) -> Ahead {
        Ahead::of_charge(self.charge)
    }
}
