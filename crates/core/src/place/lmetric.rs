//! `lmetric`: the least product of prefill and batch size.
//!
//! Formula: argmin over candidates of `(open prefill + own uncached tokens) x (requests + 1)`;
//! requests are all on the worker, running and queued. The own tokens are at least 1: an engine
//! always computes the last token, and a product of 0 would hide the batch size.
//! Source: Zhang et al., "`LMetric`: Simple is Better - Multiplication May Be All You Need for LLM
//! Request Scheduling" (arXiv 2603.15202). It has no parameters.
//! Difference: where nothing matches anywhere, load alone decides, as in every policy here.
//! Options: none. Score: the product, or the load where load decided; less is better.

use super::{Answer, Policy, Question, by_load, cheapest, cold, warmth};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// The policy; it keeps no state.
pub struct LMetric;

impl Policy for LMetric {
    fn name(&self) -> &'static str {
        "lmetric"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let candidates = question.candidates;
        if cold(candidates) {
            return by_load(candidates, scores, rng, Reason::LeastLoad);
        }
        for (score, c) in scores.iter_mut().zip(candidates) {
            let own = question.uncached(c).max(1);
            *score = c.prefill_tokens.saturating_add(own) as f64 * (f64::from(c.running) + 1.0);
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
    use super::LMetric;
    use crate::decision::Reason;
    use crate::place::testing::{Table, candidate};

    /// (open prefill, requests, matched tokens) of each; the prompt has 1,000 tokens.
    fn table(state: &[(u64, u32, u32)]) -> Table {
        let mut table = Table::new((0..state.len() as u32).map(candidate).collect());
        table.prompt_tokens = 1_000;
        for (c, (prefill, running, matched)) in table.candidates.iter_mut().zip(state) {
            c.prefill_tokens = *prefill;
            c.running = *running;
            c.matched_tokens = *matched;
            c.matched_blocks = matched / 100;
        }
        table
    }

    #[test]
    fn the_least_product_wins() {
        // (500 + 100) x 5 = 3,000; (0 + 1,000) x 2 = 2,000; (300 + 500) x 3 = 2,400.
        let mut t = table(&[(500, 4, 900), (0, 1, 0), (300, 2, 500)]);
        let answer = t.ask(&mut LMetric);
        assert_eq!(t.scores, [3_000.0, 2_000.0, 2_400.0]);
        assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
        // (0 + 100) x 5 = 500 against 2,000.
        let mut t = table(&[(0, 4, 900), (0, 1, 0)]);
        let answer = t.ask(&mut LMetric);
        assert_eq!(t.scores, [500.0, 2_000.0]);
        assert_eq!((answer.choice, answer.reason), (0, Reason::Warmest));
    }

    #[test]
    fn a_full_match_still_sees_the_batch() {
        let mut t = table(&[(0, 9, 1_000), (0, 2, 1_000)]);
        assert_eq!(t.ask(&mut LMetric).choice, 1);
        assert_eq!(t.scores, [10.0, 3.0]);
    }

    #[test]
    fn further_prompts_of_a_batch_count_uncached() {
        let mut t = table(&[(0, 0, 900), (0, 0, 0)]);
        t.guest.extra_prompts = 2;
        t.ask(&mut LMetric);
        assert_eq!(t.scores, [2_100.0, 3_000.0]);
    }

    #[test]
    fn equal_products_are_drawn_and_seats_come_first() {
        let mut t = table(&[(0, 0, 0), (0, 0, 0), (0, 0, 0)]);
        let mut seen = [0; 3];
        for _ in 0..300 {
            let answer = t.ask(&mut LMetric);
            assert_eq!(answer.reason, Reason::LeastLoad);
            seen[answer.choice] += 1;
        }
        assert!(seen.iter().all(|n| *n > 60), "{seen:?}");
        let mut t = table(&[(0, 0, 900), (5_000, 9, 0)]);
        t.candidates[0].seat = false;
        assert_eq!(t.ask(&mut LMetric).choice, 1);
    }
}
