//! The order of every fairness policy, by hand, with its defaults.

use super::*;
use crate::line::{FairnessConfig, TenantTerms};

/// A follow-up of 100 tokens, of that tenant and flow; its answer has that many.
fn of(id: u64, tenant: u64, flow: u64, output: u32) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
        flow: Some(crate::ids::FlowKey(flow)),
        turn: 2,
        prompt_tokens: Some(100),
        max_tokens: Some(output),
        ..guest(id)
    }
}

/// One seat, taken by somebody else's request 0.
fn table(fairness: &str) -> Table {
    let mut config = PoolConfig {
        fairness: FairnessConfig::named(fairness).unwrap(),
        ..config()
    };
    let heavy = TenantTerms {
        weight: 2.0,
        ..TenantTerms::default()
    };
    config.tenants.terms.insert(TenantId(20), heavy);
    let mut table = Table::new(config, 1, slots(1));
    table.seat(of(0, 99, 99, 0));
    table
}

impl Table {
    /// Who sits: those who come next, in their order.
    fn drain(&mut self, from: u64) -> Vec<u64> {
        let mut order = Vec::new();
        let mut sitting = from;
        while self.scheduler.line_len() > 0 {
            let decision = only_dispatch(self.finish(first(sitting)));
            sitting = decision.attempt.request.0;
            order.push(sitting);
        }
        self.finish(first(sitting));
        order
    }
}

#[test]
fn fcfs_goes_by_arrival() {
    let mut table = table("fcfs");
    for (id, tenant) in [(1, 1), (2, 1), (3, 2), (4, 1)] {
        table.arrive(of(id, tenant, tenant, 50));
    }
    assert_eq!(table.drain(0), [1, 2, 3, 4]);
}

#[test]
fn round_robin_gives_each_flow_one_place_in_a_round() {
    let mut table = table("round_robin");
    for (id, flow) in [(1, 10), (2, 10), (3, 10), (4, 20), (5, 30)] {
        table.arrive(of(id, 1, flow, 50));
    }
    // Tags 1, 2, 3 for the first flow, 1 for the others.
    assert_eq!(table.drain(0), [1, 4, 5, 2, 3]);
    // The round is the third; who comes new stands in the fourth, as the old flow does.
    table.seat(of(10, 99, 99, 0));
    for (id, flow) in [(11, 10), (12, 10), (13, 40)] {
        table.arrive(of(id, 1, flow, 50));
    }
    assert_eq!(table.drain(10), [11, 13, 12]);
}

#[test]
fn las_lets_the_least_served_go_before() {
    let mut table = table("las");
    table.finish(first(0));
    // 100 of prompt and twice 50 of answer: 200 of service for flow 1.
    let decision = table.seat(of(1, 1, 1, 50));
    table.arrive(of(2, 1, 1, 50));
    table.at(1.0).arrive(of(3, 1, 3, 50));
    // Flow 1: 0.2 for its age; flow 3: 0.8 for having had nothing.
    let next = only_dispatch(table.at(2.0).finish(decision.attempt));
    assert_eq!(next.attempt, first(3));
}

#[test]
fn las_forgets_half_of_a_resting_flow_s_service_in_60_seconds() {
    for (rest, order) in [(60.0, [4, 5]), (121.0, [5, 4])] {
        let mut table = table("las");
        table.finish(first(0));
        // Flow 1 got 100 + 2 x 200 = 500, and rests; flow 2 gets 100 + 2 x 50 = 200.
        let decision = table.seat(of(1, 1, 1, 200));
        table.finish(decision.attempt);
        let decision = table.at(rest).seat(of(2, 1, 2, 50));
        table.finish(decision.attempt);
        table.seat(of(3, 99, 99, 0));
        table.arrive(of(4, 1, 2, 50));
        table.arrive(of(5, 1, 1, 50));
        // 250 after one half-life, below 125 after two.
        assert_eq!(table.drain(3), order, "{rest}");
    }
}

#[test]
fn turn_priority_counts_twenty_seconds_of_waiting_as_a_turn() {
    // Two turns deeper are worth 40 s.
    for (later, order) in [(39.0, [2, 1]), (41.0, [1, 2])] {
        let mut table = table("turn_priority");
        table.arrive(of(1, 1, 1, 50));
        let deep = Arrival {
            turn: 4,
            ..of(2, 1, 2, 50)
        };
        table.at(later).arrive(deep);
        assert_eq!(table.drain(0), order, "{later}");
    }
}

#[test]
fn vtc_goes_by_the_least_counter_of_all_prompt_and_twice_the_answer() {
    let mut table = table("vtc");
    for id in 1..=3 {
        // 100 + 2 x 50 = 200 each.
        table.arrive(of(id, 1, id, 50));
    }
    for id in 4..=6 {
        // 100 each.
        table.arrive(of(id, 2, id, 0));
    }
    // Counters 0 0, 200 0, 200 100, 200 200, 400 200, 400 300.
    assert_eq!(table.drain(0), [1, 4, 5, 2, 6, 3]);
}

#[test]
fn vtc_divides_by_the_weight() {
    let mut table = table("vtc");
    for id in 1..=4 {
        table.arrive(of(id, 20, id, 50));
    }
    for id in 5..=6 {
        table.arrive(of(id, 21, id, 50));
    }
    // 100 for each of the tenant with weight 2: 0 0, 100 0, 100 200, 200 200, 300 200, 300 400.
    assert_eq!(table.drain(0), [1, 5, 2, 3, 6, 4]);
}

#[test]
fn dlpm_prefers_what_is_cached_until_the_quantum_is_used_up() {
    let mut table = table("dlpm");
    table.finish(first(0));
    // The worker holds the 64 blocks of session 7.
    let warm = |id| Arrival {
        tenant: TenantId(1),
        turn: 2,
        max_tokens: Some(256),
        ..long_guest(id, 7, 64)
    };
    let holder = Arrival {
        tenant: TenantId(98),
        ..warm(100)
    };
    let decision = table.settle(holder);
    table.finish(decision.attempt);
    table.seat(of(0, 99, 99, 0));
    table.arrive(of(1, 2, 1, 50));
    for id in 2..=6 {
        table.arrive(warm(id));
    }
    // 2048 of deficit bear four answers of 512; then it is the cold one's turn.
    assert_eq!(table.drain(0), [2, 3, 4, 5, 1, 6]);
}

#[test]
fn promise_gives_the_lines_their_shares() {
    let mut table = table("promise");
    for id in 1..=10 {
        table.arrive(of(id, 1, id, 0));
    }
    for id in 11..=13 {
        let new = Arrival {
            turn: 1,
            prompt_tokens: Some(110),
            ..of(id, 2, id, 0)
        };
        table.arrive(new);
    }
    // 100 / 0.8 = 125 for each follow-up, 110 / 0.2 = 550 for each newcomer. `y` is 125, 250, 375,
    // 500, then -50, and 75, 200, 325, 450, then -100.
    let order = [1, 2, 3, 4, 11, 5, 6, 7, 8, 12, 9, 10, 13];
    assert_eq!(table.drain(0), order);
}
