//! Workers that ask for each of their requests.

use super::*;

impl Table {
    fn add_pulling(&mut self, limits: RequestLimits) {
        let id = self.scheduler.next_worker_id();
        let spec = WorkerSpec {
            identity: u64::from(id.slot) + 100,
            seats: slots(8),
            models: Vec::new(),
            assume_ready: true,
            pulls: true,
            limits,
        };
        self.workers.push(id);
        self.send(Input::Fleet(FleetChange::Add(id, spec)));
    }

    fn pop(&mut self, worker: usize, seats: u32) -> Vec<Effect> {
        let worker = self.workers[worker];
        self.send(Input::Pop { worker, seats })
    }

    fn pulling(limits: RequestLimits) -> Self {
        let mut table = Self::new(config(), 0, Seats::default());
        table.add_pulling(limits);
        table
    }
}

#[test]
fn each_poll_is_one_seat() {
    let mut table = Table::pulling(RequestLimits::default());
    for id in 1..=3 {
        assert_eq!(table.arrive(guest(id)), [], "nobody asked yet");
    }
    let effects = table.pop(0, 2);
    assert_eq!(effects.len(), 2, "the line's first two: {effects:?}");
    assert_eq!(table.scheduler.workers(table.now)[0].polls, Some(0));
    // The end of a request is no poll.
    assert_eq!(table.finish(first(1)), []);
    let decision = only_dispatch(table.pop(0, 1));
    assert_eq!(decision.attempt, first(3));
}

#[test]
fn polls_are_counted_anew_each_time() {
    let mut table = Table::pulling(RequestLimits::default());
    table.pop(0, 2);
    table.pop(0, 2);
    // One of the two ended unused.
    table.pop(0, 1);
    table.seat(guest(1));
    assert_eq!(table.arrive(guest(2)), []);
    // Slots bound it as well.
    table.pop(0, 50);
    for id in 3..=8 {
        table.seat(guest(id));
    }
    assert_eq!(table.arrive(guest(9)), [], "eight run");
}

#[test]
fn a_poll_means_nothing_of_a_worker_that_is_sent_its_requests() {
    let mut table = Table::new(config(), 1, Seats::default());
    table.pop(0, 0);
    table.seat(guest(1));
    assert_eq!(table.scheduler.workers(table.now)[0].polls, None);
}

#[test]
fn a_home_that_does_not_ask_is_waited_for_as_long_as_any_other() {
    let mut table = Table::pulling(RequestLimits::default());
    table.add_pulling(RequestLimits::default());
    table.always(0, Duration::from_millis(500));
    table.pop(1, 1);
    assert_eq!(table.arrive(guest(1)), [], "it holds for its home");
    let decision = only_dispatch(table.at(0.5).tick());
    assert_eq!(decision.worker, table.workers[1], "and then goes elsewhere");
    // A home that asks within the hold gets it.
    table.pop(1, 1);
    assert_eq!(table.at(1.0).arrive(guest(2)), []);
    let decision = only_dispatch(table.at(1.2).pop(0, 1));
    assert_eq!(decision.worker, table.workers[0]);
}

#[test]
fn a_worker_takes_what_its_limits_allow() {
    let mut table = Table::pulling(RequestLimits {
        context_max: Some(160),
        output_max: Some(80),
        tenants: [TenantId(7)].into(),
        plain_only: true,
    });
    // 100 tokens of prompt, by estimate.
    let fits = |id| Arrival {
        tenant: TenantId(7),
        max_tokens: Some(60),
        plain: true,
        ..guest(id)
    };
    table.pop(0, 8);
    table.seat(fits(1));
    let too_much = [
        Arrival {
            max_tokens: Some(61),
            ..fits(2)
        },
        Arrival {
            prompt_tokens: Some(20),
            max_tokens: Some(81),
            ..fits(3)
        },
        Arrival {
            tenant: TenantId(8),
            ..fits(4)
        },
        Arrival {
            plain: false,
            ..fits(5)
        },
    ];
    for guest in too_much {
        assert_eq!(table.arrive(guest), []);
    }
    // An answer of unknown length is not held against it.
    table.seat(Arrival {
        max_tokens: None,
        ..fits(6)
    });
    let effects = table.at(30.0).tick();
    let refused =
        |e: &Effect| matches!(e, Effect::Refuse { refusal, .. } if *refusal == Refusal::NoWorkers);
    assert_eq!(
        effects.iter().filter(|e| refused(e)).count(),
        4,
        "{effects:?}"
    );
}

#[test]
fn new_limits_let_those_in_who_waited() {
    let mut table = Table::pulling(RequestLimits {
        context_max: Some(99),
        ..RequestLimits::default()
    });
    table.pop(0, 1);
    assert_eq!(table.arrive(guest(1)), []);
    let worker = table.workers[0];
    let change = FleetChange::Limits(worker, RequestLimits::default());
    let decision = only_dispatch(table.send(Input::Fleet(change)));
    assert_eq!(decision.worker, worker);
}
