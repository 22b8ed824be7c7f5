//! `dynamo_cost`: prefill still to do plus caches in use, drawn by softmax where a temperature says
//! so.
//!
//! Formula: `cost = prefill_scale x max(open prefill + prompt - overlap_credit x matched, 0) +
//! resident`. With `temperature` 0 the least cost, ties by the generator. Above 0 a draw with
//! weights `exp(-cost / ((max - min) x temperature))`; all equal where `max = min`.
//! Source: NVIDIA Dynamo's KV router ("Routing Concepts", and its worker selector). It counts both
//! terms in KV blocks; here they are in tokens, which gives the same order and the same draw.
//! Its active decode blocks are our resident tokens (prompts and what they may grow to).
//! Difference: where nothing matches anywhere, load alone decides, as in every policy here.
//! Defaults, the published ones: `overlap_credit` 1, `prefill_scale` 1, `temperature` 0.
//! Score: the cost in tokens, or the load where load decided; less is better.

use super::config::number;
use super::{
    Answer, Candidate, OptionError, OptionValue, Policy, Question, any_seat, by_load, cheapest,
    cold, warmth,
};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// The settings of `dynamo_cost`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What a cached token takes off the prefill; 0 (caches are ignored) to 1.
    pub overlap_credit: f64,
    /// What a token of prefill weighs against a resident one; 0 to 1,000.
    pub prefill_scale: f64,
    /// How random the choice is; 0 (the least cost) to 1,000.
    pub temperature: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            overlap_credit: 1.0,
            prefill_scale: 1.0,
            temperature: 0.0,
        }
    }
}

impl Options {
    const NAMES: &'static [&'static str] = &["overlap_credit", "prefill_scale", "temperature"];

    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        const WIDE: &str = "a number from 0 to 1000";
        match option {
            "overlap_credit" => {
                self.overlap_credit = number(value, 0.0, 1.0, "a number from 0 to 1")?;
            }
            "prefill_scale" => self.prefill_scale = number(value, 0.0, 1e3, WIDE)?,
            "temperature" => self.temperature = number(value, 0.0, 1e3, WIDE)?,
            _ => return Err(OptionError::UnknownOption(Self::NAMES)),
        }
        Ok(())
    }
}

/// The policy; it keeps no state beyond its settings.
pub struct DynamoCost {
    options: Options,
}

impl DynamoCost {
    /// With these settings.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    fn cost(&self, question: &Question<'_>, c: &Candidate) -> f64 {
        let prompts =
            f64::from(question.prompt_tokens) * (f64::from(question.guest.extra_prompts) + 1.0);
        let credit = self.options.overlap_credit * f64::from(c.matched_tokens);
        let prefill = (c.prefill_tokens as f64 + prompts - credit).max(0.0);
        self.options.prefill_scale * prefill + c.resident_tokens as f64
    }
}

