//! The `pools` of a configuration file.

use super::identity;
use super::isolation;
use super::kv_events;
use super::line;
use super::options;
use super::problem::Problem;
use super::settings::{EngineChoice, PoolSettings, Secret, WorkerSettings};
use super::tree::{Field, Section, Value};
use maitred_core::limits::{ATTEMPTS_MAX, WORKERS_MAX};
use maitred_core::place::PolicyConfig;
use maitred_core::pool::Seats;
use maitred_core::scheduler::LostResponse;
use maitred_engine::EngineKind;

const ENGINES: [&str; 7] = [
    "auto", "vllm", "sglang", "llamacpp", "tgi", "maitred", "generic",
];

/// Takes `pools`, and checks what must hold among them.
pub(super) fn read_pools(
    top: &mut Section<'_>,
    salts: bool,
    problems: &mut Vec<Problem>,
) -> Vec<PoolSettings> {
    let Some(field) = top.take("pools") else {
        problems.push(top.problem("pools", "is missing; at least one pool is needed"));
        return Vec::new();
    };
    let Value::List(list) = &field.node.value else {
        problems.push(field.wrong_kind("a list of pools"));
        return Vec::new();
    };
    if list.is_empty() {
        problems.push(field.problem("at least one pool is needed"));
    }
    let mut taken = Taken {
        salts,
        ..Taken::default()
    };
    let mut pools = Vec::new();
    for item in field.items() {
        match Section::open(&item) {
            Ok(section) => pools.push(read_pool(section, list.len() > 1, &mut taken, problems)),
            Err(problem) => problems.push(problem),
        }
    }
    pools
}

/// Names that must be unique in the whole gateway, and what pools share.
#[derive(Default)]
struct Taken {
    pools: Vec<String>,
    models: Vec<String>,
    workers: Vec<String>,
    /// There is a secret to make salts with.
    salts: bool,
}

/// Notes a name, or says that it is there already.
fn claim(taken: &mut Vec<String>, name: &str, field: &Field<'_>) -> Result<(), Problem> {
    if taken.iter().any(|t| t == name) {
        return Err(field.problem(format!("`{name}` is there already")));
    }
    taken.push(name.to_owned());
    Ok(())
}

fn read_pool(
    mut section: Section<'_>,
    several: bool,
    taken: &mut Taken,
    problems: &mut Vec<Problem>,
) -> PoolSettings {
    let mut pool = PoolSettings::named("default");
    read_names(&mut section, &mut pool, several, taken, problems);
    if let Some(field) = section.take("policy") {
        match options::read::<PolicyConfig>(&field) {
            Ok(policy) => pool.core.policy = policy,
            Err(problem) => problems.push(problem),
        }
    }
    line::read(&mut section, &mut pool, problems);
    read_scheduling(&mut section, &mut pool, problems);
    read_signals(&mut section, &mut pool, problems);
    read_data_path(&mut section, &mut pool, problems);
    section.set(problems, "engine", &mut pool.engine, read_engine);
    read_seats(&mut section, &mut pool.seats, problems);
    if let Some(field) = section.take("workers") {
        read_workers(&field, &mut pool, taken, problems);
    }
    isolation::check(&section, &pool, taken.salts, problems);
    if let Some(field) = section.take("identity") {
        pool.identity = identity::read(&field, problems);
    }
    // The ranges above are the core's own; this is the net beneath them.
    if let Err(error) = pool.core.validate() {
        let message = format!("must be {}", error.allowed);
        problems.push(section.problem(error.setting, message));
    }
    section.finish(problems);
    pool
}

fn read_names(
    section: &mut Section<'_>,
    pool: &mut PoolSettings,
    several: bool,
    taken: &mut Taken,
    problems: &mut Vec<Problem>,
) {
    match section.take("name") {
        Some(field) => match field
            .name()
            .and_then(|name| claim(&mut taken.pools, &name, &field).map(|()| name))
        {
            Ok(name) => pool.name = name,
            Err(problem) => problems.push(problem),
        },
        None if several => {
            problems.push(section.problem("name", "is needed where there are several pools"));
        }
        None => {}
    }
    match section.take("model") {
        Some(field) => match field
            .text()
            .and_then(|model| claim(&mut taken.models, model, &field).map(|()| model))
        {
            Ok(model) => pool.model = Some(model.to_owned()),
            Err(problem) => problems.push(problem),
        },
        None if several => {
            problems.push(section.problem("model", "is needed where there are several pools"));
        }
        None => {}
    }
    let aliases = section.take("aliases");
    if let Some(field) = &aliases {
        if pool.model.is_none() {
            problems.push(field.problem("aliases need a `model` that they stand for"));
        }
        for item in field.items() {
            match item
                .text()
                .and_then(|alias| claim(&mut taken.models, alias, &item).map(|()| alias))
            {
                Ok(alias) => pool.aliases.push(alias.to_owned()),
                Err(problem) => problems.push(problem),
            }
        }
        // Workers know the model by its own name, not by ours.
        pool.upstream_model.clone_from(&pool.model);
    }
    section.set(
        problems,
        "upstream_model",
        &mut pool.upstream_model,
        |field| field.text().map(|model| Some(model.to_owned())),
    );
}

