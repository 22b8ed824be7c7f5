//! Load: bursts, misses, unique prompts, popular prefixes.

use crate::room::{Room, anonymous, arrival, chain, skew, stays_with_any_hit, turn_of};
use maitred_core::decision::Reason;
use maitred_core::place::{OptionValue, PolicyConfig};
use maitred_core::rng::Rng;

/// The policies that place by load where nothing binds.
const BY_LOAD: [&str; 11] = [
    "least_load",
    "session",
    "scenario",
    "pin",
    "soft_affinity",
    "cache_aware",
    "chwbl",
    "lmetric",
    "smetric",
    "sticky_until_saturated",
    "dynamo_cost",
];

#[test]
fn a_miss_goes_to_the_idle_worker_whatever_it_remembers() {
    // W1 has 50 in flight and a small index, W2 is idle and remembers much.
    for name in BY_LOAD.iter().chain(&["power_of_two"]) {
        let mut room = Room::named(2, name, 1);
        room.workers[0].running = 50;
        for other in 0..20 {
            let sitting = room.visit(&arrival(chain(&[(100 + other, 50)])));
            assert_eq!(sitting.worker.slot, 1);
        }
        let sitting = room.arrive(&arrival(chain(&[(1, 30)])));
        assert_eq!(sitting.worker.slot, 1, "{name}");
    }
}

#[test]
fn unrelated_first_turns_one_at_a_time_go_round() {
    for name in BY_LOAD {
        for seed in 0..8 {
            let mut room = Room::named(4, name, seed);
            let mut counts = [0; 4];
            for prompt in 0..8 {
                let sitting = room.visit(&arrival(chain(&[(prompt, 20)])));
                counts[sitting.worker.slot as usize] += 1;
            }
            assert_eq!(counts, [2; 4], "{name}");
        }
    }
}

#[test]
fn bursts_are_counted_as_they_are_placed() {
    // Nothing has answered yet, nothing was scraped.
    for (n, requests) in [(4, 16), (8, 64)] {
        for name in BY_LOAD.iter().chain(&["round_robin"]) {
            let mut room = Room::named(n, name, 3);
            for request in 0..requests {
                room.arrive(&arrival(chain(&[(request, 100)])));
            }
            let each = requests as u32 / n;
            assert_eq!(room.running(), vec![each; n as usize], "{name}");
        }
        // One prompt for all: who is warm has less to compute and may take a little more.
        for name in [
            "least_load",
            "session",
            "scenario",
            "pin",
            "soft_affinity",
            "chwbl",
        ] {
            let mut room = Room::named(n, name, 3);
            for _ in 0..requests {
                room.arrive(&arrival(chain(&[(1, 100)])));
            }
            assert!(skew(&room.running()) <= 1.25, "{name} {:?}", room.running());
        }
    }
}

#[test]
fn a_popular_key_spreads_and_nobody_passes_the_bound() {
    // 200 workers, 25 percent of the requests share a key, 0 to 400 in flight.
    for name in ["session", "chwbl"] {
        for shared_source_is_content in [false, true] {
            let mut room = Room::named(200, name, 5);
            let mut rng = Rng::new(11);
            for request in 1..=400_u64 {
                let key = if rng.below(4) == 0 { 0 } else { request };
                let mut guest = anonymous(key, 1, chain(&[(key, 8), (request, 8)]));
                if !shared_source_is_content {
                    guest.session_source = maitred_core::request::KeySource::Header;
                }
                room.arrive(&guest);
                let mean = request as f64 / 200.0;
                let cap = (1.25 * mean).ceil().max(4.0) as u32;
                let most = room.running().into_iter().max().unwrap();
                assert!(most <= cap, "{name}: {most} with {request} in flight");
            }
        }
    }
}

#[test]
fn a_bound_of_one_still_finds_a_place_for_everyone() {
    for (name, bound) in [("session", "bound"), ("chwbl", "load_factor")] {
        let mut config = PolicyConfig::named(name).unwrap();
        config.set(bound, OptionValue::Number(1.0)).unwrap();
        config.set("floor", OptionValue::Number(1.0)).unwrap();
        let mut room = Room::new(5, &config, 2);
        for _ in 0..50 {
            room.arrive(&anonymous(1, 1, chain(&[(1, 10)])));
        }
        assert_eq!(room.running(), [10; 5], "{name}");
    }
}

#[test]
fn independent_prompts_divide_evenly() {
    // 5 workers, 512 concurrent unique prompts: each 15 to 25 percent.
    for name in PolicyConfig::NAMES {
        let mut room = Room::named(5, name, 17);
        for prompt in 0..512 {
            let mut guest = anonymous(prompt, 1, chain(&[(prompt, 40)]));
            guest.scenario = guest.opening;
            room.arrive(&guest);
        }
        for n in room.running() {
            let share = f64::from(n) / 512.0;
            assert!(
                (0.15..=0.25).contains(&share),
                "{name} {:?}",
                room.running()
            );
        }
    }
}

#[test]
fn one_shots_without_a_key_use_every_worker() {
    // 60 chats with one system text, each with its own question; one at a time, and all at once.
    for name in PolicyConfig::NAMES {
        for together in [false, true] {
            if stays_with_any_hit(name, together) {
                continue;
            }
            let mut room = Room::named(4, name, 23);
            let mut counts = vec![0_u32; 4];
            for chat in 0..60 {
                let guest = anonymous(chat, 1, chain(&[(9, 4), (chat, 12)]));
                let sitting = room.arrive(&guest);
                counts[sitting.worker.slot as usize] += 1;
                if !together {
                    room.finish(&sitting);
                }
            }
            assert!(counts.iter().all(|n| *n >= 5), "{name} {counts:?}");
        }
    }
}

#[test]
fn warm_prompts_under_cache_aware_go_home_until_the_pool_is_out_of_balance() {
    let mut room = Room::named(4, "cache_aware", 4);
    let guest = arrival(chain(&[(1, 100)]));
    let first = room.arrive(&guest).worker;
    for _ in 1..65 {
        let sitting = room.arrive(&guest);
        assert_eq!((sitting.worker, sitting.reason), (first, Reason::Warmest));
    }
    // 65 against 0.
    let sitting = room.arrive(&guest);
    assert_eq!(sitting.reason, Reason::Escape);
    assert_ne!(sitting.worker, first);
}

#[test]
fn scenarios_keep_to_their_workers_and_their_load_is_even() {
    // Eight prompt versions of equal weight on eight workers; each answer takes 40 arrivals.
    let mut room = Room::named(8, "scenario", 6);
    let mut sitting = std::collections::VecDeque::new();
    let mut seats = vec![vec![0_u32; 8]; 8];
    let mut totals = vec![0_u32; 8];
    for request in 0..2_000_u64 {
        let version = request % 8;
        let mut guest = arrival(chain(&[(version, 50), (1_000 + request, 10)]));
        guest.scenario = turn_of(version, 1, Vec::new()).session;
        let seat = room.arrive(&guest);
        if request >= 400 {
            seats[version as usize][seat.worker.slot as usize] += 1;
            totals[seat.worker.slot as usize] += 1;
        }
        sitting.push_back(seat);
        if sitting.len() > 40 {
            let done = sitting.pop_front().unwrap();
            room.finish(&done);
        }
    }
    for used in &seats {
        // 1.5 x 1/8 x 8, rounded up.
        assert!(used.iter().filter(|n| **n > 0).count() <= 2, "{seats:?}");
    }
    assert!(totals.iter().filter(|n| **n > 0).count() >= 6, "{totals:?}");
}
