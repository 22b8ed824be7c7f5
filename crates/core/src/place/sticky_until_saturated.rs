//! `sticky_until_saturated`: stays with the warm workers until a first token there would come too
//! much later than elsewhere.
//!
//! Formula: a worker is warm where at least `affinity_threshold` of the prompt's blocks match. Only
//! the warm ones are kept, unless `least open prefill of the warm - least open prefill of the cold >
//! tau`, with `tau = prefill_tokens_per_second x max_ttft_penalty_seconds`; then, or with the
//! probability `exploration`, or where nobody is warm, all are. Among those that are kept: the least
//! `open prefill + own uncached tokens` (`bound_by: prefill`), or the fewest requests (`bound_by:
//! decode`).
//! Source: llm-d's router, `prefix-cache-affinity-filter` with `token-load-scorer` or
//! `active-request-scorer` ("Sticky Until Saturated: Token-Aware Routing").
//! Difference: where nothing matches anywhere, load alone decides, as in every policy here.
//! Defaults, the published ones: `affinity_threshold` 0.8, `max_ttft_penalty_seconds` 18 (0: always
//! sticks), `prefill_tokens_per_second` 15,928, `exploration` 0, `bound_by` prefill.
//! Score: tokens, or requests, or the load where load decided; less is better.

use super::config::{number, seconds};
use super::ttft::{PREFILL_RATE, RATE_ALLOWED};
use super::{
    Answer, Candidate, OptionError, OptionValue, Policy, Question, any_seat, by_load, cheapest,
    cold, warmth,
};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// What limits the pool, and so what its load is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundBy {
    /// Uncached tokens in flight.
    Prefill,
    /// Requests.
    Decode,
}

