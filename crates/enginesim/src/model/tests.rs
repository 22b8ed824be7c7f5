#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Step times worked out by hand, and what must hold whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn job(id: u64, tokens: Vec<u32>, max_tokens: usize) -> Job {
    Job {
        id,
        tokens,
        max_tokens,
        seed: 1,
        scope: 0,
        salt: None,
    }
}

fn run_dry(engine: &mut Engine, from: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut now = from;
    while let Some(next) = engine.step(now, &mut events) {
        now = next;
        engine.check().unwrap();
    }
    events
}

fn finished(events: &[Event], wanted: u64) -> (u64, Usage) {
    events
        .iter()
        .find_map(|e| match e {
            Event::Finished { id, at, usage } if *id == wanted => Some((*at, *usage)),
            _ => None,
        })
        .expect("finished")
}

#[test]
fn a_prompt_is_prefilled_in_chunks_and_decoded_token_by_token() {
    let mut engine = Engine::new(Config::default());
    // 4,096 tokens: two chunks of 2,048 (10 + 0.3 + 128 ms each), then two decodes of 10.3 ms.
    engine.submit(0, job(1, (0..4_096).collect(), 3)).unwrap();
    let events = run_dry(&mut engine, 0);
    let times: Vec<u64> = events
        .iter()
        .filter_map(|e| match e {
            Event::FirstToken { at, .. } | Event::Token { at, .. } => Some(*at),
            _ => None,
        })
        .collect();
    assert_eq!(times, [276_600_000, 286_900_000, 297_200_000]);
    assert_eq!(
        finished(&events, 1).1,
        Usage {
            prompt: 4_096,
            cached: 0,
            completion: 3
        }
    );
}

#[test]
fn the_same_prompt_again_computes_its_last_block_only() {
    let mut engine = Engine::new(Config::default());
    engine.submit(0, job(1, (0..1_600).collect(), 1)).unwrap();
    run_dry(&mut engine, 0);
    engine
        .submit(1_000 * MS, job(2, (0..1_600).collect(), 1))
        .unwrap();
    let events = run_dry(&mut engine, 1_000 * MS);
    // 100 blocks, of which 99 may be reused: 16 tokens to compute, 10 + 0.3 + 1 ms.
    assert_eq!(
        finished(&events, 2),
        (
            1_011_300_000,
            Usage {
                prompt: 1_600,
                cached: 1_584,
                completion: 1
            }
        )
    );
    engine.reset_cache();
    engine
        .submit(2_000 * MS, job(3, (0..1_600).collect(), 1))
        .unwrap();
    assert_eq!(finished(&run_dry(&mut engine, 2_000 * MS), 3).1.cached, 0);
}

#[test]
fn a_follow_up_finds_the_reply_it_was_given() {
    let mut engine = Engine::new(Config::default());
    engine.submit(0, job(1, (0..64).collect(), 33)).unwrap();
    let mut tokens: Vec<u32> = (0..64).collect();
    for event in run_dry(&mut engine, 0) {
        if let Event::FirstToken { token, .. } | Event::Token { token, .. } = event {
            tokens.push(token);
        }
    }
    tokens.extend(500..600);
    engine.submit(9_000 * MS, job(2, tokens, 1)).unwrap();
    // 64 + 32 computed tokens (the last one was never fed back): six blocks.
    assert_eq!(finished(&run_dry(&mut engine, 9_000 * MS), 2).1.cached, 96);
}

#[test]
fn scopes_do_not_share() {
    let mut engine = Engine::new(Config::default());
    engine.submit(0, job(1, (0..64).collect(), 1)).unwrap();
    run_dry(&mut engine, 0);
    engine
        .submit(
            MS,
            Job {
                scope: 9,
                ..job(2, (0..64).collect(), 1)
            },
        )
        .unwrap();
    assert_eq!(finished(&run_dry(&mut engine, 1_000 * MS), 2).1.cached, 0);
}

#[test]
fn kv_events_tell_of_runs_of_blocks() {
    let mut engine = Engine::new(Config {
        kv_tokens: 64,
        ..Config::default()
    });
    engine.note_kv_events();
    let salted = Job {
        scope: 9,
        salt: Some("s".into()),
        ..job(1, (0..40).collect(), 10)
    };
    engine.submit(0, salted).unwrap();
    run_dry(&mut engine, 0);
    // Two blocks of the prompt in the first step, one that ends in generated tokens later.
    let events = engine.take_kv_events();
    let [
        KvEvent::Stored {
            hashes,
            parent: None,
            tokens,
            salt,
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(
        (hashes.len(), tokens.len(), salt.as_deref()),
        (3, 48, Some("s"))
    );
    assert_eq!(tokens[..40], (0..40).collect::<Vec<u32>>());
    // The cache has four blocks: three of another prompt take the free one and the oldest two.
    engine
        .submit(1_000 * MS, job(2, (100..148).collect(), 1))
        .unwrap();
    run_dry(&mut engine, 1_000 * MS);
    let events = engine.take_kv_events();
    let removed: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            KvEvent::Removed { hash } => Some(*hash),
            _ => None,
        })
        .collect();
    assert_eq!(removed, [hashes[2], hashes[1]]);
    engine.reset_cache();
    assert_eq!(engine.take_kv_events(), [KvEvent::Cleared]);
    assert_eq!(engine.take_kv_events(), []);
}

