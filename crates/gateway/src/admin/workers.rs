//! `/workers`: list, add, drain, resume, remove.

use super::allow;
use super::answer::{Answer, Fields, Wrong, json_answer};
use super::pools::is_stale;
use crate::config::{
    KvEventsSettings, Secret, WorkerSettings, parse_duration, parse_engine, valid_name,
};
use crate::gateway::Gateway;
use crate::metrics::kv_named;
use crate::pool::{AddError, NamedView, Pool};
use crate::pull::PullView;
use http::StatusCode;
use maitred_core::pool::Seats;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const KNOWN: &str = "pool, url, name, slots, prefill_tokens, kv_tokens, engine, api_key, models, assume_ready, kv_events";

pub(super) fn list(gateway: &Gateway) -> Answer {
    let workers: Vec<Value> = gateway
        .pools
        .iter()
        .flat_map(|pool| {
            pool.views()
                .into_iter()
                .map(|named| show(gateway, pool, &named))
        })
        .collect();
    json_answer(StatusCode::OK, &json!({ "workers": workers }))
}

fn show(gateway: &Gateway, pool: &Pool, named: &NamedView) -> Value {
    let view = &named.view;
    let seen = gateway.fleet.seen(&pool.name, &named.upstream.name);
    let seen = seen.map(|(_, seen)| seen).unwrap_or_default();
    json!({
        "pool": pool.name,
        "name": named.upstream.name,
        // A worker that pulls has no address.
        "url": view.polls.is_none().then(|| named.upstream.url.to_string()),
        "polls": view.polls,
        "pull": named.upstream.desk.as_ref().map(|desk| pulls(&desk.view())),
        "engine": seen.engine.map(maitred_engine::EngineKind::as_str),
        "availability": view.availability.as_str(),
        "running": view.running,
        "prefill_tokens": view.prefill_tokens,
        "resident_tokens": view.resident_tokens,
        "slots": view.seats.slots,
        "slots_learnt": view.slots_learnt,
        "prefill_tokens_max": view.seats.prefill_tokens,
        "kv_tokens": view.seats.kv_tokens,
        "believed_blocks": view.believed_blocks,
        "kv_events": kv_events(gateway, pool, named),
        "sessions": view.sessions,
        "epoch": view.epoch,
        "models": *named.upstream.listed.read(),
        "reported": view.gauges.as_ref().map(|(gauges, age)| json!({
            "running": gauges.running,
            "waiting": gauges.waiting,
            "kv_usage": gauges.kv_usage,
            "kv_tokens": gauges.kv_tokens,
            "age_ms": millis(*age),
        })),
        "stale": is_stale(pool, view),
        "probe": seen.probe,
        "probe_age_ms": seen.probed.map(|at| millis(at.elapsed())),
        "scrape_error": seen.scrape_error,
    })
}

/// How the worker's KV events stand; null where none are followed.
fn kv_events(gateway: &Gateway, pool: &Pool, named: &NamedView) -> Value {
    let counts = gateway.fleet.kv_counts(&pool.name, &named.upstream.name);
    let Some(counts) = counts else {
        return Value::Null;
    };
    let flow = named.view.events;
    let state = match (flow.live, flow.uncertain) {
        (0, 0) => "silent",
        (_, 0) => "live",
        _ => "uncertain",
    };
    let named_counts = kv_named(counts).into_iter();
    json!({
        "state": state,
        "observed_blocks": named.view.observed_blocks,
        "leaving_blocks": named.view.leaving_blocks,
        "blocks": counts.blocks,
        "counts": named_counts
            .map(|(what, value)| (what.to_owned(), value.into()))
            .collect::<serde_json::Map<String, Value>>(),
    })
}

