//! Random steps; numbers pick among whatever is there when the step is taken.

use maitred_core::ids::TenantId;
use maitred_core::pool::{Gauges, Report, RequestLimits};
use maitred_core::request::Failure;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Arrive {
        session: Option<u64>,
        blocks: u64,
        model: Option<u64>,
        continues: Option<u64>,
        deadline_ms: Option<u64>,
        extra: u32,
        retryable: bool,
        plain: bool,
        tenant: u64,
        max_tokens: Option<u32>,
    },
    Accepted(usize),
    FirstToken(usize),
    Finished {
        pick: usize,
        served: bool,
        cached: Option<u32>,
    },
    Failed {
        pick: usize,
        failure: Failure,
        retry: bool,
        after_ms: Option<u64>,
    },
    Cancel(usize),
    Responded(usize, u64),
    /// An input about something that is over or never was.
    Stray(u64, u8),
    Add {
        slots: Option<u32>,
        prefill: Option<u64>,
        model: Option<u64>,
        ready: bool,
        /// It pulls, and takes such requests only.
        pull: Option<RequestLimits>,
    },
    Remove(usize),
    Drain(usize, Option<u64>),
    Resume(usize),
    Seats(usize, Option<u32>),
    Models(usize, Option<u64>),
    Report(usize, u8),
    /// A worker's open polls, whether it pulls or not.
    Pop(usize, u32),
    Limits(usize, RequestLimits),
    /// A worker's word on its cache: session, first block, blocks, which word.
    Kv(usize, u64, u64, u64, u8),
    Policy(usize),
    Advance(u64),
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        Just(Failure::Connect),
        Just(Failure::Reset),
        Just(Failure::ServerError),
        Just(Failure::Saturated),
        Just(Failure::TotalTimeout),
        Just(Failure::Truncated),
    ]
}

fn arrive() -> impl Strategy<Value = Step> {
    (
        option::of(0..6_u64),
        0..12_u64,
        option::weighted(0.2, 0..3_u64),
        option::weighted(0.1, 0..4_u64),
        option::weighted(0.2, 0..5_000_u64),
        prop_oneof![4 => Just(0_u32), 1 => 1..4_u32],
        (
            any::<bool>(),
            any::<bool>(),
            0..3_u64,
            option::of(1..400_u32),
        ),
    )
        .prop_map(
            |(session, blocks, model, continues, deadline_ms, extra, rest)| Step::Arrive {
                session,
                blocks,
                model,
                continues,
                deadline_ms,
                extra,
                retryable: rest.0,
                plain: rest.1,
                tenant: rest.2,
                max_tokens: rest.3,
            },
        )
}

fn limits() -> impl Strategy<Value = RequestLimits> {
    (
        option::of(1..600_u32),
        option::of(1..400_u32),
        vec((0..3_u64).prop_map(TenantId), 0..2),
        any::<bool>(),
    )
        .prop_map(
            |(context_max, output_max, tenants, plain_only)| RequestLimits {
                context_max,
                output_max,
                tenants,
                plain_only,
            },
        )
}

/// Half of those that pull take anything.
fn pull() -> impl Strategy<Value = Option<RequestLimits>> {
    let some = prop_oneof![Just(RequestLimits::default()), limits()];
    option::of(some)
}

fn worker() -> impl Strategy<Value = Step> {
    let pick = any::<usize>;
    let few = || option::of(0..4_u32);
    prop_oneof![
        3 => (few(), option::of(1..300_u64), option::weighted(0.2, 0..3_u64), any::<bool>(), pull())
            .prop_map(|(slots, prefill, model, ready, pull)| {
                Step::Add { slots, prefill, model, ready, pull }
            }),
        6 => (pick(), 0..4_u32).prop_map(|(w, seats)| Step::Pop(w, seats)),
        1 => (pick(), limits()).prop_map(|(w, limits)| Step::Limits(w, limits)),
        2 => pick().prop_map(Step::Remove),
        1 => (pick(), option::of(0..4_000_u64)).prop_map(|(w, ms)| Step::Drain(w, ms)),
        1 => pick().prop_map(Step::Resume),
        1 => (pick(), few()).prop_map(|(w, slots)| Step::Seats(w, slots)),
        1 => (pick(), option::of(0..3_u64)).prop_map(|(w, model)| Step::Models(w, model)),
        6 => (pick(), 0..8_u8).prop_map(|(w, kind)| Step::Report(w, kind)),
        6 => (pick(), 0..6_u64, prop_oneof![2 => Just(0_u64), 1 => 0..8_u64], 1..8_u64, 0..18_u8)
            .prop_map(|(w, session, from, count, kind)| Step::Kv(w, session, from, count, kind)),
        1 => pick().prop_map(Step::Policy),
    ]
}

/// A day in the life of a pool.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = any::<usize>;
    let failed = (pick(), failure(), any::<bool>(), option::of(0..5_000_u64)).prop_map(
        |(pick, failure, retry, after_ms)| Step::Failed {
            pick,
            failure,
            retry,
            after_ms,
        },
    );
    let finished =
        (pick(), any::<bool>(), option::of(0..200_u32)).prop_map(|(pick, served, cached)| {
            Step::Finished {
                pick,
                served,
                cached,
            }
        });
    let step = prop_oneof![
        10 => arrive(),
        4 => pick().prop_map(Step::Accepted),
        4 => pick().prop_map(Step::FirstToken),
        4 => finished,
        4 => failed,
        2 => pick().prop_map(Step::Cancel),
        1 => (pick(), 0..4_u64).prop_map(|(pick, key)| Step::Responded(pick, key)),
        1 => (0..50_u64, any::<u8>()).prop_map(|(id, kind)| Step::Stray(id, kind)),
        8 => worker(),
        4 => (0..3_000_u64).prop_map(Step::Advance),
    ];
    vec(step, 1..160)
}

/// What a probe or a scrape found, by number.
pub(crate) fn report(kind: u8) -> Report {
    match kind {
        0 | 1 => Report::Alive,
        2 => Report::Loading,
        3 => Report::Dead { refused: true },
        4 => Report::Dead { refused: false },
        5 => Report::Bytes,
        _ => Report::Gauges(Gauges {
            running: Some(3),
            waiting: None,
            kv_usage: Some(0.5),
            kv_tokens: Some(300),
            started: Some(f64::from(kind)),
        }),
    }
}
