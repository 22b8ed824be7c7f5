//! `pin`: a session never leaves its home while the home can be chosen at all.
//!
//! Formula: the home, whatever its load; without one, the least loaded.
//! Source: the hard binding of many gateways; a baseline, and what server-side state needs.
//! Defaults: `hold_seconds` 3600: it waits for a seat at home as long as the pool's `hold_max`
//! allows.
//! Score: the load where load decided; none (NaN) at home.

use super::config::seconds;
use super::{Answer, OptionError, OptionValue, Policy, Question, at_home, by_load};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// The settings of `pin`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How long to wait for a seat at home; the pool's `hold_max` bounds it.
    pub hold: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(3_600),
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
            "hold_seconds" => self.hold = seconds(value)?,
            _ => return Err(OptionError::UnknownOption(&["hold_seconds"])),
        }
        Ok(())
    }
}

/// The policy; it keeps no state beyond its settings.
pub struct Pin {
    options: Options,
}

impl Pin {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }
}

impl Policy for Pin {
    fn name(&self) -> &'static str {
        "pin"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let Some(home) = question.home else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        at_home(home, self.options.hold, candidates, scores, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, Pin};
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};
    use core::time::Duration;

    #[test]
    fn stays_home_whatever_the_load_and_waits_for_a_seat() {
        let mut table = Table::new((0..3).map(candidate).collect());
        table.candidates[1].running = 1_000;
        table.candidates[1].seat = false;
        table.home = table.home_on(1, 3_000);
        let answer = table.ask(&mut Pin::new(Options::default()));
        assert_eq!((answer.choice, answer.reason), (1, Reason::Home));
        assert_eq!(answer.hold, Duration::from_secs(3_600));
    }

    #[test]
    fn without_a_home_and_without_its_worker_load_decides() {
        let mut table = Table::new((0..3).map(candidate).collect());
        table.candidates[0].running = 2;
        table.candidates[1].running = 1;
        table.candidates[2].running = 3;
        let mut pin = Pin::new(Options::default());
        let answer = table.ask(&mut pin);
        assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
        table.home = table.home_on(1, 1);
        table.candidates.remove(1);
        let answer = table.ask(&mut pin);
        assert_eq!((answer.choice, answer.reason), (0, Reason::HomeUnavailable));
        assert_eq!(answer.hold, Duration::ZERO);
    }
}
