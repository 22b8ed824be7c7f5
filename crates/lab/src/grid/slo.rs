//! What counts as a good answer.

use crate::sim::{End, Outcome};

/// Bounds on the first token, scaled by the prompt's length, and on each later one. Seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// To the first token, whatever the prompt.
    pub ttft: f64,
    /// More for every thousand prompt tokens: a long prompt may take longer.
    pub ttft_per_thousand: f64,
    /// For each token after the first, on average.
    pub tpot: f64,
}

impl Default for Slo {
    /// 2 s + 0.25 s per thousand prompt tokens; 0.1 s a token.
    fn default() -> Self {
        Self {
            ttft: 2.0,
            ttft_per_thousand: 0.25,
            tpot: 0.1,
        }
    }
}

impl Slo {
    /// Whether it was served in time.
    #[must_use]
    pub fn met(&self, outcome: &Outcome) -> bool {
        let bound = self.ttft + self.ttft_per_thousand * f64::from(outcome.prompt_tokens) / 1e3;
        outcome.end == End::Served
            && (outcome.ttft()).is_some_and(|ttft| ttft.as_secs_f64() <= bound)
            && outcome
                .tpot()
                .is_none_or(|tpot| tpot.as_secs_f64() <= self.tpot)
    }
}