#[test]
fn decodes_share_the_step_with_a_prefill() {
    let mut engine = Engine::new(Config::default());
    let mut events = Vec::new();
    engine.submit(0, job(1, vec![1; 16], 100)).unwrap();
    // 10 + 0.3 + 1 ms.
    assert_eq!(engine.step(0, &mut events), Some(11_300_000));
    engine
        .submit(5 * MS, job(2, (0..3_000).collect(), 1))
        .unwrap();
    // One decode, 2,047 prefill tokens: 10 + 0.6 + 127.9375 ms.
    assert_eq!(
        engine.step(11_300_000, &mut events),
        Some(11_300_000 + 138_537_500)
    );
}

#[test]
fn who_comes_as_a_step_begins_is_in_the_next() {
    let arrivals = |first: bool| {
        let mut engine = Engine::new(Config::default());
        let mut events = Vec::new();
        engine.submit(0, job(1, vec![1; 16], 3)).unwrap();
        engine.step(0, &mut events);
        if first {
            engine.step(11_300_000, &mut events);
        }
        engine.submit(11_300_000, job(2, vec![2; 16], 1)).unwrap();
        engine.step(11_300_000, &mut events)
    };
    // A decode alone: 10.3 ms.
    assert_eq!(arrivals(true), Some(21_600_000));
    assert_eq!(arrivals(false), Some(21_600_000));
}

#[test]
fn slots_bound_the_batch_and_a_cancel_makes_room() {
    let config = Config {
        slots: 2,
        ..Config::default()
    };
    let mut engine = Engine::new(config);
    let mut events = Vec::new();
    for id in 0..3 {
        engine
            .submit(0, job(id, vec![id as u32; 8], 1_000))
            .unwrap();
    }
    let next = engine.step(0, &mut events).unwrap();
    assert_eq!((engine.metrics().running, engine.metrics().waiting), (2, 1));
    assert!(engine.cancel(0));
    assert!(!engine.cancel(0));
    engine.step(next, &mut events);
    assert_eq!((engine.metrics().running, engine.metrics().waiting), (2, 0));
    assert!(engine.cancel(1) && engine.cancel(2));
    assert_eq!(engine.metrics().blocks_used, 0);
}

#[test]
fn what_cannot_fit_is_refused() {
    let mut engine = Engine::new(Config {
        kv_tokens: 64,
        waiting_max: 1,
        ..Config::default()
    });
    assert_eq!(engine.submit(0, job(1, vec![], 1)), Err(SubmitError::Empty));
    assert!(matches!(
        engine.submit(0, job(1, vec![1; 60], 5)),
        Err(SubmitError::TooLong { limit: 64, .. })
    ));
    engine.submit(0, job(1, vec![1; 60], 4)).unwrap();
    assert_eq!(
        engine.submit(0, job(2, vec![1], 1)),
        Err(SubmitError::QueueFull { limit: 1 })
    );
}

#[test]
fn without_a_free_block_the_youngest_is_preempted_and_still_finishes() {
    let config = Config {
        kv_tokens: 128,
        ..Config::default()
    };
    let mut engine = Engine::new(config);
    engine.submit(0, job(1, (0..48).collect(), 60)).unwrap();
    engine.submit(0, job(2, (100..148).collect(), 60)).unwrap();
    let events = run_dry(&mut engine, 0);
    assert!(
        events
            .iter()
            .any(|e| matches!(e, Event::Preempted { id: 2, .. }))
    );
    assert!(
        !events
            .iter()
            .any(|e| matches!(e, Event::Preempted { id: 1, .. }))
    );
    assert!(finished(&events, 1).0 < finished(&events, 2).0);
}

#[derive(Debug, Clone)]
enum Act {
    Submit {
        start: u32,
        prompt: usize,
        reply: usize,
    },
    Cancel(usize),
    Advance(u64),
    Reset,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0_u32..4, 1_usize..120, 0_usize..40).prop_map(|(start, prompt, reply)| Act::Submit { start, prompt, reply }),
        1 => (0_usize..60).prop_map(Act::Cancel),
        4 => (0_u64..80).prop_map(|ms| Act::Advance(ms * MS)),
        1 => Just(Act::Reset),
    ];
    proptest::collection::vec(act, 1..60)
}

/// What happened, prompt and reply of each job taken, and the jobs cancelled.
type Played = (Vec<Event>, BTreeMap<u64, (usize, usize)>, Vec<u64>);

