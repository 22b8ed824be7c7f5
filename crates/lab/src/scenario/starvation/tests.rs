#![allow(clippy::unwrap_used)]
use super::{Starvation, Sums};

fn play(scenario: &Starvation, fairness: &str) -> Sums {
    let pool = scenario.pool(fairness).unwrap();
    scenario.play(pool, &mut |_, _| {}).unwrap()
}

#[test]
fn first_come_first_served_starts_hardly_anybody_before_the_limit() {
    let scenario = Starvation {
        newcomers: 150,
        ..Starvation::default()
    };
    let sums = play(&scenario, "fcfs");
    // 16 slots that are hardly ever free serve 0.8 a second, but for those that are not done at the end.
    assert!((sums.throughput - 0.8).abs() < 0.03, "{}", sums.throughput);
    let ends = sums.started + sums.refused_at_the_door + sums.refused_after_waiting;
    assert_eq!(ends + sums.still_waiting, sums.newcomers);
    assert!(sums.newcomers.abs_diff(150) < 30, "{}", sums.newcomers);
    assert_eq!(sums.refused_waits.max, Some(60.0));
    assert_eq!(sums, play(&scenario, "fcfs"));
}

#[test]
fn a_fairness_policy_is_named_with_its_options() {
    let scenario = Starvation::default();
    let wrong = |name: &str| scenario.pool(name).unwrap_err();
    assert!(wrong("fifo").starts_with("fifo: no such"));
    assert_eq!(
        wrong("promise:new_share"),
        "promise: new_share: must be option=value"
    );
    assert!(wrong("promise:share=1").contains("no such option"));
    let pool = scenario.pool("promise:new_share=0.3").unwrap();
    assert_ne!(pool.fairness, scenario.pool("promise").unwrap().fairness);
    // Only `promise` refuses at the door; the others let people wait to a limit.
    assert_eq!(pool.max_wait.as_secs(), 300);
    assert_eq!(scenario.pool("las").unwrap().max_wait.as_secs(), 60);
}

#[test]
fn load_is_what_clients_would_take() {
    let scenario = Starvation::default();
    // 60 / 22 s + 5 x 0.2 / s, over 16 / 20 s.
    assert!((scenario.load() - (60.0 / 22.0 + 1.0) / 0.8).abs() < 1e-9);
    let half = scenario.at_load(0.5);
    assert_eq!((half.deep, half.newcomers), (6, 85));
    // Rounded to whole conversations, each of which is 0.057 of the capacity.
    assert!((half.load() - 0.5).abs() < 0.029);
    assert_eq!(scenario.at_load(scenario.load()), scenario);
}

/// As the scenario stands, for a quarter of its time.
fn short() -> Starvation {
    Starvation {
        newcomers: 197,
        ..Starvation::default()
    }
}

#[test]
fn turn_priority_lets_newcomers_wait_for_nothing() {
    let sums = play(&short(), "turn_priority");
    assert!(
        sums.refused_after_waiting * 10 > sums.newcomers * 9,
        "{sums:?}"
    );
    assert_eq!(sums.refused_at_the_door, 0);
    assert_eq!(sums.refused_waits.p50, Some(60.0));
    assert!(sums.follow_ups_refused > 0);
}

#[test]
fn las_starves_deep_conversations_under_a_stream_of_fresh_ones() {
    let scenario = short();
    let sums = play(&scenario, "las");
    assert!(sums.started * 10 > sums.newcomers * 9, "{sums:?}");
    assert!(sums.deep_starved * 2 > scenario.deep as usize, "{sums:?}");
}

#[test]
fn promise_starts_whom_it_admits_and_tells_the_others_at_the_door() {
    let scenario = short();
    let promise = play(&scenario, "promise");
    let rivals = ["turn_priority", "las"].map(|name| play(&scenario, name));
    // Refused at once, and told when to come again, as far ahead as that can be promised.
    assert!(promise.refused_at_the_door > 0, "{promise:?}");
    assert_eq!(promise.refused_waits.count, 0);
    assert!(promise.advice.count > 0, "{promise:?}");
    assert!(promise.advice.max <= Some(3_600.0), "{promise:?}");
    assert_eq!(promise.still_waiting, 0);
    // Whoever was admitted and started late was counted as a broken promise.
    let late = promise.late_starts + promise.late_unmeasured;
    assert_eq!(late as u64, promise.promises_broken);
    // What was begun goes on.
    assert_eq!((promise.follow_ups_refused, promise.deep_starved), (0, 0));
    // The floor while both lines wait.
    assert!(promise.new_share_contested.unwrap() >= 0.05, "{promise:?}");
    let best = rivals.iter().map(|s| s.throughput).fold(0.0, f64::max);
    assert!(promise.throughput >= 0.95 * best, "{promise:?}");
}

#[test]
fn promise_holds_over_loads() {
    for load in [0.5, 1.0, 2.0] {
        let scenario = short().at_load(load);
        let promise = play(&scenario, "promise");
        assert_eq!(promise.follow_ups_refused, 0, "{promise:?}");
        assert_eq!(promise.refused_waits.count, 0, "{promise:?}");
        let late = promise.late_starts + promise.late_unmeasured;
        assert_eq!(late as u64, promise.promises_broken);
        // At twice the load the floor still allows it.
        assert!(promise.follow_up_waits.p50.unwrap() <= 30.0, "{promise:?}");
        let rival = play(&scenario, "turn_priority");
        assert!(promise.throughput >= 0.95 * rival.throughput, "{promise:?}");
    }
}

#[test]
fn promise_starts_everybody_whom_it_admits_in_time() {
    for load in [2.0, 3.0, Starvation::default().load()] {
        let sums = play(&Starvation::default().at_load(load), "promise");
        assert_eq!(sums.late_starts, 0, "{sums:?}");
        // Nothing is known of the first 20 s, in which no seat becomes free.
        assert!(sums.late_unmeasured <= 2, "{sums:?}");
    }
}

#[test]
fn who_comes_again_when_told_is_let_in() {
    // The more of them come, the harder.
    for retry_share in [0.1, 1.0] {
        for load in [1.0, 2.0, 3.0, Starvation::default().load()] {
            let scenario = Starvation {
                retry_share,
                ..Starvation::default().at_load(load)
            };
            let sums = play(&scenario, "promise");
            assert!(sums.retries_admitted * 10 >= sums.retries * 9, "{sums:?}");
            assert!(sums.retries >= 20 || retry_share < 1.0, "{sums:?}");
        }
    }
}

#[test]
fn promise_keeps_nine_tenths_of_the_reuse() {
    let scenario = Starvation {
        kv_tokens: 262_144,
        ..Starvation::default()
    };
    let reuse = |name: &str| play(&scenario, name).follow_up_reuse.unwrap();
    let (promise, rival) = (reuse("promise"), reuse("turn_priority"));
    assert!(promise >= 0.9 * rival, "{promise} against {rival}");
}
