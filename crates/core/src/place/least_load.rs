//! `least_load`: the worker with the least load; ties at random.
//!
//! Formula: argmin over candidates of `load = prefill_tokens + 64 x running` ([`Candidate::load`]).
//! Source: the common rule; the two terms are what an engine's step is shared between.
//! Options: none. Score: the load; less is better.
//!
//! [`Candidate::load`]: super::Candidate::load

use super::{Answer, Policy, Question, least};
use crate::decision::Reason;
use crate::rng::Rng;
use core::time::Duration;

/// The policy; it keeps no state.
pub struct LeastLoad;

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least_load"
    }

    fn place(&mut self, question: &Question<'_>, scores: &mut [f64], rng: &mut Rng) -> Answer {
        let choice = least(question.candidates, rng, |index, candidate| {
            let load = candidate.load();
            scores[index] = load as f64;
            load
        });
        Answer {
            choice,
            reason: Reason::LeastLoad,
            hold: Duration::ZERO,
        }
    }
}
