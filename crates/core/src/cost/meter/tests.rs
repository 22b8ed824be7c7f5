use super::{Done, Mark, Meter};
use crate::ids::RequestId;
use crate::time::Nanos;

fn at(ms: u64) -> Nanos {
    Nanos(ms * 1_000_000)
}

fn close_to(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn ahead_is_what_was_expected_less_what_the_first_had() {
    let mut meter = Meter::default();
    let mut done = Done::new();
    let mut first = Mark::new(1_000, 1_000, true);
    let second = Mark::new(500, 500, true);
    meter.dispatched(RequestId(1), &first, 0.1, at(0));
    meter.dispatched(RequestId(2), &second, 0.05, at(20));
    assert!(close_to(meter.ahead(at(20)), 0.13));
    assert!(close_to(meter.ahead(at(60)), 0.09));
    // The first is late: what it should have had and no more is done.
    assert!(close_to(meter.ahead(at(400)), 0.05));
    meter.first_token(RequestId(1), &mut first, 1_256, at(400), &mut done);
    assert!(close_to(meter.ahead(at(400)), 0.05));
    assert!(close_to(meter.ahead(at(430)), 0.02));
    meter.ended(RequestId(2), &second, 0, None, at(430), &mut done);
    assert!(close_to(meter.ahead(at(430)), 0.0));
    assert_eq!(meter.decoding(), 1);
}

#[test]
fn a_first_token_that_nobody_sees_counts_as_come_when_it_was_expected() {
    let mut meter = Meter::default();
    meter.dispatched(RequestId(1), &Mark::new(1_000, 1_000, false), 0.1, at(0));
    meter.dispatched(RequestId(2), &Mark::new(1_000, 1_000, true), 0.1, at(0));
    meter.dispatched(RequestId(3), &Mark::new(1_000, 1_000, true), 0.1, at(0));
    assert!(close_to(meter.ahead(at(50)), 0.25));
    assert!(close_to(meter.ahead(at(150)), 0.15));
    assert!(close_to(meter.ahead(at(250)), 0.1), "the second is late");
}

#[test]
fn prompts_that_are_computed_together_are_one_period() {
    let mut meter = Meter::default();
    let mut done = Done::new();
    let (mut one, mut two) = (Mark::new(1_000, 3_000, true), Mark::new(400, 400, true));
    meter.dispatched(RequestId(1), &one, 0.1, at(0));
    meter.dispatched(RequestId(2), &two, 0.1, at(5));
    meter.first_token(RequestId(1), &mut one, 3_256, at(110), &mut done);
    meter.first_token(RequestId(2), &mut two, 656, at(110), &mut done);
    assert!(done.is_empty(), "the engine has not said what it computed");
    meter.ended(RequestId(1), &one, 3_256, Some(1_200), at(300), &mut done);
    assert!(done.is_empty());
    meter.ended(RequestId(2), &two, 656, None, at(400), &mut done);
    assert_eq!(done.len(), 1, "one period: {done:?}");
    let period = &done[0];
    assert!(close_to(period.seconds, 0.11));
    // One moment; 1,200 + 400 tokens; 1,200 x 2,400 + 400 x 200; half a decoder.
    assert_eq!(period.terms(), [1.0, 1_600.0, 2_960_000.0, 0.5]);
    assert!(!period.censored && !period.unseen);
}

#[test]
fn what_ended_before_its_first_token_censors_its_period() {
    let mut meter = Meter::default();
    let mut done = Done::new();
    let (mut one, two) = (Mark::new(1_000, 1_000, true), Mark::new(400, 400, true));
    meter.dispatched(RequestId(1), &one, 0.1, at(0));
    meter.dispatched(RequestId(2), &two, 0.1, at(5));
    meter.ended(RequestId(2), &two, 0, None, at(50), &mut done);
    meter.first_token(RequestId(1), &mut one, 1_256, at(110), &mut done);
    assert!(matches!(done.as_slice(), [period] if period.censored));
}

#[test]
fn a_long_run_of_prefills_is_cut() {
    let mut meter = Meter::default();
    let mut done = Done::new();
    let mut marks: alloc::vec::Vec<Mark> = (0..20).map(|_| Mark::new(100, 100, true)).collect();
    for (id, mark) in (0..).zip(&marks) {
        meter.dispatched(RequestId(id), mark, 0.01, at(0));
    }
    for (id, mark) in (0..).zip(&mut marks) {
        meter.first_token(RequestId(id), mark, 100, at(10 * (id + 1)), &mut done);
    }
    for (id, mark) in (0..).zip(&marks) {
        meter.ended(RequestId(id), mark, 100, Some(100), at(500), &mut done);
    }
    let members: alloc::vec::Vec<u32> = done.iter().map(|p| p.members).collect();
    assert_eq!(members, [8, 8, 4]);
    assert!(close_to(done[1].seconds, 0.08));
    assert_eq!(meter.decoding(), 0);
}

#[test]
fn an_answer_is_laid_to_the_batch_it_was_in() {
    let mut meter = Meter::default();
    let mut done = Done::new();
    let mut marks = [
        Mark::new(10, 10, true),
        Mark::new(10, 10, true),
        Mark::new(300, 300, true),
    ];
    for (id, mark) in (0..2).zip(&mut marks) {
        meter.dispatched(RequestId(id), mark, 0.01, at(0));
        meter.first_token(RequestId(id), mark, 1_000, at(0), &mut done);
    }
    // A second beside one other, a second alone, and a prompt of 300 tokens in it.
    meter.ended(RequestId(1), &marks[1], 1_000, None, at(1_000), &mut done);
    meter.dispatched(RequestId(2), &marks[2], 0.01, at(1_500));
    meter.first_token(RequestId(2), &mut marks[2], 400, at(2_000), &mut done);
    let answered = meter.answered(&marks[0], 101, at(0), at(2_000));
    assert!(close_to(answered.seconds, 2.0));
    // 100 steps, 1.5 requests and 1,500 tokens in each; 10 and 300 tokens of prefill.
    assert_eq!(answered.terms(), Some([100.0, 150.0, 150_000.0, 310.0]));
    let short = meter.answered(&marks[0], 7, at(0), at(2_000));
    assert_eq!(short.terms(), None);
}
