//! The scheduler under random arrivals, ends, failures, worker deaths, restarts and reports.
//!
//! After each step: the scheduler's own invariants, and a model's view of who waits and who sits
//! where. At the end: everybody ended exactly once and nothing is held.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "scheduler/kv.rs"]
mod kv;
#[path = "scheduler/model.rs"]
mod model;
#[path = "scheduler/staff.rs"]
mod staff;
#[path = "scheduler/step.rs"]
mod step;

use model::Model;
use proptest::prelude::*;
use step::{Step, steps};

fn run(seed: u64, steps: &[Step]) -> Vec<String> {
    let mut model = Model::new(seed);
    for step in steps {
        model.take(step);
    }
    model.close();
    model.log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_request_ends_once_and_nothing_leaks(seed in any::<u64>(), steps in steps()) {
        let log = run(seed, &steps);
        prop_assert_eq!(log, run(seed, &steps), "equal inputs give equal effects");
    }
}
