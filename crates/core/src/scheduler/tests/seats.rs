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
        running: Some(4),
        waiting: Some(1),
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

/// An engine that runs the first `most` of what it has, and reports once a second.
struct Engine {
    most: usize,
    /// In the order of their dispatch, each with what it still needs in tenths of a second.
    has: Vec<(u64, u32)>,
}

impl Engine {
    /// A tenth of a second; those that ended.
    fn run(&mut self) -> Vec<u64> {
        for (_, left) in self.has.iter_mut().take(self.most) {
            *left -= 1;
        }
        let ended = self.has.iter().filter(|(_, left)| *left == 0);
        let ended = ended.map(|(id, _)| *id).collect();
        self.has.retain(|(_, left)| *left > 0);
        ended
    }

    fn running(&self) -> usize {
        self.has.len().min(self.most)
    }

    fn waiting(&self) -> usize {
        self.has.len() - self.running()
    }
}

/// Load of 1.5 times the engine's capacity for 10 minutes. Returns, for each second, what the engine
/// let run and wait when it reported, and what waited in our line.
fn overloaded(config: PoolConfig, most: impl Fn(u32) -> usize) -> Vec<(usize, usize, usize)> {
    let mut table = Table::new(config, 1, Seats::default());
    let mut engine = Engine {
        most: most(0),
        has: Vec::new(),
    };
    let mut reports = Vec::new();
    let (mut next, mut owed) = (0, 0.0);
    for tenth in 0..6_000_u32 {
        table.at(f64::from(tenth) / 10.0);
        let dispatches = |engine: &mut Engine, effects: Vec<Effect>| {
            for effect in effects {
                if let Effect::Dispatch(decision) = effect {
                    let id = decision.attempt.request.0;
                    // 5 to 15 s.
                    engine.has.push((id, 50 + (id * 37 % 101) as u32));
                }
            }
        };
        for id in engine.run() {
            let effects = table.finish(first(id));
            dispatches(&mut engine, effects);
        }
        owed += 1.5 * most(tenth / 10) as f64 / 100.0;
        while owed >= 1.0 {
            (next, owed) = (next + 1, owed - 1.0);
            let effects = table.arrive(guest(next));
            dispatches(&mut engine, effects);
        }
        if tenth % 10 == 0 {
            engine.most = most(tenth / 10);
            reports.push((
                engine.running(),
                engine.waiting(),
                table.scheduler.line_len(),
            ));
            let gauges = Gauges {
                running: Some(engine.running() as u32),
                waiting: Some(engine.waiting() as u32),
                ..Gauges::default()
            };
            let effects = table.report(0, Report::Gauges(gauges));
            dispatches(&mut engine, effects);
        }
    }
    reports
}

/// What waits, waits in our line: in the engine at most one, from soon after the engine was first
/// full; and it is never less than full.
#[test]
fn the_engines_own_queue_stays_short_where_slots_are_learnt() {
    let patient = || PoolConfig {
        fairness: crate::line::FairnessConfig::named("fcfs").unwrap(),
        line_max: 10_000,
        max_wait: Duration::from_secs(10_000),
        ..config()
    };
    let reports = overloaded(patient(), |_| 16);
    let full = reports
        .iter()
        .position(|(_, waiting, _)| *waiting > 1)
        .unwrap();
    let late = reports[full + 1..]
        .iter()
        .filter(|(_, waiting, _)| *waiting > 1);
    assert!(late.count() <= 5, "until what was sent too much is gone");
    for (second, (running, waiting, line)) in reports.iter().enumerate().skip(full + 6) {
        assert!(*waiting <= 1, "{waiting} wait at {second} s");
        assert_eq!(*running, 16, "at {second} s, with {line} in the line");
        assert!(*line > 0);
    }
    // Without it they all wait in the engine.
    let unlearnt = PoolConfig {
        learn_slots: false,
        ..patient()
    };
    let reports = overloaded(unlearnt, |_| 16);
    assert!(
        reports
            .last()
            .is_some_and(|(_, waiting, line)| *waiting > 300 && *line == 0)
    );
}

/// An engine that can run less for a while (long prompts fill its memory), and then as much again.
#[test]
fn learnt_slots_follow_the_engine() {
    let most = |second: u32| {
        if (200..400).contains(&second) { 6 } else { 24 }
    };
    let patient = PoolConfig {
        fairness: crate::line::FairnessConfig::named("fcfs").unwrap(),
        line_max: 100_000,
        max_wait: Duration::from_secs(10_000),
        ..config()
    };
    let reports = overloaded(patient, most);
    let of = |from: usize, to: usize| &reports[from..to];
    // Half a minute after each change.
    for (from, to, most) in [(30, 200, 24), (240, 400, 6), (430, 600, 24)] {
        let much = of(from, to).iter().filter(|(_, waiting, _)| *waiting > 1);
        assert!(much.count() <= 3, "from {from} s");
        let idle = of(from, to)
            .iter()
            .filter(|(running, _, _)| *running < most);
        assert!(idle.count() <= 3, "from {from} s");
    }
}

/// Metrics that hang stop nothing: what was learnt bounds less and less.
#[test]
fn a_learnt_limit_without_reports_lets_more_and_more_through() {
    let mut table = Table::new(config(), 1, Seats::default());
    let word = |running, waiting| {
        Report::Gauges(Gauges {
            running: Some(running),
            waiting: Some(waiting),
            ..Gauges::default()
        })
    };
    for id in 1..=4 {
        table.seat(guest(id));
    }
    table.report(0, word(2, 2));
    assert_eq!(table.scheduler.workers(table.now)[0].slots_learnt, Some(3));
    assert_eq!(table.arrive(guest(5)), []);
    assert_eq!(table.finish(first(1)), [], "three are its limit");
    only_dispatch(table.finish(first(2)));
    // 10 s later it may have five.
    assert_eq!(table.arrive(guest(6)), []);
    table.at(10.0);
    assert_eq!(table.scheduler.workers(table.now)[0].slots_learnt, Some(5));
    only_dispatch(table.finish(first(3)));
}

/// What an engine cannot hold waited there, behind a cache that is full of others' prompts.
#[test]
fn no_more_is_sent_than_the_engine_says_its_cache_holds() {
    let mut table = Table::new(config(), 1, Seats::default());
    let gauges = crate::pool::Gauges {
        kv_tokens: Some(1_000),
        ..Default::default()
    };
    table.report(0, Report::Gauges(gauges));
    let cold = |id: u64, tokens: u32| Arrival {
        prompt_tokens: Some(tokens),
        ..guest(id)
    };
    table.seat(cold(1, 600));
    table.seat(cold(2, 400));
    table.send(Input::FirstToken(first(1)));
    assert_eq!(
        table.arrive(cold(3, 1)),
        [],
        "its first token came, its prompt is still held"
    );
    assert_eq!(only_dispatch(table.finish(first(2))).attempt, first(3));
    // What is larger than the cache is the engine's to refuse, once nothing else is there.
    assert_eq!(table.arrive(cold(4, 5_000)), []);
    table.finish(first(1));
    assert_eq!(only_dispatch(table.finish(first(3))).attempt, first(4));
}
