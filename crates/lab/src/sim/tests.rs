#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::time::Duration;

use maitred_core::decision::Reason;
use maitred_core::ids::TenantId;
use maitred_core::line::FairnessConfig;
use maitred_core::request::Refusal;
use maitred_core::rng::mix;
use maitred_core::scheduler::PoolConfig;
use maitred_core::time::Nanos;
use maitred_enginesim::model;

use super::{
    Ask, End, EngineKind, FleetEvent, Outcome, Reports, Run, Service, Setup, SetupError, Workload,
    run,
};

/// Sessions with one start each, so many turns, and a fixed pause.
struct Script {
    starts: Vec<(u64, Ask)>,
    turns: u32,
    think: Duration,
}

fn seconds(at: u64) -> Nanos {
    Nanos(at * 1_000_000_000)
}

fn ask(session: u64, turn: u32) -> Ask {
    Ask {
        session,
        group: 0,
        tenant: TenantId(0),
        turn,
        tries: 0,
        chain: (0..u64::from(4 * turn))
            .map(|at| mix(session << 32 | at))
            .collect(),
        prompt_tokens: 64 * turn + 1,
        output_tokens: 8,
        patience: None,
    }
}

impl Script {
    fn new(starts: &[u64], turns: u32, think: u64) -> Self {
        let starts = starts.iter().enumerate();
        Self {
            starts: starts
                .map(|(session, at)| (*at, ask(session as u64, 1)))
                .rev()
                .collect(),
            turns,
            think: Duration::from_secs(think),
        }
    }
}

impl Workload for Script {
    fn start(&mut self) -> Option<(Nanos, Ask)> {
        self.starts.pop().map(|(at, ask)| (seconds(at), ask))
    }

    fn next(&mut self, last: &Outcome) -> Option<(Duration, Ask)> {
        let more = last.end == End::Served && last.turn < self.turns;
        more.then(|| (self.think, ask(last.session, last.turn + 1)))
    }
}

fn seats(slots: u32, service: u64) -> EngineKind {
    EngineKind::Seats {
        slots,
        service: Service::Fixed(Duration::from_secs(service)),
        block_tokens: 16,
        kv_tokens: 16_384,
    }
}

fn setup(workers: Vec<EngineKind>) -> Setup {
    Setup {
        pool: PoolConfig {
            fairness: FairnessConfig::Fcfs,
            ..PoolConfig::default()
        },
        workers,
        reports: None,
        kv_events: None,
        fleet: Vec::new(),
        until: None,
        seed: 7,
    }
}

fn play(setup: Setup, mut script: Script) -> Run {
    run(setup, &mut script, &mut |_, _| {}).unwrap()
}

#[test]
fn a_follow_up_is_released_by_the_answer_and_finds_its_beginning() {
    let run = play(setup(vec![seats(1, 10)]), Script::new(&[3], 2, 5));
    let [first, second] = run.outcomes.as_slice() else {
        panic!("two requests: {:?}", run.outcomes);
    };
    assert_eq!((first.arrived, first.ended), (seconds(3), seconds(13)));
    assert_eq!((first.cached_tokens, first.turn), (Some(0), 1));
    // 13 + 5 s of thought; 64 of its 129 tokens are the first turn's four blocks.
    assert_eq!((second.arrived, second.ended), (seconds(18), seconds(28)));
    assert_eq!((second.cached_tokens, second.turn), (Some(64), 2));
    assert_eq!(second.predicted_tokens, 64);
    assert_eq!(second.charge(), 65 + 16);
    assert_eq!(run.ended, seconds(28));
}

#[test]
fn a_taken_seat_is_waited_for() {
    let run = play(setup(vec![seats(1, 10)]), Script::new(&[0, 1, 2], 1, 0));
    let waits: Vec<u64> = run.outcomes.iter().map(|o| o.wait().as_secs()).collect();
    assert_eq!(waits, [0, 9, 18]);
    assert_eq!(run.line_most, 2);
}