/// Plays `acts`, then runs dry; `late` leaves out the calls between the acts that change nothing.
fn play(acts: &[Act], late: bool) -> Played {
    let config = Config {
        kv_tokens: 192,
        slots: 4,
        max_batch_tokens: 40,
        waiting_max: 30,
        ..Config::default()
    };
    let mut engine = Engine::new(config);
    engine.note_kv_events();
    let mut mirror = BTreeSet::new();
    let (mut events, mut asked, mut gone) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut now = 0;
    for (id, act) in acts.iter().enumerate() {
        match act {
            Act::Submit {
                start,
                prompt,
                reply,
            } => {
                let tokens = (0..*prompt as u32).map(|i| i / 64 * start + i).collect();
                if engine.submit(now, job(id as u64, tokens, *reply)).is_ok() {
                    asked.insert(id as u64, (*prompt, *reply));
                }
                engine.step(now, &mut events);
            }
            Act::Cancel(id) => {
                engine.step(now, &mut events);
                if engine.cancel(*id as u64) {
                    gone.push(*id as u64);
                }
            }
            Act::Advance(by) => {
                now += by;
                if !late {
                    engine.step(now, &mut events);
                }
            }
            Act::Reset => {
                engine.step(now, &mut events);
                engine.reset_cache();
            }
        }
        engine.check().unwrap();
        follow(&mut mirror, engine.take_kv_events());
        assert_eq!(mirror.len(), engine.metrics().blocks_cached);
        assert!(engine.metrics().blocks_used <= 12);
        assert!(engine.metrics().prefix_hits <= engine.metrics().prefix_queries);
    }
    while let Some(next) = engine.step(now, &mut events) {
        engine.check().unwrap();
        now = next;
    }
    assert_eq!(engine.metrics().blocks_used, 0);
    (events, asked, gone)
}

/// The blocks that whoever listens believes in.
fn follow(mirror: &mut BTreeSet<u64>, events: Vec<KvEvent>) {
    for event in events {
        match event {
            KvEvent::Stored { hashes, tokens, .. } => {
                assert_eq!(tokens.len(), hashes.len() * 16);
                assert!(hashes.into_iter().all(|hash| mirror.insert(hash)));
            }
            KvEvent::Removed { hash } => assert!(mirror.remove(&hash)),
            KvEvent::Cleared => mirror.clear(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_token_comes_once(acts in acts()) {
        let (events, asked, gone) = play(&acts, false);
        let mut tokens: BTreeMap<u64, usize> = BTreeMap::new();
        let mut done = BTreeMap::new();
        let mut last = 0;
        for event in &events {
            match event {
                Event::FirstToken { id, at, cached, .. } => {
                    prop_assert_eq!(tokens.insert(*id, 1), None);
                    prop_assert!(*cached < asked[id].0 && cached % 16 == 0);
                    prop_assert!(*at >= last);
                    last = *at;
                }
                Event::Token { id, at, .. } => {
                    *tokens.get_mut(id).unwrap() += 1;
                    prop_assert!(*at >= last);
                    last = *at;
                }
                Event::Finished { id, usage, .. } => {
                    prop_assert_eq!(done.insert(*id, *usage), None);
                    prop_assert_eq!((usage.prompt, usage.completion), asked[id]);
                    prop_assert_eq!(tokens.get(id).copied().unwrap_or(0), usage.completion);
                }
                Event::Preempted { .. } => {}
            }
        }
        for id in asked.keys() {
            prop_assert!(done.contains_key(id) != gone.contains(id));
        }
    }

    #[test]
    fn equal_calls_give_equal_events(acts in acts()) {
        prop_assert_eq!(play(&acts, false), play(&acts, false));
    }

    /// What is reported as cached never exceeds what an unlimited memory of all earlier tokens would hold.
    #[test]
    fn cached_was_stored(prompts in proptest::collection::vec((0_u32..3, 1_usize..150), 1..12)) {
        let mut engine = Engine::new(Config { kv_tokens: 192, ..Config::default() });
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for (id, (kind, len)) in prompts.into_iter().enumerate() {
            let tokens: Vec<u32> = (0..len as u32).map(|i| if i < 40 { i } else { i + 1_000 * kind }).collect();
            let best = seen.iter().map(|s| s.iter().zip(&tokens).take_while(|(a, b)| a == b).count()).max().unwrap_or(0);
            let now = id as u64 * 60_000 * MS;
            engine.submit(now, job(id as u64, tokens.clone(), 1)).unwrap();
            let usage = finished(&run_dry(&mut engine, now), id as u64).1;
            prop_assert!(usage.cached <= best);
            seen.push(tokens);
        }
    }

    /// A driver that wakes late sees the same tokens at the same times.
    #[test]
    fn lateness_changes_nothing(acts in acts()) {
        let acts: Vec<Act> = acts.into_iter().filter(|a| !matches!(a, Act::Cancel(_) | Act::Reset)).collect();
        prop_assert_eq!(play(&acts, false).0, play(&acts, true).0);
    }
}
