#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::time::Duration;

use maitred_core::time::Nanos;

use super::sums::jain;
use super::*;
use crate::workload::named;

fn axes(placements: &[&str], fair: &[&str], loads: &[Option<f64>], seeds: &[u64]) -> Axes {
    Axes {
        placements: (placements.iter())
            .map(|spec| ((*spec).to_owned(), placement(spec).unwrap()))
            .collect(),
        fairness: (fair.iter())
            .map(|spec| ((*spec).to_owned(), fairness(spec).unwrap()))
            .collect(),
        loads: loads.to_vec(),
        seeds: seeds.to_vec(),
    }
}

fn cells(spec: &str, room: &Room, axes: &Axes, threads: usize) -> Vec<Cell> {
    let generator = named(spec).unwrap();
    let mut room = room.clone();
    room.fleet_shares = generator.fleet(&EngineKind::Batch(room.engine.clone()));
    play(
        &|seed, factor| generator.plan(16, seed, factor),
        &room,
        axes,
        threads,
        &|_, _, _| {},
    )
    .unwrap()
}

fn small() -> Room {
    Room {
        workers: 3,
        ..Room::default()
    }
}

#[test]
fn threads_change_nothing_and_seeds_do() {
    let axes = axes(
        &["session", "random"],
        &["promise"],
        &[None, Some(0.02)],
        &[1, 2],
    );
    let one = cells("chat:sessions=6:turns=3", &small(), &axes, 1);
    assert_eq!(one, cells("chat:sessions=6:turns=3", &small(), &axes, 4));
    assert_eq!(one.len(), 8);
    let names: Vec<(&str, u64, usize)> = (one.iter())
        .map(|cell| (cell.placement.as_str(), cell.seed, cell.row))
        .collect();
    assert_eq!(
        names,
        [
            ("session", 1, 0),
            ("session", 2, 0),
            ("random", 1, 1),
            ("random", 2, 1),
            ("session", 1, 2),
            ("session", 2, 2),
            ("random", 1, 3),
            ("random", 2, 3),
        ]
    );
    assert_ne!(one[0].sums, one[1].sums);
    assert!((one[4].load - 0.02).abs() < 0.01 && one[0].load != one[4].load);
}

#[test]
fn all_that_is_planned_is_accounted_for() {
    let axes = axes(&["session"], &["promise"], &[Some(3.0)], &[1]);
    let hard = Room {
        workers: 1,
        max_wait: Duration::from_secs(2),
        engine: model::Config {
            slots: 3,
            ..model::Config::default()
        },
        ..Room::default()
    };
    for cell in cells(
        "whale:whale=12:depth=5:newcomers=20:output=60",
        &hard,
        &axes,
        1,
    ) {
        let sums = &cell.sums;
        assert_eq!(
            sums.came,
            sums.served + sums.refused + sums.failed + sums.gave_up
        );
        assert_eq!(sums.planned, sums.came + sums.abandoned);
        assert!(sums.refusals > sums.refused, "tried again: {sums:?}");
        assert!(sums.jain_speed.unwrap() < 1.0 && sums.goodput.unwrap() < 1.0);
    }
}

#[test]
fn one_worker_with_room_reuses_all_that_can_be() {
    let axes = axes(&["least_load"], &["fcfs"], &[None], &[1]);
    let roomy = Room {
        workers: 1,
        engine: model::Config {
            kv_tokens: 1 << 22,
            slots: 256,
            ..model::Config::default()
        },
        ..Room::default()
    };
    // The answer's blocks are computed again with the next turn, as the plan says: so nothing exceeds the ceiling.
    let cell = &cells("chat:sessions=40:rate=1", &roomy, &axes, 1)[0];
    assert_eq!(cell.sums.of_ceiling, Some(1.0), "{:?}", cell.sums);
    assert_eq!((cell.sums.moves, cell.sums.imbalance), (0, Some(1.0)));
}