#[test]
fn who_waits_too_long_is_refused_or_leaves() {
    let mut limited = setup(vec![seats(1, 100)]);
    limited.pool.max_wait = Duration::from_secs(30);
    let run = play(limited, Script::new(&[0, 1], 1, 0));
    let late = run.outcomes.iter().find(|o| o.session == 1).unwrap();
    assert_eq!(late.ended, seconds(31));
    assert!(!late.refused_at_the_door());
    let refusal = Refusal::WaitExpired;
    let retry_after = None;
    assert_eq!(
        late.end,
        End::Refused {
            refusal,
            retry_after
        }
    );

    let mut script = Script::new(&[0, 1], 1, 0);
    script.starts[0].1.patience = Some(Duration::from_secs(7));
    let run = play(setup(vec![seats(1, 100)]), script);
    let gone = run.outcomes.iter().find(|o| o.session == 1).unwrap();
    assert_eq!((gone.end, gone.ended), (End::GaveUp, seconds(8)));
    assert_eq!(gone.dispatched, None);
}

#[test]
fn a_lost_worker_s_requests_are_tried_elsewhere_before_their_first_token() {
    // Slow prefill: nobody has a first token after a second.
    let slow = EngineKind::Batch(model::Config {
        prefill_tokens_per_second: 10,
        ..model::Config::default()
    });
    let mut lossy = setup(vec![slow.clone(), slow]);
    lossy.fleet = vec![(seconds(1), FleetEvent::Lose(0))];
    let run = play(lossy, Script::new(&[0; 6], 1, 0));
    assert!(run.outcomes.iter().all(|o| o.end == End::Served));
    assert!(run.outcomes.iter().all(|o| o.worker == Some(1)));
    let moved = run.outcomes.iter().filter(|o| o.attempts == 2).count();
    assert!(moved > 0, "{:?}", run.outcomes);
    let retried = |o: &&Outcome| o.reason == Some(Reason::Retry) || o.attempts == 1;
    assert!(
        run.outcomes.iter().all(|o| retried(&o)),
        "{:?}",
        run.outcomes
    );
}

#[test]
fn a_worker_that_joins_takes_who_waits() {
    let mut grown = setup(vec![seats(1, 100)]);
    grown.fleet = vec![(seconds(10), FleetEvent::Join(seats(1, 100)))];
    let run = play(grown, Script::new(&[0, 1], 1, 0));
    let waits: Vec<u64> = run.outcomes.iter().map(|o| o.wait().as_secs()).collect();
    assert_eq!(waits, [0, 9]);
}

#[test]
fn the_engine_model_is_as_fast_as_it_says() {
    let run = play(
        setup(vec![EngineKind::Batch(model::Config::default())]),
        Script::new(&[0], 1, 0),
    );
    let only = &run.outcomes[0];
    // 10 ms + 0.3 ms + 65 / 16,000 s, then seven steps of 10.3 ms.
    assert_eq!(only.first_token, Some(Nanos(14_362_500)));
    assert_eq!(only.ended, Nanos(14_362_500 + 7 * 10_300_000));
}

#[test]
fn equal_inputs_give_equal_runs() {
    let once = |seed: u64| {
        let mut mixed = setup(vec![
            EngineKind::Batch(model::Config::default()),
            seats(2, 1),
        ]);
        mixed.seed = seed;
        mixed.reports = Some(Reports {
            every: Duration::from_millis(500),
            delay: Duration::from_millis(200),
        });
        mixed.workers.push(EngineKind::Seats {
            slots: 2,
            service: Service::Drawn(Duration::from_secs(1)),
            block_tokens: 16,
            kv_tokens: 4_096,
        });
        format!(
            "{:?}",
            play(mixed, Script::new(&[0, 0, 0, 1, 1, 2, 3, 5, 8], 6, 1))
        )
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(1), once(2));
}

#[test]
fn a_setup_that_cannot_be_played_says_why() {
    let mut script = Script::new(&[0], 1, 0);
    let none = run(setup(Vec::new()), &mut script, &mut |_, _| {}).unwrap_err();
    assert_eq!(none, SetupError::NoWorkers);
    let mut wrong = setup(vec![seats(1, 1)]);
    wrong.pool.attempts = 0;
    let error = run(wrong, &mut script, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "attempts must be 1 to 8");
}
