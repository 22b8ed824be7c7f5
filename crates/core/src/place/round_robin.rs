//! `round_robin`: each worker in its turn.
//!
//! Formula: workers stand in a circle in the order of their identities; the turn goes to the next
//! candidate with a free seat after the one that had the last turn. The first turn is drawn by the
//! generator, so that routers that start together do not march in step. Adding or removing workers
//! moves nobody else's place in the circle.
//! Source: the common rule.
//! Options: none. Score: none (NaN): nothing is compared.

use super::{Answer, Candidate, Policy, Question, any_seat};
use crate::decision::Reason;
use crate::ids::WorkerId;
use crate::rng::Rng;
use core::time::Duration;

/// A place in the circle: identities are unique in practice, the id makes it certain.
type Place = (u64, WorkerId);

/// The policy; its state is whose turn was last.
#[derive(Default)]
pub struct RoundRobin {
    last: Option<Place>,
}

fn place_of(candidate: &Candidate) -> Place {
    (candidate.identity, candidate.worker)
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn place(&mut self, question: &Question<'_>, _scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        let seated = any_seat(candidates);
        let last = match self.last {
            Some(last) => last,
            None => place_of(&candidates[rng.below(candidates.len())]),
        };
        // Places after the last one come first, then the circle's beginning up to it.
        let choice = candidates
            .iter()
            .enumerate()
            .filter(|(_, c)| c.seat || !seated)
            .min_by_key(|(_, c)| (place_of(c) <= last, place_of(c)))
            .map_or(0, |(index, _)| index);
        // A request that has to stay in the line uses up nobody's turn.
        if candidates[choice].seat {
            self.last = Some(place_of(&candidates[choice]));
        }
        Answer {
            choice,
            reason: Reason::Rotation,
            hold: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RoundRobin;
    use crate::place::testing::{Table, candidate};
    use alloc::vec::Vec;

    fn circle(identities: &[u64]) -> Table {
        let mut table = Table::new((0..identities.len() as u32).map(candidate).collect());
        for (c, identity) in table.candidates.iter_mut().zip(identities) {
            c.identity = *identity;
        }
        table
    }

    #[test]
    fn goes_round_in_the_order_of_identities() {
        let mut table = circle(&[30, 10, 20]);
        let mut policy = RoundRobin::default();
        let turns: Vec<usize> = (0..9).map(|_| table.ask(&mut policy).choice).collect();
        let start = [1, 2, 0].iter().position(|i| *i == turns[0]);
        for (step, turn) in turns.iter().enumerate() {
            assert_eq!(Some(*turn), start.map(|s| [1, 2, 0][(s + step) % 3]));
        }
    }

    #[test]
    fn leaves_out_who_can_not_take_it_and_keeps_the_order() {
        let mut table = circle(&[10, 20, 30, 40]);
        let mut policy = RoundRobin::default();
        while table.ask(&mut policy).choice != 0 {}
        table.candidates[1].seat = false;
        assert_eq!(table.ask(&mut policy).choice, 2);
        table.candidates[1].seat = true;
        assert_eq!(table.ask(&mut policy).choice, 3);
        table.candidates.remove(0);
        assert_eq!(table.ask(&mut policy).choice, 0, "20 follows 40 without 10");
    }

    #[test]
    fn a_request_that_waits_uses_up_no_turn() {
        let mut table = circle(&[10, 20]);
        let mut policy = RoundRobin::default();
        let first = table.ask(&mut policy).choice;
        for c in &mut table.candidates {
            c.seat = false;
        }
        for _ in 0..3 {
            assert_eq!(table.ask(&mut policy).choice, 1 - first);
        }
    }

    #[test]
    fn starts_at_a_place_that_the_seed_draws() {
        let starts: alloc::collections::BTreeSet<usize> = (0..64)
            .map(|seed| {
                let mut table = circle(&[10, 20, 30, 40]);
                table.rng = crate::rng::Rng::new(seed);
                table.ask(&mut RoundRobin::default()).choice
            })
            .collect();
        assert_eq!(starts.len(), 4);
    }
}
