//! What a decision costs: the chain of a prompt, the look-up of who holds it, the whole of it.
//!
//! `cargo bench -p maitred-core --bench decision -- --warm-up-time 1 --measurement-time 2`
#![allow(missing_docs, clippy::print_stderr, clippy::expect_used)] // criterion makes items; sizes are printed

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use maitred_core::ids::{AttemptId, RequestId, SessionKey, TenantId};
use maitred_core::limits::INDEX_BYTES_MAX;
use maitred_core::place::PolicyConfig;
use maitred_core::pool::{FleetChange, RequestLimits, Seats, WorkerSpec};
use maitred_core::prefix::{ChainBuilder, Index, Matches};
use maitred_core::request::{Identity, KeySource, Usage};
use maitred_core::scheduler::PoolConfig;
use maitred_core::time::Nanos;
use maitred_core::{Arrival, Effect, Input, Scheduler};
use std::hint::black_box;

#[path = "decision/observed.rs"]
mod observed;

const BLOCK_BYTES: usize = 64;

/// The chain of `blocks` blocks that begins with `opening` shared blocks and is else `prompt`'s own.
fn chain(prompt: u64, opening: usize, blocks: usize) -> Vec<u64> {
    let mut builder = ChainBuilder::new(1, 8);
    for at in 0..blocks as u64 {
        let own = if at < opening as u64 { 0 } else { prompt + 1 };
        builder.push(&(own << 32 | at).to_le_bytes());
    }
    builder.finish().0
}

/// An index in which all workers hold a hot opening, and each `prompts` prompts of its own that
/// begin with it.
fn filled(workers: u32, opening: usize, blocks: usize, prompts: u64) -> Index {
    let mut index = Index::new(INDEX_BYTES_MAX);
    for prompt in 0..prompts {
        for slot in 0..workers {
            let chain = chain(prompt * 10_000 + u64::from(slot), opening, blocks);
            index.insert(slot, &chain, Nanos(0));
        }
    }
    index
}

fn chains(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("chain");
    for kib in [1, 32, 256] {
        let text: Vec<u8> = (0..kib << 10).map(|i: u32| (i % 251) as u8).collect();
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter(|| {
                let mut builder = ChainBuilder::new(1, BLOCK_BYTES);
                builder.push(black_box(&text));
                builder.finish()
            });
        });
    }
    group.finish();
}

fn look_ups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("match");
    for (blocks, workers) in [(2_000, 16), (2_000, 1_000), (6_250, 64)] {
        let index = filled(workers, blocks / 4, blocks, 1);
        let wanted = chain(u64::from(workers / 2), blocks / 4, blocks);
        let mut found = Matches::default();
        group.bench_function(format!("{blocks}_blocks_{workers}_workers"), |bencher| {
            bencher.iter(|| {
                index.matches(black_box(&wanted), &mut found);
                found.best()
            });
        });
    }
    // An opening that is cut into many runs, because conversations part from it everywhere.
    let mut index = filled(1_000, 1_990, 2_000, 1);
    for at in (100..1_990).step_by(100) {
        index.insert(at as u32 % 1_000, &chain(77_000_000, at, 2_000), Nanos(0));
    }
    let wanted = chain(500, 1_990, 2_000);
    let mut found = Matches::default();
    group.bench_function("2000_blocks_1000_workers_20_runs", |bencher| {
        bencher.iter(|| {
            index.matches(black_box(&wanted), &mut found);
            found.best()
        });
    });
    group.finish();
}

fn insertions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("insert");
    for (blocks, opening) in [(16, 0), (256, 64), (2_000, 500)] {
        let prompts: Vec<Vec<u64>> = (0..2_000).map(|p| chain(p, opening, blocks)).collect();
        let total: usize = prompts.iter().map(Vec::len).sum();
        group.throughput(Throughput::Elements(total as u64));
        // 2,000 prompts on 16 workers into an empty index; the long ones pass its bound.
        group.bench_function(format!("{blocks}_blocks_16_workers"), |bencher| {
            bencher.iter_batched(
                || Index::new(INDEX_BYTES_MAX),
                |mut index| {
                    for (slot, prompt) in (0_u32..).zip(&prompts) {
                        index.insert(slot % 16, prompt, Nanos(0));
                    }
                    index
                },
                BatchSize::LargeInput,
            );
        });
    }
    // Full to the bound: each insertion evicts as much.
    let prompts: Vec<Vec<u64>> = (0..300_000).map(|p| chain(p, 0, 16)).collect();
    let mut index = Index::new(INDEX_BYTES_MAX);
    for (slot, prompt) in (0_u32..).zip(&prompts) {
        index.insert(slot % 16, prompt, Nanos(0));
    }
    let mut next = (0_u32..).zip(prompts.iter().cycle());
    group.throughput(Throughput::Elements(16));
    group.bench_function("16_blocks_16_workers_full", |bencher| {
        bencher.iter(|| {
            if let Some((slot, prompt)) = next.next() {
                index.insert(slot % 16, prompt, Nanos(0));
            }
        });
    });
    group.finish();
}

/// Without criterion: what a block costs, by shape of the prompts.
fn sizes(_: &mut Criterion) {
    for (prompts, opening, blocks) in [(50_000, 0, 16), (5_000, 64, 256), (500, 500, 2_000)] {
        let mut index = Index::new(INDEX_BYTES_MAX);
        for prompt in 0..prompts {
            index.insert(
                prompt as u32 % 16,
                &chain(prompt, opening, blocks),
                Nanos(0),
            );
        }
        let held: u64 = (0..16).map(|slot| index.blocks(slot)).sum();
        let each = index.bytes() as f64 / held as f64;
        eprintln!("bytes for each (block, worker), {prompts} prompts of {blocks}: {each:.1}");
    }
}

