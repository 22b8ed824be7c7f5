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
