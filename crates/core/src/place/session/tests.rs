use super::super::pending::PENDING_MAX;
use super::{Options, Session};
use crate::decision::Reason;
use crate::ids::SessionKey;
use crate::place::Policy;
use crate::place::rendezvous;
use crate::place::testing::{Table, candidate};
use crate::request::KeySource;
use crate::session::CacheSlots;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

fn policy() -> Session {
    Session::new(Options::default())
}

/// A table of `n` idle workers with session `key`, and the key's order of them.
fn table(n: u32, key: u64, turn: u32) -> (Table, Vec<usize>) {
    let mut table = Table::new((0..n).map(candidate).collect());
    table.session(key, turn);
    let mut order: Vec<usize> = (0..n as usize).collect();
    order.sort_by_key(|i| {
        core::cmp::Reverse(rendezvous(SessionKey(key), table.candidates[*i].identity))
    });
    (table, order)
}

#[test]
fn an_unknown_session_goes_where_its_hash_says() {
    for key in 0..50 {
        let (mut table, order) = table(6, key, 1);
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (order[0], Reason::Hash));
        let best = table.scores.iter().copied().fold(0.0, f64::max);
        assert!((table.scores[order[0]] - best).abs() < f64::EPSILON);
    }
}

#[test]
fn over_the_request_bound_it_goes_on_in_order() {
    let (mut table, order) = table(4, 9, 1);
    // Total 4, mean with this one 1.25, x 1.25 = 1.6: the floor of 4 rules, and 4 are there.
    table.candidates[order[0]].running = 4;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[1], Reason::Bounded));
    // 3 are there: the fourth is within the floor.
    table.candidates[order[0]].running = 3;
    assert_eq!(table.ask(&mut policy()).choice, order[0]);
}

#[test]
fn long_prefill_counts_like_many_requests() {
    // W1 has 3 x 120k tokens, W2 10 x 500; a new 2k request that hashes to W1 goes to W2.
    let (mut table, order) = table(2, 3, 1);
    table.prompt_tokens = 2_000;
    let heavy = &mut table.candidates[order[0]];
    heavy.running = 3;
    heavy.prefill_tokens = 360_000;
    heavy.resident_tokens = 360_000;
    let light = &mut table.candidates[order[1]];
    light.running = 6;
    light.prefill_tokens = 3_000;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[1], Reason::Bounded));
}

#[test]
fn conversations_are_spread_too() {
    let (mut table, order) = table(4, 5, 1);
    // 7 live, mean with this one 2: at most max(floor(2.5), 2, 2) = 2 a worker.
    for (index, sessions) in [(order[0], 2), (order[1], 2), (order[2], 1), (order[3], 2)] {
        table.candidates[index].sessions = sessions;
    }
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[2], Reason::Bounded));
}

#[test]
fn a_home_is_kept_until_it_is_clearly_above_the_others() {
    let (mut table, order) = table(4, 11, 3);
    let home = order[2];
    table.home = table.home_on(home, 5);
    // The others have 3 x 128, the home holds the prompt's 160 tokens:
    // 2 x (384 + 160) + 4 x 128 = 1,600 = 12.5 x 128.
    for c in &mut table.candidates {
        c.running = 3;
    }
    table.candidates[home].running = 12;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (home, Reason::Home));
    table.candidates[home].running = 13;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[0], Reason::Escape));
}

#[test]
fn a_home_with_tokens_far_above_the_others_is_left() {
    let (mut table, order) = table(2, 11, 3);
    let home = order[0];
    table.home = table.home_on(home, 5);
    table.prompt_tokens = 872;
    // The other has no load: 2 x 872 + 4 x 128 = 2,256 tokens may stand before it.
    table.candidates[home].prefill_tokens = 2_256;
    assert_eq!(table.ask(&mut policy()).choice, home);
    table.candidates[home].prefill_tokens = 2_257;
    assert_eq!(table.ask(&mut policy()).reason, Reason::Escape);
}

