//! More than the workers can take: what is advised, who keeps his place, who gets how much.

use super::*;

/// A line of one place behind one seat that becomes free in that rhythm; what who finds it full is
/// told.
fn advice(gap_seconds: f64) -> Option<u64> {
    let pool = PoolConfig {
        fairness: crate::line::FairnessConfig::named("fcfs").unwrap(),
        line_max: 1,
        max_wait: Duration::from_secs(3_600),
        ..config()
    };
    let mut table = Table::new(pool, 1, slots(1));
    let refused = |table: &mut Table, id| match &table.arrive(guest(id))[..] {
        [
            Effect::Refuse {
                refusal: Refusal::LineFull,
                retry_after,
                ..
            },
        ] => retry_after.map(|wait| wait.as_secs()),
        other => panic!("{other:?}"),
    };
    table.seat(guest(1));
    table.arrive(guest(2));
    assert_eq!(refused(&mut table, 1_000), None, "nothing is known yet");
    let waiting = PoolConfig {
        line_max: 2,
        ..table.scheduler.config().clone()
    };
    // Two wait, so that the line never becomes empty, and with it the measured gaps.
    let mut table = Table::new(waiting, 1, slots(1));
    table.seat(guest(1));
    table.arrive(guest(2));
    table.arrive(guest(3));
    for id in 1..=6 {
        table.at(gap_seconds * id as f64).finish(first(id));
        table.arrive(guest(id + 3));
    }
    refused(&mut table, 1_001)
}

#[test]
fn who_finds_the_line_full_is_told_when_a_place_will_be_free() {
    assert_eq!(advice(5.0), Some(5), "0.2 a second");
    assert_eq!(advice(0.02), None, "50 a second: below a second");
    assert_eq!(advice(100.0), Some(30), "0.01 a second: no more than 30");
}

/// The cleaning up of idle sessions took queues away in which somebody waited.
#[test]
fn who_waits_longer_than_sessions_live_is_served_all_the_same() {
    let pool = PoolConfig {
        session_idle: Duration::from_secs(1),
        fairness: crate::line::FairnessConfig::default(),
        ..config()
    };
    let mut table = Table::new(pool, 1, slots(1));
    table.seat(guest(1));
    let quiet = Arrival {
        tenant: TenantId(7),
        ..long_guest(2, 9, 4)
    };
    assert_eq!(table.arrive(quiet), []);
    for tenth in 1..50 {
        assert_eq!(table.at(f64::from(tenth) / 10.0).tick(), []);
    }
    let effects = table.at(5.0).finish(first(1));
    assert_eq!(only_dispatch(effects).attempt, first(2));
}

/// Taking turns by requests gave most of the engine to whoever had the long prompts.
#[test]
fn long_prompts_get_no_more_than_short_ones() {
    let pool = PoolConfig {
        fairness: crate::line::FairnessConfig::default(),
        ..config()
    };
    let mut table = Table::new(pool, 1, slots(4));
    let mut next = 0;
    let mut running = alloc::collections::VecDeque::new();
    let mut served = [0_u64; 2];
    let mut arrive = |table: &mut Table, long: bool| {
        next += 1;
        table.arrive(Arrival {
            tenant: TenantId(u64::from(long)),
            prompt_tokens: Some(if long { 50_000 } else { 500 }),
            max_tokens: Some(0),
            turn: 2,
            ..guest(next * 2 + u64::from(long))
        })
    };
    for _ in 0..8 {
        for long in [true, false] {
            for effect in arrive(&mut table, long) {
                if let Effect::Dispatch(decision) = effect {
                    running.push_back(decision.attempt);
                }
            }
        }
    }
    for step in 0..10_000_u32 {
        table.at(f64::from(step) / 100.0);
        let Some(attempt) = running.pop_front() else {
            panic!("nobody sits");
        };
        for effect in table.finish(attempt) {
            if let Effect::Dispatch(decision) = effect {
                let long = decision.attempt.request.0 % 2 == 1;
                served[usize::from(long)] += u64::from(decision.prompt_tokens);
                running.push_back(decision.attempt);
                // Whoever went is followed by the next: both always wait.
                arrive(&mut table, long);
            }
        }
    }
    let [short, long] = served.map(|tokens| tokens as f64);
    assert!(short > 4e6 && long > 4e6, "{served:?}");
    assert!(long / short < 1.2 && short / long < 1.2, "{served:?}");
}

/// What had to be computed again because others had the seat at home was charged to the conversation
/// that was moved for them.
#[test]
fn what_is_computed_again_for_others_sake_is_not_charged() {
    let charged = |free: usize| {
        let pool = PoolConfig {
            fairness: crate::line::FairnessConfig::default(),
            ..config()
        };
        let mut table = Table::new(pool, 2, slots(1));
        // 10 blocks of 16 tokens, and the one that is computed in any case; no answer.
        let next = |id: u64| Arrival {
            tenant: TenantId(5),
            turn: 2,
            prompt_tokens: Some(161),
            max_tokens: Some(0),
            ..long_guest(id, 9, 10)
        };
        table.always(0, Duration::ZERO);
        table.settle(next(1));
        table.finish(first(1));
        table.settle(guest(2));
        table.always(1, Duration::ZERO);
        table.settle(guest(3));
        table.scheduler.policy = PolicyConfig::LeastLoad.build();
        for id in 4..=6 {
            table.arrive(next(id));
        }
        // Slot 0 holds all but one token of it; slot 1 nothing. Either finds nothing in its cache.
        let decision = only_dispatch(table.finish(first([2, 3][free])));
        assert_eq!(
            (decision.attempt, decision.worker.slot),
            (first(4), free as u32)
        );
        let usage = Usage {
            prompt_tokens: Some(161),
            cached_tokens: Some(0),
            output_tokens: Some(0),
        };
        table.send(Input::Finished {
            attempt: decision.attempt,
            usage,
            served: true,
        });
        let view = table.scheduler.lines(table.now);
        let mut own = view.tenants.iter().filter(|t| t.tenant == TenantId(5));
        own.next().unwrap().served_charge
    };
    // Of the fourth 161, as its own worker lost them; and 1 of the fifth, which sits now.
    assert_eq!(charged(0), 162.0);
    // It was moved: 1 and 1.
    assert_eq!(charged(1), 2.0);
}
