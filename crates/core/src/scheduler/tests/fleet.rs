//! Workers that go, drain and come back; exact bindings.

use super::*;
use crate::ids::ResponseKey;
use crate::scheduler::LostResponse;

#[test]
fn a_removed_workers_releases_never_touch_its_successor() {
    let mut table = Table::new(config(), 1, Seats::default());
    table.seat(guest(1));
    let removed = table.workers[0];
    let effects = table.send(Input::Fleet(FleetChange::Remove(removed)));
    assert_eq!(effects, [Effect::Abort(first(1))]);
    table.add(Seats::default(), true);
    assert_eq!((table.workers[1].slot, table.workers[1].generation), (0, 1));
    table.seat(guest(2));
    assert_eq!(table.running(), [1]);
    table.finish(first(1));
    assert_eq!(table.running(), [1], "its own lease only");
    table.send(Input::Fleet(FleetChange::Remove(removed)));
    assert_eq!(table.running(), [1], "that life is over");
}

#[test]
fn an_aborted_attempt_is_tried_elsewhere() {
    let mut table = Table::new(config(), 2, Seats::default());
    let decision = table.seat(guest(1));
    table.send(Input::Fleet(FleetChange::Remove(decision.worker)));
    let effects = table.fail(first(1), Failure::Reset, true);
    assert_ne!(only_dispatch(effects).worker, decision.worker);
}

#[test]
fn a_draining_worker_finishes_what_it_has_until_the_deadline() {
    let mut table = Table::new(config(), 2, Seats::default());
    let stays = table.seat(guest(1)).worker;
    let deadline = Some(Nanos(5_000_000_000));
    table.send(Input::Fleet(FleetChange::Drain(stays, deadline)));
    for id in 2..5 {
        assert_ne!(table.seat(guest(id)).worker, stays);
    }
    assert!(table.at(4.9).tick().is_empty());
    assert_eq!(table.at(5.0).tick(), [Effect::Abort(first(1))]);
    table.fail(first(1), Failure::Reset, false);
    assert!(table.at(6.0).tick().is_empty(), "once");
    table.send(Input::Fleet(FleetChange::Resume(stays)));
    assert_eq!(table.seat(guest(6)).worker, stays);
}

#[test]
fn many_workers_come_and_go_and_nothing_is_left() {
    let mut table = Table::new(config(), 0, Seats::default());
    for round in 0..300 {
        table.add(Seats::default(), true);
        let worker = table.workers[round as usize];
        let id = u64::from(round as u32);
        table.settle(long_guest(id, id + 1, 100));
        table.finish(first(id));
        table.send(Input::Fleet(FleetChange::Remove(worker)));
    }
    assert!(table.scheduler.workers(table.now).is_empty());
    assert!(table.scheduler.index_bytes() < 64 << 10);
    assert_eq!(table.scheduler.next_worker_id().slot, 0);
}

fn continuing(id: u64) -> Arrival {
    Arrival {
        previous_response: Some(ResponseKey(9)),
        ..guest(id)
    }
}

fn bound(lost_response: LostResponse) -> (Table, WorkerId) {
    let config = PoolConfig {
        lost_response,
        ..config()
    };
    let mut table = Table::new(config, 3, slots(2));
    let holder = table.settle(guest(1)).worker;
    table.send(Input::Responded {
        attempt: first(1),
        response: ResponseKey(9),
    });
    (table, holder)
}

#[test]
fn a_response_is_continued_on_the_worker_that_holds_it() {
    let (mut table, holder) = bound(LostResponse::Place);
    let decision = table.seat(continuing(2));
    assert_eq!((decision.worker, decision.reason), (holder, Reason::Pinned));
    assert!(
        table.arrive(continuing(3)).is_empty(),
        "no seat there: it waits"
    );
    table.seat(guest(4));
    let decision = only_dispatch(table.finish(first(1)));
    assert_eq!((decision.attempt, decision.worker), (first(3), holder));
    let unknown = Arrival {
        previous_response: Some(ResponseKey(10)),
        ..guest(5)
    };
    assert_eq!(table.seat(unknown).reason, Reason::LeastLoad);
}

#[test]
fn a_lost_response_is_placed_or_refused_as_the_pool_says() {
    let (mut table, holder) = bound(LostResponse::Place);
    table.seat(continuing(2));
    table.arrive(continuing(3));
    let effects = table.send(Input::Fleet(FleetChange::Drain(holder, None)));
    let decision = only_dispatch(effects);
    assert_eq!(
        decision.attempt,
        first(3),
        "no new work on a draining worker"
    );
    assert_ne!(decision.worker, holder);

    let (mut table, holder) = bound(LostResponse::Refuse);
    table.seat(continuing(2));
    table.arrive(continuing(3));
    let effects = table.send(Input::Fleet(FleetChange::Remove(holder)));
    let lost = Effect::Refuse {
        request: RequestId(3),
        refusal: Refusal::ResponseLost,
        retry_after: None,
    };
    assert!(effects.contains(&lost), "{effects:?}");
    assert_eq!(refusal(&table.arrive(continuing(4))), Refusal::ResponseLost);
}

#[test]
fn a_restart_loses_the_responses() {
    let (mut table, holder) = bound(LostResponse::Refuse);
    let at = table.workers.iter().position(|w| *w == holder).unwrap();
    table.report(at, Report::Dead { refused: true });
    let effects = table.report(at, Report::Alive);
    assert_eq!(
        effects,
        [Effect::Epoch {
            read_again: true,
            worker: holder,
            epoch: 1
        }]
    );
    assert_eq!(refusal(&table.arrive(continuing(2))), Refusal::ResponseLost);
}
