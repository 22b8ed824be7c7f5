//! What must hold of every simulation, whatever the traffic, the policy and the fate of the workers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use maitred_core::line::FairnessConfig;
use maitred_core::place::PolicyConfig;
use maitred_core::time::Nanos;
use maitred_enginesim::model;
use maitred_lab::grid::{Prepared, Room, Sums, simulate};
use maitred_lab::plan::{Manners, Plan};
use maitred_lab::sim::{End, EngineKind, FleetEvent, Outcome, Run};
use maitred_lab::workload::named;
use proptest::prelude::*;

/// The engine of these tests: small, so that memory is short and batches are full.
fn engine(kv_tokens: usize, slots: usize) -> model::Config {
    model::Config {
        kv_tokens,
        slots,
        max_batch_tokens: 512,
        ..model::Config::default()
    }
}

fn seconds(at: f64) -> Nanos {
    Nanos((at * 1e9) as u64)
}

#[derive(Clone, Debug)]
struct Case {
    kind: &'static str,
    seed: u64,
    policy: usize,
    fairness: usize,
    workers: u32,
    kv_tokens: usize,
    slots: usize,
    kv_events: bool,
    /// What happens, when, to whom.
    fleet: Vec<(u8, f64, usize)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds = prop_oneof![
        Just("chat:sessions=12:rate=3:system=200:think=2"),
        Just(
            "agents:sessions=4:rate=1:turns=5:opening=600:sub_opening=300:sub_share=0.3:input=100:output=20:context=3000"
        ),
        Just("whale:whale=8:depth=4:step=100:newcomers=12:rate=4:output=30"),
    ];
    let fleet = proptest::collection::vec((0_u8..4, 0.0..20.0, 0_usize..3), 0..4);
    (
        (
            kinds,
            any::<u64>(),
            0..PolicyConfig::NAMES.len(),
            0..FairnessConfig::NAMES.len(),
        ),
        (
            1_u32..4,
            10_000_usize..40_000,
            2_usize..12,
            any::<bool>(),
            fleet,
        ),
    )
        .prop_map(
            |((kind, seed, policy, fairness), (workers, kv_tokens, slots, kv_events, fleet))| {
                Case {
                    kind,
                    seed,
                    policy,
                    fairness,
                    workers,
                    kv_tokens,
                    slots,
                    kv_events,
                    fleet,
                }
            },
        )
}

fn play(case: &Case) -> (Prepared, Room, Run) {
    let engine = engine(case.kv_tokens, case.slots);
    let fleet = case.fleet.iter().map(|(what, at, worker)| {
        let event = match what {
            0 => FleetEvent::Lose(*worker),
            1 => FleetEvent::Drain(*worker),
            2 => FleetEvent::Restart(*worker, Duration::from_secs(3)),
            _ => FleetEvent::Join(EngineKind::Batch(engine.clone())),
        };
        (seconds(*at), event)
    });
    let room = Room {
        workers: case.workers,
        fleet: fleet.collect(),
        engine,
        kv_events: case.kv_events.then(|| Duration::from_millis(20)),
        manners: Manners {
            retries: 1,
            patience: None,
        },
        max_wait: Duration::from_secs(20),
        ..Room::default()
    };
    let plan = named(case.kind).unwrap().plan(16, case.seed, 1.0);
    let prepared = Prepared::at(plan, &room);
    let policy = PolicyConfig::named(PolicyConfig::NAMES[case.policy]).unwrap();
    let fairness = FairnessConfig::named(FairnessConfig::NAMES[case.fairness]).unwrap();
    let run = simulate(&prepared, &room, &policy, &fairness, case.seed).unwrap();
    (prepared, room, run)
}

