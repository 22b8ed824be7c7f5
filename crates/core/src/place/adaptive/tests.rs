use super::Adaptive;
use crate::cost::Rates;
use crate::decision::Reason;
use crate::place::testing::{Table, candidate};
use crate::session::CacheSlots;
use crate::time::Nanos;
use core::time::Duration;

/// A prompt of 10,000 tokens in 10 blocks; 0.1 ms for a token, 10 ms for a prefill, 1 ms for a
/// decoder beside it; (seconds ahead, requests that decode, matched blocks) of each worker.
fn table(turn: u32, state: &[(f64, u32, u32)]) -> Table {
    let mut table = Table::new((0..state.len() as u32).map(candidate).collect());
    table.session(5, turn);
    table.prompt_tokens = 10_000;
    table.rates = Rates {
        prefill: [0.01, 1e-4, 0.0, 1e-3],
        work_seconds: 0.2,
        residual_seconds: 0.2,
        turns_left: 5.0,
        service_seconds: 4.0,
        ..Rates::default()
    };
    for (c, (ahead, decoding, matched)) in table.candidates.iter_mut().zip(state) {
        c.ahead_seconds = *ahead;
        (c.running, c.decoding) = (*decoding, *decoding);
        c.matched_blocks = *matched;
        c.matched_tokens = matched * 1_000;
    }
    table
}

fn scores(table: &Table) -> alloc::vec::Vec<f64> {
    let rounded = |score: &f64| libm::round(score * 1e6) / 1e6;
    table.scores.iter().map(rounded).collect()
}

#[test]
fn an_idle_pool_weighs_ones_own_first_token() {
    // 0.01 + 0.5 + 4 x 0.001 + 5,000 x 0.0001; 0.01 + 1.
    let mut t = table(1, &[(0.5, 4, 5), (0.0, 0, 0)]);
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!(scores(&t), [1.014, 1.01]);
    assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
    let mut t = table(1, &[(0.49, 4, 5), (0.0, 0, 0)]);
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!((answer.choice, answer.reason), (0, Reason::Warmest));
    // What lies in host memory has to be brought back, and a slow worker takes longer.
    t.candidates[0].reload_seconds = 0.02;
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 1);
    t.candidates[1].pace = 1.5;
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 0);
    assert_eq!(scores(&t), [1.024, 1.515]);
}

#[test]
fn a_busy_pool_weighs_what_it_computes_for_those_who_wait() {
    let mut t = table(1, &[(0.6, 0, 5), (0.0, 0, 0)]);
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 1);
    // Half of it is in use: 2.5 prefills a second; one of four requests has its first token to come,
    // and three wait in the line: 2 for each worker.
    t.rates.busy = 0.5;
    t.waiting = 3;
    t.candidates[0].running = 1;
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 0);
    // 0.61 + 0.5 + 0.3 x 0.5 (2.5 x 0.25 + 2) / 0.5; 0.01 + 1 + 0.3 (2.5 / 2 + 2) / 0.5.
    assert_eq!(scores(&t), [1.8975, 2.96]);
}

#[test]
fn the_slots_count_where_they_are_what_is_scarce() {
    let mut t = table(2, &[(0.0, 24, 0), (0.0, 8, 0)]);
    for c in &mut t.candidates {
        c.slots = Some(20);
    }
    t.rates.busy = 0.1;
    t.ask(&mut Adaptive::default());
    // 32 of 40 slots are taken: a fifth is free, whatever prefill there is. 0.5 prefills a second.
    // 0.01 + 0.024 + 1 + 0.3 (0.5 / 2) / 0.2.
    assert_eq!(scores(&t), [1.409, 1.393]);
}

#[test]
fn a_first_turn_counts_the_turns_to_come() {
    let mut t = table(1, &[(0.0, 0, 9), (0.0, 0, 0)]);
    t.candidates[0].busy = 0.5;
    let answer = t.ask(&mut Adaptive::default());
    // 0.01 + 0.1 + 5 x 0.2 x 0.5 x 1.5 / 0.25; 0.01 + 1.
    assert_eq!(scores(&t), [3.11, 1.01]);
    assert_eq!(answer.choice, 1);
    t.guest.turn = 2;
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 0, "its home or not");
    assert_eq!(scores(&t), [0.11, 1.01]);
}

