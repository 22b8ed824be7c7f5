//! `/lines`: who waits in each pool, how long, and when one that came now would start.

use super::answer::{Answer, json_answer};
use crate::gateway::Gateway;
use crate::pool::Pool;
use http::StatusCode;
use maitred_core::line::{ClassView, LineView, TenantView};
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
            "slowdown": t.slowdown,
        })
    };
    json!({
        "pool": pool.name,
        "fairness": view.fairness,
        "lines": lines,
        "tenants": view.tenants.iter().map(tenant).collect::<Vec<_>>(),
        "tenants_waiting": view.tenants_waiting,
        "classes": view.classes.iter().map(|c| class(pool, c)).collect::<Vec<_>>(),
        "jain_service": view.jain_service,
        "jain_slowdown": view.jain_slowdown,
        "service_seconds": view.service_seconds,
    })
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|d| d.as_secs_f64())
}

/// Those who wait for the same workers.
fn class(pool: &Pool, c: &ClassView) -> Value {
    let workers = c.workers.iter();
    let names = pool.names(|name| workers.filter_map(|w| name(*w)).collect::<Vec<_>>());
    let starts = c.starts.iter().map(|(band, line, start)| {
        json!({
            "band": pool.band_name(*band),
            "line": line.as_str(),
            "predicted_start_seconds": seconds(*start),
        })
    });
    json!({
        "workers": names.iter().map(|n| n.as_str()).collect::<Vec<_>>(),
        "waiting": c.waiting,
        "holding": c.holding,
        "drain_rate": c.drain_rate,
        "starts": starts.collect::<Vec<_>>(),
    })
}

fn line(pool: &Pool, l: &LineView) -> Value {
    json!({
        "band": pool.band_name(l.band),
        "line": l.line.as_str(),
        "waiting": l.waiting,
        "bytes": l.bytes,
        "charge": l.charge,
        "oldest_seconds": seconds(l.oldest),
        "waited_seconds": l.waited.as_secs_f64(),
        "overdue": l.overdue,
        "predicted_start_seconds": seconds(l.predicted_start),
        "drain_rate": l.drain_rate,
        "share": l.share,
        "share_floor": l.share_floor,
        "contested_charge": l.contested_charge,
        "dispatched": l.dispatched,
        "dispatched_charge": l.dispatched_charge,
        "promises_kept": l.promises_kept,
        "promises_broken": l.promises_broken,
        "refused_late": l.refused_late,
        "refused_full": l.refused_full,
        "expired": l.expired,
    })
}
