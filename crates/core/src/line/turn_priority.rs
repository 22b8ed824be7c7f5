//! `turn_priority`: deep conversations first.
//!
//! Formula: `turn + aging_per_second x waited seconds`; the most goes first. All age alike, so the
//! order of two requests never changes: it is kept as `aging x arrival - turn`, the least first.
//! Source: the turn-priority strategy of the program-aware fairness plugin of llm-d-router (2026).
//! Theirs counts the turns that it has dispatched of a flow; ours are read from the history.
//! Defaults: `aging_per_second` 0.05.

use super::LineKind;
use super::drain::Drain;
use super::order::{Ahead, Order};
use super::ticket::{Num, Ticket};
use crate::place::{OptionError, OptionValue, number};
use crate::time::Nanos;
use alloc::collections::BTreeSet;

/// The settings of `turn_priority`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Turns that one second of waiting is worth.
    pub aging: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { aging: 0.05 }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "aging_per_second" => self.aging = number(value, 0.0, 1e3, "a number from 0 to 1000")?,
            _ => return Err(OptionError::UnknownOption(&["aging_per_second"])),
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct TurnPriority {
    options: Options,
    entries: BTreeSet<(Num, u64)>,
    charge: f64,
}

impl TurnPriority {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            entries: BTreeSet::new(),
            charge: 0.0,
        }
    }

    fn key(&self, ticket: &Ticket) -> (Num, u64) {
        let arrived = ticket.arrived.0 as f64 / 1e9;
        let key = self.options.aging * arrived - f64::from(ticket.turn);
        (Num(key), ticket.place)
    }
}

impl Order for TurnPriority {
    fn join(&mut self, ticket: &mut Ticket) {
        self.entries.insert(self.key(ticket));
        self.charge += ticket.charge();
    }

    fn leave(&mut self, ticket: &Ticket) {
        if self.entries.remove(&self.key(ticket)) {
            self.charge -= ticket.charge();
        }
    }

    fn head(&mut self, _now: Nanos, _drain: &Drain) -> Option<u64> {
        self.entries.first().map(|(_, place)| *place)
    }

    fn served(&mut self, _ticket: &Ticket, _now: Nanos) {}

    fn ahead(&self, _line: LineKind, _charge: f64, _whole: Option<bool>) -> Ahead {
        Ahead::of_charge(self.charge)
    }
}
