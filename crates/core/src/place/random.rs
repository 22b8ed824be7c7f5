//! `random`: any candidate with a free seat, each with the same probability.
//!
//! Source: the common rule; the baseline that every other policy has to beat.
//! Options: none. Score: none (NaN): nothing is compared.

use super::{Answer, Policy, Question, any_seat};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// The policy; it keeps no state.
pub struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn place(&mut self, question: &Question<'_>, _scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let seated = any_seat(candidates);
        let open = candidates.iter().filter(|c| c.seat || !seated).count();
        let drawn = rng.below(open);
        let choice = candidates
            .iter()
            .enumerate()
            .filter(|(_, c)| c.seat || !seated)
            .nth(drawn)
            .map_or(0, |(index, _)| index);
        Answer {
            choice,
            reason: Reason::Random,
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};

    #[test]
    fn draws_evenly_among_free_seats() {
        let mut table = Table::new((0..5).map(candidate).collect());
        table.candidates[2].seat = false;
        let mut counts = [0_u32; 5];
        for _ in 0..4_000 {
            let answer = table.ask(&mut Random);
            assert_eq!(answer.reason, Reason::Random);
            counts[answer.choice] += 1;
        }
        assert_eq!(counts[2], 0);
        let others = [counts[0], counts[1], counts[3], counts[4]];
        assert!(
            others.iter().all(|n| (850..1_150).contains(n)),
            "{counts:?}"
        );
        assert!(table.scores.iter().all(|s| s.is_nan()));
    }
}
