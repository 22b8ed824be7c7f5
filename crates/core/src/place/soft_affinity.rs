//! `soft_affinity`: prefers the worker that served the previous turn, and never waits for it long.
//!
//! Formula: key = `prompt_cache_key` where the client sends one, else the opening (system or
//! developer text and first user message), both scoped by tenant and model before they get here.
//! If the key was served within `idle_seconds`, and that worker is a candidate, it gets the request;
//! if it has no seat, the request waits `hold_seconds` for it. Otherwise, and without a key, the
//! least loaded.
//! Source: the specification of DESIGN section 5.
//! Defaults: `idle_seconds` 600, `hold_seconds` 2.
//! Score: the load where load decided; none (NaN) at the preferred worker.

use super::config::seconds;
use super::{Answer, OptionError, OptionValue, Policy, Question, at_home, by_load};
use crate::decision::Reason;
use crate::request::KeySource;
use crate::rng::Rng;
use core::time::Duration;

/// The settings of `soft_affinity`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// A key that was not used for longer has no preferred worker.
    pub idle: Duration,
    /// How long to wait for a seat there; the pool's `hold_max` bounds it.
    pub hold: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(600),
            hold: Duration::from_secs(2),
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
            "idle_seconds" => self.idle = seconds(value)?,
            "hold_seconds" => self.hold = seconds(value)?,
            _ => {
                return Err(OptionError::UnknownOption(&[
                    "idle_seconds",
                    "hold_seconds",
                ]));
            }
        }
        Ok(())
    }
}

/// The policy; it keeps no state beyond its settings: homes are the pool's.
pub struct SoftAffinity {
    options: Options,
}

impl SoftAffinity {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }
}

impl Policy for SoftAffinity {
    fn name(&self) -> &'static str {
        "soft_affinity"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let guest = question.guest;
        let last = match guest.session_source {
            KeySource::PromptCacheKey => guest.session.and(question.home),
            _ => guest.opening.and(question.opening_home),
        };
        let fresh = last.filter(|home| question.now.since(home.used) <= self.options.idle);
        let Some(home) = fresh else {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        };
        at_home(home, self.options.hold, candidates, scores, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, SoftAffinity};
    use crate::decision::Reason;
    use crate::ids::SessionKey;
    use crate::place::testing::{Table, candidate};
    use crate::request::KeySource;
    use core::time::Duration;

    fn table() -> Table {
        let mut table = Table::new((0..3).map(candidate).collect());
        table.candidates[0].running = 5;
        table.candidates[1].running = 1;
        table.candidates[2].running = 3;
        table.guest.opening = Some(SessionKey(4));
        table
    }

    fn policy() -> SoftAffinity {
        SoftAffinity::new(Options::default())
    }

    #[test]
    fn the_previous_worker_is_preferred_for_ten_idle_minutes() {
        let mut table = table();
        table.opening_home = table.home_on(0, 600);
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (0, Reason::Home));
        table.opening_home = table.home_on(0, 601);
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
    }

    #[test]
    fn it_waits_two_seconds_for_a_seat_there() {
        let mut table = table();
        table.opening_home = table.home_on(0, 1);
        table.candidates[0].seat = false;
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.hold), (0, Duration::from_secs(2)));
        table.candidates.remove(0);
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (0, Reason::HomeUnavailable));
        assert_eq!(answer.hold, Duration::ZERO);
    }

    #[test]
    fn prompt_cache_key_is_the_key_where_it_is_sent_and_no_other_session_is() {
        let mut table = table();
        table.opening_home = table.home_on(0, 1);
        table.home = table.home_on(2, 1);
        table.session(9, 2);
        assert_eq!(
            table.ask(&mut policy()).choice,
            0,
            "a header is not the key"
        );
        table.guest.session_source = KeySource::PromptCacheKey;
        assert_eq!(table.ask(&mut policy()).choice, 2);
    }

    #[test]
    fn who_can_not_be_told_apart_gets_no_affinity() {
        let mut table = table();
        table.guest.opening = None;
        table.opening_home = table.home_on(0, 1);
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
    }
}
