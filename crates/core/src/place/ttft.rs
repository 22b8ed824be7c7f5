//! The time to a first token as policies with a configured prefill rate estimate it.
//!
//! Formula: `(open prefill tokens + own uncached tokens) / rate`. Source: the load gate of llm-d's
//! router, which divides tokens in flight by the peak prefill rate. Nothing is learnt here.

use super::{Candidate, Question};

/// The default rate, tokens a second. Source: llm-d's router, for a 32B model on two H100.
pub(super) const PREFILL_RATE: f64 = 15_928.0;

/// What rates are allowed, in words.
pub(super) const RATE_ALLOWED: &str = "tokens per second from 1 to 1000000000";

/// Seconds until the first token of this request on that worker.
pub(super) fn estimate(question: &Question<'_>, candidate: &Candidate, rate: f64) -> f64 {
    candidate
        .prefill_tokens
        .saturating_add(question.uncached(candidate)) as f64
        / rate
}

#[cfg(test)]
mod tests {
    use super::estimate;
    use crate::place::Question;
    use crate::place::testing::{Table, candidate};
    use alloc::vec;

    #[test]
    fn open_and_own_tokens_are_divided_by_the_rate() {
        let mut table = Table::new(vec![candidate(0)]);
        table.prompt_tokens = 3_000;
        table.candidates[0].prefill_tokens = 2_000;
        table.candidates[0].matched_tokens = 1_000;
        let question = Question {
            guest: &table.guest,
            prompt_tokens: table.prompt_tokens,
            home: None,
            opening_home: None,
            candidates: &table.candidates,
            waiting: 0,
            rates: table.rates,
            follows: true,
            now: table.now,
        };
        assert!((estimate(&question, &table.candidates[0], 1_000.0) - 4.0).abs() < 1e-12);
    }
}