/// A turn of a session: `chain` is its prompt.
fn guest(request: u64, session: u64, turn: u32, chain: &[u64]) -> Box<Arrival> {
    Box::new(Arrival {
        request: RequestId(request),
        tenant: TenantId(1),
        flow: None,
        session: Some(SessionKey(session)),
        session_source: KeySource::Header,
        opening: Some(SessionKey(!session)),
        scenario: chain.first().copied().map(SessionKey),
        leading: chain.first().copied().map(SessionKey),
        previous_response: None,
        model: None,
        turn,
        identity: Identity::Bytes,
        scope: 0,
        chain: chain.to_vec(),
        prompt_bytes: (chain.len() * BLOCK_BYTES) as u64,
        body_bytes: 0,
        prompt_tokens: None,
        max_tokens: Some(256),
        extra_prompts: 0,
        reads_cache: true,
        deadline: None,
        retryable: true,
        streams: true,
        plain: false,
    })
}

/// A pool in service: its clock, and what came of the last inputs.
struct Room {
    scheduler: Scheduler,
    now: u64,
    requests: u64,
    effects: Vec<Effect>,
}

impl Room {
    fn new(policy: &str, workers: u32) -> Self {
        let config = PoolConfig {
            policy: PolicyConfig::named(policy).expect("a known policy"),
            ..PoolConfig::default()
        };
        let mut room = Self {
            scheduler: Scheduler::new(config, 1).expect("the default configuration"),
            now: 0,
            requests: 0,
            effects: Vec::new(),
        };
        for identity in 0..u64::from(workers) {
            let spec = WorkerSpec {
                identity: identity * 0x9e37_79b9 + 1,
                seats: Seats {
                    slots: Some(64),
                    prefill_tokens: None,
                    kv_tokens: Some(4_000_000),
                    cache_slots: None,
                },
                models: Vec::new(),
                assume_ready: true,
                pulls: false,
                limits: RequestLimits::default(),
            };
            let id = room.scheduler.next_worker_id();
            room.tell(Input::Fleet(FleetChange::Add(id, spec)));
        }
        room
    }

    fn tell(&mut self, input: Input) {
        self.now += 100_000;
        self.effects.clear();
        self.scheduler
            .handle(Nanos(self.now), input, &mut self.effects);
    }

    /// The next request, of this session.
    fn next(&mut self, session: u64, turn: u32, chain: &[u64]) -> Box<Arrival> {
        self.requests += 1;
        guest(self.requests, session, turn, chain)
    }

    /// The measured part: where does it sit, and what remains of it when it has been served.
    fn serve(&mut self, guest: Box<Arrival>) {
        let attempt = AttemptId {
            request: guest.request,
            number: 1,
        };
        self.tell(Input::Arrive(guest));
        self.tell(Input::Finished {
            attempt,
            usage: Usage::default(),
            served: true,
        });
    }
}

/// A pool where every worker has work and holds a hot opening (a quarter of the prompt), and the
/// prompts of the conversations that it knows.
fn in_service(policy: &str, workers: u32, blocks: usize) -> (Room, Vec<Vec<u64>>) {
    let mut room = Room::new(policy, workers);
    // Two requests a worker that stay, and three conversations for two workers.
    for session in 0..2 * u64::from(workers) {
        let chain = chain(1 << 24 | session, blocks / 4, blocks);
        let arrival = room.next(1 << 32 | session, 1, &chain);
        room.tell(Input::Arrive(arrival));
        let Some(Effect::Dispatch(decision)) = room.effects.first() else {
            unreachable!("{policy}: there is a seat for it");
        };
        let attempt = decision.attempt;
        room.tell(Input::Accepted(attempt));
    }
    let chains: Vec<Vec<u64>> = (0..3 * u64::from(workers) / 2)
        .map(|session| chain(1 << 20 | session, blocks / 4, blocks))
        .collect();
    for (session, chain) in (0..).zip(&chains) {
        let arrival = room.next(session, 1, chain);
        room.serve(arrival);
    }
    room.scheduler.check().expect("a sound scheduler");
    (room, chains)
}

/// Arrive and Finished: the next turn of some conversation that is known.
fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    for (workers, blocks) in [(16, 16), (16, 2_000), (1_000, 2_000)] {
        for policy in [
            "adaptive",
            "least_load",
            "session",
            "soft_affinity",
            "cache_aware",
            "chwbl",
        ] {
            // Made only where it is asked for, once.
            let made = std::cell::OnceCell::new();
            let mut served = 0;
            group.bench_function(format!("{policy}_{workers}_{blocks}"), |bencher| {
                let (room, chains) = made.get_or_init(|| {
                    let (room, chains) = in_service(policy, workers, blocks);
                    (std::cell::RefCell::new(room), chains)
                });
                bencher.iter_batched(
                    || {
                        served += 1;
                        let session = served % chains.len();
                        let mut room = room.borrow_mut();
                        room.next(session as u64, 2, &chains[session])
                    },
                    |guest| room.borrow_mut().serve(guest),
                    BatchSize::SmallInput,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(
    benches,
    sizes,
    chains,
    look_ups,
    insertions,
    decisions,
    observed::sizes,
    observed::look_ups,
    observed::updates
);
criterion_main!(benches);
