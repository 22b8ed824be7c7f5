//! `/lines`: who waits in each pool, how long, and when one that came now would start.

use super::answer::{Answer, json_answer};
use crate::gateway::Gateway;
use crate::pool::Pool;
use http::StatusCode;
use maitred_core::line::{LineView, TenantView};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn list(gateway: &Gateway) -> Answer {
    let pools: Vec<Value> = gateway.pools.iter().map(|p| show(gateway, p)).collect();
    json_answer(StatusCode::OK, &json!({ "pools": pools }))
}

fn show(gateway: &Gateway, pool: &Pool) -> Value {
    let now = pool.driver.now();
    let view = pool.driver.read(|scheduler| scheduler.lines(now));
    let lines: Vec<Value> = view.lines.iter().map(|l| line(pool, l)).collect();
    let tenant = |t: &TenantView| {
        json!({
            "tenant": format!("{:016x}", t.tenant.0),
            // Those that a trusted proxy named are known by their ids only.
            "name": match gateway.tenants().name_of(t.tenant) {
                None if t.tenant.0 == 0 => Some("anonymous"),
                name => name,
            },
            "band": pool.band_name(t.band),
            "weight": t.weight,
            "waiting": t.waiting,
            "bytes": t.bytes,
            "flows": t.flows,
            "served_charge": t.served_charge,
        })
    };
    json!({
        "pool": pool.name,
        "fairness": view.fairness,
        "lines": lines,
        "tenants": view.tenants.iter().map(tenant).collect::<Vec<_>>(),
        "tenants_waiting": view.tenants_waiting,
    })
}

fn line(pool: &Pool, l: &LineView) -> Value {
    let seconds = |d: Option<Duration>| d.map(|d| d.as_secs_f64());
    json!({
        "band": pool.band_name(l.band),
        "line": l.line.as_str(),
        "waiting": l.waiting,
        "bytes": l.bytes,
        "charge": l.charge,
        "oldest_seconds": seconds(l.oldest),
        "predicted_start_seconds": seconds(l.predicted_start),
        "drain_rate": l.drain_rate,
        "share": l.share,
        "dispatched": l.dispatched,
        "dispatched_charge": l.dispatched_charge,
        "promises_kept": l.promises_kept,
        "promises_broken": l.promises_broken,
        "refused_late": l.refused_late,
        "refused_full": l.refused_full,
        "expired": l.expired,
    })
}