#[test]
fn homes_beat_chance_at_reuse() {
    let axes = axes(&["session", "random"], &["promise"], &[None], &[1]);
    let cells = cells("chat:sessions=100", &small(), &axes, 2);
    let reuse = |at: usize| cells[at].sums.of_ceiling.unwrap();
    assert!(
        reuse(0) > 0.9 && reuse(1) < 0.8,
        "{} {}",
        reuse(0),
        reuse(1)
    );
    assert!(cells[1].sums.moves > cells[1].sums.could_move / 2);
}

#[test]
fn kv_events_and_no_reports_change_what_is_believed_not_what_is_served() {
    let axes = axes(&["cache_aware"], &["fcfs"], &[None], &[1]);
    let told = Room {
        kv_events: Some(Duration::from_millis(50)),
        ..small()
    };
    let told = &cells("chat:sessions=30", &told, &axes, 1)[0].sums;
    let silent = Room {
        reports: None,
        ..small()
    };
    let silent = &cells("chat:sessions=30", &silent, &axes, 1)[0].sums;
    assert_eq!(told.served, silent.served);
    assert!(told.of_ceiling.unwrap() > 0.5, "{told:?}");
    // What the events tell is there: predictions are close.
    assert!(told.prediction_error_abs.unwrap() < 40.0, "{told:?}");
}

#[test]
fn a_fleet_that_changes_loses_no_request_that_is_tried_again() {
    let axes = axes(&["session"], &["promise"], &[None], &[1, 2]);
    for cell in cells("loss:sessions=150", &small(), &axes, 2) {
        assert_eq!(cell.sums.served, cell.sums.planned, "{:?}", cell.sums);
    }
}

#[test]
fn an_offered_load_is_worked_out_by_hand() {
    let engine = model::Config::default();
    // 100 requests of 1,600 prompt tokens and 100 of answer, 1 s apart: 0.1 s of prefill, then a full batch's share,
    // 100 x (0.3 + 10 / 32) ms. The middle 90 take 89 s.
    let one = named("shared:openings=1:turns=1:sessions=1")
        .unwrap()
        .plan(16, 1, 1.0);
    let mut plan = Plan {
        requests: vec![one.requests[0].clone(); 100],
        sessions: (0..100).collect(),
        ..one
    };
    for (at, request) in plan.requests.iter_mut().enumerate() {
        request.session = at as u32;
        request.prompt_tokens = 1_600;
        request.output_tokens = 100;
        request.begin = crate::plan::Begin::At(Nanos(at as u64 * 1_000_000_000));
    }
    let order = crate::plan::nominal_order(&plan);
    let load = offered_load(&plan, &order, &[0; 100], &engine, 2);
    let by_hand = 89.0 * (0.1 + 0.1 * (0.3 + 10.0 / 32.0)) / (89.0 * 2.0);
    assert!((load - by_hand).abs() < 1e-9, "{load} {by_hand}");
}

#[test]
fn a_load_that_is_asked_for_is_met() {
    let room = small();
    for wanted in [0.3, 1.0] {
        let chat = named("chat:sessions=200").unwrap();
        let prepared = Prepared::new(&|factor| chat.plan(16, 1, factor), &room, Some(wanted));
        assert!(
            (prepared.load / wanted - 1.0).abs() < 0.05,
            "{}",
            prepared.load
        );
    }
}

#[test]
fn indices_and_intervals_by_hand() {
    assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), Some(1.0));
    assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
    assert_eq!(jain(&[]), None);
    let spread = Spread::of(&[1.0, 2.0, 3.0]).unwrap();
    // Deviation 1; 4.303 / sqrt(3).
    assert_eq!(spread.mean, 2.0);
    assert!((spread.half_width.unwrap() - 2.4843).abs() < 1e-3);
    assert_eq!(Spread::of(&[5.0]).unwrap().half_width, None);
    assert_eq!(Spread::of(&[]), None);
}

