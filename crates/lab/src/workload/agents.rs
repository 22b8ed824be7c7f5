//! Coding agents: one long opening that all have (instructions and tools), then many turns a few seconds apart, each
//! adding what a tool said; now and then a turn hands work to sub-agents and waits for all of them.
//!
//! Lengths are near those of the public coding-agent sessions (new tokens of a turn: median 706, 90th percentile 4,598;
//! answers: median 217, 90th percentile 869); contexts are cut at `context` and then summed up, as such tools do.

use std::time::Duration;

use maitred_core::ids::TenantId;
use maitred_core::rng::Rng;

use super::Generator;
use super::draw::{Arrivals, lengths, pause, stream, turns};
use super::talk::{Opening, Talk};
use crate::plan::{Begin, Plan, PlanBuilder};

/// Most tokens that one turn adds, and that one answer has.
const TURN_MOST: f64 = 16_384.0;
/// Standard deviations of the logarithms: (90th percentile / median) is e^(1.2816 x spread).
const INPUT_SPREAD: f64 = 1.46;
const OUTPUT_SPREAD: f64 = 1.08;
/// One pause in so many is a person's, not a tool's.
const PERSON_EVERY: f64 = 10.0;
/// Tokens of a summary.
const SUMMARY: u32 = 4_000;
/// Most sub-agents of one turn.
const CHILDREN_MOST: usize = 3;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Agents {
    /// Sessions, sub-agents not counted.
    sessions: f64,
    /// How many begin in a second.
    rate: f64,
    /// Turns of each, on average (geometric).
    turns: f64,
    /// Tokens of the opening that all have.
    opening: f64,
    /// Tokens of the opening that all sub-agents have.
    sub_opening: f64,
    /// Median tokens that a turn adds.
    input: f64,
    /// Median tokens of an answer.
    output: f64,
    /// Seconds that a tool takes, on average (exponential).
    tool: f64,
    /// Seconds that a person takes, on average (exponential).
    person: f64,
    /// The share of turns that call sub-agents.
    sub_share: f64,
    /// Turns of a sub-agent, on average (geometric).
    sub_turns: f64,
    /// Most tokens of a prompt.
    context: f64,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            sessions: 60.0,
            rate: 0.25,
            turns: 30.0,
            opening: 12_000.0,
            sub_opening: 5_000.0,
            input: 700.0,
            output: 217.0,
            tool: 4.0,
            person: 40.0,
            sub_share: 0.02,
            sub_turns: 6.0,
            context: 64_000.0,
        }
    }
}

struct Openings {
    main: Opening,
    sub: Opening,
    groups: [u16; 2],
}

impl Agents {
    fn lengths(&self, rng: &mut Rng) -> (u32, u32) {
        (
            lengths(rng, self.input, INPUT_SPREAD, TURN_MOST),
            lengths(rng, self.output, OUTPUT_SPREAD, TURN_MOST),
        )
    }

    fn gap(&self, rng: &mut Rng) -> Duration {
        let person = rng.unit() * PERSON_EVERY < 1.0;
        pause(rng, if person { self.person } else { self.tool })
    }

    /// One agent's turns; the numbers of the first and the last request.
    fn agent(
        &self,
        builder: &mut PlanBuilder,
        rng: &mut Rng,
        mut talk: Talk,
        first: Begin,
        mean: f64,
    ) -> (u32, u32) {
        let from = builder.len();
        let mut begin = first;
        for _ in 0..turns(rng, mean) {
            let (new, output) = self.lengths(rng);
            if f64::from(talk.tokens()) + f64::from(new) > self.context {
                talk.replace(builder, SUMMARY);
            }
            talk.turn(builder, begin, new, output);
            begin = Begin::after(self.gap(rng));
        }
        (from, builder.len() - 1)
    }

    fn children(
        &self,
        builder: &mut PlanBuilder,
        rng: &mut Rng,
        openings: &Openings,
        tenant: TenantId,
        caller: u32,
    ) {
        for _ in 0..=rng.below(CHILDREN_MOST) {
            let talk = Talk::new(builder, tenant, openings.groups[1], openings.sub);
            let begin = Begin::after(Duration::ZERO);
            let (first, last) = self.agent(builder, rng, talk, begin, self.sub_turns);
            builder.called_by(first, caller);
            builder.wait_for(caller + 1, last);
        }
    }
}

impl Generator for Agents {
    fn options(&mut self) -> Vec<(&'static str, &mut f64)> {
        vec![
            ("sessions", &mut self.sessions),
            ("rate", &mut self.rate),
            ("turns", &mut self.turns),
            ("opening", &mut self.opening),
            ("sub_opening", &mut self.sub_opening),
            ("input", &mut self.input),
            ("output", &mut self.output),
            ("tool", &mut self.tool),
            ("person", &mut self.person),
            ("sub_share", &mut self.sub_share),
            ("sub_turns", &mut self.sub_turns),
            ("context", &mut self.context),
        ]
    }

    fn plan(&self, block_tokens: u32, seed: u64, factor: f64) -> Plan {
        let mut builder = PlanBuilder::new(block_tokens);
        let openings = Openings {
            main: Opening::new(&mut builder, self.opening as u32),
            sub: Opening::new(&mut builder, self.sub_opening as u32),
            groups: [builder.group("agent"), builder.group("sub-agent")],
        };
        let mut arrivals = Arrivals::new(stream(seed, 1, 0), self.rate * factor);
        for number in 0..(self.sessions * factor).round() as u64 {
            let mut rng = stream(seed, 2, number);
            let tenant = TenantId(number);
            let talk = Talk::new(&mut builder, tenant, openings.groups[0], openings.main);
            let begin = Begin::At(arrivals.next());
            let (from, to) = self.agent(&mut builder, &mut rng, talk, begin, self.turns);
            // The last turn has no next one that could wait for the work.
            for caller in from..to {
                if rng.unit() < self.sub_share {
                    self.children(&mut builder, &mut rng, &openings, tenant, caller);
                }
            }
        }
        builder.finish()
    }
}