/// A worker that pulls, as it shows itself.
fn pulls(pull: &PullView) -> Value {
    json!({
        "api": pull.api,
        "owner": pull.owner,
        "agent": pull.agent,
        "polls": pull.polls,
        "jobs": pull.jobs,
        "oldest_job_ms": pull.oldest_job.map(millis),
        "heard_ms": millis(pull.heard),
        "context_max": pull.context_max,
        "output_max": pull.output_max,
        "maintenance": pull.maintenance,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Adds a worker.
pub(super) async fn add(gateway: &Gateway, mut fields: Fields) -> Result<Answer, Wrong> {
    let pool = pool_of(gateway, fields.text("pool")?.as_deref())?;
    let url = fields
        .text("url")?
        .ok_or_else(|| Wrong::field("url", "is missing"))?;
    let mut worker = pool
        .settings
        .worker(&url)
        .map_err(|message| Wrong::field("url", message))?;
    read_worker(&mut fields, &mut worker)?;
    fields.finish(KNOWN)?;
    let allowed = &gateway.config.worker_allow;
    allow::check(allowed, &worker.url).await?;
    if let Some(events) = &worker.kv_events {
        let isolation = &pool.settings.isolation;
        isolation
            .allows_events()
            .map_err(|why| Wrong::field("kv_events", why))?;
        allow::check_events(allowed, events).await?;
    }
    let taken = find(gateway, &worker.name).is_some();
    let added = if taken {
        Err(AddError::Duplicate(worker.name.clone()))
    } else {
        gateway.fleet.add(&pool, &worker)
    };
    added.map_err(|error| {
        let message = error.to_string();
        match error {
            AddError::Credential(_) => Wrong::field("api_key", message),
            AddError::KvEvents { .. } => Wrong::field("kv_events", message),
            AddError::Duplicate(_) => {
                Wrong::new(StatusCode::CONFLICT, "duplicate", Some("name"), message)
            }
            AddError::Full => Wrong::new(StatusCode::CONFLICT, "pool-full", Some("pool"), message),
        }
    })?;
    tracing::info!(pool = %pool.name, worker = %worker.name, "worker added");
    Ok(shown(gateway, &pool, &worker.name, StatusCode::CREATED))
}

fn read_worker(fields: &mut Fields, worker: &mut WorkerSettings) -> Result<(), Wrong> {
    if let Some(name) = fields.text("name")? {
        if !valid_name(&name) {
            return Err(Wrong::field(
                "name",
                "must be 1 to 128 letters, digits or . _ : - / [ ]",
            ));
        }
        worker.name = name;
    }
    let slots = fields.count("slots")?;
    let inherited = worker.seats;
    worker.seats = Seats {
        slots: match slots {
            Some(slots) => {
                Some(u32::try_from(slots).map_err(|_| Wrong::field("slots", "is more than 2^32"))?)
            }
            None => inherited.slots,
        },
        prefill_tokens: fields.count("prefill_tokens")?.or(inherited.prefill_tokens),
        kv_tokens: fields.count("kv_tokens")?.or(inherited.kv_tokens),
        cache_slots: inherited.cache_slots,
    };
    if let Some(engine) = fields.text("engine")? {
        worker.engine = parse_engine(&engine)
            .ok_or_else(|| Wrong::field("engine", format!("unknown engine `{engine}`")))?;
    }
    if let Some(key) = fields.text("api_key")? {
        worker.api_key = Some(Secret::new(key));
    }
    if let Some(models) = fields.take("models") {
        worker.models = serde_json::from_value(models)
            .map_err(|_| Wrong::field("models", "must be a list of names"))?;
    }
    worker.assume_ready = fields.flag("assume_ready")?;
    if let Some(events) = fields.take("kv_events") {
        let read = KvEventsSettings::from_json(&events);
        worker.kv_events = Some(read.map_err(|(field, message)| Wrong::field(&field, message))?);
    }
    Ok(())
}

/// Stops new work on a worker.
pub(super) fn drain(gateway: &Gateway, name: &str, mut fields: Fields) -> Result<Answer, Wrong> {
    let (pool, name) = known(gateway, name)?;
    let deadline = match fields.take("deadline") {
        None => None,
        Some(value) => Some(read_deadline(&value)?),
    };
    fields.finish("deadline")?;
    pool.drain(&name, deadline)
        .map_err(|error| Wrong::missing(error.to_string()))?;
    tracing::info!(pool = %pool.name, worker = %name, "worker drains");
    Ok(shown(gateway, &pool, &name, StatusCode::OK))
}

fn read_deadline(value: &Value) -> Result<Duration, Wrong> {
    let parsed = match value {
        Value::String(text) => parse_duration(text),
        Value::Number(seconds) => seconds
            .as_f64()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        _ => None,
    };
    parsed.ok_or_else(|| Wrong::field("deadline", "must be seconds, or a duration such as 30s"))
}

/// Lets a worker take new work again.
pub(super) fn resume(gateway: &Gateway, name: &str) -> Result<Answer, Wrong> {
    let (pool, name) = known(gateway, name)?;
    pool.resume(&name)
        .map_err(|error| Wrong::missing(error.to_string()))?;
    tracing::info!(pool = %pool.name, worker = %name, "worker resumes");
    Ok(shown(gateway, &pool, &name, StatusCode::OK))
}

/// Removes a worker.
pub(super) fn remove(gateway: &Gateway, name: &str) -> Result<Answer, Wrong> {
    let (pool, name) = known(gateway, name)?;
    gateway
        .fleet
        .remove(&pool, &name)
        .map_err(|error| Wrong::missing(error.to_string()))?;
    tracing::info!(pool = %pool.name, worker = %name, "worker removed");
    Ok(json_answer(
        StatusCode::OK,
        &json!({ "removed": name, "pool": pool.name }),
    ))
}

fn shown(gateway: &Gateway, pool: &Pool, name: &str, status: StatusCode) -> Answer {
    let view = pool
        .views()
        .into_iter()
        .find(|named| named.upstream.name == name)
        .map_or(Value::Null, |named| show(gateway, pool, &named));
    json_answer(status, &view)
}

fn find(gateway: &Gateway, name: &str) -> Option<Arc<Pool>> {
    gateway
        .pools
        .iter()
        .find(|pool| pool.upstream_named(name).is_some())
        .cloned()
}

fn known(gateway: &Gateway, name: &str) -> Result<(Arc<Pool>, String), Wrong> {
    find(gateway, name)
        .map(|pool| (pool, name.to_owned()))
        .ok_or_else(|| {
            let workers: Vec<_> = gateway.pools.iter().flat_map(|p| p.upstreams()).collect();
            Wrong::unknown("worker", name, workers.iter().map(|w| w.name.as_str()))
        })
}

fn pool_of(gateway: &Gateway, name: Option<&str>) -> Result<Arc<Pool>, Wrong> {
    let names = || {
        let names: Vec<&str> = gateway.pools.iter().map(|p| p.name.as_str()).collect();
        names.join(", ")
    };
    match (name, gateway.pools.as_slice()) {
        (Some(name), _) => gateway.pool(name).cloned().ok_or_else(|| {
            Wrong::field("pool", format!("no pool `{name}`; there are: {}", names()))
        }),
        (None, [only]) => Ok(Arc::clone(only)),
        (None, _) => Err(Wrong::field(
            "pool",
            format!("is missing; there are: {}", names()),
        )),
    }
}
