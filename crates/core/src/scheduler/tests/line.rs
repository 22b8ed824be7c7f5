//! Waiting, holding, passing, giving up.

use super::*;

fn one_seat() -> Table {
    Table::new(config(), 1, slots(1))
}

#[test]
fn first_come_first_served() {
    let mut table = one_seat();
    table.seat(guest(1));
    for id in 2..=4 {
        assert!(table.arrive(guest(id)).is_empty());
    }
    for id in 1..=3 {
        let decision = only_dispatch(table.finish(first(id)));
        assert_eq!((decision.attempt, decision.passed_by), (first(id + 1), 0));
    }
    assert_eq!(table.scheduler.line_len(), 0);
}

#[test]
fn a_cancelled_request_leaves_the_line_at_once() {
    let mut table = one_seat();
    table.seat(guest(1));
    table.arrive(guest(2));
    table.arrive(guest(3));
    assert!(table.send(Input::Cancel(RequestId(2))).is_empty());
    assert_eq!(table.scheduler.line_len(), 1);
    let effects = table.send(Input::Cancel(RequestId(1)));
    assert_eq!(only_dispatch(effects).attempt, first(3));
}

#[test]
fn a_full_line_refuses_and_advises_by_its_drain_rate() {
    let mut table = Table::new(
        PoolConfig {
            line_max: 2,
            ..config()
        },
        1,
        slots(1),
    );
    table.seat(guest(1));
    table.arrive(guest(2));
    table.arrive(guest(3));
    let effects = table.arrive(guest(4));
    let unknown = Effect::Refuse {
        request: RequestId(4),
        refusal: Refusal::LineFull,
        retry_after: None,
    };
    assert_eq!(effects, [unknown]);
    table.at(1.0).finish(first(1));
    table.arrive(guest(5));
    table.at(6.0).finish(first(2));
    table.arrive(guest(6));
    let effects = table.arrive(guest(7));
    let known = Effect::Refuse {
        request: RequestId(7),
        refusal: Refusal::LineFull,
        retry_after: Some(Duration::from_secs(5)),
    };
    assert_eq!(effects, [known]);
}

#[test]
fn waits_end_at_max_wait_or_at_the_guests_own_deadline() {
    let mut table = one_seat();
    table.seat(guest(1));
    table.arrive(guest(2));
    table.arrive(Arrival {
        deadline: Some(Nanos(2_000_000_000)),
        ..guest(3)
    });
    assert_eq!(table.scheduler.next_wake(), Some(Nanos(2_000_000_000)));
    assert_eq!(refusal(&table.at(2.0).tick()), Refusal::WaitExpired);
    assert_eq!(refusal(&table.at(300.0).tick()), Refusal::WaitExpired);
    assert_eq!(table.scheduler.next_wake(), None);
    // A deadline of an hour does not make the line an hour long.
    table.arrive(Arrival {
        deadline: Some(Nanos(3_600_000_000_000)),
        ..guest(5)
    });
    assert_eq!(table.scheduler.next_wake(), Some(Nanos(600_000_000_000)));
    assert_eq!(refusal(&table.at(600.0).tick()), Refusal::WaitExpired);
    let late = Arrival {
        deadline: Some(Nanos(0)),
        ..guest(4)
    };
    assert_eq!(refusal(&table.arrive(late)), Refusal::WaitExpired);
}

#[test]
fn wake_ups_are_told_when_they_get_earlier() {
    let mut table = one_seat();
    table.seat(guest(1));
    let mut effects = Vec::new();
    let mut arrive = |id, deadline| {
        effects.clear();
        let guest = Arrival {
            deadline: Some(Nanos(deadline)),
            ..guest(id)
        };
        let input = Input::Arrive(Box::new(guest));
        table.scheduler.handle(Nanos(0), input, &mut effects);
        effects.clone()
    };
    assert_eq!(arrive(2, 50), [Effect::Wake(Nanos(50))]);
    assert_eq!(arrive(3, 60), []);
    assert_eq!(arrive(4, 40), [Effect::Wake(Nanos(40))]);
}

#[test]
fn a_holder_waits_for_its_worker_and_others_pass() {
    let mut table = Table::new(config(), 2, slots(1));
    table.always(0, Duration::from_secs(1));
    table.seat(guest(1));
    assert!(table.arrive(guest(2)).is_empty(), "it holds for slot 0");
    table.always(1, Duration::ZERO);
    let passing = table.seat(guest(3));
    assert_eq!(passing.worker.slot, 1);
    table.always(0, Duration::from_secs(1));
    let held = only_dispatch(table.at(0.5).finish(first(1)));
    assert_eq!((held.attempt, held.worker.slot), (first(2), 0));
    assert_eq!((held.passed_by, held.reason), (1, Reason::Home));
    assert_eq!((held.arrived, held.dispatched), (Nanos(0), table.now));
}

#[test]
fn a_hold_ends_in_time_and_is_bounded_by_the_pool() {
    let mut table = Table::new(config(), 2, slots(1));
    table.always(0, Duration::from_secs(60));
    table.seat(guest(1));
    assert!(table.arrive(guest(2)).is_empty());
    assert!(table.at(1.9).tick().is_empty());
    let decision = only_dispatch(table.at(2.0).tick());
    assert_eq!(decision.worker.slot, 1, "hold_max is 2 s");
    assert_eq!(decision.reason, Reason::HomeUnavailable);
    assert_eq!(decision.candidates_count, 2);
    assert_eq!(decision.candidates[1].worker.slot, 0);
    assert!(!decision.candidates[1].seat);
}

