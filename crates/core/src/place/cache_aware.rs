//! `cache_aware`: the longest match, unless the pool is out of balance.
//!
//! Formula: if `max - min > balance_abs_threshold` and `max > balance_rel_threshold x min` over the
//! candidates' running requests: least load. Else, if the longest match covers more than
//! `cache_threshold` of the prompt's blocks: the worker that has it; equal matches by load, then by
//! the generator. Else: least load.
//! Source: the `cache_aware` policy that `SGLang`'s router publishes and vLLM's took over, on the
//! real prompt of every endpoint. One difference: where nothing matches, the published code takes
//! the worker with the smallest tree, which may be the busiest; here a miss is a decision by load.
//! The published rule drops all matches while out of balance; that is kept, as a baseline.
//! Defaults: `cache_threshold` 0.3, `balance_abs_threshold` 64, `balance_rel_threshold` 1.5.
//! Score: share of the prompt's blocks that match (more is better), or the load where load decided.

use super::config::number;
use super::{Answer, OptionError, OptionValue, Policy, Question, any_seat, by_load, least};
use crate::decision::Reason;
use crate::rng::Rng;
use core::cmp::Reverse;
use core::time::Duration;

/// The settings of `cache_aware`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Share of the prompt that a match must exceed; 0 to 1.
    pub cache_threshold: f64,
    /// Requests between the most and the least loaded beyond which balance is looked at; 0 or more.
    pub balance_abs_threshold: f64,
    /// Times the least that the most must exceed; 1 or more.
    pub balance_rel_threshold: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_threshold: 0.3,
            balance_abs_threshold: 64.0,
            balance_rel_threshold: 1.5,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &[
        "cache_threshold",
        "balance_abs_threshold",
        "balance_rel_threshold",
    ];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "cache_threshold" => {
                self.cache_threshold = number(value, 0.0, 1.0, "a number from 0 to 1")?;
            }
            "balance_abs_threshold" => {
                self.balance_abs_threshold = number(value, 0.0, 1e6, "a number from 0 to 1000000")?;
            }
            "balance_rel_threshold" => {
                self.balance_rel_threshold = number(value, 1.0, 1e6, "a number from 1 to 1000000")?;
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; it keeps no state beyond its settings: the index is the pool's.
pub struct CacheAware {
    options: Options,
}

impl CacheAware {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }
}

impl Policy for CacheAware {
    fn name(&self) -> &'static str {
        "cache_aware"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let blocks = question.guest.chain.len().max(1) as f64;
        let enough = |matched: u32| f64::from(matched) / blocks > self.options.cache_threshold;
        let (mut low, mut high, mut longest) = (u32::MAX, 0, 0);
        for candidate in candidates {
            low = low.min(candidate.running);
            high = high.max(candidate.running);
            longest = longest.max(candidate.matched_blocks);
        }
        let out_of_balance = f64::from(high - low) > self.options.balance_abs_threshold
            && f64::from(high) > self.options.balance_rel_threshold * f64::from(low);
        if out_of_balance || !enough(longest) {
            let reason = if enough(longest) {
                Reason::Escape
            } else {
                Reason::LeastLoad
            };
            return by_load(candidates, scores, rng, reason);
        }
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = f64::from(candidate.matched_blocks) / blocks;
        }
        let seated = any_seat(candidates);
        let choice = least(candidates, rng, |_, c| {
            (seated && !c.seat, Reverse(c.matched_blocks), c.load())
        });
        if !enough(candidates[choice].matched_blocks) {
            return by_load(candidates, scores, rng, Reason::HomeUnavailable);
        }
        Answer {
            choice,
            reason: Reason::Warmest,
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheAware, Options};
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};

    fn table(running: &[u32], matched: &[u32]) -> Table {
        let mut table = Table::new((0..running.len() as u32).map(candidate).collect());
        for (c, (running, matched)) in table.candidates.iter_mut().zip(running.iter().zip(matched))
        {
            c.running = *running;
            c.matched_blocks = *matched;
        }
        table
    }

    fn ask(running: &[u32], matched: &[u32]) -> (usize, Reason) {
        let answer = table(running, matched).ask(&mut CacheAware::new(Options::default()));
        (answer.choice, answer.reason)
    }

    #[test]
    fn the_longest_match_above_the_threshold_wins() {
        // The prompt has 10 blocks.
        assert_eq!(ask(&[9, 0, 0], &[9, 4, 0]), (0, Reason::Warmest));
        assert_eq!(ask(&[9, 5, 0], &[0, 4, 0]), (1, Reason::Warmest));
        assert_eq!(ask(&[9, 5, 0], &[0, 3, 0]), (2, Reason::LeastLoad));
        assert_eq!(ask(&[9, 5, 7], &[6, 6, 6]), (1, Reason::Warmest));
    }

    #[test]
    fn out_of_balance_load_decides() {
        assert_eq!(ask(&[64, 0], &[9, 0]), (0, Reason::Warmest));
        assert_eq!(ask(&[65, 0], &[9, 0]), (1, Reason::Escape));
        // 65 apart, and 195 is not above 1.5 x 130.
        assert_eq!(ask(&[195, 130], &[9, 0]), (0, Reason::Warmest));
        assert_eq!(ask(&[196, 130], &[9, 0]), (1, Reason::Escape));
    }

    #[test]
    fn a_miss_is_a_load_decision() {
        // Whatever the size of anybody's index.
        assert_eq!(ask(&[50, 0], &[0, 0]), (1, Reason::LeastLoad));
    }

    #[test]
    fn without_a_seat_at_the_warmest_the_next_warm_one_is_taken_and_then_load() {
        let mut table = table(&[3, 2, 1], &[9, 5, 0]);
        table.candidates[0].seat = false;
        let mut policy = CacheAware::new(Options::default());
        let answer = table.ask(&mut policy);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Warmest));
        table.candidates[1].seat = false;
        let answer = table.ask(&mut policy);
        assert_eq!((answer.choice, answer.reason), (2, Reason::HomeUnavailable));
    }

    #[test]
    fn an_empty_chain_is_a_miss() {
        let mut table = table(&[1, 0], &[0, 0]);
        table.guest.chain.clear();
        assert_eq!(
            table.ask(&mut CacheAware::new(Options::default())).choice,
            1
        );
    }
}
