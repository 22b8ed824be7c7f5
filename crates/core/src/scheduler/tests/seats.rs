//! Ledger, seats, what a decision says.

use super::*;
use crate::pool::Gauges;

#[test]
fn an_empty_line_and_a_free_seat_seat_at_once() {
    let mut table = Table::new(config(), 2, Seats::default());
    let decision = table.seat(guest(1));
    assert_eq!(decision.attempt, first(1));
    assert_eq!(
        (decision.candidates_count, decision.candidates.len()),
        (2, 2)
    );
    assert_eq!(decision.candidates[0].worker, decision.worker);
    assert_eq!(
        (decision.prompt_tokens, decision.predicted_cached_tokens),
        (100, 0)
    );
    assert_eq!(
        (decision.policy, decision.reason),
        ("least_load", Reason::LeastLoad)
    );
    assert_eq!((decision.stale, decision.report_age), (true, None));
}

#[test]
fn both_axes_are_held_and_given_back_in_their_time() {
    let mut table = Table::new(config(), 1, Seats::default());
    table.seat(Arrival {
        max_tokens: Some(50),
        ..guest(1)
    });
    table.seat(Arrival {
        extra_prompts: 2,
        ..guest(2)
    });
    let view = |table: &Table| {
        let worker = table.scheduler.workers(table.now)[0].clone();
        (
            worker.running,
            worker.prefill_tokens,
            worker.resident_tokens,
        )
    };
    // 100 + 3 x 100; (100 + 50) + 3 x (100 + 256).
    assert_eq!(view(&table), (2, 400, 1_218));
    table.send(Input::FirstToken(first(2)));
    assert_eq!(view(&table), (2, 100, 1_218));
    table.finish(first(2));
    assert_eq!(view(&table), (1, 100, 150));
    table.finish(first(2));
    table.fail(first(2), Failure::Reset, true);
    assert_eq!(view(&table), (1, 100, 150), "a second end changes nothing");
    table.send(Input::Cancel(RequestId(1)));
    assert_eq!(view(&table), (0, 0, 0));
    assert_eq!(table.scheduler.requests_len(), 0);
}

#[test]
fn a_lease_never_expires() {
    let mut table = Table::new(config(), 1, Seats::default());
    table.seat(guest(1));
    table.at(660.0).tick();
    assert_eq!(table.running(), [1]);
    table.finish(first(1));
    assert_eq!(table.running(), [0]);
}

#[test]
fn a_burst_is_spread_before_any_report() {
    let mut table = Table::new(config(), 8, Seats::default());
    for id in 0..64 {
        table.seat(guest(id));
    }
    assert_eq!(table.running(), [8; 8]);
}

#[test]
fn more_prefill_than_the_limit_goes_where_no_prefill_is_open() {
    let seats = Seats {
        prefill_tokens: Some(150),
        ..Seats::default()
    };
    let mut table = Table::new(config(), 1, seats);
    table.seat(Arrival {
        prompt_bytes: 4_000,
        ..guest(1)
    });
    assert!(table.arrive(guest(2)).is_empty(), "its prefill is open");
    let effects = table.send(Input::FirstToken(first(1)));
    assert_eq!(only_dispatch(effects).attempt, first(2));
    assert!(table.arrive(guest(3)).is_empty(), "100 + 100 > 150");
    assert!(table.arrive(guest(4)).is_empty());
    let effects = table.finish(first(2));
    assert_eq!(only_dispatch(effects).attempt, first(3));
}

