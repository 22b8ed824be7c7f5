//! Many instructions, few of them popular: applications behind one gateway, each with its own long opening.

use maitred_core::ids::TenantId;

use super::Generator;
use super::draw::{Arrivals, Zipf, lengths, pause, stream, turns};
use super::talk::{Opening, Talk};
use crate::plan::{Begin, Plan, PlanBuilder};

/// Most tokens of one message and of one answer.
const MESSAGE_MOST: f64 = 4_096.0;
/// An instruction is at most so many times the median.
const OPENING_MOST: f64 = 8.0;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// Conversations.
    sessions: f64,
    /// How many begin in a second.
    rate: f64,
    /// Instructions.
    openings: f64,
    /// Exponent of their popularity.
    skew: f64,
    /// Median tokens of an instruction.
    system: f64,
    /// Turns of each conversation, on average (geometric).
    turns: f64,
    /// Median tokens of a question.
    input: f64,
    /// Median tokens of an answer.
    output: f64,
    /// Standard deviation of the logarithm of all lengths.
    spread: f64,
    /// Seconds between an answer and the next question, on average (exponential).
    think: f64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            sessions: 1_000.0,
            rate: 4.0,
            openings: 50.0,
            skew: 1.1,
            system: 3_000.0,
            turns: 2.0,
            input: 200.0,
            output: 120.0,
            spread: 0.6,
            think: 10.0,
        }
    }
}

impl Generator for Shared {
    fn options(&mut self) -> Vec<(&'static str, &mut f64)> {
        vec![
            ("sessions", &mut self.sessions),
            ("rate", &mut self.rate),
            ("openings", &mut self.openings),
            ("skew", &mut self.skew),
            ("system", &mut self.system),
            ("turns", &mut self.turns),
            ("input", &mut self.input),
            ("output", &mut self.output),
            ("spread", &mut self.spread),
            ("think", &mut self.think),
        ]
    }

    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan {
        let mut builder = PlanBuilder::new(block_tokens);
        let group = builder.group("shared");
        let count = (self.openings as usize).max(1);
        let openings: Vec<Opening> = (0..count as u64)
            .map(|number| {
                let mut rng = stream(seed, 3, number);
                let most = self.system * OPENING_MOST;
                let tokens = lengths(&mut rng, self.system, self.spread, most);
                Opening::new(&mut builder, tokens)
            })
            .collect();
        let popular = Zipf::new(count, self.skew);
        let mut arrivals = Arrivals::new(stream(seed, 1, 0), self.rate * factor);
        for number in 0..(self.sessions * factor).round() as u64 {
            let mut rng = stream(seed, 2, number);
            let chosen = popular.draw(&mut rng);
            let tenant = TenantId(chosen as u64);
            let mut talk = Talk::new(&mut builder, tenant, group, openings[chosen]);
            let mut begin = Begin::At(arrivals.next());
            for _ in 0..turns(&mut rng, self.turns) {
                let new = lengths(&mut rng, self.input, self.spread, MESSAGE_MOST);
                let output = lengths(&mut rng, self.output, self.spread, MESSAGE_MOST);
                talk.turn(&mut builder, begin, new, output);
                begin = Begin::after(pause(&mut rng, self.think));
            }
        }
        builder.finish()
    }
}
