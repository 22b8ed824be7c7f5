//! Conversations: where they stay, how they spread, what moves them.

use crate::room::{BLOCK, Room, anonymous, chain, skew, turn_of};
use maitred_core::decision::Reason;
use maitred_core::ids::WorkerId;
use maitred_core::place::PolicyConfig;
use maitred_core::request::Arrival;
use maitred_core::rng::Rng;

/// A chat's request: its own text grows by 20 blocks a turn.
fn chat(session: u64, turn: u32) -> Arrival {
    turn_of(session, turn, chain(&[(session + 500, 20 * turn as usize)]))
}

/// Where a router that knows nothing puts a session when nothing runs.
fn by_hash(room: &mut Room, session: u64) -> WorkerId {
    room.policy = PolicyConfig::named("session").unwrap().build();
    let answer = room.ask(&chat(session, 1));
    assert_eq!(answer.reason, Reason::Hash);
    room.workers[answer.choice].worker
}

#[test]
fn a_new_worker_takes_its_share_of_the_hash_and_a_removed_one_gives_only_its_own() {
    for n in [1_u32, 3, 7, 15] {
        let mut room = Room::named(n, "session", 1);
        let before: Vec<_> = (0..2_000).map(|s| by_hash(&mut room, s)).collect();
        room.add(n);
        let after: Vec<_> = (0..2_000).map(|s| by_hash(&mut room, s)).collect();
        let moved = before.iter().zip(&after).filter(|(b, a)| b != a).count();
        let share = moved as f64 / 2_000.0;
        let fair = 1.0 / f64::from(n + 1);
        // Three standard deviations of 2,000 draws are at most 0.034.
        assert!((share - fair).abs() < 0.034, "{n}: {share} of {fair}");
        let to_the_new = before
            .iter()
            .zip(&after)
            .all(|(b, a)| b == a || a.slot == n);
        assert!(to_the_new);

        let gone = room.remove(0);
        for (session, old) in after.into_iter().enumerate() {
            let new = by_hash(&mut room, session as u64);
            assert!(new == old || old == gone);
        }
    }
}

#[test]
fn known_sessions_stay_when_a_worker_joins_and_only_the_lost_ones_move() {
    let mut room = Room::named(4, "session", 2);
    let before: Vec<_> = (0..200).map(|s| room.visit(&chat(s, 1)).worker).collect();
    room.add(4);
    let after: Vec<_> = (0..200).map(|s| room.visit(&chat(s, 2)).worker).collect();
    assert_eq!(before, after);
    let gone = room.remove(1);
    for (session, old) in after.into_iter().enumerate() {
        let sitting = room.visit(&chat(session as u64, 3));
        assert!(sitting.worker == old || old == gone);
    }
}

#[test]
fn fresh_routers_agree() {
    // Chats through one router, continued through another that has learned nothing.
    let mut same = 0;
    for fleet in 0..20_u64 {
        let mut one = Room::named(4, "session", 1);
        let mut two = Room::named(4, "session", 99);
        let sessions: Vec<u64> = (0..10).map(|i| fleet * 100 + i).collect();
        let first: Vec<_> = sessions
            .iter()
            .map(|s| one.visit(&chat(*s, 1)).worker)
            .collect();
        let second: Vec<_> = sessions
            .iter()
            .map(|s| two.visit(&chat(*s, 2)).worker)
            .collect();
        let agreed = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(agreed >= 9, "fleet {fleet}: {agreed} of 10");
        same += agreed;
    }
    assert!(same >= 190, "{same} of 200");
}

#[test]
fn fresh_routers_mostly_agree_whatever_the_order() {
    let mut same = 0_u32;
    for fleet in 0..40_u64 {
        let mut one = Room::named(4, "session", 1);
        let mut two = Room::named(4, "session", 99);
        for i in 0..10 {
            one.visit(&chat(fleet * 100 + i, 1));
        }
        for i in 0..10 {
            let session = fleet * 100 + (i * 7 + 3) % 10;
            let worker = two.visit(&chat(session, 2)).worker;
            let key = chat(session, 1).session.unwrap();
            same += u32::from(one.homes[&key].worker == worker);
        }
    }
    println!("agreement in another order: {same} of 400");
    assert!(same >= 200, "{same} of 400");
}

#[test]
fn sessions_spread_evenly() {
    for n in [3_u32, 4, 5, 8] {
        for count in [24_u64, 64] {
            for fleet in 0..10 {
                let mut room = Room::named(n, "session", 3);
                for session in 0..count {
                    room.visit(&chat(fleet * 1_000 + session, 1));
                }
                let sessions = room.sessions();
                assert!(skew(&sessions) <= 1.3, "{n} workers: {sessions:?}");
            }
        }
    }
}

#[test]
fn a_session_that_left_its_home_does_not_bounce_back() {
    let mut room = Room::named(2, "session", 4);
    let home = room.visit(&chat(1, 1)).worker.slot as usize;
    let other = 1 - home;
    // At its cap the home is waited for at most `hold`; then the scheduler offers the rest.
    room.workers[home].seat = false;
    let answer = room.ask(&chat(1, 2));
    assert_eq!((answer.choice, answer.reason), (home, Reason::Home));
    assert!(!answer.hold.is_zero());
    let away = room.workers.remove(home);
    let sitting = room.visit(&chat(1, 2));
    assert_eq!(sitting.worker.slot as usize, other);
    assert_eq!(sitting.reason, Reason::HomeUnavailable);
    room.workers.insert(home, away);
    room.workers[home].seat = true;
    for turn in 3..10 {
        let sitting = room.visit(&chat(1, turn));
        assert_eq!(sitting.worker.slot as usize, other, "turn {turn}");
        assert_eq!(sitting.reason, Reason::Home);
    }
}

