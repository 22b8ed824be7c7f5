//! Conversations of a few turns: people who read the answer before they go on.

use maitred_core::ids::TenantId;
use maitred_core::time::Nanos;

use super::Generator;
use super::draw::{Arrivals, lengths, pause, stream, turns};
use super::talk::{Opening, Talk};
use crate::plan::{Begin, Plan, PlanBuilder};

/// Most tokens of one message and of one answer.
const MESSAGE_MOST: f64 = 4_096.0;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Chat {
    /// Conversations.
    pub(super) sessions: f64,
    /// How many begin in a second.
    pub(super) rate: f64,
    /// Turns of each, on average (geometric).
    pub(super) turns: f64,
    /// Tokens of the instruction that all begin with.
    pub(super) system: f64,
    /// Median tokens of a question.
    pub(super) input: f64,
    /// Median tokens of an answer.
    pub(super) output: f64,
    /// Standard deviation of the logarithm of both.
    pub(super) spread: f64,
    /// Seconds between an answer and the next question, on average (exponential).
    pub(super) think: f64,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            sessions: 400.0,
            rate: 2.0,
            turns: 5.0,
            system: 400.0,
            input: 150.0,
            output: 200.0,
            spread: 0.8,
            think: 15.0,
        }
    }
}

impl Chat {
    /// Conversations that begin when `start` says.
    pub(super) fn write(
        &self,
        builder: &mut PlanBuilder,
        seed: u64,
        factor: f64,
        mut start: impl FnMut() -> Nanos,
    ) {
        let group = builder.group("chat");
        let opening = Opening::new(builder, self.system as u32);
        for number in 0..(self.sessions * factor).round() as u64 {
            let mut rng = stream(seed, 2, number);
            let mut talk = Talk::new(builder, TenantId(0), group, opening);
            let mut begin = Begin::At(start());
            for _ in 0..turns(&mut rng, self.turns) {
                let new = lengths(&mut rng, self.input, self.spread, MESSAGE_MOST);
                let output = lengths(&mut rng, self.output, self.spread, MESSAGE_MOST);
                talk.turn(builder, begin, new, output);
                begin = Begin::after(pause(&mut rng, self.think));
            }
        }
    }
}

impl Generator for Chat {
    fn options(&mut self) -> Vec<(&'static str, &mut f64)> {
        vec![
            ("sessions", &mut self.sessions),
            ("rate", &mut self.rate),
            ("turns", &mut self.turns),
            ("system", &mut self.system),
            ("input", &mut self.input),
            ("output", &mut self.output),
            ("spread", &mut self.spread),
            ("think", &mut self.think),
        ]
    }

    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan {
        let mut builder = PlanBuilder::new(block_tokens);
        let mut arrivals = Arrivals::new(stream(seed, 1, 0), self.rate * factor);
        self.write(&mut builder, seed, factor, || arrivals.next());
        builder.finish()
    }
}
