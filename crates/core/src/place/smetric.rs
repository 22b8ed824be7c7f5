//! `smetric`: sessions, not requests, are balanced.
//!
//! Formula: turn 1: argmin of `load + own uncached tokens` (least loaded, with credit for a hit).
//! Later turns: the longest match, among equals the least load; unless the predicted time to the
//! first token there exceeds `slack x slo`, or the match is shorter than `retained` of what the
//! session's last length implies (it was evicted): then as turn 1. The prediction is `(open prefill +
//! own uncached tokens) / prefill_tokens_per_second`.
//! Source: the rule that is known as `SMetric`, session-centric scheduling. No published values of
//! its constants were at hand: the defaults are ours, and so is a configured rate.
//! Defaults: `slo_seconds` 5, `slack` 0.8, `retained` 0.5, `prefill_tokens_per_second` 15,928.
//! Score: matched tokens where the match decides (more is better), else the sum above (less is).

use super::config::number;
use super::ttft::{PREFILL_RATE, RATE_ALLOWED, estimate};
use super::{
    Answer, OptionError, OptionValue, Policy, Question, any_seat, cheapest, least, warmth,
};
use crate::decision::Reason;
use crate::rng::Rng;
use core::cmp::Reverse;
use core::time::Duration;

/// The settings of `smetric`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The target for the time to the first token, seconds; 0.001 to 86,400.
    pub slo: f64,
    /// Share of the target that a hit may use up; 0 to 1.
    pub slack: f64,
    /// Share of the session's last length that must still match; 0 to 1.
    pub retained: f64,
    /// How fast a worker prefills, tokens a second.
    pub prefill_tokens_per_second: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slo: 5.0,
            slack: 0.8,
            retained: 0.5,
            prefill_tokens_per_second: PREFILL_RATE,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &[
        "slo_seconds",
        "slack",
        "retained",
        "prefill_tokens_per_second",
    ];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        const SHARE: &str = "a number from 0 to 1";
        match option {
            "slo_seconds" => {
                self.slo = number(value, 0.001, 86_400.0, "seconds from 0.001 to 86400")?;
            }
            "slack" => self.slack = number(value, 0.0, 1.0, SHARE)?,
            "retained" => self.retained = number(value, 0.0, 1.0, SHARE)?,
            "prefill_tokens_per_second" => {
                self.prefill_tokens_per_second = number(value, 1.0, 1e9, RATE_ALLOWED)?;
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; it keeps no state beyond its settings.
pub struct SMetric {
    options: Options,
}

impl SMetric {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// The candidate with the longest match, if a later turn should go there.
    fn warmest(&self, question: &Question<'_>, rng: &mut Rng) -> Option<usize> {
        if question.guest.turn <= 1 {
            return None;
        }
        let seated = any_seat(question.candidates);
        let index = least(question.candidates, rng, |_, c| {
            (seated && !c.seat, Reverse(c.matched_blocks), c.load())
        });
        let best = &question.candidates[index];
        let last = question.home.map_or(0, |home| home.blocks);
        let implied = f64::from(last.min(question.guest.chain.len() as u32));
        let there = best.matched_blocks > 0
            && f64::from(best.matched_blocks) >= self.options.retained * implied;
        let rate = self.options.prefill_tokens_per_second;
        let soon = estimate(question, best, rate) <= self.options.slack * self.options.slo;
        (there && soon).then_some(index)
    }
}

impl Policy for SMetric {
    fn name(&self) -> &'static str {
        "smetric"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        if let Some(choice) = self.warmest(question, rng) {
            for (score, c) in scores.iter_mut().zip(candidates) {
                *score = f64::from(c.matched_tokens);
            }
            return Answer {
                choice,
                reason: Reason::Warmest,
                hold: Duration::ZERO,
            };
        }
        for (score, c) in scores.iter_mut().zip(candidates) {
            *score = c.load().saturating_add(question.uncached(c)) as f64;
        }
        let choice = cheapest(candidates, rng, |index, _| scores[index]);
        Answer {
            choice,
            reason: warmth(candidates, choice),
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, SMetric};
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};

    /// (open prefill, requests, matched of 10 blocks of 1,000 tokens) of each.
    fn table(turn: u32, state: &[(u64, u32, u32)]) -> Table {
        let mut table = Table::new((0..state.len() as u32).map(candidate).collect());
        table.session(5, turn);
        table.prompt_tokens = 10_000;
        for (c, (prefill, running, matched)) in table.candidates.iter_mut().zip(state) {
            c.prefill_tokens = *prefill;
            c.running = *running;
            c.matched_blocks = *matched;
            c.matched_tokens = matched * 1_000;
        }
        table
    }

    fn policy() -> SMetric {
        // 0.8 x 5 s x 10,000 tokens/s: up to 40,000 tokens may stand before a first token.
        SMetric::new(Options {
            prefill_tokens_per_second: 10_000.0,
            ..Options::default()
        })
    }

    #[test]
    fn a_first_turn_weighs_its_hit_against_the_load() {
        // 4 x 128 + 6,000 + 4,000 = 10,512 against 10,000.
        let mut t = table(1, &[(6_000, 4, 6), (0, 0, 0)]);
        let answer = t.ask(&mut policy());
        assert_eq!(t.scores, [10_512.0, 10_000.0]);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
        let mut t = table(1, &[(5_000, 4, 6), (0, 0, 0)]);
        assert_eq!(t.ask(&mut policy()).choice, 0);
    }

    #[test]
    fn a_later_turn_goes_to_its_hit_up_to_the_slack() {
        let mut t = table(2, &[(39_000, 9, 9), (0, 0, 4)]);
        t.home = t.home_on(0, 5);
        let answer = t.ask(&mut policy());
        assert_eq!(t.scores, [9_000.0, 4_000.0]);
        assert_eq!((answer.choice, answer.reason), (0, Reason::Warmest));
        t.candidates[0].prefill_tokens = 39_001;
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
    }

    #[test]
    fn what_was_evicted_is_a_first_turn_again() {
        // Its last chain had 10 blocks; of them 4 are left, which is less than half.
        let mut t = table(3, &[(7_000, 0, 4), (0, 0, 0)]);
        t.home = t.home_on(0, 5);
        assert_eq!(t.ask(&mut policy()).choice, 1, "13,000 against 10,000");
        t.candidates[0].matched_blocks = 5;
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (0, Reason::Warmest));
        t.home = None;
        t.candidates[0].matched_blocks = 1;
        assert_eq!(t.ask(&mut policy()).choice, 0, "nothing is known of it");
    }

    #[test]
    fn nothing_matched_is_a_decision_by_load() {
        let mut t = table(4, &[(0, 3, 0), (0, 1, 0)]);
        let answer = t.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
    }
}