fn read_scheduling(
    section: &mut Section<'_>,
    pool: &mut PoolSettings,
    problems: &mut Vec<Problem>,
) {
    let core = &mut pool.core;
    let attempts = 1..=u64::from(ATTEMPTS_MAX);
    section.set_count(problems, "attempts", &mut core.attempts, attempts);
    section.set_duration(problems, "hold_max", &mut core.hold_max);
    section.set_count(problems, "line_max", &mut core.line_max, 0..=10_000_000);
    section.set_period(problems, "max_wait", &mut core.max_wait);
    section.set_duration(problems, "no_worker_wait", &mut core.no_worker_wait);
    section.set_period(problems, "session_idle", &mut core.session_idle);
    section.set_count(
        problems,
        "sessions_max",
        &mut core.sessions_max,
        1..=100_000_000,
    );
    section.set_bytes(
        problems,
        "index_bytes_max",
        &mut core.index_bytes_max,
        65_536..=(1 << 40),
    );
    section.set_count(problems, "block_bytes", &mut core.block_bytes, 16..=4_096);
    section.set(problems, "learn_slots", &mut core.learn_slots, Field::flag);
    section.set_period(problems, "stale_after", &mut core.stale_after);
    section.set_count(
        problems,
        "kv_tokens_assumed",
        &mut core.kv_tokens,
        1..=u64::MAX,
    );
    section.set_count(
        problems,
        "output_tokens",
        &mut core.output_tokens,
        1..=10_000_000,
    );
    if let Some(mut breaker) = section.section(problems, "breaker") {
        breaker.set_count(problems, "faults", &mut core.breaker.faults, 1..=1_000_000);
        breaker.set_period(problems, "open", &mut core.breaker.open);
        breaker.finish(problems);
    }
    section.set(
        problems,
        "lost_response",
        &mut core.lost_response,
        |field| match field.text()? {
            "place" => Ok(LostResponse::Place),
            "refuse" => Ok(LostResponse::Refuse),
            _ => Err(field.problem("must be place or refuse")),
        },
    );
}

fn read_signals(section: &mut Section<'_>, pool: &mut PoolSettings, problems: &mut Vec<Problem>) {
    if let Some(mut probe) = section.section(problems, "probe") {
        let core = &mut pool.core.probes;
        probe.set_period(problems, "interval", &mut pool.probe.interval);
        probe.set_period(problems, "interval_down", &mut pool.probe.interval_down);
        probe.set_period(problems, "timeout", &mut pool.probe.timeout);
        probe.set_count(problems, "failures", &mut core.failures, 1..=1_000_000);
        probe.set_duration(problems, "bytes_count_for", &mut core.bytes_count_for);
        probe.set(problems, "path", &mut pool.probe.path, |field| {
            let path = field.text()?;
            let good = path.starts_with('/') && path.parse::<http::uri::PathAndQuery>().is_ok();
            if good {
                Ok(Some(path.to_owned()))
            } else {
                Err(field.problem("must be a path such as /health"))
            }
        });
        probe.finish(problems);
    }
    if let Some(mut scrape) = section.section(problems, "scrape") {
        scrape.set_duration(problems, "interval", &mut pool.scrape.interval);
        scrape.set_period(problems, "timeout", &mut pool.scrape.timeout);
        scrape.finish(problems);
    }
}

fn read_data_path(section: &mut Section<'_>, pool: &mut PoolSettings, problems: &mut Vec<Problem>) {
    if let Some(mut idle) = section.section(problems, "idle_connections") {
        idle.set_duration(problems, "timeout", &mut pool.idle.timeout);
        idle.set_count(problems, "max", &mut pool.idle.connections_max, 0..=100_000);
        idle.finish(problems);
    }
    section.set_duration(problems, "queue_heartbeat", &mut pool.queue_heartbeat);
    section.set(
        problems,
        "pass_credentials",
        &mut pool.pass_credentials,
        Field::flag,
    );
    section.set(
        problems,
        "developer_as_system",
        &mut pool.developer_as_system,
        Field::flag,
    );
    isolation::read(section, pool, problems);
    section.set(problems, "api_key", &mut pool.api_key, read_api_key);
    section.set_count(
        problems,
        "token_block",
        &mut pool.core.token_block,
        1..=4_096,
    );
}

