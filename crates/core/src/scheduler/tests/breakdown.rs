//! Failures, retries, breaker, probes, saturation.

use super::*;
use crate::pool::Availability;

fn availability(table: &Table, worker: usize) -> Availability {
    table.scheduler.workers(table.now)[worker].availability
}

#[test]
fn a_retry_goes_to_every_other_worker_once_and_then_ends() {
    let mut table = Table::new(
        PoolConfig {
            attempts: 8,
            ..config()
        },
        3,
        Seats::default(),
    );
    let mut tried = Vec::new();
    let mut decision = table.seat(guest(1));
    for number in 1..=3 {
        assert_eq!(decision.attempt.number, number);
        assert!(!tried.contains(&decision.worker));
        tried.push(decision.worker);
        let effects = table.fail(decision.attempt, Failure::ServerError, true);
        if number < 3 {
            decision = only_dispatch(effects);
            assert_eq!(decision.reason, Reason::Retry);
        } else {
            let last = Refusal::AttemptsExhausted(Failure::ServerError);
            assert_eq!(refusal(&effects), last);
        }
    }
    assert_eq!(
        (table.running(), table.scheduler.requests_len()),
        ([0; 3].into(), 0)
    );
}

#[test]
fn attempts_are_bounded_and_only_for_those_that_may_be_retried() {
    let two = PoolConfig {
        attempts: 2,
        ..config()
    };
    let mut table = Table::new(two, 4, Seats::default());
    let decision = table.seat(guest(1));
    let decision = only_dispatch(table.fail(decision.attempt, Failure::Reset, true));
    let effects = table.fail(decision.attempt, Failure::Connect, true);
    assert_eq!(
        refusal(&effects),
        Refusal::AttemptsExhausted(Failure::Connect)
    );
    table.seat(Arrival {
        retryable: false,
        ..guest(2)
    });
    let effects = table.fail(first(2), Failure::Reset, true);
    assert_eq!(
        refusal(&effects),
        Refusal::AttemptsExhausted(Failure::Reset)
    );
    table.seat(guest(3));
    assert!(table.fail(first(3), Failure::Truncated, false).is_empty());
    assert_eq!(table.scheduler.requests_len(), 0);
}

#[test]
fn a_retry_waits_for_a_seat_at_its_own_place_in_the_line() {
    let mut table = Table::new(config(), 2, slots(1));
    let a = table.seat(guest(1));
    let b = table.seat(guest(2));
    table.arrive(guest(3));
    // The seat on the failed worker goes to 3, who came later; 1 waits for the other worker.
    let effects = table.fail(a.attempt, Failure::Reset, true);
    assert_eq!(only_dispatch(effects).attempt, first(3));
    table.arrive(guest(4));
    let decision = only_dispatch(table.finish(b.attempt));
    assert_eq!(decision.attempt.request, RequestId(1));
    assert_eq!((decision.attempt.number, decision.worker), (2, b.worker));
}

#[test]
fn faults_open_the_breaker_and_one_success_closes_it() {
    let mut table = Table::new(config(), 1, Seats::default());
    for id in 1..=3 {
        table.seat(guest(id));
        table.fail(first(id), Failure::ServerError, false);
    }
    assert_eq!(availability(&table, 0), Availability::Broken);
    assert!(table.at(1.0).arrive(guest(4)).is_empty());
    assert!(table.arrive(guest(5)).is_empty());
    assert_eq!(table.scheduler.next_wake(), Some(Nanos(10_000_000_000)));
    let trial = only_dispatch(table.at(10.0).tick());
    assert_eq!(trial.attempt, first(4), "one attempt may try");
    let effects = table.finish(first(4));
    assert_eq!(only_dispatch(effects).attempt, first(5));
    assert_eq!(availability(&table, 0), Availability::Ready);
}

#[test]
fn client_errors_never_touch_the_breaker() {
    let mut table = Table::new(config(), 1, Seats::default());
    for id in 0..20 {
        table.seat(guest(id));
        table.send(Input::Finished {
            attempt: first(id),
            usage: Usage::default(),
            served: false,
        });
    }
    assert_eq!(availability(&table, 0), Availability::Ready);
    table.seat(guest(20));
}

#[test]
fn saturation_keeps_a_worker_free_for_a_second_at_most() {
    let mut table = Table::new(config(), 1, Seats::default());
    for id in 0..10 {
        let start = f64::from(id as u32);
        table.at(start).arrive(guest(id));
        let effects = table.send(Input::Failed {
            attempt: first(id),
            failure: Failure::Saturated,
            retry: true,
            retry_after: Some(Duration::from_secs(9)),
        });
        let told = Effect::Refuse {
            request: RequestId(id),
            refusal: Refusal::AttemptsExhausted(Failure::Saturated),
            retry_after: Some(Duration::from_secs(9)),
        };
        assert_eq!(effects, [told]);
        assert_eq!(availability(&table, 0), Availability::Ready);
    }
    assert!(table.at(9.5).arrive(guest(10)).is_empty());
    assert_eq!(only_dispatch(table.at(10.0).tick()).attempt, first(10));
}

#[test]
fn saturation_sends_the_request_to_another_worker() {
    let mut table = Table::new(config(), 2, Seats::default());
    let full = table.seat(guest(1));
    let other = only_dispatch(table.fail(full.attempt, Failure::Saturated, true));
    assert_ne!(full.worker, other.worker);
    for id in 2..6 {
        assert_eq!(table.seat(guest(id)).worker, other.worker);
    }
}

#[test]
fn probes_alone_never_remove_the_last_worker() {
    let mut table = Table::new(config(), 2, Seats::default());
    for _ in 0..3 {
        table.report(0, Report::Dead { refused: false });
    }
    assert_eq!(availability(&table, 0), Availability::Unhealthy);
    for id in 0..4 {
        assert_eq!(table.seat(guest(id)).worker.slot, 1);
    }
    for _ in 0..3 {
        table.report(1, Report::Dead { refused: false });
    }
    assert_eq!(table.seat(guest(5)).candidates_count, 2, "still tried");
    table.report(0, Report::Bytes);
    assert_eq!(table.seat(guest(6)).candidates_count, 1);
    assert_eq!(availability(&table, 0), Availability::Ready);
}

#[test]
fn nothing_is_sent_while_a_model_loads() {
    let mut table = Table::new(config(), 0, Seats::default());
    table.add(Seats::default(), false);
    table.arrive(guest(1));
    for second in 1..20 {
        let effects = table.at(f64::from(second)).report(0, Report::Loading);
        assert!(effects.is_empty());
    }
    let effects = table.at(20.0).report(0, Report::Alive);
    let ready = Effect::Availability {
        worker: table.workers[0],
        state: Availability::Ready,
    };
    assert_eq!(effects[0], ready);
    assert_eq!(only_dispatch(effects).attempt, first(1));
}
