//! What a long line costs: one request more, and one seat that becomes free, with 10,000 in it over
//! 2,000 flows and 64 workers.
//!
//! `cargo bench -p maitred-core --bench line -- --warm-up-time 1 --measurement-time 2`
#![allow(missing_docs, clippy::expect_used)] // criterion makes items

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use maitred_core::ids::{FlowKey, RequestId, SessionKey, TenantId};
use maitred_core::line::FairnessConfig;
use maitred_core::pool::{FleetChange, RequestLimits, Seats, WorkerSpec};
use maitred_core::request::{Identity, KeySource, Usage};
use maitred_core::scheduler::PoolConfig;
use maitred_core::{Arrival, AttemptId, Effect, Input, Nanos, Scheduler};
use std::collections::VecDeque;

const WORKERS: u64 = 64;
const SLOTS: u32 = 16;
const QUEUED: u64 = 10_000;
const FLOWS: u64 = 2_000;

struct Room {
    scheduler: Scheduler,
    now: u64,
    next: u64,
    running: VecDeque<AttemptId>,
    effects: Vec<Effect>,
}

impl Room {
    fn new(fairness: &str) -> Self {
        let config = PoolConfig {
            fairness: FairnessConfig::named(fairness).expect("a known policy"),
            line_max: 100_000,
            ..PoolConfig::default()
        };
        let mut room = Self {
            scheduler: Scheduler::new(config, 1).expect("the default configuration"),
            now: 0,
            next: 0,
            running: VecDeque::new(),
            effects: Vec::new(),
        };
        for identity in 0..WORKERS {
            let spec = WorkerSpec {
                identity: identity * 0x9e37_79b9 + 1,
                seats: Seats {
                    slots: Some(SLOTS),
                    ..Seats::default()
                },
                models: Vec::new(),
                assume_ready: true,
                pulls: false,
                limits: RequestLimits::default(),
            };
            let id = room.scheduler.next_worker_id();
            room.tell(Input::Fleet(FleetChange::Add(id, spec)));
        }
        while (room.scheduler.line_len() as u64) < QUEUED {
            let guest = room.guest();
            room.tell(Input::Arrive(guest));
        }
        room.scheduler.check().expect("a sound scheduler");
        room
    }

    fn tell(&mut self, input: Input) {
        self.now += 1_000;
        self.effects.clear();
        self.scheduler
            .handle(Nanos(self.now), input, &mut self.effects);
        for effect in &self.effects {
            if let Effect::Dispatch(decision) = effect {
                self.running.push_back(decision.attempt);
            }
        }
    }

    /// A follow-up, of one of the flows, with a chain of 16 blocks.
    fn guest(&mut self) -> Box<Arrival> {
        self.next += 1;
        let flow = self.next * 0x9e37_79b9 % FLOWS;
        Box::new(Arrival {
            request: RequestId(self.next),
            tenant: TenantId(flow % 50),
            flow: Some(FlowKey(flow)),
            session: Some(SessionKey(flow)),
            session_source: KeySource::Header,
            opening: None,
            scenario: None,
            leading: None,
            previous_response: None,
            model: None,
            turn: 2,
            identity: Identity::Bytes,
            scope: 0,
            chain: (0..16).map(|block| flow << 16 | block).collect(),
            prompt_bytes: 1_024,
            body_bytes: 1_500,
            prompt_tokens: None,
            max_tokens: Some(100),
            extra_prompts: 0,
            reads_cache: true,
            deadline: None,
            retryable: true,
            streams: true,
            plain: false,
        })
    }

    /// The measured part: one comes and waits, one ends and the next sits.
    fn turn(&mut self, guest: Box<Arrival>) {
        self.tell(Input::Arrive(guest));
        let attempt = self.running.pop_front().expect("all seats are taken");
        self.tell(Input::Finished {
            attempt,
            usage: Usage::default(),
            served: true,
        });
    }
}

fn lines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("line");
    for fairness in ["promise", "fcfs", "vtc"] {
        let made = std::cell::OnceCell::new();
        group.bench_function(format!("{fairness}_10000_2000_64"), |bencher| {
            let room = made.get_or_init(|| std::cell::RefCell::new(Room::new(fairness)));
            bencher.iter_batched(
                || room.borrow_mut().guest(),
                |guest| room.borrow_mut().turn(guest),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, lines);
criterion_main!(benches);