#[test]
fn a_session_that_escaped_load_does_not_bounce_back() {
    let mut room = Room::named(3, "session", 4);
    let home = room.visit(&chat(1, 1)).worker;
    room.workers[home.slot as usize].running = 60;
    let sitting = room.visit(&chat(1, 2));
    assert_eq!(sitting.reason, Reason::Escape);
    room.workers[home.slot as usize].running = 0;
    for turn in 3..10 {
        assert_eq!(room.visit(&chat(1, turn)).worker, sitting.worker);
    }
}

#[test]
fn a_chat_without_ids_stays_on_one_worker() {
    // The key is the opening's, whatever the request ids are.
    for name in [
        "adaptive",
        "session",
        "pin",
        "soft_affinity",
        "cache_aware",
        "chwbl",
        "lmetric",
        "smetric",
        "sticky_until_saturated",
        "dynamo_cost",
        "dualmap",
    ] {
        let mut room = Room::named(4, name, 5);
        for chat in 0..100 {
            let guest = |turn: u32| anonymous(chat, turn, chain(&[(chat, 20 * turn as usize)]));
            let home = room.visit(&guest(1)).worker;
            for turn in 2..=10 {
                assert_eq!(room.visit(&guest(turn)).worker, home, "{name}");
            }
        }
    }
}

#[test]
fn a_harness_that_changes_its_key_is_recognised() {
    // Turns 1 to 3 with one key, 4 to 6 continue the same messages with another.
    for harness in 0..60 {
        let policy = if harness < 30 { "session" } else { "adaptive" };
        let mut room = Room::named(4, policy, 6);
        let text = |turn: u32| chain(&[(harness, 30 * turn as usize)]);
        let mut seen = Vec::new();
        for turn in 1..=6 {
            let key = if turn <= 3 { harness } else { harness + 5_000 };
            seen.push(room.visit(&turn_of(key, turn, text(turn))).worker);
        }
        seen.dedup();
        assert_eq!(seen.len(), 1);
    }
}

#[test]
fn two_chats_with_one_opening_stay_where_each_began() {
    // No ids: both chats have one key, but from turn 2 on their caches tell them apart.
    let mut room = Room::named(4, "session", 7);
    let guest = |chat: u64, turn: u32| {
        anonymous(1, turn, chain(&[(1, 4), (chat, 20 * (turn as usize - 1))]))
    };
    let first = room.arrive(&guest(10, 1));
    for worker in 0..4 {
        room.workers[worker].running += 4 * u32::from(worker as u32 == first.worker.slot);
    }
    let second = room.arrive(&guest(20, 1));
    assert_ne!(first.worker, second.worker);
    for worker in &mut room.workers {
        worker.running = worker.running.min(1);
    }
    let ten = room.visit(&guest(10, 2)).worker;
    let twenty = room.visit(&guest(20, 2)).worker;
    for turn in 3..8 {
        assert_eq!(room.visit(&guest(10, turn)).worker, ten);
        assert_eq!(room.visit(&guest(20, turn)).worker, twenty);
    }
}

/// Agents that share a 4k-token opening and go on in random order, some at a time.
/// Returns prompt tokens per worker and the share of input that was cached.
fn agents(policy: &str, sessions: u64, turns: u32, at_once: usize) -> (Vec<u32>, f64) {
    let mut room = Room::named(4, policy, 8);
    let mut rng = Rng::new(31);
    let mut next: Vec<u32> = vec![1; sessions as usize];
    let mut sitting = std::collections::VecDeque::new();
    let mut tokens = vec![0_u32; 4];
    let (mut input, mut uncached) = (0_u64, 0_u64);
    let mut open: Vec<u64> = (0..sessions).collect();
    while !open.is_empty() || !sitting.is_empty() {
        if sitting.len() == at_once || open.is_empty() {
            let (session, seat): (u64, _) = sitting.pop_front().unwrap();
            room.finish(&seat);
            next[session as usize] += 1;
            if next[session as usize] <= turns {
                open.push(session);
            }
            continue;
        }
        let session = open.swap_remove(rng.below(open.len()));
        let turn = next[session as usize];
        // 256 blocks of 16 tokens are shared; each turn adds 400 tokens of its own.
        let text = chain(&[(7, 256), (1_000 + session, 25 * turn as usize)]);
        let seat = room.arrive(&turn_of(session, turn, text));
        tokens[seat.worker.slot as usize] += seat.prompt;
        input += u64::from(seat.prompt);
        uncached += u64::from(seat.uncached);
        sitting.push_back((session, seat));
    }
    assert_eq!(BLOCK, 16);
    (tokens, 1.0 - uncached as f64 / input as f64)
}

#[test]
fn agents_with_a_common_opening_make_no_herd() {
    for (sessions, at_once) in [(12, 6), (24, 12), (64, 32)] {
        for policy in ["session", "adaptive"] {
            let (tokens, cached) = agents(policy, sessions, 20, at_once);
            println!(
                "{policy}, {sessions} agents: {tokens:?}, {:.2}, cached {cached:.3}",
                skew(&tokens)
            );
            assert!(skew(&tokens) <= 1.3, "{policy}, {sessions}: {tokens:?}");
            assert!(cached >= 0.94, "{policy}, {sessions}: {cached}");
        }
    }
}
