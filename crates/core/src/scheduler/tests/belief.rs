//! What workers are believed to hold, homes, and what ends both.

use super::*;
use crate::pool::Gauges;
use crate::session::Home;

/// Two workers; the session's first turn of 40 blocks settled in slot 0.
fn warm() -> Table {
    let mut table = Table::new(config(), 2, Seats::default());
    table.always(0, Duration::ZERO);
    table.settle(long_guest(1, 7, 40));
    table.finish(first(1));
    table
}

/// Predicted cached tokens of the next turn (50 blocks, 800 tokens) in slot 0.
fn predicted(table: &mut Table, id: u64) -> u32 {
    table.always(0, Duration::ZERO);
    let decision = table.seat(long_guest(id, 7, 50));
    table.send(Input::Cancel(RequestId(id)));
    decision.predicted_cached_tokens
}

fn home(table: &Table) -> Option<Home> {
    table.scheduler.homes.get(SessionKey(7), table.now)
}

#[test]
fn a_dispatch_predicts_residency_and_the_lease_counts_what_is_new() {
    let mut table = warm();
    table.seat(long_guest(2, 7, 50));
    let view = &table.scheduler.workers(table.now)[0];
    // 50 blocks are 800 tokens, 40 of them held: 160 to prefill.
    assert_eq!((view.prefill_tokens, view.believed_blocks), (160, 50));
    assert_eq!(view.resident_tokens, 800 + 256);
}

#[test]
fn a_session_settles_only_after_acceptance() {
    let mut table = Table::new(config(), 2, Seats::default());
    table.always(0, Duration::ZERO);
    table.seat(long_guest(1, 7, 40));
    assert_eq!(home(&table), None);
    let retried = only_dispatch(table.fail(first(1), Failure::Connect, true));
    assert_eq!(retried.worker.slot, 1);
    assert_eq!(retried.predicted_cached_tokens, 0);
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 0);
    table.send(Input::Accepted(retried.attempt));
    let settled = home(&table).unwrap();
    assert_eq!((settled.worker, settled.blocks), (retried.worker, 40));
    let views = table.scheduler.workers(table.now);
    assert_eq!((views[0].sessions, views[1].sessions), (0, 1));
    assert_eq!(views[1].believed_blocks, 40);
}

#[test]
fn what_was_not_taken_is_taken_back_to_what_was_there_before() {
    let mut table = warm();
    table.seat(long_guest(2, 7, 50));
    table.fail(first(2), Failure::ServerError, false);
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 40);
    table.seat(long_guest(3, 7, 50));
    table.send(Input::Finished {
        attempt: first(3),
        usage: Usage::default(),
        served: false,
    });
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 40);
}

#[test]
fn what_another_attempt_took_is_believed_again() {
    let mut table = warm();
    table.seat(long_guest(2, 7, 50));
    table.seat(long_guest(3, 7, 50));
    table.fail(first(2), Failure::ServerError, false);
    table.send(Input::Accepted(first(3)));
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 50);
}

#[test]
fn a_miss_of_what_was_predicted_cuts_what_followed_there() {
    let mut table = warm();
    // Another conversation continues the first 40 blocks.
    let mut other = long_guest(2, 7, 40);
    other.chain.extend(90_001..=90_020);
    other.prompt_bytes = 60 * 64;
    table.settle(other);
    table.finish(first(2));
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 60);
    table.settle(long_guest(3, 7, 50));
    table.send(Input::Finished {
        attempt: first(3),
        usage: Usage {
            prompt_tokens: Some(800),
            cached_tokens: Some(160),
            output_tokens: None,
        },
        served: true,
    });
    // 10 blocks were there; its own 50 are there again, the other's 20 are not.
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 50);
}

#[test]
fn a_restarted_worker_is_known_to_be_cold() {
    // Refused, then alive.
    let mut table = warm();
    table.report(0, Report::Alive);
    table.report(0, Report::Dead { refused: true });
    let effects = table.report(0, Report::Alive);
    let epoch = Effect::Epoch {
        read_again: true,
        worker: table.workers[0],
        epoch: 1,
    };
    assert_eq!(effects, [epoch]);
    assert_eq!(home(&table), None);
    assert_eq!(predicted(&mut table, 2), 0);
    assert!(table.report(0, Report::Alive).is_empty());
}

#[test]
fn another_start_time_is_a_restart_and_is_counted_once() {
    let mut table = warm();
    let started = |at| {
        Report::Gauges(Gauges {
            started: Some(at),
            ..Gauges::default()
        })
    };
    assert!(table.report(0, started(100.0)).is_empty());
    assert!(table.report(0, started(100.0)).is_empty());
    assert_eq!(predicted(&mut table, 2), 640);
    assert_eq!(table.report(0, started(200.0)).len(), 1);
    assert_eq!(predicted(&mut table, 3), 0);
    table.report(0, Report::Dead { refused: true });
    assert_eq!(table.report(0, Report::Alive).len(), 1);
    assert!(
        table.report(0, started(300.0)).is_empty(),
        "that same restart"
    );
}

#[test]
fn a_refused_connection_and_a_later_answer_are_a_restart() {
    let mut table = warm();
    table.at(1.0).seat(long_guest(2, 7, 50));
    table.fail(first(2), Failure::Connect, false);
    table.at(2.0).seat(long_guest(3, 7, 45));
    let effects = table.send(Input::Accepted(first(3)));
    assert!(matches!(effects[..], [Effect::Epoch { epoch: 1, .. }]));
    let view = &table.scheduler.workers(table.now)[0];
    assert_eq!((view.believed_blocks, view.sessions), (45, 1));
}

#[test]
fn removal_forgets_homes_and_residency() {
    let mut table = warm();
    table.send(Input::Fleet(FleetChange::Remove(table.workers[0])));
    assert_eq!(home(&table), None);
    table.add(Seats::default(), true);
    assert_eq!(table.workers[2].slot, 0);
    assert_eq!(predicted(&mut table, 2), 0);
}

#[test]
fn homes_expire_when_idle() {
    let mut table = warm();
    table.at(3_600.0).tick();
    assert!(home(&table).is_some());
    table.at(3_601.0).tick();
    assert_eq!(home(&table), None);
    assert_eq!(table.scheduler.workers(table.now)[0].sessions, 0);
}

#[test]
fn belief_is_bounded_by_the_workers_cache() {
    let mut table = Table::new(config(), 1, Seats::default());
    let gauges = Gauges {
        kv_tokens: Some(800),
        ..Gauges::default()
    };
    table.report(0, Report::Gauges(gauges));
    for id in 1..4 {
        table.settle(long_guest(id, id, 30));
        table.finish(first(id));
    }
    // 800 tokens are 3,200 bytes are 50 blocks.
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 50);
}

#[test]
fn cold_prompts_go_round() {
    // One at a time, nothing shared.
    let mut table = Table::new(config(), 4, Seats::default());
    let mut taken = [0_u32; 4];
    for id in 0..8 {
        let decision = table.at(id as f64 + 1.0).settle(long_guest(id, id + 1, 4));
        taken[decision.worker.slot as usize] += 1;
        table.finish(decision.attempt);
    }
    assert_eq!(taken, [2; 4]);
}