/// The settings of `sticky_until_saturated`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Share of the prompt that must match; 0 to 1.
    pub affinity_threshold: f64,
    /// How much later a first token may come among the warm; zero: however late.
    pub max_ttft_penalty: Duration,
    /// How fast a worker prefills, tokens a second.
    pub prefill_tokens_per_second: f64,
    /// How often warmth is ignored; 0 to 1.
    pub exploration: f64,
    /// What limits the pool.
    pub bound_by: BoundBy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            affinity_threshold: 0.8,
            max_ttft_penalty: Duration::from_secs(18),
            prefill_tokens_per_second: PREFILL_RATE,
            exploration: 0.0,
            bound_by: BoundBy::Prefill,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &[
        "affinity_threshold",
        "max_ttft_penalty_seconds",
        "prefill_tokens_per_second",
        "exploration",
        "bound_by",
    ];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        const SHARE: &str = "a number from 0 to 1";
        match option {
            "affinity_threshold" => self.affinity_threshold = number(value, 0.0, 1.0, SHARE)?,
            "max_ttft_penalty_seconds" => self.max_ttft_penalty = seconds(value)?,
            "prefill_tokens_per_second" => {
                self.prefill_tokens_per_second = number(value, 1.0, 1e9, RATE_ALLOWED)?;
            }
            "exploration" => self.exploration = number(value, 0.0, 1.0, SHARE)?,
            "bound_by" => {
                self.bound_by = match value {
                    OptionValue::Text("prefill") => BoundBy::Prefill,
                    OptionValue::Text("decode") => BoundBy::Decode,
                    _ => return Err(OptionError::BadValue("prefill or decode")),
                };
            }
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; it keeps no state beyond its settings.
pub struct StickyUntilSaturated {
    options: Options,
}

impl StickyUntilSaturated {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Whether the warm ones are too far behind. `takes` says who could be chosen at all.
    fn saturated(
        &self,
        candidates: &[Candidate],
        takes: impl Fn(&Candidate) -> bool,
        warm: impl Fn(&Candidate) -> bool,
    ) -> bool {
        if self.options.max_ttft_penalty.is_zero() {
            return false;
        }
        let least_open = |wanted: bool| {
            candidates
                .iter()
                .filter(|c| takes(c) && warm(c) == wanted)
                .map(|c| c.prefill_tokens)
                .min()
        };
        let (Some(warm), Some(cold)) = (least_open(true), least_open(false)) else {
            return false;
        };
        let tau =
            self.options.prefill_tokens_per_second * self.options.max_ttft_penalty.as_secs_f64();
        warm.saturating_sub(cold) as f64 > tau
    }
}

impl Policy for StickyUntilSaturated {
    fn name(&self) -> &'static str {
        "sticky_until_saturated"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        if cold(candidates) {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        }
        for (score, c) in scores.iter_mut().zip(candidates) {
            *score = match self.options.bound_by {
                BoundBy::Prefill => c.prefill_tokens.saturating_add(question.uncached(c)) as f64,
                BoundBy::Decode => f64::from(c.running),
            };
        }
        let seated = any_seat(candidates);
        let takes = |c: &Candidate| c.seat || !seated;
        let blocks = question.guest.chain.len().max(1) as f64;
        let warm = |c: &Candidate| {
            c.matched_blocks > 0
                && f64::from(c.matched_blocks) / blocks >= self.options.affinity_threshold
        };
        let explores = self.options.exploration > 0.0 && rng.unit() < self.options.exploration;
        let sticks = !explores
            && candidates.iter().any(|c| takes(c) && warm(c))
            && !self.saturated(candidates, takes, warm);
        let choice = cheapest(candidates, rng, |index, c| {
            (sticks && !warm(c), scores[index])
        });
        let reason = if sticks {
            Reason::Warmest
        } else {
            warmth(candidates, choice)
        };
        Answer {
            choice,
            reason,
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{BoundBy, Options, StickyUntilSaturated};
    use crate::decision::Reason;
    use crate::place::OptionValue;
    use crate::place::testing::{Table, candidate};

    /// (open prefill, matched of 10 blocks of 100 tokens, requests) of each.
    fn table(state: &[(u64, u32, u32)]) -> Table {
        let mut table = Table::new((0..state.len() as u32).map(candidate).collect());
        table.prompt_tokens = 1_000;
        for (c, (prefill, matched, running)) in table.candidates.iter_mut().zip(state) {
            c.prefill_tokens = *prefill;
            c.matched_blocks = *matched;
            c.matched_tokens = matched * 100;
            c.running = *running;
        }
        table
    }

    fn ask(state: &[(u64, u32, u32)], options: Options) -> (usize, Reason) {
        let answer = table(state).ask(&mut StickyUntilSaturated::new(options));
        (answer.choice, answer.reason)
    }

    #[test]
    fn the_warm_are_kept_up_to_tau_and_not_beyond() {
        // tau = 15,928 x 18 = 286,704 tokens; equality sticks.
        let options = Options::default();
        let at = [(286_704, 8, 0), (0, 7, 0)];
        assert_eq!(ask(&at, options.clone()), (0, Reason::Warmest));
        let beyond = [(286_705, 8, 0), (0, 7, 0)];
        assert_eq!(ask(&beyond, options), (1, Reason::Escape));
        let always = Options {
            max_ttft_penalty: core::time::Duration::ZERO,
            ..Options::default()
        };
        assert_eq!(ask(&beyond, always), (0, Reason::Warmest));
    }

    #[test]
    fn among_the_kept_the_least_tokens_in_flight_win() {
        // 900 + 200, 1,000 + 0 and, not warm, 0 + 300.
        let state = [(900, 8, 0), (1_000, 10, 0), (0, 7, 0)];
        let mut t = table(&state);
        let answer = t.ask(&mut StickyUntilSaturated::new(Options::default()));
        assert_eq!(t.scores, [1_100.0, 1_000.0, 300.0]);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Warmest));
        // Nobody is warm: 500 + 300 against 0 + 1,000.
        let state = [(500, 7, 0), (0, 0, 0)];
        assert_eq!(ask(&state, Options::default()), (0, Reason::Warmest));
        assert_eq!(
            ask(&[(5, 0, 0), (0, 0, 0)], Options::default()),
            (1, Reason::LeastLoad)
        );
    }

    #[test]
    fn decode_bound_pools_count_requests() {
        let mut options = Options::default();
        options
            .set("bound_by", OptionValue::Text("decode"))
            .unwrap();
        assert_eq!(options.bound_by, BoundBy::Decode);
        let state = [(0, 9, 7), (900, 9, 3), (0, 0, 1)];
        assert_eq!(ask(&state, options.clone()), (1, Reason::Warmest));
        assert!(options.set("bound_by", OptionValue::Text("both")).is_err());
        assert!(options.set("bound_by", OptionValue::Number(1.0)).is_err());
    }

    #[test]
    fn exploration_ignores_warmth() {
        let options = Options {
            exploration: 1.0,
            ..Options::default()
        };
        let state = [(2_000, 10, 0), (0, 0, 0)];
        assert_eq!(ask(&state, options), (1, Reason::Escape));
    }

    #[test]
    fn warm_without_a_seat_is_left() {
        let mut t = table(&[(0, 10, 0), (0, 0, 0)]);
        t.candidates[0].seat = false;
        let answer = t.ask(&mut StickyUntilSaturated::new(Options::default()));
        assert_eq!((answer.choice, answer.reason), (1, Reason::HomeUnavailable));
    }
}
