//! What holds for every policy in every room.

use crate::room::{BLOCK, arrival, chain, idle};
use maitred_core::cost::Rates;
use maitred_core::ids::{SessionKey, WorkerId};
use maitred_core::place::{Answer, Candidate, PolicyConfig, Question};
use maitred_core::request::{Arrival, KeySource};
use maitred_core::rng::Rng;
use maitred_core::session::Home;
use maitred_core::time::Nanos;
use proptest::prelude::*;

/// One question, owned.
#[derive(Clone, Debug)]
struct Asked {
    guest: Arrival,
    home: Option<Home>,
    candidates: Vec<Candidate>,
}

fn candidate() -> impl Strategy<Value = Candidate> {
    (
        0_u32..300,
        0_u64..1_000_000,
        any::<bool>(),
        0_u32..=10,
        0_u32..100,
        0_u64..1_000,
    )
        .prop_map(|(running, tokens, seat, matched, sessions, cold)| {
            let mut c = idle(0);
            c.running = running;
            c.prefill_tokens = tokens;
            c.resident_tokens = tokens * 3;
            c.seat = seat;
            c.matched_blocks = matched;
            c.matched_tokens = matched * BLOCK;
            c.sessions = sessions;
            c.last_cold = Nanos(cold);
            c
        })
}

fn asked() -> impl Strategy<Value = Asked> {
    let key = || prop::option::of((0_u64..6).prop_map(SessionKey));
    let source = prop::sample::select(vec![
        KeySource::Header,
        KeySource::PromptCacheKey,
        KeySource::Content,
        KeySource::None,
    ]);
    (
        prop::collection::vec(candidate(), 1..20),
        (key(), key(), key(), key()),
        source,
        1_u32..4,
        prop::option::of(0_u32..25),
        0_usize..=10,
    )
        .prop_map(|(mut candidates, keys, source, turn, home, blocks)| {
            for (slot, c) in candidates.iter_mut().enumerate() {
                c.worker.slot = slot as u32;
                c.identity = idle(slot as u32).identity;
            }
            let mut guest = arrival(chain(&[(1, blocks)]));
            (guest.session, guest.opening) = (keys.0, keys.1);
            (guest.scenario, guest.leading) = (keys.2, keys.3);
            guest.session_source = source;
            guest.turn = turn;
            let home = home.map(|slot| Home {
                worker: WorkerId {
                    slot,
                    generation: 0,
                },
                used: Nanos(5),
                blocks: 8,
            });
            Asked {
                guest,
                home,
                candidates,
            }
        })
}

/// A fresh policy's answers, with the scores.
fn answers(name: &str, asked: &[Asked], seed: u64) -> Vec<(Answer, Vec<u64>)> {
    let mut policy = PolicyConfig::named(name).unwrap().build();
    let mut rng = Rng::new(seed);
    let mut answers = Vec::new();
    for (step, one) in asked.iter().enumerate() {
        let members: Vec<_> = one
            .candidates
            .iter()
            .map(|c| (c.worker, c.identity))
            .collect();
        policy.members(&members);
        let mut scores = vec![f64::NAN; one.candidates.len()];
        let question = Question {
            guest: &one.guest,
            prompt_tokens: one.guest.chain.len() as u32 * BLOCK,
            home: one.home,
            opening_home: one.home,
            candidates: &one.candidates,
            waiting: 0,
            rates: Rates::default(),
            follows: true,
            now: Nanos(10 + step as u64),
        };
        let answer = policy.place(&question, &mut scores, &mut rng);
        let worker = one.candidates[answer.choice].worker;
        policy.settled(&one.guest, worker, question.now);
        answers.push((answer, scores.iter().map(|s| s.to_bits()).collect()));
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_answer_is_a_candidate_and_follows_from_the_seed(
        asked in prop::collection::vec(asked(), 1..6),
        seed: u64,
    ) {
        for name in PolicyConfig::NAMES {
            let first = answers(name, &asked, seed);
            for (one, (answer, _)) in asked.iter().zip(&first) {
                prop_assert!(answer.choice < one.candidates.len(), "{}", name);
                let seat = one.candidates[answer.choice].seat;
                let any = one.candidates.iter().any(|c| c.seat);
                prop_assert!(
                    seat || !any || !answer.hold.is_zero(),
                    "{} chose a full worker without waiting for it", name
                );
            }
            prop_assert_eq!(&first, &answers(name, &asked, seed), "{} is not deterministic", name);
        }
    }

    #[test]
    fn nothing_binds_so_nothing_is_loaded_more_than_the_least(
        mut one in asked(),
        seed: u64,
    ) {
        one.guest.session = None;
        one.guest.opening = None;
        one.guest.scenario = None;
        one.guest.leading = None;
        one.guest.session_source = KeySource::None;
        one.home = None;
        for c in &mut one.candidates {
            c.matched_blocks = 0;
            c.matched_tokens = 0;
        }
        let any = one.candidates.iter().any(|c| c.seat);
        let least = one
            .candidates
            .iter()
            .filter(|c| c.seat || !any)
            .map(Candidate::load)
            .min();
        for name in PolicyConfig::NAMES {
            if ["random", "round_robin", "power_of_two"].contains(name) {
                continue;
            }
            let answer = answers(name, std::slice::from_ref(&one), seed)[0].0;
            prop_assert_eq!(Some(one.candidates[answer.choice].load()), least, "{}", name);
        }
    }
}