#[test]
fn a_follow_up_goes_home_and_leaves_it_for_seconds_not_for_nothing() {
    let mut t = table(2, &[(0.9, 0, 9), (0.0, 0, 0)]);
    t.home = t.home_on(0, 5);
    let answer = t.ask(&mut Adaptive::default());
    // 0.01 + 0.9 + 0.1 = 1.01: no better elsewhere.
    assert_eq!((answer.choice, answer.reason), (0, Reason::Home));
    t.candidates[0].ahead_seconds = 0.909;
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 0, "less than 10 ms");
    t.candidates[0].ahead_seconds = 0.911;
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!((answer.choice, answer.reason), (1, Reason::Escape));
    // There it has been computed then, and it stays although the old home is idle again.
    t.home = t.home_on(1, 1);
    t.candidates[0].ahead_seconds = 0.0;
    t.candidates[1].matched_blocks = 10;
    t.candidates[1].matched_tokens = 10_000;
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!((answer.choice, answer.reason), (1, Reason::Home));
}

#[test]
fn a_home_without_a_seat_is_waited_for_as_long_as_that_pays() {
    let mut t = table(2, &[(0.0, 20, 9), (0.0, 0, 0)]);
    t.home = t.home_on(0, 5);
    t.candidates[0].seat = false;
    // A seat in 4 / 20 = 0.2 s; elsewhere it is 1.01 + 0.01 - (0.01 + 0.02 + 0.1) = 0.89 s later.
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!((answer.choice, answer.reason), (0, Reason::Home));
    let off = answer.hold.abs_diff(Duration::from_millis(890));
    assert!(off < Duration::from_micros(1), "{:?}", answer.hold);
    // Of four who sit there one leaves in a second: that is too long.
    t.candidates[0].running = 4;
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!((answer.choice, answer.reason), (1, Reason::HomeUnavailable));
    assert!(answer.hold.is_zero());
    // No seat anywhere: home, and no sooner than elsewhere.
    t.candidates[1].seat = false;
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 0);
}

#[test]
fn equal_workers_are_taken_by_the_keys_order_and_conversations_are_even() {
    let mut policy = Adaptive::default();
    let mut t = table(1, &[(0.0, 0, 0); 4]);
    let mut counts = [0; 4];
    for key in 0..40 {
        t.session(key, 1);
        let answer = t.ask(&mut policy);
        counts[answer.choice] += 1;
    }
    // Those on the way count: none above 1.25 x 10, rounded down.
    assert!(counts.iter().all(|n| (4..=12).contains(n)), "{counts:?}");
    // A hot opening on one worker gathers nobody beyond its share.
    let mut policy = Adaptive::default();
    let mut t = table(1, &[(0.0, 0, 9), (0.0, 0, 0), (0.0, 0, 0), (0.0, 0, 0)]);
    let mut counts = [0; 4];
    for key in 0..40 {
        t.session(key, 1);
        counts[t.ask(&mut policy).choice] += 1;
    }
    assert_eq!(counts[0], 12, "{counts:?}");
}

#[test]
fn where_each_slot_keeps_one_conversation_a_new_one_takes_a_free_one() {
    let mut t = table(1, &[(0.0, 0, 9), (0.0, 0, 0)]);
    let slots = |taken, oldest| {
        Some(CacheSlots {
            size: 2,
            taken,
            oldest: Nanos(oldest),
        })
    };
    t.candidates[0].cache_slots = slots(2, 5);
    t.candidates[1].cache_slots = slots(1, 9);
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 1);
    t.candidates[1].cache_slots = slots(2, 9);
    assert_eq!(
        t.ask(&mut Adaptive::default()).choice,
        0,
        "idle for longest"
    );
}

#[test]
fn while_affinity_does_not_pay_load_decides() {
    let mut t = table(2, &[(0.0, 3, 9), (0.0, 1, 0)]);
    t.home = t.home_on(0, 5);
    assert_eq!(t.ask(&mut Adaptive::default()).choice, 0);
    t.follows = false;
    let answer = t.ask(&mut Adaptive::default());
    assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
}
