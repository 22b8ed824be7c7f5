#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::time::Duration;

use maitred_core::ids::TenantId;
use maitred_core::time::Nanos;
use maitred_enginesim::model;

use super::*;
use crate::sim::{End, EngineKind, Run, Service, Setup, run};

fn seconds(at: u64) -> Nanos {
    Nanos(at * 1_000_000_000)
}

fn request(begin: Begin, spans: &[(u64, u32)]) -> Planned {
    let blocks: u32 = spans.iter().map(|(_, count)| count).sum();
    Planned {
        session: 0,
        turn: 0,
        tenant: TenantId(0),
        group: 0,
        spans: (spans.iter())
            .map(|(first, count)| Span {
                first: *first,
                count: *count,
            })
            .collect(),
        prompt_tokens: 16 * blocks + 8,
        output_tokens: 4,
        begin,
        also: Box::default(),
    }
}

fn after(pause: u64) -> Begin {
    Begin::after(Duration::from_secs(pause))
}

/// A caller of three turns whose second turn's end begins two sub-agents, of two turns and of one, that its third waits
/// for.
fn called() -> Plan {
    let mut builder = PlanBuilder::new(16);
    builder.session();
    builder.turn(request(Begin::At(seconds(1)), &[(1, 4)]));
    let caller = builder.turn(request(after(2), &[(1, 6)]));
    let third = builder.turn(request(after(3), &[(1, 8)]));
    for turns in [2, 1] {
        builder.session();
        let first = builder.turn(request(after(0), &[(100, 3)]));
        let mut last = first;
        for _ in 1..turns {
            last = builder.turn(request(after(1), &[(100, 3), (200, 1)]));
        }
        builder.called_by(first, caller);
        builder.wait_for(third, last);
    }
    builder.finish()
}

fn play(plan: &Plan, setup: impl FnOnce(&mut Setup), manners: Manners) -> (Run, u64) {
    let worker = EngineKind::Seats {
        slots: 8,
        service: Service::Fixed(Duration::from_secs(10)),
        block_tokens: 16,
        kv_tokens: 16_384,
    };
    let mut played = Setup {
        pool: Default::default(),
        workers: vec![worker],
        reports: None,
        kv_events: None,
        fleet: Vec::new(),
        until: None,
        seed: 1,
    };
    setup(&mut played);
    let mut clients = Clients::new(plan, manners);
    let run = run(played, &mut clients, &mut |_, _| {}).unwrap();
    (run, clients.abandoned())
}

fn arrivals(run: &Run) -> Vec<(u64, u32, u64)> {
    let mut list: Vec<_> = (run.outcomes.iter())
        .map(|o| (o.session, o.turn, o.arrived.0 / 1_000_000_000))
        .collect();
    list.sort_unstable();
    list
}

#[test]
fn sub_agents_are_called_by_an_answer_and_waited_for() {
    let plan = called();
    assert_eq!(plan.sessions, [0, 3, 5]);
    assert_eq!(plan.requests[1].also[..], [3, 5]);
    let (run, abandoned) = play(&plan, |_| {}, Manners::default());
    // Each takes 10 s: 1-11, 13-23, then 23-33 and 34-44 beside 23-33, then 3 s of thought.
    assert_eq!(
        arrivals(&run),
        [
            (0, 1, 1),
            (0, 2, 13),
            (0, 3, 47),
            (1, 1, 23),
            (1, 2, 34),
            (2, 1, 23)
        ]
    );
    assert_eq!(abandoned, 0);
}

#[test]
fn who_is_not_served_ends_his_session_and_what_it_would_have_called() {
    let plan = called();
    let hopeless = |setup: &mut Setup| {
        // A context of 64 tokens holds none of these prompts.
        setup.workers = vec![EngineKind::Batch(model::Config {
            kv_tokens: 64,
            ..model::Config::default()
        })];
    };
    let manners = Manners {
        retries: 1,
        patience: None,
    };
    let (run, abandoned) = play(&plan, hopeless, manners);
    assert!(run.outcomes.iter().all(|o| o.end != End::Served));
    assert_eq!(
        run.outcomes.len(),
        2,
        "the first turn, twice: {:?}",
        run.outcomes
    );
    assert_eq!(abandoned, 5);
}

#[test]
fn patience_ends_a_session_without_another_try() {
    let plan = called();
    let impatient = Manners {
        retries: 5,
        patience: Some(Duration::from_secs(3)),
    };
    let slow = |setup: &mut Setup| {
        setup.workers = vec![EngineKind::Batch(model::Config {
            prefill_tokens_per_second: 1,
            ..model::Config::default()
        })];
    };
    let (run, abandoned) = play(&plan, slow, impatient);
    assert_eq!(run.outcomes.len(), 1);
    assert_eq!((run.outcomes[0].end, abandoned), (End::GaveUp, 5));
}

#[test]
fn the_ceiling_counts_leading_blocks_that_came_before() {
    let plan = called();
    let order = nominal_order(&plan);
    // Four tokens take 80 ms: the caller's third turn comes last.
    let sent: Vec<u32> = order.iter().map(|(_, at)| *at).collect();
    assert_eq!(sent, [0, 1, 3, 5, 4, 2]);
    assert_eq!(
        order[5].0,
        Nanos(1_000_000_000 + 2_000_000_000 + 4 * 80_000_000 + 1_000_000_000 + 3_000_000_000)
    );
    let found = ideal(&plan, &order);
    // Own beginnings: 0, 4 and 6 blocks; the second sub-agent finds the first one's three; a second turn its own.
    assert_eq!(
        found,
        [(0, 0), (64, 64), (96, 96), (0, 0), (48, 48), (48, 0)]
    );
}

#[test]
fn a_whole_prompt_that_came_before_still_computes_its_last_token() {
    let mut builder = PlanBuilder::new(16);
    for at in [0, 5] {
        builder.session();
        let mut whole = request(Begin::At(seconds(at)), &[(1, 4)]);
        whole.prompt_tokens = 64;
        builder.turn(whole);
    }
    let plan = builder.finish();
    assert_eq!(ideal(&plan, &nominal_order(&plan)), [(0, 0), (63, 0)]);
}

#[test]
fn stretching_moves_starts_and_keeps_pauses() {
    let mut plan = called();
    let before = plan.clone();
    plan.stretch(2.5);
    assert_eq!(plan.requests[0].begin, Begin::At(Nanos(2_500_000_000)));
    assert_eq!(plan.requests[1..], before.requests[1..]);
}