/// The leading tokens of each request that any other request of the plan, or an earlier turn, has too.
fn shared(plan: &Plan) -> Vec<u32> {
    let mut owners: HashMap<u64, u32> = HashMap::new();
    for request in &plan.requests {
        for id in request.ids() {
            *owners.entry(id).or_default() += 1;
        }
    }
    (plan.requests.iter())
        .map(|request| request.ids().take_while(|id| owners[id] > 1).count() as u32 * 16)
        .collect()
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let (prepared, room, run) = play(case);
    let plan = &prepared.plan;
    let engine = &room.engine;
    // Every request is sent at most once a try, and ends once.
    let mut ends: BTreeMap<(u64, u32, u32), &Outcome> = BTreeMap::new();
    for outcome in &run.outcomes {
        let key = (outcome.session, outcome.turn, outcome.tries);
        prop_assert!(ends.insert(key, outcome).is_none(), "{key:?} twice");
        prop_assert!(outcome.end != End::Open, "nothing is left to happen");
        prop_assert!(outcome.arrived <= outcome.ended && outcome.ended <= run.ended);
    }
    let sums = Sums::of(&prepared, &room, &run);
    prop_assert_eq!(sums.planned, sums.came + sums.abandoned);
    prop_assert_eq!(
        sums.came,
        sums.served + sums.refused + sums.failed + sums.gave_up
    );
    let shared = shared(plan);
    let mut work = 0.0;
    for outcome in run.outcomes.iter().filter(|o| o.end == End::Served) {
        let at = plan.at(outcome.session, outcome.turn).unwrap() as usize;
        let cached = outcome.cached_tokens.unwrap();
        prop_assert!(
            cached <= shared[at] && cached < outcome.prompt_tokens,
            "{outcome:?}"
        );
        let (dispatched, first) = (outcome.dispatched.unwrap(), outcome.first_token.unwrap());
        prop_assert!(outcome.arrived <= dispatched && dispatched < first && first <= outcome.ended);
        // Nobody is faster than alone.
        let new = u64::from(outcome.prompt_tokens - cached);
        let chunks = new.div_ceil(engine.max_batch_tokens as u64);
        let prefill = chunks * (engine.base_step_ns + engine.per_sequence_ns)
            + new * 1_000_000_000 / engine.prefill_tokens_per_second;
        let took = first.since(dispatched).as_nanos() as u64;
        prop_assert!(took + chunks >= prefill, "{took} {prefill} {outcome:?}");
        let steps = u64::from(outcome.output_tokens - 1);
        let decode = outcome.ended.since(first).as_nanos() as u64;
        prop_assert!(
            decode >= steps * (engine.base_step_ns + engine.per_sequence_ns),
            "{outcome:?}"
        );
        work += new as f64 / engine.prefill_tokens_per_second as f64
            + steps as f64 * engine.per_sequence_ns as f64 / 1e9;
    }
    // Workers do not work more than they have time.
    let workers = f64::from(case.workers) + case.fleet.len() as f64;
    prop_assert!(work <= workers * run.ended.since(Nanos::default()).as_secs_f64());
    // A follow-up comes after what it follows.
    for (key, outcome) in &ends {
        if key.1 > 1 && key.2 == 0 {
            let before = (0..3)
                .rev()
                .find_map(|tries| ends.get(&(key.0, key.1 - 1, tries)));
            let before = before.expect("the turn before was sent");
            prop_assert!(before.end == End::Served && before.ended <= outcome.arrived);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost_nothing_is_faster_than_it_can_be(case in cases()) {
        check(&case)?;
    }

    #[test]
    fn equal_cases_give_equal_runs(case in cases()) {
        let (once, again) = (play(&case).2, play(&case).2);
        prop_assert_eq!(format!("{once:?}"), format!("{again:?}"));
    }
}

/// Three prompts on one worker, worked out by hand: chunks of 512 tokens, decodes beside them, a shared beginning.
#[test]
fn a_batch_by_hand() {
    use maitred_core::ids::TenantId;
    use maitred_lab::plan::{Begin, PlanBuilder, Planned, Span};

    let mut builder = PlanBuilder::new(16);
    let mut add = |at: f64, spans: &[(u64, u32)], prompt: u32, output: u32| {
        builder.session();
        let spans = spans.iter().map(|(first, count)| Span {
            first: *first,
            count: *count,
        });
        builder.turn(Planned {
            session: 0,
            turn: 0,
            tenant: TenantId(0),
            group: 0,
            spans: spans.collect(),
            prompt_tokens: prompt,
            output_tokens: output,
            begin: Begin::At(seconds(at)),
            also: Box::default(),
        });
    };
    // 800 tokens: chunks of 512 and 288. 10 + 0.3 + 32 ms, then 10 + 0.3 + 18 ms: first token at 70.6 ms. The second
    // step has room for 224 tokens of the next one, which is there since 20 ms: it adds 0.3 + 14 ms.
    add(0.0, &[(1, 50)], 800, 3);
    // 480 tokens: 224 in that step, then 256 beside a decode.
    add(0.020, &[(100, 30)], 480, 2);
    // Begins as the first, and comes when all is quiet: 496 tokens are there, the last block is computed.
    add(1.0, &[(1, 32)], 512, 1);
    let room = Room {
        workers: 1,
        engine: engine(100_000, 8),
        reports: None,
        ..Room::default()
    };
    let prepared = Prepared::at(builder.finish(), &room);
    let run = simulate(
        &prepared,
        &room,
        &PolicyConfig::named("least_load").unwrap(),
        &FairnessConfig::named("fcfs").unwrap(),
        1,
    )
    .unwrap();
    let told = |session: u64| {
        let outcome = run.outcomes.iter().find(|o| o.session == session).unwrap();
        let micros = |at: Nanos| at.0 / 1_000;
        (
            micros(outcome.first_token.unwrap()),
            micros(outcome.ended),
            outcome.cached_tokens,
        )
    };
    // Step 1 ends at 42.3 ms; step 2: 10 + 0.6 + 32 ms, at 84.9; step 3: one decode and 256 tokens, 10 + 0.6 + 16, at
    // 111.5; step 4: two decodes, 10.6, at 122.1.
    assert_eq!(told(0), (84_900, 122_100, Some(0)));
    assert_eq!(told(1), (111_500, 122_100, Some(0)));
    // 10 + 0.3 + 1 ms.
    assert_eq!(told(2), (1_011_300, 1_011_300, Some(496)));
}
