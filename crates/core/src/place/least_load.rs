//! `least_load`: the worker with the least load.
//!
//! Formula: argmin over candidates of [`Candidate::load`]; equal loads as [`least_loaded`] says.
//! Source: the common rule; the terms are what an engine's step is shared between.
//! Options: none. Score: the load; less is better.
//!
//! [`Candidate::load`]: super::Candidate::load
//! [`least_loaded`]: super::least_loaded

use super::{Answer, Policy, Question, by_load};
use crate::decision::Reason;
use crate::rng::Rng;

/// The policy; it keeps no state.
pub struct LeastLoad;

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least_load"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        by_load(question.candidates, scores, rng, Reason::LeastLoad)
    }
}

#[cfg(test)]
mod tests {
    use super::LeastLoad;
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};
    use alloc::vec;

    #[test]
    fn long_prompts_weigh_more_than_many_short_ones() {
        // 3 x 120k tokens against 10 x 500, both while they prefill and once they decode.
        for prefilled in [false, true] {
            let mut heavy = candidate(0);
            heavy.running = 3;
            heavy.resident_tokens = 360_000;
            heavy.prefill_tokens = if prefilled { 0 } else { 360_000 };
            heavy.kv_usage = 0.97;
            let mut light = candidate(1);
            light.running = 10;
            light.resident_tokens = 10 * (500 + 256);
            light.prefill_tokens = if prefilled { 0 } else { 5_000 };
            // 3 x 128 + 22,500 (+ 360,000) against 10 x 128 + 472 (+ 5,000).
            let expected_heavy = if prefilled { 22_884 } else { 382_884 };
            let expected_light = if prefilled { 1_752 } else { 6_752 };
            assert_eq!(heavy.load(), expected_heavy);
            assert_eq!(light.load(), expected_light);
            let mut table = Table::new(vec![heavy, light]);
            let answer = table.ask(&mut LeastLoad);
            assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
            assert_eq!(table.scores, [expected_heavy as f64, expected_light as f64]);
        }
    }

    #[test]
    fn a_free_seat_comes_before_less_load() {
        let mut full = candidate(0);
        full.seat = false;
        let mut busy = candidate(1);
        busy.running = 20;
        let mut table = Table::new(vec![full, busy]);
        assert_eq!(table.ask(&mut LeastLoad).choice, 1);
        table.candidates[1].seat = false;
        assert_eq!(
            table.ask(&mut LeastLoad).choice,
            0,
            "no seats: load decides"
        );
    }

    #[test]
    fn equal_loads_take_cold_prompts_in_turn_and_warm_ones_at_random() {
        let mut table = Table::new((0..4).map(candidate).collect());
        for (index, at) in [(0, 30), (1, 10), (2, 20), (3, 40)] {
            table.candidates[index].last_cold.0 = at;
        }
        assert_eq!(table.ask(&mut LeastLoad).choice, 1);
        for c in &mut table.candidates {
            c.matched_blocks = 2;
        }
        let mut seen = [false; 4];
        for _ in 0..100 {
            seen[table.ask(&mut LeastLoad).choice] = true;
        }
        assert_eq!(seen, [true; 4]);
    }
}
