//! `power_of_two`: two workers drawn at random, the less loaded of them.
//!
//! Formula: two distinct candidates with free seats, uniform; the less [`Candidate::load`], the
//! first drawn where equal.
//! Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (1996).
//! Options: none. Score: the load of the two that were drawn, NaN for the rest; less is better.
//!
//! [`Candidate::load`]: super::Candidate::load

use super::{Answer, Policy, Question, any_seat};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// The policy; it keeps no state.
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let seated = any_seat(candidates);
        let open = candidates.iter().filter(|c| c.seat || !seated).count();
        let nth = |n: usize| {
            candidates
                .iter()
                .enumerate()
                .filter(|(_, c)| c.seat || !seated)
                .nth(n)
                .map_or(0, |(index, _)| index)
        };
        let one = rng.below(open);
        let first = nth(one);
        scores[first] = candidates[first].load() as f64;
        let mut choice = first;
        if open > 1 {
            // The second is drawn among the others: skip over the first.
            let other = rng.below(open - 1);
            let second = nth(if other >= one { other + 1 } else { other });
            scores[second] = candidates[second].load() as f64;
            if candidates[second].load() < candidates[first].load() {
                choice = second;
            }
        }
        Answer {
            choice,
            reason: Reason::PowerOfTwo,
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PowerOfTwo;
    use crate::place::testing::{Table, candidate};
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn takes_the_less_loaded_of_two_distinct_ones() {
        let mut table = Table::new((0..4).map(candidate).collect());
        for (index, c) in table.candidates.iter_mut().enumerate() {
            c.running = index as u32;
        }
        let mut counts = [0_u32; 4];
        for _ in 0..6_000 {
            let answer = table.ask(&mut PowerOfTwo);
            let looked: Vec<usize> = (0..4).filter(|i| !table.scores[*i].is_nan()).collect();
            assert_eq!(looked.len(), 2);
            assert_eq!(
                answer.choice, looked[0],
                "the smaller index has the less load"
            );
            counts[answer.choice] += 1;
        }
        // Of the six pairs, worker 0 wins three, 1 two, 2 one, 3 none.
        assert!((2_800..3_200).contains(&counts[0]), "{counts:?}");
        assert!((1_850..2_150).contains(&counts[1]), "{counts:?}");
        assert!((850..1_150).contains(&counts[2]), "{counts:?}");
        assert_eq!(counts[3], 0);
    }

    #[test]
    fn one_candidate_is_enough() {
        let mut table = Table::new(vec![candidate(0)]);
        assert_eq!(table.ask(&mut PowerOfTwo).choice, 0);
    }
}
