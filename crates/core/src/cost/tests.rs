//! Costs learnt from an engine that computes what it is sent, one prompt after the other.

use super::meter::Done;
use super::{Costs, Mark, Meter};
use crate::ids::RequestId;
use crate::rng::Rng;
use crate::time::Nanos;
use alloc::vec::Vec;

fn at(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

/// A worker whose prefills take `a + b n`, each alone.
struct Engine {
    a: f64,
    b: f64,
    meter: Meter,
    now: f64,
    next: u64,
}

impl Engine {
    fn new(a: f64, b: f64) -> Self {
        Self {
            a,
            b,
            meter: Meter::default(),
            now: 0.0,
            next: 0,
        }
    }

    /// `count` prompts that come at once, each computed after the other.
    fn burst(&mut self, costs: &mut Costs, rng: &mut Rng, count: usize) {
        let mut done = Done::new();
        let mut sitting: Vec<(RequestId, Mark)> = Vec::new();
        for _ in 0..count {
            let new = 100 + rng.below(6_000) as u64;
            let mark = Mark::new(new, new, true);
            let id = RequestId(self.next);
            self.next += 1;
            self.meter.dispatched(id, &mark, 0.1, at(self.now));
            sitting.push((id, mark));
        }
        for (id, mark) in &mut sitting {
            self.now += (self.a + self.b * mark.new as f64) * (0.95 + 0.1 * rng.unit());
            self.meter
                .first_token(*id, mark, mark.new, at(self.now), &mut done);
        }
        self.now += 0.5;
        for (id, mark) in &sitting {
            let new = Some(mark.new);
            self.meter
                .ended(*id, mark, mark.new, new, at(self.now), &mut done);
        }
        for period in &done {
            costs.learn_prefill(period, &mut self.meter);
        }
        self.now += 0.5;
    }
}

#[test]
fn the_cost_of_a_prefill_is_learnt_whether_alone_or_in_a_queue() {
    for count in [1, 3, 20] {
        let mut costs = Costs::new();
        let mut rng = Rng::new(count as u64);
        let mut engine = Engine::new(0.05, 2e-4);
        for _ in 0..120 {
            engine.burst(&mut costs, &mut rng, count);
        }
        let rates = costs.rates(1, at(engine.now));
        for new in [500, 2_000, 5_000] {
            let expected = 0.05 + 2e-4 * new as f64;
            let off = rates.prefill_seconds(new, new) * engine.meter.pace() / expected - 1.0;
            assert!(off.abs() < 0.15, "{count} at once, {new} tokens: {off}");
        }
        let view = costs.view(1, at(engine.now));
        assert!(
            view.prefills_learnt >= 120 && view.prefill_error < 0.1,
            "{view:?}"
        );
        assert_eq!((view.censored, view.unseen), (0, 0));
    }
}

#[test]
fn a_slow_worker_is_told_from_the_others() {
    let mut costs = Costs::new();
    let mut rng = Rng::new(5);
    let mut engines: Vec<Engine> = (0..4)
        .map(|i| Engine::new(0.01, if i == 0 { 1.8e-4 } else { 6e-5 }))
        .collect();
    for _ in 0..100 {
        for engine in &mut engines {
            engine.burst(&mut costs, &mut rng, 2);
        }
    }
    let rates = costs.rates(4, at(engines[0].now));
    let seconds = |engine: &Engine| rates.prefill_seconds(4_000, 4_000) * engine.meter.pace();
    assert!(
        (seconds(&engines[0]) / 0.73 - 1.0).abs() < 0.15,
        "{}",
        seconds(&engines[0])
    );
    for engine in &engines[1..] {
        assert!(
            (seconds(engine) / 0.25 - 1.0).abs() < 0.15,
            "{}",
            seconds(engine)
        );
    }
}

#[test]
fn what_is_dispatched_makes_a_pool_busy_and_is_forgotten() {
    let mut costs = Costs::new();
    // 4 workers, 2 s of prefill in each second: half of what they can do.
    for tenth in 0..2_000 {
        costs.dispatched(0.2, at(f64::from(tenth) / 10.0));
    }
    let busy = costs.rates(4, at(200.0)).busy;
    assert!((busy - 0.5).abs() < 0.01, "{busy}");
    assert!(costs.rates(4, at(400.0)).busy < 1e-4);
}
