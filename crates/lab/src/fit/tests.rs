#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use maitred_core::line::FairnessConfig;
use maitred_core::place::PolicyConfig;
use maitred_enginesim::model;

use super::solve::{Row, least_absolute};
use super::*;
use crate::grid::{Prepared, Room, simulate};
use crate::sim::{End, Outcome};
use crate::workload::named;

fn sample(outcome: &Outcome) -> Option<Sample> {
    let seconds = |at: maitred_core::time::Nanos| at.0 as f64 / 1e9;
    (outcome.end == End::Served).then(|| Sample {
        worker: format!("w{}", outcome.worker.unwrap()),
        dispatched: seconds(outcome.dispatched.unwrap()),
        first_token: seconds(outcome.first_token.unwrap()),
        ended: seconds(outcome.ended),
        computed: outcome.prompt_tokens - outcome.cached_tokens.unwrap(),
        output: outcome.output_tokens,
    })
}

fn samples(engine: model::Config, spec: &str) -> Vec<Sample> {
    let room = Room {
        workers: 2,
        engine,
        ..Room::default()
    };
    let prepared = Prepared::at(named(spec).unwrap().plan(16, 1, 1.0), &room);
    let policy = PolicyConfig::named("least_load").unwrap();
    let run = simulate(&prepared, &room, &policy, &FairnessConfig::Fcfs, 1).unwrap();
    run.outcomes.iter().filter_map(sample).collect()
}

#[test]
fn the_constants_of_the_model_are_found_again() {
    let truth = model::Config {
        base_step_ns: 8_000_000,
        per_sequence_ns: 500_000,
        prefill_tokens_per_second: 9_000,
        ..model::Config::default()
    };
    let samples = samples(truth.clone(), "shared:sessions=120:rate=2:openings=30");
    let fit = fit(&samples, truth.max_batch_tokens).unwrap();
    let near = |found: u64, wanted: u64, within: f64| {
        let off = found as f64 / wanted as f64 - 1.0;
        assert!(off.abs() < within, "{found} for {wanted}: {fit:?}");
    };
    near(fit.base_step_ns, truth.base_step_ns, 0.1);
    near(fit.per_sequence_ns, truth.per_sequence_ns, 0.25);
    near(
        fit.prefill_tokens_per_second.unwrap(),
        truth.prefill_tokens_per_second,
        0.1,
    );
    let (ttft, tpot) = (fit.ttft.unwrap(), fit.tpot.unwrap());
    assert!(ttft.p50 < 0.1 && tpot.p50 < 0.05, "{fit:?}");
    assert_eq!(fit.fitted + ttft.count, samples.len());
    let again = fit.engine(&model::Config::default());
    assert_eq!(again.base_step_ns, fit.base_step_ns);
    assert_eq!(
        again.max_batch_tokens,
        model::Config::default().max_batch_tokens
    );
}

#[test]
fn three_unknowns_by_hand_and_an_odd_record_weighs_little() {
    let truth = [0.010, 0.002, 0.000_1];
    let mut rows: Vec<Row> = (1..30)
        .map(|n| {
            let n = f64::from(n);
            let parts = [n, n * (n % 5.0 + 1.0), 100.0 * (n % 7.0)];
            let took = parts
                .iter()
                .zip(truth)
                .map(|(part, value)| part * value)
                .sum();
            Row { parts, took }
        })
        .collect();
    rows[3].took *= 50.0;
    let found = least_absolute(&rows).unwrap();
    for (found, truth) in found.iter().zip(truth) {
        assert!((found / truth - 1.0).abs() < 1e-3, "{found} {truth}");
    }
}

#[test]
fn nothing_is_below_zero_and_what_cannot_be_told_is_refused() {
    // Each further sequence seems to make it faster: that constant is 0 then.
    let rows: Vec<Row> = (1..20)
        .map(|n| {
            let n = f64::from(n);
            Row {
                parts: [10.0, 10.0 * n, 1.0],
                took: 1.0 - 0.001 * n,
            }
        })
        .collect();
    let found = least_absolute(&rows).unwrap();
    assert!(
        found.iter().all(|value| *value >= 0.0) && found[1] == 0.0,
        "{found:?}"
    );
    let nothing = vec![
        Row {
            parts: [0.0; 3],
            took: 1.0
        };
        30
    ];
    assert_eq!(least_absolute(&nothing), None);
    assert_eq!(fit(&[], 2_048), Err(FitError::TooFew(0)));
}