#[test]
fn a_hold_of_zero_takes_the_best_seat_at_once() {
    let mut table = Table::new(config(), 2, slots(1));
    table.always(0, Duration::ZERO);
    table.seat(guest(1));
    assert_eq!(table.seat(guest(2)).worker.slot, 1);
    assert!(table.arrive(guest(3)).is_empty());
    let decision = only_dispatch(table.finish(first(2)));
    assert_eq!((decision.attempt, decision.worker.slot), (first(3), 1));
}

#[test]
fn a_hold_ends_when_its_worker_takes_no_work() {
    let mut table = Table::new(config(), 2, slots(1));
    table.always(0, Duration::from_secs(1));
    table.seat(guest(1));
    table.arrive(guest(2));
    let drain = FleetChange::Drain(table.workers[0], None);
    let decision = only_dispatch(table.send(Input::Fleet(drain)));
    assert_eq!(decision.worker.slot, 1);
}

#[test]
fn a_full_line_leaves_no_place_to_hold_in() {
    let mut table = Table::new(
        PoolConfig {
            line_max: 0,
            ..config()
        },
        2,
        slots(1),
    );
    table.always(0, Duration::from_secs(1));
    table.seat(guest(1));
    assert_eq!(table.seat(guest(2)).worker.slot, 1);
    assert_eq!(refusal(&table.arrive(guest(3))), Refusal::LineFull);
}

#[test]
fn those_who_wait_are_seated_on_a_worker_that_joins() {
    let mut table = Table::new(config(), 0, Seats::default());
    for id in 1..=5 {
        assert!(table.arrive(guest(id)).is_empty());
    }
    let effects = table.at(3.0).add(Seats::default(), true);
    assert_eq!(effects.len(), 5, "{effects:?}");
}

#[test]
fn without_a_worker_requests_wait_a_while() {
    let mut table = Table::new(config(), 0, Seats::default());
    table.arrive(guest(1));
    assert!(table.at(29.9).tick().is_empty());
    assert_eq!(refusal(&table.at(30.0).tick()), Refusal::NoWorkers);
    let at_once = PoolConfig {
        no_worker_wait: Duration::ZERO,
        ..config()
    };
    let mut table = Table::new(at_once, 0, Seats::default());
    assert_eq!(refusal(&table.arrive(guest(1))), Refusal::NoWorkers);
}

#[test]
fn the_clock_of_those_without_a_worker_starts_and_stops_with_the_fleet() {
    let mut table = one_seat();
    table.seat(guest(1));
    table.arrive(guest(2));
    let gone = FleetChange::Remove(table.workers[0]);
    table.at(100.0).send(Input::Fleet(gone));
    assert_eq!(table.scheduler.next_wake(), Some(Nanos(130_000_000_000)));
    // The newcomer has no seat, but it is a worker.
    table.at(110.0).add(slots(0), true);
    assert_eq!(table.scheduler.next_wake(), Some(Nanos(300_000_000_000)));
}

#[test]
fn a_worker_that_does_not_list_the_model_is_no_candidate() {
    use crate::ids::ModelKey;
    let mut table = Table::new(config(), 2, Seats::default());
    let models = FleetChange::Models(table.workers[0], [ModelKey(1), ModelKey(2)].into());
    table.send(Input::Fleet(models));
    let models = FleetChange::Models(table.workers[1], [ModelKey(3)].into());
    table.send(Input::Fleet(models));
    let of = |id, model| Arrival {
        model: Some(ModelKey(model)),
        ..guest(id)
    };
    assert_eq!(table.seat(of(1, 2)).worker.slot, 0);
    assert_eq!(table.seat(of(2, 3)).worker.slot, 1);
    assert!(table.arrive(of(3, 4)).is_empty(), "nobody lists it, now");
    let models = FleetChange::Models(table.workers[0], [ModelKey(4)].into());
    let effects = table.send(Input::Fleet(models));
    assert_eq!(only_dispatch(effects).worker.slot, 0);
}

#[test]
fn hundred_leave_and_the_seats_are_all_there() {
    let mut table = Table::new(config(), 1, slots(4));
    for id in 0..100 {
        table.arrive(guest(id));
    }
    for id in 0..100 {
        table.at(0.1).send(Input::Cancel(RequestId(id)));
    }
    assert_eq!((table.running()[0], table.scheduler.requests_len()), (0, 0));
    for id in 200..204 {
        table.seat(guest(id));
    }
    assert!(table.arrive(guest(204)).is_empty());
    let effects = table.finish(first(201));
    assert_eq!(only_dispatch(effects).attempt, first(204));
}

#[test]
fn a_large_prompt_is_not_passed_for_ever_by_small_ones() {
    let seats = Seats {
        prefill_tokens: Some(400),
        ..Seats::default()
    };
    let mut table = Table::new(config(), 1, seats);
    for id in 1..=3 {
        table.seat(guest(id));
    }
    let large = Arrival {
        prompt_bytes: 1_200,
        ..guest(1_000)
    };
    assert!(table.arrive(large).is_empty(), "300 + 300 > 400");
    // Each small one that comes finds room, and one before it leaves.
    let mut id = 4;
    while table.scheduler.line_len() == 1 {
        table.seat(guest(id));
        table.finish(first(id - 3));
        id += 1;
        if id == 4 + 64 {
            break;
        }
    }
    assert!(table.arrive(guest(2_000)).is_empty(), "64 passed: no more");
    assert!(table.finish(first(id - 1)).is_empty());
    let decision = only_dispatch(table.finish(first(id - 2)));
    assert_eq!((decision.attempt, decision.passed_by), (first(1_000), 64));
}
