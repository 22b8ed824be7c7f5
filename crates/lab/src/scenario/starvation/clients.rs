//! Both kinds of clients.

use std::time::Duration;

use maitred_core::ids::TenantId;
use maitred_core::request::BlockHash;
use maitred_core::rng::{Rng, mix};
use maitred_core::time::Nanos;

use super::{DEEP, NEWCOMER, Starvation};
use crate::sim::{Ask, End, Outcome, Workload};

/// Prompt tokens of a newcomer's first turn.
const NEW_PROMPT: u32 = 1_024;
/// Prompt tokens of a deep conversation as it is found.
const DEEP_PROMPT: u32 = 8_192;
/// Tokens by which a turn's prompt is longer than the one before (its answer and the next question).
const GROWTH: u32 = 192;
/// Tokens of an answer.
const OUTPUT: u32 = 256;
/// A prompt grows no further.
const PROMPT_MOST: u32 = 32_768;

/// See the module above.
#[derive(Debug)]
pub struct Clients {
    deep: u32,
    deep_turn: u32,
    newcomers: u32,
    turns: u32,
    think: Duration,
    rate: f64,
    retry_share: f64,
    block_tokens: u32,
    seed: u64,
    /// When newcomers come.
    arrivals: Rng,
    next_newcomer: Nanos,
    begun: u32,
    /// Starts of the deep conversations, the last one first.
    deep_starts: Vec<(Nanos, u64)>,
}

/// Uniform from 0 to below 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

impl Clients {
    /// They follow from the scenario and its seed alone.
    #[must_use]
    pub fn new(scenario: &Starvation, block_tokens: u32) -> Self {
        let mut rng = Rng::new(mix(scenario.seed ^ 1));
        let spread = scenario.service_seconds();
        let mut deep_starts: Vec<(Nanos, u64)> = (0..u64::from(scenario.deep))
            .map(|session| {
                let at = Duration::from_secs_f64(unit(rng.next_u64()) * spread);
                (Nanos::default() + at, session)
            })
            .collect();
        deep_starts.sort_unstable_by(|a, b| b.cmp(a));
        let mut clients = Self {
            deep: scenario.deep,
            deep_turn: scenario.deep_turn,
            newcomers: scenario.newcomers,
            turns: scenario.turns,
            think: scenario.think,
            rate: scenario.rate,
            retry_share: scenario.retry_share,
            block_tokens,
            seed: scenario.seed,
            arrivals: Rng::new(mix(scenario.seed ^ 2)),
            next_newcomer: Nanos::default(),
            begun: 0,
            deep_starts,
        };
        clients.draw_newcomer();
        clients
    }

    fn draw_newcomer(&mut self) {
        // An exponential gap; 1 - unit is never 0.
        let gap = -(1.0 - unit(self.arrivals.next_u64())).ln() / self.rate.max(1e-9);
        self.next_newcomer = self.next_newcomer + Duration::from_secs_f64(gap);
    }

    fn ask(&self, session: u64, group: u16, turn: u32, tries: u32) -> Ask {
        let (opening, first) = if group == DEEP {
            (DEEP_PROMPT, self.deep_turn)
        } else {
            (NEW_PROMPT, 1)
        };
        let grown = (turn - first.min(turn)).saturating_mul(GROWTH);
        let prompt_tokens = opening.saturating_add(grown).min(PROMPT_MOST);
        let own = mix(self.seed ^ mix(session));
        let blocks = u64::from(prompt_tokens / self.block_tokens);
        Ask {
            session,
            group,
            tenant: TenantId(0),
            turn,
            tries,
            chain: (0..blocks)
                .map(|at| -> BlockHash { mix(own ^ mix(at)) })
                .collect(),
            prompt_tokens,
            output_tokens: OUTPUT,
            patience: None,
        }
    }

    /// Whether that newcomer comes once more when it is refused.
    fn comes_again(&self, session: u64) -> bool {
        unit(mix(self.seed ^ mix(session) ^ 3)) < self.retry_share
    }
}

impl Workload for Clients {
    fn start(&mut self) -> Option<(Nanos, Ask)> {
        let newcomer = (self.begun < self.newcomers).then_some(self.next_newcomer);
        if let Some((at, session)) = self.deep_starts.last().copied()
            && newcomer.is_none_or(|other| at <= other)
        {
            self.deep_starts.pop();
            return Some((at, self.ask(session, DEEP, self.deep_turn, 0)));
        }
        let at = newcomer?;
        let session = u64::from(self.deep) + u64::from(self.begun);
        self.begun += 1;
        self.draw_newcomer();
        Some((at, self.ask(session, NEWCOMER, 1, 0)))
    }

    fn next(&mut self, last: &Outcome) -> Option<(Duration, Ask)> {
        let (session, group, turn) = (last.session, last.group, last.turn);
        match last.end {
            End::Served => {
                let more = group == DEEP || turn < self.turns;
                more.then(|| (self.think, self.ask(session, group, turn + 1, 0)))
            }
            // A deep conversation asks again and again.
            End::Refused { .. } | End::Failed(_) | End::GaveUp if group == DEEP => {
                Some((self.think, self.ask(session, group, turn, last.tries + 1)))
            }
            End::Refused {
                retry_after: Some(after),
                ..
            } if turn == 1 && last.tries == 0 && self.comes_again(session) => {
                Some((after, self.ask(session, group, turn, 1)))
            }
            _ => None,
        }
    }
}
