//! Workers that ask for each of their requests.

use super::*;
use alloc::collections::{BTreeMap, VecDeque};

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

const HOLD: Duration = Duration::from_millis(500);

/// Three workers that pull, of which every request prefers the first; and what is known of them from
/// outside.
struct Room {
    table: Table,
    polls: [u32; 3],
    /// Who waits, and for how long a poll has waited beside it, in all: that is what its preference
    /// costs it. Without a poll it would wait anyway.
    waiting: BTreeMap<RequestId, Duration>,
    running: VecDeque<AttemptId>,
    arrived: u64,
    longest: Duration,
}

impl Room {
    fn new() -> Self {
        let mut table = Table::pulling(RequestLimits::default());
        table.add_pulling(RequestLimits::default());
        table.add_pulling(RequestLimits::default());
        table.always(0, HOLD);
        // While others ask for the seats that it passes up, a job holds for as long as the pool allows.
        table.scheduler.config.hold_max = HOLD;
        Self {
            table,
            polls: [0; 3],
            waiting: BTreeMap::new(),
            running: VecDeque::new(),
            arrived: 0,
            longest: Duration::ZERO,
        }
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Dispatch(decision) => {
                    let held = self.waiting.remove(&decision.attempt.request).unwrap();
                    self.longest = self.longest.max(held);
                    let polls = &mut self.polls[decision.worker.slot as usize];
                    assert!(*polls > 0, "no poll waited there");
                    *polls -= 1;
                    self.running.push_back(decision.attempt);
                }
                Effect::Refuse { request, .. } => {
                    self.waiting.remove(&request).unwrap();
                }
                _ => {}
            }
        }
        // Eight slots each are never full here, so a poll that waits is a free seat.
        if self.has_poll() {
            let held = self.waiting.values().max();
            assert!(held.is_none_or(|held| *held < HOLD), "held beyond its hold");
        }
    }

    fn step(&mut self, what: u8, worker: usize, ms: u64) {
        match what {
            0 => {
                self.arrived += 1;
                let id = self.arrived;
                self.waiting.insert(RequestId(id), Duration::ZERO);
                let effects = self.table.arrive(guest(id));
                self.take(effects);
            }
            1 => {
                self.polls[worker] = (self.polls[worker] + 1).min(2);
                let effects = self.table.pop(worker, self.polls[worker]);
                self.take(effects);
            }
            2 => {
                if let Some(attempt) = self.running.pop_front() {
                    let effects = self.table.finish(attempt);
                    self.take(effects);
                }
            }
            _ => self.pass(Duration::from_millis(ms)),
        }
        while self.running.len() > 6 {
            let attempt = self.running.pop_front().unwrap();
            let effects = self.table.finish(attempt);
            self.take(effects);
        }
    }

    /// Time passes; the scheduler is woken when it asked to be.
    fn pass(&mut self, time: Duration) {
        let end = self.table.now + time;
        while let Some(at) = self.table.scheduler.next_wake().filter(|at| *at <= end) {
            self.go_to(at);
            let effects = self.table.tick();
            self.take(effects);
        }
        self.go_to(end);
    }

    fn has_poll(&self) -> bool {
        self.polls.iter().any(|polls| *polls > 0)
    }

    fn go_to(&mut self, at: Nanos) {
        let passed = at.since(self.table.now);
        if self.has_poll() {
            for held in self.waiting.values_mut() {
                *held += passed;
            }
        }
        self.table.now = self.table.now.max(at);
    }
}

#[test]
fn affinity_never_delays_a_job_beyond_its_hold() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut room = Room::new();
        for _ in 0..120 {
            let mut below = |n| rng.below(n);
            let (what, worker, ms) = (below(5) as u8, below(3), below(400) as u64);
            room.step(what, worker, ms);
        }
    }
}

/// The property is about something: jobs are held, and then go.
#[test]
fn a_held_job_goes_at_the_end_of_its_hold() {
    let mut room = Room::new();
    room.step(1, 1, 0);
    room.step(0, 0, 0);
    assert_eq!(room.waiting.len(), 1, "it prefers the first");
    room.pass(HOLD);
    assert_eq!((room.waiting.len(), room.longest), (0, HOLD));
}