fn read_workers(
    field: &Field<'_>,
    pool: &mut PoolSettings,
    taken: &mut Taken,
    problems: &mut Vec<Problem>,
) {
    let Value::List(list) = &field.node.value else {
        problems.push(field.wrong_kind("a list of workers"));
        return;
    };
    if list.len() > WORKERS_MAX {
        problems.push(field.problem(format!("a pool has at most {WORKERS_MAX} workers")));
        return;
    }
    for item in field.items() {
        let worker = match &item.node.value {
            Value::Text(_) => read_worker_url(&item, pool)
                .and_then(|worker| claim(&mut taken.workers, &worker.name, &item).map(|()| worker))
                .map_err(|problem| problems.push(problem))
                .ok(),
            Value::Map(_) => Section::open(&item)
                .map_err(|problem| problems.push(problem))
                .ok()
                .and_then(|section| read_worker(section, pool, taken, problems)),
            _ => {
                problems.push(item.wrong_kind("a URL or a mapping with `url`"));
                None
            }
        };
        pool.workers.extend(worker);
    }
}

fn read_worker_url(field: &Field<'_>, pool: &PoolSettings) -> Result<WorkerSettings, Problem> {
    let url = field.text()?;
    pool.worker(url).map_err(|message| field.problem(message))
}

fn read_worker(
    mut section: Section<'_>,
    pool: &PoolSettings,
    taken: &mut Taken,
    problems: &mut Vec<Problem>,
) -> Option<WorkerSettings> {
    let Some(url) = section.take("url") else {
        problems.push(section.problem("url", "is missing"));
        section.take("name");
        return None;
    };
    let mut worker = match read_worker_url(&url, pool) {
        Ok(worker) => worker,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    let name = section.take("name");
    let named = match &name {
        Some(field) => field.name(),
        None => Ok::<String, Problem>(worker.name.clone()),
    };
    let place = name.as_ref().unwrap_or(&url);
    match named.and_then(|name| claim(&mut taken.workers, &name, place).map(|()| name)) {
        Ok(name) => worker.name = name,
        Err(problem) => problems.push(problem),
    }
    read_seats(&mut section, &mut worker.seats, problems);
    section.set(problems, "engine", &mut worker.engine, read_engine);
    section.set(problems, "api_key", &mut worker.api_key, read_api_key);
    section.set(
        problems,
        "assume_ready",
        &mut worker.assume_ready,
        Field::flag,
    );
    if let Some(field) = section.take("models") {
        worker.models = field.texts(problems);
    }
    if let Some(field) = section.take("kv_events") {
        worker.kv_events = kv_events::read(&field, problems);
    }
    section.finish(problems);
    Some(worker)
}

fn read_seats(section: &mut Section<'_>, seats: &mut Seats, problems: &mut Vec<Problem>) {
    section.set(problems, "slots", &mut seats.slots, |field| {
        let slots = field.count(&(1..=u64::from(u32::MAX)))?;
        Ok(u32::try_from(slots).ok())
    });
    section.set(
        problems,
        "prefill_tokens",
        &mut seats.prefill_tokens,
        |field| field.count(&(1..=u64::MAX)).map(Some),
    );
    section.set(problems, "kv_tokens", &mut seats.kv_tokens, |field| {
        field.count(&(1..=u64::MAX)).map(Some)
    });
}

/// A key becomes the value of an `Authorization` header.
fn read_api_key(field: &Field<'_>) -> Result<Option<Secret>, Problem> {
    let key = field.text()?;
    // Workers would get a credential that is none.
    if key.trim().is_empty() {
        return Err(field.problem("must not be empty: leave it out"));
    }
    if http::HeaderValue::from_str(key).is_err() {
        return Err(field.problem("has characters that a header cannot carry"));
    }
    Ok(Some(Secret::new(key)))
}

fn read_engine(field: &Field<'_>) -> Result<EngineChoice, Problem> {
    let name = field.text()?;
    parse_engine(name).ok_or_else(|| {
        field.problem(format!(
            "unknown engine `{name}`; known: {}",
            ENGINES.join(", ")
        ))
    })
}

/// The engine of that name; `auto`: to be found out.
pub(crate) fn parse_engine(name: &str) -> Option<EngineChoice> {
    if name == "auto" {
        return Some(EngineChoice::Auto);
    }
    serde_json::from_value::<EngineKind>(serde_json::Value::from(name))
        .ok()
        .map(EngineChoice::Kind)
}
