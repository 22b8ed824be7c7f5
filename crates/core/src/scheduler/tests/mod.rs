//! Each rule of the scheduler on a small table, with values computed by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bands;
mod belief;
mod breakdown;
mod events;
mod fleet;
mod line;
mod lineage;
mod lines;
mod overload;
mod pull;
mod rivals;
mod seats;
mod tokens;

use super::{PoolConfig, Scheduler};
use crate::decision::{Decision, Reason};
use crate::ids::{AttemptId, RequestId, SessionKey, TenantId, WorkerId};
use crate::input::{Effect, Input};
use crate::miss::Misses;
use crate::place::{Answer, Policy, PolicyConfig, Question};
use crate::pool::{FleetChange, Report, RequestLimits, Seats, WorkerSpec};
use crate::request::{Arrival, Failure, Identity, KeySource, Refusal, Usage};
use crate::rng::Rng;
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

/// A pool under `least_load`, a clock, and what came of the last input.
struct Table {
    scheduler: Scheduler,
    now: Nanos,
    workers: Vec<WorkerId>,
    /// What became of the tokens of each prompt that was served.
    accounts: Vec<Misses>,
}

fn config() -> PoolConfig {
    PoolConfig {
        policy: PolicyConfig::LeastLoad,
        ..PoolConfig::default()
    }
}

fn slots(n: u32) -> Seats {
    Seats {
        slots: Some(n),
        ..Seats::default()
    }
}

/// 400 bytes, so 100 tokens at the prior ratio; no identity, no chain.
fn guest(id: u64) -> Arrival {
    Arrival {
        request: RequestId(id),
        tenant: TenantId(0),
        flow: None,
        session: None,
        session_source: KeySource::None,
        opening: None,
        scenario: None,
        leading: None,
        previous_response: None,
        model: None,
        turn: 1,
        identity: Identity::Bytes,
        scope: 0,
        chain: Vec::new(),
        prompt_bytes: 400,
        body_bytes: 0,
        prompt_tokens: None,
        max_tokens: None,
        extra_prompts: 0,
        reads_cache: true,
        deadline: None,
        retryable: true,
        streams: true,
        plain: false,
    }
}

/// A guest whose prompt is that many blocks of 64 bytes (16 tokens each).
fn long_guest(id: u64, session: u64, blocks: u64) -> Arrival {
    Arrival {
        session: Some(SessionKey(session)),
        chain: (0..blocks)
            .map(|block| session * 10_000 + block + 1)
            .collect(),
        prompt_bytes: blocks * 64,
        ..guest(id)
    }
}

fn first(id: u64) -> AttemptId {
    AttemptId {
        request: RequestId(id),
        number: 1,
    }
}

impl Table {
    fn new(config: PoolConfig, workers: u32, seats: Seats) -> Self {
        let mut table = Self {
            scheduler: Scheduler::new(config, 1).unwrap(),
            now: Nanos(0),
            workers: Vec::new(),
            accounts: Vec::new(),
        };
        for _ in 0..workers {
            table.add(seats, true);
        }
        table
    }

    fn add(&mut self, seats: Seats, assume_ready: bool) -> Vec<Effect> {
        let id = self.scheduler.next_worker_id();
        let spec = WorkerSpec {
            identity: u64::from(id.slot) + 100,
            seats,
            models: Vec::new(),
            assume_ready,
            pulls: false,
            limits: RequestLimits::default(),
        };
        self.workers.push(id);
        self.send(Input::Fleet(FleetChange::Add(id, spec)))
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        self.now = Nanos((seconds * 1e9) as u64);
        self
    }

    /// Sends one input, checks every invariant, returns the effects but the wake-ups.
    fn send(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.scheduler.handle(self.now, input, &mut effects);
        self.scheduler.check().unwrap();
        effects.retain(|effect| match effect {
            Effect::Account { misses, .. } => {
                self.accounts.push(*misses);
                false
            }
            effect => !matches!(effect, Effect::Wake(_)),
        });
        effects
    }

    fn tick(&mut self) -> Vec<Effect> {
        self.send(Input::Tick)
    }

    fn arrive(&mut self, guest: Arrival) -> Vec<Effect> {
        self.send(Input::Arrive(Box::new(guest)))
    }

    /// Arrives, and must be seated at once.
    fn seat(&mut self, guest: Arrival) -> Box<Decision> {
        let effects = self.arrive(guest);
        only_dispatch(effects)
    }

    /// Arrives and is accepted, so that its session settles.
    fn settle(&mut self, guest: Arrival) -> Box<Decision> {
        let decision = self.seat(guest);
        self.send(Input::Accepted(decision.attempt));
        decision
    }

    fn finish(&mut self, attempt: AttemptId) -> Vec<Effect> {
        self.send(Input::Finished {
            attempt,
            usage: Usage::default(),
            served: true,
        })
    }

    fn fail(&mut self, attempt: AttemptId, failure: Failure, retry: bool) -> Vec<Effect> {
        self.send(Input::Failed {
            attempt,
            failure,
            retry,
            retry_after: None,
        })
    }

    fn report(&mut self, worker: usize, report: Report) -> Vec<Effect> {
        let worker = self.workers[worker];
        self.send(Input::Report { worker, report })
    }

    fn running(&self) -> Vec<u32> {
        let workers = self.scheduler.workers(self.now);
        workers.iter().map(|worker| worker.running).collect()
    }

    /// From now on the policy names the worker in that slot, and would wait `hold` for it.
    fn always(&mut self, slot: u32, hold: Duration) {
        self.scheduler.policy = Box::new(Always { slot, hold });
    }
}

fn only_dispatch(mut effects: Vec<Effect>) -> Box<Decision> {
    let decisions: Vec<usize> = (0..effects.len())
        .filter(|index| matches!(effects[*index], Effect::Dispatch(_)))
        .collect();
    assert_eq!(decisions.len(), 1, "{effects:?}");
    match effects.swap_remove(decisions[0]) {
        Effect::Dispatch(decision) => decision,
        other => panic!("{other:?}"),
    }
}

fn refusal(effects: &[Effect]) -> Refusal {
    match effects {
        [Effect::Refuse { refusal, .. }] => *refusal,
        other => panic!("{other:?}"),
    }
}

/// Names one slot; where it is no candidate, the first one with a seat.
struct Always {
    slot: u32,
    hold: Duration,
}

impl Policy for Always {
    fn name(&self) -> &'static str {
        "always"
    }

    fn place(&mut self, question: &Question<'_>, _scores: &mut [f64], _rng: &mut Rng) -> Answer {
        let named = |c: &crate::place::Candidate| c.worker.slot == self.slot;
        match question.candidates.iter().position(named) {
            Some(choice) => Answer {
                choice,
                reason: Reason::Home,
                hold: self.hold,
            },
            None => Answer {
                choice: question.candidates.iter().position(|c| c.seat).unwrap_or(0),
                reason: Reason::HomeUnavailable,
                hold: Duration::ZERO,
            },
        }
    }
}