/// Draws an index by the softmax of the negated costs, for `sample` from 0 to below 1. Costs that
/// do not take part are infinite.
fn softmax(costs: impl Iterator<Item = f64> + Clone, temperature: f64, sample: f64) -> usize {
    let finite = costs.clone().filter(|cost| cost.is_finite());
    let low = finite.clone().fold(f64::INFINITY, f64::min);
    let high = finite.fold(f64::NEG_INFINITY, f64::max);
    let weight = |cost: f64| {
        if !cost.is_finite() {
            0.0
        } else if high > low {
            libm::exp((low - cost) / ((high - low) * temperature))
        } else {
            1.0
        }
    };
    let total: f64 = costs.clone().map(weight).sum();
    let mut left = sample * total;
    let mut last = 0;
    for (index, cost) in costs.enumerate() {
        let weight = weight(cost);
        if weight > 0.0 {
            last = index;
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    last
}

impl Policy for DynamoCost {
    fn name(&self) -> &'static str {
        "dynamo_cost"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        if cold(candidates) {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        }
        for (score, candidate) in scores.iter_mut().zip(candidates) {
            *score = self.cost(question, candidate);
        }
        let choice = if self.options.temperature > 0.0 {
            let seated = any_seat(candidates);
            let sample = rng.unit();
            let costs = scores.iter().zip(candidates).map(|(score, c)| {
                if seated && !c.seat {
                    f64::INFINITY
                } else {
                    *score
                }
            });
            softmax(costs, self.options.temperature, sample)
        } else {
            cheapest(candidates, rng, |index, _| scores[index])
        };
        Answer {
            choice,
            reason: warmth(candidates, choice),
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DynamoCost, Options, softmax};
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};

    /// The published example: (cached, resident) blocks of 16 tokens; the prompt has 10 blocks.
    fn table() -> Table {
        let mut table = Table::new((0..3).map(candidate).collect());
        for (c, (cached, decode)) in table.candidates.iter_mut().zip([(2, 10), (5, 5), (8, 9)]) {
            c.matched_blocks = cached;
            c.matched_tokens = cached * 16;
            c.resident_tokens = decode * 16;
        }
        table
    }

    #[test]
    fn the_published_example_gives_the_published_costs() {
        // 8 + 10, 5 + 5 and 2 + 9 blocks.
        let mut t = table();
        let answer = t.ask(&mut DynamoCost::new(Options::default()));
        assert_eq!(t.scores, [18.0 * 16.0, 10.0 * 16.0, 11.0 * 16.0]);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
    }

    #[test]
    fn scale_credit_and_open_prefill_enter() {
        let mut t = table();
        let mut policy = DynamoCost::new(Options {
            prefill_scale: 2.0,
            ..Options::default()
        });
        let answer = t.ask(&mut policy);
        assert_eq!(t.scores, [26.0 * 16.0, 15.0 * 16.0, 13.0 * 16.0]);
        assert_eq!((answer.choice, answer.reason), (2, Reason::Warmest));
        t.candidates[2].prefill_tokens = 32;
        assert_eq!(t.ask(&mut policy).choice, 1, "17 blocks against 15");
        let mut blind = DynamoCost::new(Options {
            overlap_credit: 0.0,
            ..Options::default()
        });
        t.ask(&mut blind);
        assert_eq!(t.scores, [20.0 * 16.0, 15.0 * 16.0, 21.0 * 16.0]);
    }

    #[test]
    fn the_draw_has_the_published_weights() {
        // Costs 0, 1, 2 at temperature 0.5: weights 1, exp(-1), exp(-2): 0.665, 0.245, 0.090.
        let costs = [0.0, 1.0, 2.0];
        let draw = |sample| softmax(costs.iter().copied(), 0.5, sample);
        assert_eq!([draw(0.0), draw(0.66), draw(0.67)], [0, 0, 1]);
        assert_eq!([draw(0.90), draw(0.92), draw(0.999)], [1, 2, 2]);
        let equal = [7.0, 7.0];
        assert_eq!(softmax(equal.iter().copied(), 0.5, 0.49), 0);
        assert_eq!(softmax(equal.iter().copied(), 0.5, 0.51), 1);
        let without = [f64::INFINITY, 3.0];
        assert_eq!(softmax(without.iter().copied(), 0.5, 0.0), 1);
    }

    #[test]
    fn without_a_seat_nobody_is_drawn() {
        let mut t = table();
        t.candidates[1].seat = false;
        let mut policy = DynamoCost::new(Options::default());
        assert_eq!(t.ask(&mut policy).choice, 2);
        let mut policy = DynamoCost::new(Options {
            temperature: 1.0,
            ..Options::default()
        });
        let mut seen = [0; 3];
        for _ in 0..300 {
            seen[t.ask(&mut policy).choice] += 1;
        }
        assert!(seen[0] > 30 && seen[1] == 0 && seen[2] > 30, "{seen:?}");
    }
}
