//! The same through the scheduler: its ledger, its homes, its predicted residency.

use crate::room::{anonymous, chain, idle, skew, stays_with_any_hit, turn_of};
use maitred_core::decision::Decision;
use maitred_core::ids::RequestId;
use maitred_core::place::PolicyConfig;
use maitred_core::pool::{FleetChange, RequestLimits, Seats, WorkerSpec};
use maitred_core::request::{Arrival, Identity, Usage};
use maitred_core::rng::Rng;
use maitred_core::scheduler::{PoolConfig, Scheduler};
use maitred_core::{Effect, Input, Nanos};
use std::collections::VecDeque;

struct Pool {
    scheduler: Scheduler,
    now: Nanos,
    requests: u64,
}

impl Pool {
    fn new(n: u32, policy: &str, slots: Option<u32>) -> Self {
        let config = PoolConfig {
            policy: PolicyConfig::named(policy).unwrap(),
            ..PoolConfig::default()
        };
        let mut pool = Self {
            scheduler: Scheduler::new(config, 41).unwrap(),
            now: Nanos(1_000),
            requests: 0,
        };
        for slot in 0..n {
            let spec = WorkerSpec {
                identity: idle(slot).identity,
                seats: Seats {
                    slots,
                    ..Seats::default()
                },
                models: Vec::new(),
                assume_ready: true,
                pulls: false,
                limits: RequestLimits::default(),
            };
            let id = pool.scheduler.next_worker_id();
            pool.tell(Input::Fleet(FleetChange::Add(id, spec)));
        }
        pool
    }

    fn tell(&mut self, input: Input) -> Vec<Effect> {
        // A request is told four times, so 32 at once take 0.6 s each: as long as engines take.
        self.now.0 += 5_000_000;
        let mut effects = Vec::new();
        self.scheduler.handle(self.now, input, &mut effects);
        effects
    }

    fn arrive(&mut self, mut guest: Arrival) -> Decision {
        self.requests += 1;
        guest.request = RequestId(self.requests);
        guest.identity = Identity::Bytes;
        guest.prompt_tokens = Some(guest.chain.len() as u32 * 16);
        let dispatched = |effect| match effect {
            Effect::Dispatch(decision) => Some(*decision),
            _ => None,
        };
        let effects = self.tell(Input::Arrive(Box::new(guest)));
        effects.into_iter().find_map(dispatched).unwrap()
    }

    fn accept(&mut self, decision: &Decision) {
        self.tell(Input::Accepted(decision.attempt));
    }

    fn finish(&mut self, decision: &Decision) {
        self.tell(Input::FirstToken(decision.attempt));
        self.tell(Input::Finished {
            attempt: decision.attempt,
            usage: Usage::default(),
            served: true,
        });
    }

    fn visit(&mut self, guest: Arrival) -> Decision {
        let decision = self.arrive(guest);
        self.accept(&decision);
        self.finish(&decision);
        decision
    }
}

/// Agents that share a 4k-token opening, some at a time: prompt tokens per worker, cached share.
fn agents(policy: &str, sessions: u64, turns: u32, at_once: usize) -> (Vec<u32>, f64) {
    let mut pool = Pool::new(4, policy, Some(64));
    let mut rng = Rng::new(31);
    let mut open: Vec<(u64, u32)> = (0..sessions).map(|session| (session, 1)).collect();
    let mut sitting = VecDeque::new();
    let mut tokens = vec![0_u32; 4];
    let (mut input, mut cached) = (0_u64, 0_u64);
    while !open.is_empty() || !sitting.is_empty() {
        if sitting.len() < at_once && !open.is_empty() {
            let (session, turn) = open.swap_remove(rng.below(open.len()));
            let text = chain(&[(7, 256), (1_000 + session, 25 * turn as usize)]);
            let decision = pool.arrive(turn_of(session, turn, text));
            tokens[decision.worker.slot as usize] += decision.prompt_tokens;
            input += u64::from(decision.prompt_tokens);
            cached += u64::from(decision.predicted_cached_tokens);
            sitting.push_back((session, turn, decision));
        } else if let Some((session, turn, decision)) = sitting.pop_front() {
            pool.accept(&decision);
            pool.finish(&decision);
            if turn < turns {
                open.push((session, turn + 1));
            }
        }
    }
    pool.scheduler.check().unwrap();
    (tokens, cached as f64 / input as f64)
}