#[test]
fn names_with_options_are_taken_or_refused_with_a_reason() {
    assert!(placement("cache_aware:cache_threshold=0.5").is_ok());
    assert!(fairness("promise:new_share=0.3").is_ok());
    assert!(
        placement("cache_aware:depth=3")
            .unwrap_err()
            .contains("no such option")
    );
    assert!(placement("nowhere").unwrap_err().contains("no such policy"));
    assert!(
        fairness("promise:new_share")
            .unwrap_err()
            .contains("option=value")
    );
    let down = Duration::from_secs(30);
    assert_eq!(
        fleet_event("restart:3@120+30"),
        Ok((Nanos(120_000_000_000), FleetEvent::Restart(3, down)))
    );
    assert_eq!(
        fleet_event("lose:3@1.5"),
        Ok((Nanos(1_500_000_000), FleetEvent::Lose(3)))
    );
    assert!(matches!(
        fleet_event("join@7"),
        Ok((_, FleetEvent::Join(_)))
    ));
    for wrong in [
        "lose@3",
        "lose:x@3",
        "join:1@3",
        "restart:1@3",
        "burn:1@3",
        "lose:1@-3",
        "lose:1",
    ] {
        assert!(
            fleet_event(wrong)
                .unwrap_err()
                .contains("must be lose:WORKER"),
            "{wrong}"
        );
    }
}

#[test]
fn the_table_has_a_row_for_seeds_together() {
    let axes = axes(&["session"], &["fcfs"], &[None], &[1, 2, 3]);
    let text = table(&cells("chat:sessions=10", &small(), &axes, 1));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[1].starts_with("session") && lines[1].contains('±'),
        "{text}"
    );
}

#[test]
fn a_timeline_holds_all_the_time_that_requests_took() {
    let room = small();
    let plan = named("chat:sessions=10").unwrap().plan(16, 1, 1.0);
    let prepared = Prepared::at(plan, &room);
    let policy = placement("least_load").unwrap();
    let run = simulate(&prepared, &room, &policy, &fairness("fcfs").unwrap(), 1).unwrap();
    let timeline = Timeline::of(&run);
    assert_eq!(timeline.running.len(), 3);
    let drawn: f64 = timeline
        .running
        .iter()
        .flatten()
        .map(|cell| f64::from(*cell))
        .sum();
    let took: f64 = (run.outcomes.iter())
        .map(|o| o.ended.since(o.dispatched.unwrap()).as_secs_f64())
        .sum();
    let drawn = drawn * timeline.bin_seconds;
    assert!((drawn / took - 1.0).abs() < 1e-3, "{drawn} {took}");
}

#[test]
fn policies_are_compared_seed_by_seed() {
    let seeds: Vec<u64> = (1..=4).collect();
    let axes = axes(&["session", "random"], &["fcfs"], &[None], &seeds);
    let mut made = cells("chat:sessions=40", &small(), &axes, 2);
    let found = paired(&made, "session");
    assert_eq!((found.len(), found[0].name.as_str()), (1, "random fcfs"));
    let way = |name: &str| {
        let metric = found[0]
            .metrics
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap();
        metric.1.unwrap().1
    };
    assert_eq!(way("reuse %"), Way::Worse, "{found:?}");
    let text = paired_table(&made, "session");
    assert!(
        text.starts_with("less session") && text.contains("worse"),
        "{text}"
    );
    // By hand: differences 1, 2, 3 of the median, and nothing known of the good ones.
    made.retain(|cell| cell.seed < 4);
    for (at, cell) in made.iter_mut().enumerate() {
        cell.sums.goodput = None;
        cell.sums.ttft.p50 = Some(if at < 3 { 10.0 } else { 8.0 + at as f64 });
    }
    let found = paired(&made, "session");
    let (spread, way) = found[0].metrics[0].1.unwrap();
    assert_eq!(
        (spread.count, spread.mean, way),
        (3, 2.0, Way::Noise),
        "2 ± 2.48"
    );
    assert_eq!(found[0].metrics[3].1, None);
    assert!(paired(&made, "nobody").is_empty());
}
