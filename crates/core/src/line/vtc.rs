//! `vtc`: the virtual token counter.
//!
//! Formula: each tenant has a counter of `input_weight x prompt tokens + output_weight x tokens of
//! the answer`, divided by its weight; the least counter goes first, within a tenant first come
//! first served. A tenant that comes back is lifted to the least counter of those who wait. All
//! prompt tokens count, cached or not. Estimated at the dispatch, trued up with the reported usage;
//! theirs counts each token of the answer as it comes.
//! Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
//! Defaults: `input_weight` 1, `output_weight` 2.

use super::LineKind;
use super::drain::Drain;
use super::groups::Groups;
use super::order::{Ahead, Order};
use super::ticket::{Bill, Ticket};
use crate::place::{OptionError, OptionValue, number};
use crate::time::Nanos;

/// The settings of `vtc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What a prompt token counts.
    pub input: f64,
    /// What a token of the answer counts.
    pub output: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            input: 1.0,
            output: 2.0,
        }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "input_weight" => self.input = number(value, 0.0, 1e3, "a number from 0 to 1000")?,
            "output_weight" => self.output = number(value, 0.0, 1e3, "a number from 0 to 1000")?,
            _ => {
                return Err(OptionError::UnknownOption(&[
                    "input_weight",
                    "output_weight",
                ]));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Vtc {
    options: Options,
    tenants: Groups,
    charge: f64,
}

impl Vtc {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            tenants: Groups::default(),
            charge: 0.0,
        }
    }

    fn cost(&self, bill: &Bill) -> f64 {
        self.options.input * bill.prompt as f64 + self.options.output * bill.output as f64
    }
}

impl Order for Vtc {
    fn join(&mut self, ticket: &mut Ticket) {
        self.tenants.join(ticket, 0.0);
        self.charge += ticket.charge();
    }

    fn leave(&mut self, ticket: &Ticket) {
        if self.tenants.leave(ticket) {
            self.charge -= ticket.charge();
        }
    }

    fn head(&mut self, now: Nanos, _drain: &Drain) -> Option<u64> {
        self.tenants.head(now, None).map(|(place, _)| place)
    }

    fn served(&mut self, ticket: &Ticket, _now: Nanos) {
        self.tenants.served(ticket, self.cost(&ticket.bill));
    }

    fn settled(&mut self, ticket: &Ticket, actual: Bill, _now: Nanos) {
        let more = self.cost(&actual) - self.cost(&ticket.bill);
        self.tenants.add(ticket, more);
    }

    fn ahead(&self, _line: LineKind, _charge: f64, _whole: Option<bool>) -> Ahead {
        Ahead::of_charge(self.charge)
    }

    fn check(&self) -> Result<(), &'static str> {
        self.tenants.check()
    }
}
