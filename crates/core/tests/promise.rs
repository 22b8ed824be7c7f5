//! The promise in charge, under arbitrary arrivals, sizes, losses, holds, retries and tenants: what
//! the other line may get before a request that waits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "promise/hall.rs"]
mod hall;
#[path = "promise/tenants.rs"]
mod tenants;

use hall::{Hall, Step};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let arrive = (
        any::<bool>(),
        0..3_u64,
        prop_oneof![4 => 1..200_u32, 1 => 1_000..20_000_u32],
        0..200_u32,
        option::of(0..6_u64),
    )
        .prop_map(
            |(returning, tenant, prompt, output, session)| Step::Arrive {
                returning,
                tenant,
                prompt,
                output,
                session,
            },
        );
    let step = prop_oneof![
        12 => arrive,
        9 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Fail),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => Just(Step::Add),
        1 => any::<usize>().prop_map(Step::Remove),
        6 => (0..1_500_u64).prop_map(Step::Advance),
    ];
    vec(step, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn no_line_gets_more_than_its_share_and_one_request(
        steps in steps(),
        share in prop_oneof![Just(0.2), 0.05..0.9_f64],
    ) {
        play(&steps, share, "least_load");
    }

    #[test]
    fn no_line_gets_more_than_its_share_and_one_request_with_holds(
        steps in steps(),
        share in prop_oneof![Just(0.2), 0.05..0.9_f64],
    ) {
        play(&steps, share, "pin");
    }

    /// Whoever places: those that leave a loaded home, and those that weigh a wait in seconds.
    #[test]
    fn no_line_gets_more_than_its_share_and_one_request_whoever_places(
        steps in steps(),
        share in prop_oneof![Just(0.2), 0.05..0.9_f64],
        placement in prop_oneof![Just("session"), Just("adaptive"), Just("soft_affinity")],
    ) {
        play(&steps, share, placement);
    }
}

fn play(steps: &[Step], share: f64, placement: &str) {
    let mut hall = Hall::new(share, placement);
    for step in steps {
        hall.take(step);
    }
    hall.close();
}
