//! One tenant with many deep conversations at once, from the first second on, and newcomers of other tenants who
//! want to begin.

use maitred_core::ids::TenantId;
use maitred_core::time::Nanos;

use super::Generator;
use super::draw::{Arrivals, lengths, pause, stream, turns};
use super::talk::{Opening, Talk};
use crate::plan::{Begin, Plan, PlanBuilder};

/// Most tokens of one message and of one answer.
const MESSAGE_MOST: f64 = 4_096.0;
/// The whale's conversations begin within so many seconds.
const WHALE_STARTS: f64 = 5.0;
/// Tenants of the newcomers.
const TENANTS: u64 = 20;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Whale {
    /// The whale's conversations.
    whale: f64,
    /// Turns of each.
    depth: f64,
    /// Median tokens that its turns add.
    step: f64,
    /// Seconds between its turns, on average (exponential).
    gap: f64,
    /// Newcomers.
    newcomers: f64,
    /// How many come in a second.
    rate: f64,
    /// Turns of each, on average (geometric).
    turns: f64,
    /// Median tokens of their questions.
    input: f64,
    /// Median tokens of all answers.
    output: f64,
    /// Seconds between a newcomer's turns, on average (exponential).
    think: f64,
}

impl Default for Whale {
    fn default() -> Self {
        Self {
            whale: 60.0,
            depth: 40.0,
            step: 800.0,
            gap: 2.0,
            newcomers: 300.0,
            rate: 1.0,
            turns: 3.0,
            input: 300.0,
            output: 200.0,
            think: 10.0,
        }
    }
}

impl Generator for Whale {
    fn options(&mut self) -> Vec<(&'static str, &mut f64)> {
        vec![
            ("whale", &mut self.whale),
            ("depth", &mut self.depth),
            ("step", &mut self.step),
            ("gap", &mut self.gap),
            ("newcomers", &mut self.newcomers),
            ("rate", &mut self.rate),
            ("turns", &mut self.turns),
            ("input", &mut self.input),
            ("output", &mut self.output),
            ("think", &mut self.think),
        ]
    }

    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan {
        let mut builder = PlanBuilder::new(block_tokens);
        let groups = [builder.group("whale"), builder.group("newcomer")];
        let none = Opening::new(&mut builder, 0);
        let opening = Opening::new(&mut builder, 2_000);
        for number in 0..(self.whale * factor).round() as u64 {
            let mut rng = stream(seed, 2, number);
            let at = Nanos((rng.unit() * WHALE_STARTS * 1e9) as u64);
            let mut begin = Begin::At(at);
            let mut talk = Talk::new(&mut builder, TenantId(1), groups[0], opening);
            for _ in 0..self.depth as u32 {
                let new = lengths(&mut rng, self.step, 1.0, MESSAGE_MOST);
                let output = lengths(&mut rng, self.output, 0.6, MESSAGE_MOST);
                talk.turn(&mut builder, begin, new, output);
                begin = Begin::after(pause(&mut rng, self.gap));
            }
        }
        let mut arrivals = Arrivals::new(stream(seed, 1, 0), self.rate * factor);
        for number in 0..(self.newcomers * factor).round() as u64 {
            let mut rng = stream(seed, 3, number);
            let tenant = TenantId(2 + rng.below(TENANTS as usize) as u64);
            let mut talk = Talk::new(&mut builder, tenant, groups[1], none);
            let mut begin = Begin::At(arrivals.next());
            for _ in 0..turns(&mut rng, self.turns) {
                let new = lengths(&mut rng, self.input, 0.6, MESSAGE_MOST);
                let output = lengths(&mut rng, self.output, 0.6, MESSAGE_MOST);
                talk.turn(&mut builder, begin, new, output);
                begin = Begin::after(pause(&mut rng, self.think));
            }
        }
        builder.finish()
    }
}
