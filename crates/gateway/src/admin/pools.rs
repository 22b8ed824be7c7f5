//! `/pools`, and what a scrape of the metrics needs to know of them.

use super::answer::{Answer, Fields, Wrong, json_answer};
use crate::config::{Choice, from_json};
use crate::gateway::Gateway;
use crate::metrics::{PoolRow, WorkerRow};
use crate::pool::Pool;
use http::StatusCode;
use maitred_core::Input;
use maitred_core::pool::Availability;
use maitred_core::scheduler::WorkerView;
use maitred_records::Name;
use serde_json::{Map, Value, json};

pub(super) fn list(gateway: &Gateway) -> Answer {
    let pools: Vec<Value> = gateway.pools.iter().map(|pool| show(pool)).collect();
    json_answer(StatusCode::OK, &json!({ "pools": pools }))
}

fn show(pool: &Pool) -> Value {
    let (policy, fairness, line, index_bytes) = pool.driver.read(|scheduler| {
        (
            scheduler.config().policy.name(),
            scheduler.config().fairness.name(),
            scheduler.line_len(),
            scheduler.index_bytes(),
        )
    });
    let views = pool.views();
    json!({
        "name": pool.name,
        "model": pool.settings.model,
        "aliases": pool.settings.aliases,
        "models": pool.model_names(),
        "policy": policy,
        "fairness": fairness,
        "line": line,
        "requests": pool.driver.live(),
        "index_bytes": index_bytes,
        "workers": views.len(),
        "ready": ready(&views),
    })
}

fn ready(views: &[crate::pool::NamedView]) -> usize {
    views
        .iter()
        .filter(|named| named.view.availability == Availability::Ready)
        .count()
}

/// Switches a pool's policy, of placement or of fairness; what the new one can use of the old one's
/// state stays.
pub(super) fn set<C: Choice>(
    gateway: &Gateway,
    pool: &str,
    mut fields: Fields,
    input: impl FnOnce(C) -> Input,
) -> Result<Answer, Wrong> {
    let kind = C::KIND;
    let pool = gateway.pool(pool).ok_or_else(|| {
        let known = gateway.pools.iter().map(|p| p.name.as_str());
        Wrong::unknown("pool", pool, known)
    })?;
    let name = fields
        .text("name")?
        .ok_or_else(|| Wrong::field("name", format!("is missing: which {kind}?")))?;
    let options = match fields.take("options") {
        None => Map::new(),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(Wrong::field("options", "must be an object")),
    };
    fields.finish("name, options")?;
    let choice = from_json(&name, &options)
        .map_err(|(field, message): (String, String)| Wrong::field(&field, message))?;
    pool.driver.handle(input(choice));
    tracing::info!(pool = %pool.name, to = %name, "{kind} switched");
    Ok(json_answer(StatusCode::OK, &show(pool)))
}

/// Whether requests can be served now: it is not closing, and a worker takes work.
pub(super) fn readiness(gateway: &Gateway) -> Answer {
    let closing = gateway.is_closing();
    let pools: Vec<Value> = gateway
        .pools
        .iter()
        .map(|pool| {
            let views = pool.views();
            json!({ "name": pool.name, "workers": views.len(), "ready": ready(&views) })
        })
        .collect();
    let any = pools.iter().any(|pool| pool["ready"] != json!(0));
    let good = any && !closing;
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json_answer(
        status,
        &json!({ "ready": good, "closing": closing, "pools": pools }),
    )
}

/// Whether a worker's own report is missing or older than its pool's bound.
pub(super) fn is_stale(pool: &Pool, view: &WorkerView) -> bool {
    let bound = pool.settings.core.stale_after;
    view.gauges.as_ref().is_none_or(|(_, age)| *age > bound)
}

/// The state of all pools for the metrics' gauges.
#[must_use]
pub fn rows(gateway: &Gateway) -> Vec<PoolRow> {
    gateway
        .pools
        .iter()
        .map(|pool| {
            let now = pool.driver.now();
            let (line_len, index_bytes, observed_bytes, lines) = pool.driver.read(|scheduler| {
                (
                    scheduler.line_len(),
                    scheduler.index_bytes(),
                    scheduler.observed_bytes(),
                    scheduler.lines(now),
                )
            });
            let workers = pool
                .views()
                .into_iter()
                .map(|named| WorkerRow {
                    kv: gateway.fleet.kv_counts(&pool.name, &named.upstream.name),
                    pull: named.upstream.desk.as_ref().map(|desk| desk.view()),
                    name: named.upstream.shared_name.clone(),
                    stale: is_stale(pool, &named.view),
                    view: named.view,
                })
                .collect();
            PoolRow {
                pool: Name::from(pool.name.as_str()),
                line_len,
                bands: lines
                    .lines
                    .iter()
                    .map(|line| Name::from(pool.band_name(line.band)))
                    .collect(),
                lines,
                index_bytes,
                observed_bytes,
                text: pool.text.as_ref().map(|text| text.model.counts()),
                workers,
            }
        })
        .collect()
}