#[test]
fn a_short_conversation_leaves_sooner_than_a_long_one() {
    // Five wait at home, the other is idle.
    let (mut table, order) = table(2, 11, 3);
    table.home = table.home_on(order[0], 5);
    table.candidates[order[0]].running = 5;
    table.candidates[order[0]].matched_blocks = 10;
    table.prompt_tokens = 40;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[1], Reason::Escape));
    table.candidates[order[0]].prefill_tokens = 5 * 8_000;
    table.prompt_tokens = 40_000;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[0], Reason::Home));
}

#[test]
fn two_candidates_can_be_escaped_from_and_one_can_not() {
    let (mut pair, order) = table(2, 11, 3);
    pair.home = pair.home_on(order[0], 5);
    // 2 x 160 + 4 x 128 = 832 = 6.5 x 128.
    pair.candidates[order[0]].running = 7;
    assert_eq!(pair.ask(&mut policy()).choice, order[1]);
    let (mut single, _) = table(1, 11, 3);
    single.home = single.home_on(0, 5);
    single.candidates[0].running = 500;
    assert_eq!(single.ask(&mut policy()).reason, Reason::Home);
}

#[test]
fn waits_for_a_seat_at_home_and_not_elsewhere() {
    let (mut table, order) = table(3, 2, 2);
    let home = order[1];
    table.home = table.home_on(home, 5);
    table.candidates[home].seat = false;
    let answer = table.ask(&mut policy());
    assert_eq!(
        (answer.choice, answer.hold),
        (home, Duration::from_millis(500))
    );
    // The wait is over: the scheduler asks again with those that have a seat.
    table.candidates.remove(home);
    let answer = table.ask(&mut policy());
    assert_eq!(answer.reason, Reason::HomeUnavailable);
    assert_eq!(answer.hold, Duration::ZERO);
}

#[test]
fn a_new_session_does_not_take_a_full_worker() {
    let (mut table, order) = table(3, 2, 1);
    table.candidates[order[0]].seat = false;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[1], Reason::Bounded));
}

#[test]
fn a_lost_home_goes_by_the_hash_of_the_rest() {
    let (mut table, order) = table(4, 21, 4);
    table.home = table.home_on(order[0], 5);
    let next = table.candidates[order[1]].worker;
    table.candidates.remove(order[0]);
    let answer = table.ask(&mut policy());
    assert_eq!(table.candidates[answer.choice].worker, next);
    assert_eq!(answer.reason, Reason::HomeUnavailable);
}

#[test]
fn one_shots_with_one_opening_spread_although_their_key_has_a_home() {
    let (mut table, order) = table(4, 8, 1);
    table.guest.session_source = KeySource::Content;
    let home = order[0];
    table.home = table.home_on(home, 1);
    table.candidates[home].running = 4;
    table.candidates[home].sessions = 1;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[1], Reason::Bounded));
}

#[test]
fn a_first_turn_of_a_named_session_keeps_the_tight_bound() {
    let (mut table, order) = table(4, 8, 1);
    let home = order[3];
    table.home = table.home_on(home, 1);
    table.candidates[home].matched_blocks = 10;
    table.candidates[home].running = 3;
    assert_eq!(table.ask(&mut policy()).reason, Reason::Home);
    table.candidates[home].running = 4;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[0], Reason::Escape));
}

#[test]
fn a_conversation_is_recognised_by_what_is_cached() {
    // A new key, the old content. Home restarted, another holds half.
    for home in [None, Some(0)] {
        let (mut table, order) = table(4, 77, 5);
        table.home = home.and_then(|i: usize| table.home_on(order[i], 5));
        table.candidates[order[3]].matched_blocks = 5;
        let answer = table.ask(&mut policy());
        assert_eq!((answer.choice, answer.reason), (order[3], Reason::Warmest));
        // Less than half of the prompt's 10 blocks proves nothing: openings are shared.
        table.candidates[order[3]].matched_blocks = 4;
        assert_eq!(table.ask(&mut policy()).choice, order[0]);
    }
}