#[test]
fn the_engines_own_count_adds_other_routers_work_while_it_is_fresh() {
    let mut table = Table::new(config(), 2, Seats::default());
    table.always(0, Duration::ZERO);
    table.seat(guest(1));
    let gauges = Gauges {
        running: Some(3),
        waiting: Some(2),
        ..Gauges::default()
    };
    table.report(0, Report::Gauges(gauges));
    // Five there, one of them ours: four of others; then two of ours.
    let decision = table.at(1.0).seat(guest(2));
    assert_eq!(decision.candidates[0].running, 5);
    assert_eq!(decision.report_age, Some(Duration::from_secs(1)));
    assert!(!decision.stale);
    let decision = table.seat(guest(3));
    assert_eq!(decision.candidates[0].running, 6);
    let decision = table.at(5.1).seat(guest(4));
    assert_eq!(decision.candidates[0].running, 3, "own leases rule");
    assert!(decision.stale);
}

#[test]
fn tokens_are_estimated_by_the_learnt_ratio() {
    let mut table = Table::new(config(), 1, Seats::default());
    table.seat(guest(1));
    table.send(Input::Finished {
        attempt: first(1),
        usage: Usage {
            prompt_tokens: Some(200),
            ..Usage::default()
        },
        served: true,
    });
    // 4 + (2 - 4) / 16 = 3.875 bytes per token; 400 / 3.875 = 103.2.
    assert_eq!(table.seat(guest(2)).prompt_tokens, 104);
    let exact = Arrival {
        prompt_tokens: Some(7),
        ..guest(3)
    };
    assert_eq!(table.seat(exact).prompt_tokens, 7);
}

#[test]
fn a_live_requests_id_is_not_taken_twice() {
    let mut table = Table::new(config(), 1, Seats::default());
    table.seat(guest(1));
    assert!(table.arrive(guest(1)).is_empty());
    assert_eq!(table.running(), [1]);
}

#[test]
fn the_policy_changes_live_and_what_is_known_stays() {
    let mut table = Table::new(config(), 2, Seats::default());
    let home = table.settle(long_guest(1, 7, 40)).worker;
    let pin = PolicyConfig::named("pin").unwrap();
    table.send(Input::SetPolicy(pin));
    let decision = table.seat(long_guest(2, 7, 50));
    assert_eq!((decision.policy, decision.worker), ("pin", home));
    assert_eq!(decision.predicted_cached_tokens, 640);
}

/// Two engines with four slots each, eight conversations that take turns, then a ninth.
#[test]
fn conversations_fill_the_slots_of_engines_that_keep_one_in_each() {
    for seed in 0..20 {
        let config = PoolConfig {
            policy: PolicyConfig::named("session").unwrap(),
            ..PoolConfig::default()
        };
        let seats = Seats {
            slots: Some(4),
            cache_slots: Some(4),
            ..Seats::default()
        };
        let mut table = Table::new(config, 2, seats);
        let mut next = 0;
        let mut serve = |table: &mut Table, session: u64, turn: u32| {
            next += 1;
            let guest = Arrival {
                turn,
                session_source: KeySource::Header,
                ..long_guest(next, session, u64::from(turn) * 10)
            };
            let decision = table.settle(guest);
            table.finish(decision.attempt);
            decision.worker
        };
        let at = |second: u64| second as f64;
        let sessions: Vec<u64> = (0..8).map(|i| seed * 100 + i).collect();
        let homes: Vec<WorkerId> = sessions
            .iter()
            .zip(0..)
            .map(|(s, second)| serve(table.at(at(second)), *s, 1))
            .collect();
        let first = homes.iter().filter(|w| **w == table.workers[0]).count();
        assert_eq!(first, 4, "seed {seed}");
        for turn in 2..5 {
            for (session, home) in sessions.iter().zip(&homes) {
                let second = u64::from(turn) * 10 + session % 100;
                assert_eq!(serve(table.at(at(second)), *session, turn), *home);
            }
        }
        // All but the third have one more turn: its slot is the one idle for longest.
        for (session, home) in sessions.iter().zip(&homes).filter(|(s, _)| *s % 100 != 2) {
            assert_eq!(serve(table.at(at(60 + session % 100)), *session, 5), *home);
        }
        assert_eq!(serve(table.at(80.0), seed * 100 + 8, 1), homes[2]);
        table.scheduler.check().unwrap();
    }
}
