//! Bands and limits, by hand.

use super::*;
use crate::ids::FlowKey;
use crate::line::{Band, LineLimits, TenantTerms};

/// A follow-up of 100 tokens and a body of 60 bytes.
fn of(id: u64, tenant: u64, flow: u64) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
        flow: Some(FlowKey(flow)),
        turn: 2,
        prompt_tokens: Some(100),
        max_tokens: Some(0),
        body_bytes: 60,
        ..guest(id)
    }
}

/// One taken seat; tenant 1 waits in the second band.
fn table(floor: f64, change: impl FnOnce(&mut PoolConfig)) -> Table {
    let band = |name: &str, floor| Band {
        name: name.into(),
        floor,
        limits: LineLimits::default(),
    };
    let mut config = PoolConfig {
        bands: [band("interactive", 0.0), band("batch", floor)].into(),
        ..config()
    };
    let second = TenantTerms {
        band: 1,
        ..TenantTerms::default()
    };
    config.tenants.terms.insert(TenantId(1), second);
    change(&mut config);
    let mut table = Table::new(config, 1, slots(1));
    table.seat(of(0, 0, 0));
    table
}

fn drain(table: &mut Table) -> Vec<u64> {
    let mut order = Vec::new();
    let mut sitting = 0;
    while table.scheduler.line_len() > 0 {
        let decision = only_dispatch(table.finish(first(sitting)));
        sitting = decision.attempt.request.0;
        order.push(sitting);
    }
    order
}

#[test]
fn a_band_without_a_floor_goes_when_no_earlier_one_could() {
    let mut table = table(0.0, |_| ());
    for (id, tenant) in [(1, 1), (2, 0), (3, 1), (4, 0)] {
        table.arrive(of(id, tenant, id));
    }
    assert_eq!(drain(&mut table), [2, 4, 1, 3]);
}

#[test]
fn a_band_with_a_floor_gets_it_whatever_waits_before() {
    let mut table = table(0.25, |_| ());
    for id in 1..=7 {
        table.arrive(of(id, 0, id));
    }
    for id in 11..=13 {
        table.arrive(of(id, 1, id));
    }
    // Each dispatch earns it 25 of 100: 25, then 25 + 25 - 100 = -50, -25, 0, 25, -50, ...
    assert_eq!(drain(&mut table), [1, 11, 2, 3, 4, 12, 5, 6, 7, 13]);
}

#[test]
fn one_flow_does_not_fill_the_line() {
    let mut table = table(0.0, |config| {
        config.flow_limits = LineLimits {
            requests_max: Some(2),
            bytes_max: Some(150),
        };
    });
    assert!(table.arrive(of(1, 0, 7)).is_empty());
    assert!(table.arrive(of(2, 0, 7)).is_empty());
    assert_eq!(refusal(&table.arrive(of(3, 0, 7))), Refusal::FlowFull);
    assert!(table.arrive(of(4, 0, 8)).is_empty());
    let large = Arrival {
        body_bytes: 91,
        ..of(5, 0, 8)
    };
    assert_eq!(
        refusal(&table.arrive(large.clone())),
        Refusal::FlowFull,
        "60 + 91"
    );
    let fits = Arrival {
        body_bytes: 90,
        ..large
    };
    assert!(table.arrive(fits).is_empty());
    // Who leaves makes room.
    table.send(Input::Cancel(RequestId(1)));
    assert!(table.arrive(of(6, 0, 7)).is_empty());
}

#[test]
fn a_tenant_is_limited_over_all_its_flows() {
    let mut table = table(0.0, |config| {
        let terms = config.tenants.terms.entry(TenantId(1)).or_default();
        terms.limits = LineLimits {
            requests_max: Some(3),
            bytes_max: Some(200),
        };
    });
    for id in 1..=3 {
        assert!(table.arrive(of(id, 1, id)).is_empty());
    }
    assert_eq!(refusal(&table.arrive(of(4, 1, 4))), Refusal::TenantFull);
    table.send(Input::Cancel(RequestId(3)));
    let large = Arrival {
        body_bytes: 81,
        ..of(5, 1, 5)
    };
    assert_eq!(
        refusal(&table.arrive(large)),
        Refusal::TenantFull,
        "120 + 81"
    );
    assert!(table.arrive(of(6, 1, 6)).is_empty());
    assert!(table.arrive(of(7, 0, 7)).is_empty(), "others have room");
}

#[test]
fn a_band_is_limited_over_all_its_tenants() {
    let mut table = table(0.0, |config| {
        config.bands[1].limits = LineLimits {
            requests_max: Some(2),
            bytes_max: Some(130),
        };
        let second = config.tenants.terms[&TenantId(1)];
        config.tenants.terms.insert(TenantId(2), second);
    });
    assert!(table.arrive(of(1, 1, 1)).is_empty());
    let large = Arrival {
        body_bytes: 71,
        ..of(2, 2, 2)
    };
    assert_eq!(refusal(&table.arrive(large)), Refusal::BandFull, "60 + 71");
    assert!(table.arrive(of(3, 2, 3)).is_empty());
    assert_eq!(refusal(&table.arrive(of(4, 1, 4))), Refusal::BandFull);
    assert!(
        table.arrive(of(5, 0, 5)).is_empty(),
        "the other band has room"
    );
}