#[test]
fn without_a_key_load_decides() {
    let mut table = Table::new((0..3).map(candidate).collect());
    table.candidates[0].running = 1;
    table.candidates[2].running = 1;
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (1, Reason::LeastLoad));
    table.guest.opening = Some(SessionKey(4));
    assert_eq!(table.ask(&mut policy()).reason, Reason::Hash);
}

#[test]
fn a_burst_of_new_sessions_is_counted_before_it_is_accepted() {
    let (mut table, _) = table(4, 0, 1);
    let mut policy = policy();
    let mut counts = [0; 4];
    let mut first = None;
    for key in 0..12 {
        table.session(key, 1);
        let choice = table.ask(&mut policy).choice;
        first = first.or(Some(choice));
        counts[choice] += 1;
    }
    assert_eq!(counts, [3; 4]);
    // Another request of one that is on its way goes there too.
    table.session(0, 1);
    let answer = table.ask(&mut policy);
    assert_eq!((Some(answer.choice), answer.reason), (first, Reason::Home));
    // Nothing was heard of them for a minute: they are forgotten.
    table.now.0 += 61_000_000_000;
    table.ask(&mut policy);
    assert_eq!(policy.pending.len(), 1);
    let worker = table.candidates[0].worker;
    policy.settled(&table.guest, worker, table.now);
    assert_eq!(policy.pending.len(), 0);
}

#[test]
fn an_engine_that_keeps_one_conversation_per_slot_gets_no_more_while_others_have_room() {
    let (mut table, order) = table(2, 5, 1);
    let slots = |taken, seconds: u64| {
        Some(CacheSlots {
            size: 4,
            taken,
            oldest: Nanos(seconds * 1_000_000_000),
        })
    };
    // 7 live, mean with this one 4: five a worker would be even enough, four slots are there.
    for (index, taken) in [(order[0], 4), (order[1], 3)] {
        table.candidates[index].sessions = taken;
        table.candidates[index].cache_slots = slots(taken, 10);
    }
    let answer = table.ask(&mut policy());
    assert_eq!((answer.choice, answer.reason), (order[1], Reason::Bounded));
    // All are taken: where the next to be lost was served longest ago.
    table.candidates[order[0]].cache_slots = slots(4, 20);
    table.candidates[order[1]].cache_slots = slots(4, 10);
    table.candidates[order[1]].sessions = 9;
    assert_eq!(table.ask(&mut policy()).choice, order[1]);
    table.candidates[order[0]].cache_slots = slots(4, 9);
    assert_eq!(table.ask(&mut policy()).choice, order[0]);
    // Equally long ago: the key's order.
    table.candidates[order[1]].cache_slots = slots(4, 9);
    assert_eq!(table.ask(&mut policy()).choice, order[0]);
    // Who can not take it now is no choice.
    table.candidates[order[0]].seat = false;
    assert_eq!(table.ask(&mut policy()).choice, order[1]);
}

#[test]
fn those_on_their_way_to_a_slot_count() {
    let (mut table, _) = table(2, 0, 1);
    for c in &mut table.candidates {
        c.cache_slots = Some(CacheSlots {
            size: 4,
            taken: 0,
            oldest: Nanos(0),
        });
    }
    let mut policy = policy();
    let mut counts = [0; 2];
    for key in 0..8 {
        table.session(key, 1);
        counts[table.ask(&mut policy).choice] += 1;
    }
    assert_eq!(counts, [4, 4]);
}

#[test]
fn those_on_their_way_are_bounded() {
    let (mut table, _) = table(2, 0, 1);
    let mut policy = policy();
    for key in 0..PENDING_MAX as u64 + 50 {
        table.session(key, 1);
        table.ask(&mut policy);
    }
    assert_eq!(policy.pending.len(), PENDING_MAX);
}