#[test]
fn agents_with_a_common_opening_make_no_herd() {
    for (sessions, at_once) in [(12, 4), (12, 12), (16, 16), (24, 8), (24, 24), (64, 32)] {
        for policy in ["session", "adaptive"] {
            let (tokens, cached) = agents(policy, sessions, 20, at_once);
            println!(
                "{policy}, {sessions} agents, {at_once} at once: {tokens:?}, skew {:.2}, cached {cached:.3}",
                skew(&tokens)
            );
            assert!(
                skew(&tokens) <= 1.3,
                "{policy}, {sessions}, {at_once}: {tokens:?}"
            );
            assert!(cached >= 0.94, "{policy}, {sessions}, {at_once}: {cached}");
        }
    }
}

#[test]
fn round_robin_is_what_the_herd_test_can_tell_from_session() {
    let (_, cached) = agents("round_robin", 24, 20, 8);
    assert!(cached < 0.94, "{cached}");
}

#[test]
fn one_shots_without_a_key_use_every_worker() {
    for policy in PolicyConfig::NAMES {
        for together in [false, true] {
            if stays_with_any_hit(policy, together) {
                continue;
            }
            let mut pool = Pool::new(4, policy, None);
            let mut counts = vec![0_u32; 4];
            for chat in 0..60 {
                let decision = pool.arrive(anonymous(chat, 1, chain(&[(9, 4), (chat, 12)])));
                counts[decision.worker.slot as usize] += 1;
                if !together {
                    pool.accept(&decision);
                    pool.finish(&decision);
                }
            }
            assert!(counts.iter().all(|n| *n >= 5), "{policy}: {counts:?}");
        }
    }
}

#[test]
fn a_burst_is_counted_as_it_is_placed() {
    // Heads are late, nothing is accepted yet.
    for policy in [
        "least_load",
        "round_robin",
        "pin",
        "soft_affinity",
        "cache_aware",
    ] {
        let mut pool = Pool::new(4, policy, None);
        let mut counts = vec![0_u32; 4];
        for prompt in 0..16 {
            let guest = anonymous(prompt, 1, chain(&[(prompt, 100)]));
            counts[pool.arrive(guest).worker.slot as usize] += 1;
        }
        assert_eq!(counts, [4; 4], "{policy}");
    }
}

#[test]
fn unrelated_first_turns_go_round() {
    for policy in ["least_load", "soft_affinity", "cache_aware", "pin"] {
        let mut pool = Pool::new(4, policy, None);
        let mut counts = vec![0_u32; 4];
        for prompt in 0..8 {
            let decision = pool.visit(anonymous(prompt, 1, chain(&[(prompt, 20)])));
            counts[decision.worker.slot as usize] += 1;
        }
        assert_eq!(counts, [2; 4], "{policy}");
    }
}

#[test]
fn replicas_agree_without_talking() {
    // In the order in which the chats began.
    let chat =
        |session: u64, turn: u32| turn_of(session, turn, chain(&[(session, 20 * turn as usize)]));
    let mut one = Pool::new(4, "session", None);
    let mut two = Pool::new(4, "session", None);
    let first: Vec<_> = (0..10).map(|s| one.visit(chat(s, 1)).worker).collect();
    let second: Vec<_> = (0..10).map(|s| two.visit(chat(s, 2)).worker).collect();
    let agreed = first.iter().zip(&second).filter(|(a, b)| a == b).count();
    assert!(agreed >= 9, "{first:?} {second:?}");
}
